"""The one way to a tool's backend, readable from top to bottom.

Every call, from a model, a person or a program, passes these stages in this order; no entry point has a way around
them. *Gates* decide whether the call may act and change nothing. Between the gates and the rest its start is made
durable by whoever runs the call. *Stages* then nest around the backend like envelopes: the first is opened first and
closed last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from foliot.errors import Conflict
from foliot.kernel.messages import ToolResult
from foliot.tools.base import (
    Admitted,
    ApprovalNeeded,
    Invocation,
    OnOutput,
    Parked,
    Tool,
    ToolDefinition,
    ToolDenied,
    ToolUnsupported,
)
from foliot.tools.result import failure_result, success_result
from foliot.tools.stages.arguments import CheckArguments
from foliot.tools.stages.timeout import Timeout

Handler: TypeAlias = Callable[[Invocation], Awaitable[Any]]


class Gate(Protocol):
    """Refuses a call by raising a `ToolError`; otherwise returns the call, perhaps narrowed."""

    async def __call__(self, call: Invocation) -> Invocation: ...


class Stage(Protocol):
    """May time a call or repeat it; otherwise awaits `next`."""

    async def __call__(self, call: Invocation, *, next: Handler) -> Any: ...


def gates_for(definition: ToolDefinition) -> tuple[Gate, ...]:
    """What a call of this tool must pass, in order. Built once per tool, so a call pays only for what it uses."""
    if definition.schema is None:
        return ()
    return (CheckArguments(definition.name, definition.schema),)


def stages_for(definition: ToolDefinition) -> tuple[Stage, ...]:
    """What stands around the backend of this tool, outermost first."""
    return (Timeout(definition.timeout),) if definition.timeout else ()


def compose(stages: Sequence[Stage], backend: Handler) -> Handler:
    if not stages:
        return backend
    return partial(stages[0], next=compose(stages[1:], backend))


class Pipeline:
    """A `Toolbox`: named tools, each behind its gates and stages."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._gates: dict[str, tuple[Gate, ...]] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Make a tool callable. Raises `Conflict` when another tool has its name."""
        name = tool.definition.name
        if self._tools.get(name, tool) is not tool:
            raise Conflict(f"two tools are named {name!r}", hint="Give one of them another name.")
        self._tools[name] = tool
        self._gates[name] = gates_for(tool.definition)
        self._stages[name] = stages_for(tool.definition)

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]:
        return {name: tool.definition for name, tool in self._tools.items()}

    def definition(self, name: str) -> ToolDefinition | None:
        tool = self._tools.get(name)
        return tool.definition if tool else None

    async def admit(self, call: Invocation) -> Admitted | Parked | ToolResult:
        tool = self._tools.get(call.tool)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return failure_result(call, ToolUnsupported(f"there is no tool named {call.tool!r}; there are: {known}"))
        try:
            for gate in self._gates[call.tool]:
                call = await gate(call)
        except ApprovalNeeded as needed:
            return needed.parked
        except Exception as error:
            # Governance fails closed: a gate that breaks refuses the call.
            return failure_result(call, error)
        return AdmittedCall(tool, self._stages[call.tool], call)

    async def call(self, call: Invocation, *, on_output: OnOutput | None = None) -> ToolResult:
        """Both halves at once, for callers that keep no journal."""
        admitted = await self.admit(call)
        if isinstance(admitted, Parked):
            return failure_result(call, ToolDenied(f"{call.tool!r} needs an approval: {admitted.reason}"))
        return admitted if isinstance(admitted, ToolResult) else await admitted.run(on_output=on_output)


class AdmittedCall:
    __slots__ = ("_call", "_stages", "_tool")

    def __init__(self, tool: Tool, stages: tuple[Stage, ...], call: Invocation) -> None:
        self._tool = tool
        self._stages = stages
        self._call = call

    async def run(self, *, on_output: OnOutput | None = None) -> ToolResult:
        handler = compose(self._stages, partial(self._tool.invoke, on_output=on_output))
        try:
            return success_result(self._call, await handler(self._call))
        except Exception as error:
            # A tool may raise anything; whatever it is, the model gets exactly one result.
            return failure_result(self._call, error)
