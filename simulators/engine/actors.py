"""Simulated models that blunder and tools that fail, each at the mercy of its process."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final, NoReturn, cast

from foliot.kernel.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.kernel.run.spec import Effect, OnUnknown, RunSpec, ToolRule
from foliot.models.base import (
    ModelAuthError,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRateLimited,
    ModelTimeout,
    OnDelta,
)
from foliot.tools.base import Admitted, Invocation, MayAct, OnOutput, Parked, Question, ToolDefinition, ToolError
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from simulators.engine.history import Asked
from simulators.engine.process import Process
from simulators.engine.virtual_loop import OWNER

TOOL_TIMEOUT: Final = 4.0
SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_KINDS: Final[tuple[tuple[str, Effect, OnUnknown], ...]] = (
    ("look", "read", "ask"),
    ("save", "idempotent", "ask"),
    ("pay", "once", "ask"),
    ("post", "once", "retry"),
    ("launch", "once", "fail"),
    ("ask", "idempotent", "ask"),
)
CHOICES: Final = ("yes", "no")
RULES: Final = tuple(ToolRule(ToolSpec(name, "", dict(SCHEMA)), effect, unknown) for name, effect, unknown in _KINDS)


class ProcessModels:
    """The engine's `Models` in one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        process, world = self._process, self._process.world
        run_id = spec.agent
        if not world.over:
            world.history.items.append(Asked(world.loop.time(), process.name, run_id, request))
        await process.occasion("before an answer", run_id)
        slow = world.maybe(world.profile.clumsy / 2)
        await asyncio.sleep(world.chance.choice((5.0, 12.0)) if slow else world.soon())
        response = answer(world.chance, world.profile.clumsy, request)
        await process.occasion("after an answer", run_id)
        return response


def answer(chance: Random, clumsy: float, request: ModelRequest) -> ModelResponse:
    """Returns an answer that a model might give. Raises a `ModelError`, and sometimes what no gateway should raise."""
    if chance.random() < clumsy:
        _fail(chance)
    parts: list[Part] = []
    asked = sum(message.role == "assistant" for message in request.messages)
    if chance.random() < 1.0 - 0.2 * asked or chance.random() < clumsy:
        number = chance.choice((1, 1, 1, 2, 3, 5))
        parts = [_call(chance, clumsy, asked, n) for n in range(number)]
    if not parts or chance.random() < 0.2:
        parts.insert(0, Text(_text(chance, clumsy, request)))
    stop: StopReason = "tool_calls" if parts[-1].__class__ is ToolCall else "end"
    if chance.random() < clumsy / 3:
        stop = chance.choice(("length", "refusal", "other"))
    cost = None if chance.random() < clumsy else 0.01
    return ModelResponse(Message("assistant", tuple(parts)), Usage(20, 5, cost_usd=cost), stop)


def _text(chance: Random, clumsy: float, request: ModelRequest) -> str:
    if chance.random() < clumsy:
        return chance.choice(("", " ", "half a surrogate \ud800", "{", "[" * 3000))
    return '{"n": 1}' if request.output_schema is not None else "done"


def _call(chance: Random, clumsy: float, step: int, position: int) -> ToolCall:
    name = chance.choice(("unheard_of", "")) if chance.random() < clumsy else chance.choice(RULES).name
    arguments = f'{{"n": {chance.choice((1, 1, 2))}}}'
    if chance.random() < clumsy:
        arguments = chance.choice(("", "{", '{"n": "x"}', "[]", '{"n": 1', '{"n": "\\ud800"}'))
    call_id = chance.choice(("c1", "")) if chance.random() < max(clumsy, 0.1) else f"c{step}_{position}"
    return ToolCall(call_id, name, arguments)


def _fail(chance: Random) -> NoReturn:
    kind = chance.choice(
        (ModelRateLimited, ModelOverloaded, ModelOverloaded, ModelTimeout, ModelGarbage, ModelAuthError, None, None)
    )
    if kind is None:
        raise chance.choice((RuntimeError("a broken gateway"), RuntimeError("x\ud800"), TimeoutError("its own")))
    error: ModelError = kind("the model fails", retry_after=chance.choice((None, 0.0, 2.5)))
    raise error


class SimulatedTool:
    """Acts in the world of whichever process runs it, and enters that into the ledger."""

    def __init__(self, rule: ToolRule) -> None:
        self.definition = ToolDefinition(
            rule.name, schema=SCHEMA, effect=rule.effect, on_unknown=rule.on_unknown, timeout=TOOL_TIMEOUT
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        process = cast("Process", OWNER.get())
        world = process.world
        await process.occasion("before an effect", call.run_id)
        trouble = (
            world.chance.choice(
                ("late", "fail", "fail_after", "hang", "cancelled", "unsayable", "acts_and_hangs", "acts_when_stopped")
            )
            if (world.maybe(world.profile.tool_trouble))
            else ""
        )
        await asyncio.sleep(3.0 if trouble == "late" else world.soon())
        if trouble == "hang":
            await world.loop.create_future()
        if trouble == "fail":
            raise ToolError("it does not work")
        if trouble == "acts_when_stopped":  # at its time-out, or when the run is cancelled: nobody hears of it
            try:
                await world.loop.create_future()
            except asyncio.CancelledError:
                world.act(process.name, call)
                raise
        world.act(process.name, call)
        if trouble == "acts_and_hangs":
            await world.loop.create_future()
        await process.occasion("after an effect", call.run_id)
        await asyncio.sleep(world.soon())
        match trouble:
            case "fail_after":
                raise ValueError("it broke after it took effect")
            case "cancelled":
                raise asyncio.CancelledError("something inside was cancelled")
            case "unsayable":
                return "half a surrogate \udc00"
            case _:
                return f"{call.tool} {call.arguments['n']}"


class AskingTool(SimulatedTool):
    """Asks a person instead of acting. The second question has an end, and what is taken then."""

    def question(self, call: Invocation) -> Question:
        if call.arguments["n"] == 1:
            return Question("really?", CHOICES)
        return Question("really?", CHOICES, "no", seconds=8.0)


_TOOLS: Final = tuple((AskingTool if rule.name == "ask" else SimulatedTool)(rule) for rule in RULES)


class ProcessToolbox:
    """The real pipeline, on the world's clock and chance, with a state of its own in each process.

    Takes note of each call at the moment in which the engine lets it act.
    """

    def __init__(self, process: Process) -> None:
        world = process.world
        self._process = process
        self._pipeline = Pipeline(_TOOLS, PipelineParts(clock=lambda: world.now, chance=world.chance.random))

    def definition(self, name: str) -> ToolDefinition | None:
        return self._pipeline.definition(name)

    async def admit(self, call: Invocation) -> Admitted | Parked | ToolResult:
        admitted = await self._pipeline.admit(call)
        return admitted if isinstance(admitted, ToolResult | Parked) else NotedCall(self._process, call, admitted)


class NotedCall:
    def __init__(self, process: Process, call: Invocation, admitted: Admitted) -> None:
        self._process = process
        self._call = call
        self._admitted = admitted

    async def run(self, *, on_output: OnOutput | None = None, may_act: MayAct | None = None) -> ToolResult:
        self._process.world.begin(self._process.name, self._call)
        return await self._admitted.run(on_output=on_output, may_act=may_act)
