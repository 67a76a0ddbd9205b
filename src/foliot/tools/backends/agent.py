"""An agent as a tool of another: listed as `agent:<name>`, it runs as a run of its own and answers with its output.

The child's run id follows from the parent's run and the call. So a call that is made again, after a crash or by another
process, goes on with the same child and never starts a second one: the tool is idempotent.

What the child may use, how deep delegation may go and who may call whom is decided where runs are started; this is only
the tool in front of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from foliot.kernel.messages import Usage
from foliot.tools.base import Invocation, OnOutput, ToolCancelled, ToolDefinition, ToolError

PREFIX: Final = "agent:"
INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "What the agent is told. It knows nothing of this conversation."}
    },
    "required": ["input"],
    "additionalProperties": False,
}
_encode = msgspec.json.Encoder(order="deterministic").encode


class Order(Struct, frozen=True):
    """One delegation. `run_id` is the child's; `deadline` is when the call ends, in seconds since 1970."""

    agent: str
    namespace: str
    input: str
    run_id: str
    parent: str
    call_id: str
    depth: int
    deadline: float | None = None


class Delegated(Struct, frozen=True):
    """How a child ended. `value` is its structured answer, when it gives one."""

    run_id: str
    phase: str
    output: str = ""
    value: Any = None
    usage: Usage = Usage()
    error: str = ""
    reason: str = ""


class Delegate(Protocol):
    async def __call__(self, order: Order) -> Delegated:
        """Run the child to its end, or go on with it. When the caller's run ends meanwhile, so does the child.

        What the child has spent is accounted with `spending.spend`. Raises `ToolError` when it may not be started.
        """
        ...


class AgentTool:
    """A `Tool` that runs an agent. `input_schema` is what the agent takes; by default one text."""

    isolation = "none"

    def __init__(
        self,
        agent: str,
        delegate: Delegate,
        *,
        namespace: str = "default",
        description: str = "",
        input_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._agent = agent
        self._delegate = delegate
        self._takes_text = input_schema is None
        self._definition = ToolDefinition(
            name=f"{PREFIX}{agent}",
            description=description or f"Ask the agent {agent} to do something and wait for its answer.",
            schema=INPUT_SCHEMA if input_schema is None else input_schema,
            effect="idempotent",
            timeout=None,  # the child's own limits and the caller's bound it
            namespace=namespace,
            type="agent",
            category="orchestration",
        )

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """The child's answer. Raises `ToolError` when it failed; that is not repeated, because it would fail again."""
        told = call.arguments["input"] if self._takes_text else _encode(call.arguments).decode()
        done = await self._delegate(
            Order(
                agent=self._agent,
                namespace=self._definition.namespace,
                input=told,
                run_id=child_run_id(call),
                parent=call.run_id,
                call_id=call.call_id,
                depth=call.caller.depth + 1,
                deadline=call.deadline,
            )
        )
        if done.phase == "succeeded":
            return done.output if done.value is None else done.value
        what = f"agent {self._agent!r} {'was cancelled' if done.phase == 'cancelled' else 'failed'}"
        made = ToolCancelled if done.phase == "cancelled" else ToolError
        raise made(
            f"{what}: {done.error or done.reason or 'it gave no reason'}",
            retryable=False,
            run_id=done.run_id,
            cause=done.reason,
        )


def child_run_id(call: Invocation) -> str:
    """The same for the same call of the same run, wherever and however often it is made."""
    identity = "\0".join((call.namespace, call.run_id, call.call_id))
    return f"sub-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
