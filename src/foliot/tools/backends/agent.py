"""An agent as a tool of another: listed as `agent:<name>`, it runs as a run of its own and answers with its output.

The child's run id follows from the parent's run and the call. So a call that is made again, after a crash or by another
process, goes on with the same child and never starts a second one: the tool is idempotent.

What the child may use, how deep delegation may go and who may call whom is decided where runs are started; this is only
the tool in front of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import Usage
from foliot.tools.base import Caller, Invocation, OnOutput, ToolCancelled, ToolDefinition, ToolError

PREFIX: Final = "agent:"
# The built-in tools that start children, by every name they go by.
SPAWNING: Final = frozenset({"spawn_agent", "spawn"})
DELEGATING: Final = "delegate"
RUNNING_CODE: Final = "code"


def may_start_runs(tool: str) -> bool:
    """Whether a call of a tool of this name may start other runs."""
    return tool.startswith(PREFIX) or tool in SPAWNING or tool in (DELEGATING, RUNNING_CODE)


INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "What the agent is told. It knows nothing of this conversation."}
    },
    "required": ["input"],
    "additionalProperties": False,
}
_encode = msgspec.json.Encoder().encode


class Program(Struct, frozen=True):
    """How a program that stands in for a model is run, and how far it may go.

    `seconds` is how long it may compute between two calls of tools, `max_calls` how many of these it may make.
    """

    runs_in: Literal["interpreter", "sandbox"] = "interpreter"
    max_calls: int = 100
    seconds: float = 10.0


class Preset(Struct, frozen=True, omit_defaults=True):
    """A kind of helper: what a child is told besides, the model that it asks and the tools that it keeps.

    Without `tools` it keeps all of them; an empty list leaves it none. `seconds` is how long it may work.
    """

    name: str
    description: str
    prompt: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    seconds: float | None = None


class Delegation(Struct, frozen=True, omit_defaults=True):
    """How an agent delegates, where it declares so. `presets` stand in the order in which models are shown them.

    `models` are endpoints that a task may name. `seconds` is how long a child may work; `max_depth` how many levels of
    delegation there may be below a run of the agent and `max_runs` how many runs in all, over every level. With
    `cycles` it may call agents that stand above it.
    """

    presets: tuple[Preset, ...] = ()
    models: tuple[str, ...] = ()
    seconds: float = 900.0
    max_depth: int | None = None
    max_runs: int | None = None
    cycles: bool = False

    def preset(self, name: str) -> Preset | None:
        return next((each for each in self.presets if each.name == name), None)


class DelegationOrder(Struct, frozen=True):
    """One delegation. `run_id` is the child's; `deadline` is when the call ends, in seconds since 1970.

    With a `program` the child is the caller itself, with `input` in the place of its model: a program of Python.
    `tools` and `max_steps` narrow what the child has anyway: only these of its tools, and no more steps. `caller` is on
    whose behalf the call is made, and so the child acts. `preset` and `model` are those of the task that it is given;
    `own`: no other agent is named, so the child is the caller under that preset. `session` is the first run of the
    conversation that it goes on with, and `after` the last.
    """

    agent: str
    namespace: str
    input: str
    run_id: str
    parent: str
    call_id: str
    depth: int
    deadline: float | None = None
    tools: tuple[str, ...] | None = None
    max_steps: int | None = None
    caller: Caller = Caller()
    program: Program | None = None
    preset: str = ""
    model: str = ""
    own: bool = False
    session: str = ""
    after: str = ""


class Delegated(Struct, frozen=True):
    """How a child ended, or how it stands. `value` is its structured answer, when it gives one."""

    run_id: str
    phase: str
    output: str = ""
    value: Any = None
    usage: Usage = Usage()
    error: str = ""
    reason: str = ""
    code: str = ""

    @property
    def ended(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled")


class Delegate(Protocol):
    async def __call__(self, order: DelegationOrder) -> Delegated:
        """Run the child to its end, or go on with it. When the caller's run ends meanwhile, so does the child.

        What the child has spent is accounted with `spending.spend`. Raises `ToolError` when it may not be started.
        """
        ...


class Agents(Delegate, Protocol):
    """Runs agents for other agents, also in the background."""

    async def spawn(self, order: DelegationOrder) -> str:
        """Start the child and return its phase at once; one that is there already is gone on with.

        It ends with its parent's run at the latest. Raises as a `Delegate`.
        """
        ...

    async def collect(self, parent: str, run_ids: Sequence[str], *, all: bool, seconds: float) -> dict[str, Delegated]:
        """How the children of this run stand, when all of them (or any) have ended or the time is over.

        What ended ones have spent is accounted with `spending.spend`. Raises `ToolDenied` for other runs.
        """
        ...

    async def close(self) -> None:
        """Let go of the children that run beside their parents: end those whose parents have ended."""
        ...


def order_for(
    call: Invocation,
    agent: str,
    told: str,
    *,
    part: str = "",
    tools: tuple[str, ...] | None = None,
    max_steps: int | None = None,
) -> DelegationOrder:
    """The delegation that this call asks for. `part` tells the children of one call from each other."""
    return DelegationOrder(
        agent=agent,
        namespace=call.namespace,
        input=told,
        run_id=child_run_id(call, part),
        parent=call.run_id,
        call_id=call.call_id,
        depth=call.caller.depth + 1,
        deadline=call.deadline,
        tools=tools,
        max_steps=max_steps,
        caller=call.caller,
    )


def answer_of(agent: str, done: Delegated) -> Any:
    """The child's answer. Raises `ToolError` when it failed; that is not repeated, because it would fail again."""
    if done.phase == "succeeded":
        return done.output if done.value is None else done.value
    made = ToolCancelled if done.phase == "cancelled" else ToolError
    raise made(f"agent {agent!r} {failure_of(done)}", retryable=False, run_id=done.run_id, cause=done.reason)


def failure_of(done: Delegated) -> str:
    what = "was cancelled" if done.phase == "cancelled" else "failed"
    return f"{what}: {done.error or done.reason or 'it gave no reason'}"


def agent_definition(
    agent: str, namespace: str = "default", description: str = "", input_schema: Mapping[str, Any] | None = None
) -> ToolDefinition:
    """The tool that an agent is to others, by which they may or may not call it."""
    return ToolDefinition(
        name=f"{PREFIX}{agent}",
        description=description or f"Ask the agent {agent} to do something and wait for its answer.",
        schema=INPUT_SCHEMA if input_schema is None else input_schema,
        effect="idempotent",
        timeout=None,  # the child's own limits and the caller's bound it
        namespace=namespace,
        type="agent",
        category="orchestration",
    )


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
        self._definition = agent_definition(agent, namespace, description, input_schema)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Runs the agent and returns its answer; raises as `answer_of` does."""
        told = call.arguments["input"] if self._takes_text else _encode(call.arguments).decode()
        order = replace(order_for(call, self._agent, told), namespace=self._definition.namespace)
        return answer_of(self._agent, await self._delegate(order))


def task_names(tasks: Sequence[object]) -> list[str]:
    """The names of the tasks of one `delegate` call, by which its children are told from each other."""
    given = [cast("dict[str, object]", task).get("id") if isinstance(task, dict) else None for task in tasks]
    return [(name.strip() if isinstance(name, str) else "") or f"task_{at}" for at, name in enumerate(given)]


def child_run_id(call: Invocation, part: str = "") -> str:
    """The same for the same call of the same run, wherever and however often it is made."""
    return child_id(call.namespace, call.run_id, call.call_id, part)


def child_ids(namespace: str, run_id: str, tool: str, call_id: str, arguments: str) -> list[str]:
    """Returns the children that a call of a run has, by what it asks for; they need not have begun."""
    if tool.startswith(PREFIX) or tool in SPAWNING or tool == RUNNING_CODE:
        return [child_id(namespace, run_id, call_id)]
    tasks = (parse_object(arguments)[0] or {}).get("tasks") if tool == DELEGATING else None
    if not isinstance(tasks, list):
        return []
    return [child_id(namespace, run_id, call_id, name) for name in task_names(cast("list[object]", tasks))]


def child_id(namespace: str, run_id: str, call_id: str, part: str = "") -> str:
    """The child that a call of a run has, whether or not it was started."""
    identity = "\0".join((namespace, run_id, call_id, *([part] if part else [])))
    return f"sub-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
