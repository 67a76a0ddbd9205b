"""Tasks on a real database with a worker in the same process; agents answer by a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from foliot.bus.local import LocalTransport
from foliot.engine.driver.runs import Runs
from foliot.errors import NotFound
from foliot.kernel.messages import Message, ModelResponse, Text, Usage
from foliot.kernel.run.spec import Repairs, RunSpec
from foliot.resources.references import Origin
from foliot.store.base import Database
from foliot.store.journal.database import SqlJournal
from foliot.store.queue.claims import claim
from foliot.store.queue.placement import Offer
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Bundles
from foliot.work.tasks.service import TaskService
from foliot.work.worker.performer import TaskPerformer

Answer = Callable[[str, str], Any]


def echo(agent: str, told: str) -> str:
    return f"{agent}({told})"


class Definitions:
    """Systems by name; every agent there is."""

    def __init__(self, systems: dict[str, dict[str, Any]]) -> None:
        self.systems = systems
        self.templates: dict[str, dict[str, Any]] = {}
        self.missing: set[str] = set()
        self.changes = 0
        self.prompt = "be brief"
        self.model_attempts = 0

    async def version(self):
        return self.changes

    async def has_skills(self, namespace: str, user: str, version: object) -> bool:
        return False

    async def agent(self, namespace: str, name: str, *, user: str = "") -> tuple[RunSpec, str]:
        if name in self.missing:
            raise NotFound(f"there is no agent {name!r}")
        spec = RunSpec(name, "m", namespace=namespace, system=self.prompt, repairs=Repairs(model=self.model_attempts))
        return spec, f"sha256:{name}"

    async def system(self, namespace: str, name: str):
        if name not in self.systems:
            raise NotFound(f"there is no system {name!r}")
        document = {
            "kind": "AgentSystem",
            "metadata": {"name": name, "namespace": namespace},
            "spec": self.systems[name],
        }
        return document, f"sha256:{name}"

    async def template(self, ref: str, origin: Origin):
        name = ref.rpartition("/")[2]
        if name not in self.templates:
            raise NotFound(f"there is no task {name!r}")
        return self.templates[name]


class Model:
    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def ask(self, spec, request, *, on_delta=None):
        told = request.messages[0].text
        self._kit.asked.append((spec.agent, told))
        said = self._kit.answer(spec.agent, told)
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, Exception):
            raise said
        return ModelResponse(Message("assistant", (Text(said),)), Usage(10, 5, cost_usd=0.01), "end")


class Kit:
    """`clock` is moved by hand."""

    def __init__(self, db: Database, systems: dict[str, dict[str, Any]], answer: Answer = echo) -> None:
        self.db = db
        self.now = 1_000.0
        self.answer = answer
        self.asked: list[tuple[str, str]] = []
        self.definitions = Definitions(dict(systems))
        self.journal = SqlJournal(db, clock=self.clock)
        self.transport = LocalTransport()
        self.runs = Runs(journal=self.journal, models=Model(self), tools=Pipeline(), clock=self.clock, worker="w")
        bundles = Bundles(self.journal)
        self.performer = TaskPerformer(db, self.runs, bundles, self.transport, toolbox=self.toolbox, clock=self.clock)
        self.tasks = TaskService(db, bundles, self.definitions, self.transport, clock=self.clock, wake=self.end_here)
        self.offer = Offer("w", "w", capacity=16)

    def clock(self) -> float:
        return self.now

    async def toolbox(self, spec: RunSpec) -> Pipeline:
        return Pipeline()

    async def end_here(self, run_id: str) -> None:
        lease = await self.journal.claim(run_id, worker="w", now=self.now, until=self.now + 30)
        await self.performer.perform(lease)

    async def claim(self, want: int = 16):
        return (await claim(self.db, self.offer, want=want, now=self.now, until=self.now + 30)).leases

    async def work(self, rounds: int = 50) -> None:
        """Do everything that is due, as a worker would."""
        for _ in range(rounds):
            leases = await self.claim()
            if not leases:
                return
            await self.performer.prepare(leases)
            await asyncio.gather(*(self.performer.perform(lease) for lease in leases))
        raise AssertionError("there is always more to do")

    async def accept(self, system: str, message: str = "go", **given: Any):
        return await self.tasks.accept(Command("system", system, message=message, **given))

    async def end_of(self, name: str):
        return (await self.tasks.events("default", name))[-1].event

    async def close(self) -> None:
        await self.runs.close()
        await self.transport.close()
