"""Tasks on top of a runtime: what the work room needs, put together from what a runtime has."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from foliot.assembly import Assembly
from foliot.bus.base import Ticket, Transport
from foliot.engine.base import Clock
from foliot.engine.references import References
from foliot.engine.runs import Runs
from foliot.kernel.spec import RunSpec
from foliot.resources.digest import definition_digest
from foliot.resources.references import Origin
from foliot.settings import Settings
from foliot.store.base import Database, Document, Key, ResourceStore
from foliot.store.placement import Offer
from foliot.store.runs import TASK_LABEL, RunInfo
from foliot.work.bundle import Bundles
from foliot.work.housekeeping import Housekeeper, Retention
from foliot.work.performing import TaskPerformer
from foliot.work.story.reading import Stories
from foliot.work.tasks import TaskService
from foliot.work.worker import Worker

if TYPE_CHECKING:
    from foliot.engine.relay import Relay

GRACE: Final = 30.0


class StoredDefinitions:
    """`Definitions` of a runtime: Python objects that it knows first, then what is in the store."""

    def __init__(self, assembly: Assembly, resources: ResourceStore) -> None:
        self._assembly = assembly
        self._resources = resources
        self._references = References(resources)

    async def version(self) -> Hashable:
        """See `Definitions`."""
        return await self._resources.revision(), self._assembly.generation

    async def agent(self, namespace: str, name: str) -> tuple[RunSpec, str]:
        """See `Definitions`."""
        agent = self._assembly.known(namespace, name) or await self._assembly.agent(f"{namespace}/{name}")
        return await self._assembly.freeze(agent), agent.digest

    async def system(self, namespace: str, name: str) -> tuple[Document, str]:
        """See `Definitions`."""
        document = await self._resources.get(Key("AgentSystem", namespace, name))
        return document, definition_digest(document)

    async def template(self, ref: str, origin: Origin) -> Document:
        """See `Definitions`."""
        return await self._resources.get(await self._references.resolve(origin, "Task", ref))


class Tasking:
    """The tasks of one runtime, and whoever does their runs here. Closing it closes the transport."""

    def __init__(
        self,
        database: Database,
        resources: ResourceStore,
        runs: Runs,
        assembly: Assembly,
        transport: Transport,
        *,
        clock: Clock,
        wall: Clock | None = None,
        stream: bool = False,
        relay: Relay | None = None,
    ) -> None:
        """`wall` is the clock of this machine, for workers to tell by how much it is off."""
        self.transport = transport
        self._relay = relay
        self.database = database
        bundles = Bundles(runs.journal)
        self.performer = TaskPerformer(
            database, runs, bundles, transport, toolbox=assembly.pipeline_here, clock=clock, stream=stream
        )
        self.tasks = TaskService(
            database,
            bundles,
            StoredDefinitions(assembly, resources),
            transport,
            clock=clock,
            wake=self._end_here,
        )
        self.stories = Stories(self.tasks, runs, database, clock=clock)
        self._runs = runs
        self._resources = resources
        self._clock = clock
        self._wall = wall

    def housekeeper(self, settings: Settings) -> Housekeeper:
        """Who forgets what is old in this store, for `await housekeeper.run()` beside a worker or a server."""
        return Housekeeper(self.database, self._resources, Retention.of(settings), clock=self._clock)

    def worker(self, offer: Offer, *, grace: float = GRACE, once: bool = False) -> Worker:
        """A worker in this process, for `await worker.run()`. The identity of the offer must be `Runs.worker`.

        Its runs can be read along from other processes.
        """
        if self._relay is not None:
            self._relay.start()
        return Worker(
            self.database,
            self.transport,
            self.performer,
            offer,
            timers=self._timers,
            clock=self._clock,
            lease_clock=self._runs.lease_clock,
            wall=self._wall,
            lease_seconds=self._runs.lease_seconds,
            grace=grace,
            once=once,
            lacking=self.performer.lacking,
        )

    async def _timers(self, now: float) -> float | None:
        await self._runs.sweep()
        return await self.tasks.timers(now)

    async def ring(self, info: RunInfo) -> None:
        """Something was said to a run of a task: let a worker know that it can go on."""
        now = self._clock()
        ticket = Ticket(f"{info.id}/{now}", info.id, info.namespace, info.agent, info.labels[TASK_LABEL], due_at=now)
        await self.transport.publish([ticket])

    async def _end_here(self, run_id: str) -> None:
        """Take a run that nobody holds and let it hear what it was told. Raises `Held`, `Conflict`."""
        now = self._runs.lease_clock()
        lease = await self._runs.journal.claim(
            run_id, worker=self._runs.worker, now=now, until=now + self._runs.lease_seconds
        )
        await self.performer.perform(lease)

    async def close(self) -> None:
        """Let go of the transport."""
        await self.transport.close()
