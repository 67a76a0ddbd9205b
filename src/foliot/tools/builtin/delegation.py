"""Tools by which an agent gives work to other agents: several tasks at once, or one that runs beside it.

Which agents may be named is decided by the pipeline (tools/governance/permissions.py); how deep, with how much and how
they end together is decided where runs are started. A call that is made again after a crash finds the same children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from msgspec import structs

from foliot.tools.backends.agent import (
    Agents,
    Delegated,
    Delegation,
    DelegationOrder,
    answer_of,
    failure_of,
    order_for,
    task_names,
)
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolError, ToolUnsupported
from foliot.tools.builtin.arguments import (
    given,
    object_schema,
    optional,
    required_text,
    text,
    texts,
    whole_number,
)
from foliot.tools.builtin.presets import GENERAL

MOST_TASKS: Final = 20
AT_ONCE: Final = 10
MOST_STEPS: Final = 1000
WAIT_SECONDS: Final = 300
LONGEST_WAIT: Final = 3600
_AGENT: Final = "The name of an agent that you may call: one of your tools named agent:NAME, without `agent:`."
_TOLD: Final = "What it is told. It knows nothing of this conversation."


class DelegatedTask(NamedTuple):
    """One task of a call, as it was asked for. Without an `agent` the caller itself does it, under the preset."""

    id: str
    told: str
    agent: str = ""
    preset: str = ""
    model: str = ""
    session: str = ""
    problem: str = ""  # why it cannot be given


class DelegateTool:
    """Runs tasks side by side, each as a run of its own, and answers when all of them have ended.

    With a `delegation`, as the agent declares it, tasks may go to a copy of the caller under a preset, and go on with
    what an earlier task has said.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._delegation: Delegation | None = None
        self.definition = ToolDefinition(
            name="delegate",
            description=(
                "Gives tasks to other agents, which work on them at the same time, and waits for all of their answers. "
                "One that fails does not stop the others."
            ),
            schema=_tasks_schema({"agent": text(_AGENT, minLength=1)}, ["agent", "task"]),
            effect="idempotent",
            timeout=None,  # the limits of the children and of the caller bound it
            category="orchestration",
            breaker=False,
        )

    @property
    def delegation(self) -> Delegation | None:
        """How the agent delegates; None where it declares nothing, and tasks go to other agents only."""
        return self._delegation

    @delegation.setter
    def delegation(self, declared: Delegation) -> None:
        self._delegation = declared
        presets = "\n".join(f"- {each.name}: {each.description}" for each in declared.presets)
        self.definition = replace(
            self.definition,
            description=(
                "Gives tasks to helpers, which work on them at the same time, and waits for all of their answers. One "
                "that fails does not stop the others. A helper is a copy of you under a preset, or another agent. The "
                "`session_id` of an answer can be given with a later task, which then goes on where that one ended.\n"
                f"Presets:\n{presets}"
            ),
            schema=_tasks_schema(
                {
                    "agent": optional("string", f"{_AGENT} Without it, a copy of you does the task."),
                    "preset": optional("string", f"What kind of helper. Default {GENERAL!r} for a copy of you."),
                    **({"model": optional("string", _models(declared))} if declared.models else {}),
                    "session_id": optional("string", "Goes on with the conversation of an earlier task."),
                },
                ["task"],
            ),
        )

    def callees(self, call: Invocation) -> Iterable[tuple[str, str]]:
        return [(task.agent, task.told) for task in self._tasks(call) if task.agent and not task.problem]

    def misfit(self, arguments: Mapping[str, Any]) -> str:
        """Says what is wrong with the shape of the arguments; blank for what only the schema can tell."""
        tasks = arguments.get("tasks")
        if tasks is None:
            return "tasks is required"
        if not isinstance(tasks, list):
            return "tasks must be an array"
        for at, task in enumerate(cast("list[object]", tasks)):
            if isinstance(task, dict) and cast("dict[str, object]", task).get("task") is None:
                return f"tasks[{at}]: task is required"
        return ""

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        _in_a_run(call)
        tasks = self._tasks(call)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(task: DelegatedTask) -> tuple[str, dict[str, Any]]:
            async with room:
                return task.id, _refused(task) if task.problem else await self._outcome(self._order(call, task))

        return {"results": dict(await asyncio.gather(*(one(task) for task in tasks)))}

    def _order(self, call: Invocation, task: DelegatedTask) -> DelegationOrder:
        order = order_for(call, task.agent or call.agent, task.told, part=task.id)
        own = not task.agent
        return structs.replace(order, preset=task.preset, model=task.model, own=own, session=task.session)

    async def _outcome(self, order: DelegationOrder) -> dict[str, Any]:
        session = {"session_id": order.session or order.run_id} if self._delegation is not None else {}
        try:
            return {**_entry(await self._agents(order)), **session}
        except ToolError as error:
            return {"output": "", "error": error.message, "complete": False, **(session if order.session else {})}

    def _tasks(self, call: Invocation) -> list[DelegatedTask]:
        """The tasks of a call. Raises `ToolArgumentsInvalid` for what is wrong with the call, or with all of them."""
        tasks = cast("list[dict[str, Any]]", call.arguments["tasks"])  # the schema was checked
        if not tasks:
            raise ToolArgumentsInvalid("at least one task is required", field="tasks")
        if len(tasks) > MOST_TASKS:
            raise ToolArgumentsInvalid(
                f"at most {MOST_TASKS} tasks in one call, and there are {len(tasks)}", field="tasks"
            )
        found: list[DelegatedTask] = []
        for at, (task_id, task) in enumerate(zip(task_names(tasks), tasks, strict=True)):
            if not task["task"].strip():
                raise ToolArgumentsInvalid(f"tasks[{at}]: task is required", field=f"tasks/{at}/task")
            if any(task_id == known.id for known in found):
                raise ToolArgumentsInvalid(f"tasks[{at}]: duplicate id", field=f"tasks/{at}/id")
            found.append(self._task(task_id, task))
            if found[-1].session and any(found[-1].session == known.session for known in found[:-1]):
                raise ToolArgumentsInvalid(f"tasks[{at}]: duplicate session_id", field=f"tasks/{at}/session_id")
        if all(task.problem for task in found):
            raise ToolArgumentsInvalid(found[0].problem, field="tasks/0")
        return found

    def _task(self, task_id: str, task: Mapping[str, Any]) -> DelegatedTask:
        """One task. An unknown preset or model is its own problem: the others are done."""
        agent, preset, model, session = (
            (task.get(field) or "").strip() for field in ("agent", "preset", "model", "session_id")
        )
        declared = self._delegation
        if declared is None:
            return DelegatedTask(task_id, task["task"], agent)
        if not agent and not session:
            preset = preset or GENERAL
        problem = ""
        if preset and declared.preset(preset) is None:
            listed = ", ".join(each.name for each in declared.presets)
            problem = f"unknown preset: {_quoted(preset)} (available: {listed})" if listed else "no presets available"
        elif model and model not in declared.models:
            listed = ", ".join(declared.models) or "none"
            problem = f"unknown model: {_quoted(model)} (available: {listed})"
        return DelegatedTask(task_id, task["task"], agent, preset, model, session, problem)


def _refused(task: DelegatedTask) -> dict[str, Any]:
    return {"output": "", "error": task.problem, "complete": False}


def _tasks_schema(fields: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    task = {"id": optional("string", "What to call the task in the answer."), **fields, "task": text(_TOLD)}
    return object_schema(
        {
            "tasks": {
                "type": "array",
                "description": f"What to do and who does it, up to {MOST_TASKS}.",
                "items": object_schema(task, required),
            }
        },
        ["tasks"],
    )


def _models(declared: Delegation) -> str:
    return f"The model to ask instead of the usual one: {', '.join(declared.models)}."


def _quoted(word: str) -> str:
    return f'"{word[:80]}"'


class SpawnAgent:
    """Starts one run beside the caller's, or waits for it."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.definition = ToolDefinition(
            name="spawn_agent",
            description=(
                "Starts another agent, which works while you go on, and returns its run id at once; `wait_agents` gets "
                "its answer. It ends with your own run at the latest, so wait for what you need. With `wait` the "
                "answer is returned instead."
            ),
            schema=object_schema(
                {
                    "agent": text(_AGENT, minLength=1),
                    "prompt": text(_TOLD, minLength=1),
                    "tools": optional(
                        "array", "Only these of its own tools; by default all.", items={"type": "string"}
                    ),
                    "max_steps": optional("integer", "At most so many steps; it can only be narrowed.", minimum=1),
                    "wait": optional("boolean", "Wait for the answer and return it. Default false."),
                },
                ["agent", "prompt"],
            ),
            effect="idempotent",
            timeout=None,
            category="orchestration",
            breaker=False,
        )

    def callees(self, call: Invocation) -> Iterable[tuple[str, str]]:
        return [(required_text(call, "agent").strip(), required_text(call, "prompt"))]

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        _in_a_run(call)
        agent = required_text(call, "agent").strip()
        steps = whole_number(call, "max_steps", 0, least=1, most=MOST_STEPS)
        order = order_for(
            call,
            agent,
            required_text(call, "prompt"),
            tools=None if call.arguments.get("tools") is None else tuple(texts(call, "tools")),
            max_steps=steps or None,
        )
        if given(call, "wait", False):
            return answer_of(agent, await self._agents(order))
        return {"run_id": order.run_id, "agent": agent, "phase": await self._agents.spawn(order)}


class WaitAgents:
    """Waits for runs that the caller has started, for a bounded time; what is not ready by then stays under way."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.definition = ToolDefinition(
            name="wait_agents",
            description=(
                "Waits for agents that you started with `spawn_agent`, until all of them (or any) have ended or the "
                "time is over, and returns how each of them stands, with its answer when it has one."
            ),
            schema=object_schema(
                {
                    "run_ids": {
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 1,
                        "maxItems": MOST_TASKS,
                        "description": "The run ids that `spawn_agent` returned.",
                    },
                    "mode": {
                        "type": ["string", "null"],
                        "enum": ["all", "any", None],
                        "description": "Wait for `all` of them (the default), or until `any` has ended.",
                    },
                    "timeout_seconds": optional("integer", f"How long, up to {LONGEST_WAIT}. Default {WAIT_SECONDS}."),
                },
                ["run_ids"],
            ),
            effect="read",
            timeout=None,
            category="orchestration",
            breaker=False,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        _in_a_run(call)
        seconds = whole_number(call, "timeout_seconds", WAIT_SECONDS, least=0, most=LONGEST_WAIT)
        run_ids = list(dict.fromkeys(texts(call, "run_ids")))
        wait_for_all = given(call, "mode", "all") == "all"
        found = await self._agents.collect(call.run_id, run_ids, all=wait_for_all, seconds=seconds)
        return {"results": {run_id: {**_entry(found[run_id]), "phase": found[run_id].phase} for run_id in run_ids}}


def _entry(done: Delegated) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "output": done.output if done.value is None else done.value,
        "complete": done.phase == "succeeded",
        "run_id": done.run_id,
    }
    return {**entry, "error": failure_of(done)} if done.ended and not entry["complete"] else entry


def _in_a_run(call: Invocation) -> None:
    if not call.run_id:
        raise ToolUnsupported(f"{call.tool!r} starts runs for a run, and this call is made outside of any")
