"""The cast of a workshop: systems of every shape, agents whose answers follow from their input, and tools.

An answer depends on nothing but the agent and its input. So whatever the order and the faults, a task that succeeds has
one right output, and a world without faults says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, Final

from foliot.errors import NotFound
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolSpec, Usage
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.spec import Effect, Repairs, RunSpec, ToolRule
from foliot.models.base import ModelOverloaded, OnDelta
from foliot.resources.references import Origin
from foliot.store.base import Document
from foliot.tools.base import Invocation, OnOutput, ToolDefinition
from simulators.engine.process import Mortal
from simulators.engine.virtual_loop import OWNER

_ANY: Final = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
_EFFECTS: Final[tuple[tuple[str, Effect], ...]] = (("look", "read"), ("save", "idempotent"), ("pay", "once"))
RULES: Final = tuple(ToolRule(ToolSpec(name, "", dict(_ANY)), effect) for name, effect in _EFFECTS)


def _system(agents: str, graph: dict[str, Any] | None = None, max_turns: int | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"agents": agents.split(), "graph": graph or {}}
    if max_turns is not None:
        spec["max_turns"] = max_turns
    return spec


def _edges(*to: str, join: dict[str, Any] | None = None, when: dict[str, str] | None = None) -> dict[str, Any]:
    edges = [{"to": name, **({"when": when} if when else {})} for name in to]
    return {"edges": edges, **({"join": join} if join else {})}


SYSTEMS: Final[dict[str, dict[str, Any]]] = {
    "pipeline": _system("a b c"),
    "hierarchy": _system(
        "m l1 l2 w1 w2 e",
        {
            "m": _edges("l1", "l2"),
            "l1": _edges("w1"),
            "l2": _edges("w2"),
            "w1": _edges("e"),
            "w2": _edges("e"),
            "e": _edges(join={"mode": "wait_for_all"}),
        },
    ),
    "loop": _system("a b", {"a": _edges("b"), "b": _edges("a")}, 4),
    "swarm": _system(
        "c s1 s2 z",
        {"c": _edges("s1", "s2", "z", join={"mode": "wait_for_all"}), "s1": _edges("c"), "s2": _edges("c")},
        4,
    ),
    "diamond": _system(
        "a b c d",
        {"a": _edges("b", "c"), "b": _edges("d"), "c": _edges("d"), "d": _edges(join={"mode": "wait_for_all"})},
    ),
}


class Troupe:
    """The `Definitions` of a workshop."""

    async def version(self) -> Hashable:
        return 1

    async def has_skills(self, namespace: str, user: str, version: Hashable) -> bool:
        return False

    async def agent(self, namespace: str, name: str, *, user: str = "") -> tuple[RunSpec, str]:
        spec = RunSpec(
            name,
            "simulated",
            namespace=namespace,
            tools=RULES,
            limits=Limits(max_steps=6),
            repairs=Repairs(model=2, model_backoff=1.0),
        )
        return spec, f"sha256:{name}"

    async def system(self, namespace: str, name: str) -> tuple[Document, str]:
        if name not in SYSTEMS:
            raise NotFound(f"there is no system {name!r}")
        metadata = {"name": name, "namespace": namespace}
        return {"kind": "AgentSystem", "metadata": metadata, "spec": SYSTEMS[name]}, f"sha256:{name}"

    async def template(self, ref: str, origin: Origin) -> Document:
        raise NotFound(f"there is no task {ref!r}")


class Thinkers:
    """The `Models` of one process: each agent uses one tool, and then says what its name and its input make."""

    def __init__(self, process: Mortal, *, fails: float) -> None:
        self._process = process
        self._fails = fails

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        process, world = self._process, self._process.world
        await process.occasion("before an answer")
        await asyncio.sleep(world.soon())
        if world.faulty and world.maybe(self._fails):
            raise ModelOverloaded("the model is busy", retry_after=0.5)
        await process.occasion("after an answer")
        told = request.messages[0].text
        mark = blake2b(f"{spec.agent}|{told}".encode(), digest_size=4).hexdigest()
        if len(request.messages) == 1:
            name = _EFFECTS[int(mark, 16) % len(_EFFECTS)][0]
            call = ToolCall(f"c-{mark}", name, f'{{"what": "{mark}"}}')
            return ModelResponse(Message("assistant", (call,)), Usage(10, 5), "tool_calls")
        return ModelResponse(Message("assistant", (Text(f"{spec.agent}:{mark}"),)), Usage(10, 5), "end")


class Deed:
    """A tool that takes effect in the world of whichever process runs it."""

    def __init__(self, rule: ToolRule) -> None:
        self.definition = ToolDefinition(rule.name, schema=_ANY, effect=rule.effect, timeout=8.0)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        process = OWNER.get()
        assert isinstance(process, Mortal), "tools are called by simulated processes"
        world = process.world
        await process.occasion("before an effect", call.run_id)
        await asyncio.sleep(world.soon())
        world.act(process.name, call)
        await process.occasion("after an effect", call.run_id)
        await asyncio.sleep(world.soon())
        return f"{call.tool} {call.arguments['what']}"


TOOLS: Final = tuple(Deed(rule) for rule in RULES)
