"""The one way to a tool's backend, readable from top to bottom.

Every call, from a model, a person or a program, passes these stages in this order; no entry point has a way around
them. Stages nest like envelopes: the first is opened first and closed last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from foliot.errors import Conflict
from foliot.kernel.messages import ToolResult
from foliot.tools.base import Invocation, OnOutput, Tool, ToolDefinition, ToolUnsupported
from foliot.tools.result import failure_result, success_result
from foliot.tools.stages.arguments import CheckArguments
from foliot.tools.stages.timeout import Timeout

Handler: TypeAlias = Callable[[Invocation], Awaitable[Any]]


class Stage(Protocol):
    """May refuse a call (by raising a `ToolError`), change it, time it or repeat it; otherwise awaits `next`."""

    async def __call__(self, call: Invocation, *, next: Handler) -> Any: ...


def stages_for(definition: ToolDefinition) -> tuple[Stage, ...]:
    """The stages of one tool, outermost first. Built once per tool, so a call pays only for what it uses."""
    stages: list[Stage] = []
    if definition.schema is not None:
        stages.append(CheckArguments(definition.name, definition.schema))
    if definition.timeout:
        stages.append(Timeout(definition.timeout))
    return tuple(stages)


def compose(stages: Sequence[Stage], backend: Handler) -> Handler:
    if not stages:
        return backend
    return partial(stages[0], next=compose(stages[1:], backend))


class Pipeline:
    """A `Toolbox`: named tools, each behind its composed stages."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Make a tool callable. Raises `Conflict` when another tool has its name."""
        name = tool.definition.name
        if self._tools.get(name, tool) is not tool:
            raise Conflict(f"two tools are named {name!r}", hint="Give one of them another name.")
        self._tools[name] = tool
        self._stages[name] = stages_for(tool.definition)

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]:
        return {name: tool.definition for name, tool in self._tools.items()}

    def definition(self, name: str) -> ToolDefinition | None:
        tool = self._tools.get(name)
        return tool.definition if tool else None

    async def call(self, call: Invocation, *, on_output: OnOutput | None = None) -> ToolResult:
        tool = self._tools.get(call.tool)
        if tool is None:
            return failure_result(call, unknown_tool(call.tool, self._tools))
        handler = compose(self._stages[call.tool], partial(tool.invoke, on_output=on_output))
        try:
            return success_result(call, await handler(call))
        except Exception as error:
            # A tool may raise anything; whatever it is, the model gets exactly one result.
            return failure_result(call, error)


def unknown_tool(name: str, known: Iterable[str]) -> Exception:
    return ToolUnsupported(f"there is no tool named {name!r}; there are: {', '.join(sorted(known)) or 'none'}")
