"""The seam to tools: one governed call, one result.

A tool failure is data (`ToolResult.error`) and goes back to the model. Only what is broken in Foliot itself is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct

from foliot.errors import FoliotError
from foliot.kernel.messages import ToolResult

Effect: TypeAlias = Literal["read", "idempotent", "once"]
OnUnknown: TypeAlias = Literal["ask", "fail", "retry"]
OnOutput: TypeAlias = Callable[[str], None]


class Invocation(Struct, frozen=True):
    """One call as a tool receives it. `arguments` are parsed and were checked against the tool's schema.

    `idempotency_key` is the same for every attempt of the same call, across crashes and machines: a backend that
    remembers it can make a `once` tool safe to repeat.
    """

    run_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    idempotency_key: str
    namespace: str = "default"
    agent: str = ""
    step: int = 0
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What is known of a tool before it is called. `schema` is a JSON Schema (2020-12) of the arguments, or None."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] | None = None
    effect: Effect = "once"
    on_unknown: OnUnknown = "ask"
    timeout: float | None = 30.0
    version: str = "0.1.0"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Tool(Protocol):
    """One backend behind one name."""

    @property
    def definition(self) -> ToolDefinition: ...

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Do it. The value becomes the result: text as it is, `Text`/`Media` parts as parts, anything else as JSON.

        Raises `ToolError` to say precisely what went wrong; any other exception counts as `execution_failed`.
        """
        ...


class Admitted(Protocol):
    """A call that passed every gate. Nothing has acted yet."""

    async def run(self, *, on_output: OnOutput | None = None) -> ToolResult:
        """Act. Exactly one result, whatever happens; raises only `asyncio.CancelledError`."""
        ...


class Toolbox(Protocol):
    """All tools that one runtime can call, behind the one pipeline.

    A call has two halves, so that its start can be made durable between them: `admit` decides and has no effect,
    `Admitted.run` acts.
    """

    def definition(self, name: str) -> ToolDefinition | None: ...

    async def admit(self, call: Invocation) -> Admitted | ToolResult:
        """The call, ready to act, or the result that refuses it."""
        ...


class ToolError(FoliotError):
    """A tool call that did not succeed. `code` and `reason` are stable; `kind` is what repairs and policies go by."""

    code: ClassVar[str] = "execution_failed"
    reason: ClassVar[str] = "tool_backend_failure"
    kind: ClassVar[str] = "execution"
    http = 502
    retryable = True


class ToolArgumentsInvalid(ToolError):
    code, reason, kind = "invalid_input", "tool_invalid_input", "invalid_arguments"
    retryable = False


class ToolUnsupported(ToolError):
    code, reason, kind = "unsupported_tool", "tool_unsupported", "unknown_tool"
    retryable = False


class ToolDenied(ToolError):
    code, reason, kind = "permission_denied", "tool_permission_denied", "denied"
    http = 403
    retryable = False


class ToolTimeout(ToolError):
    code, reason, kind = "timeout", "tool_execution_timeout", "timeout"
    retryable = True
