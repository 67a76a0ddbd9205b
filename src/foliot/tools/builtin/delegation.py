"""Tools by which an agent gives work to other agents: several tasks at once, or one that runs beside it.

Which agents may be named is decided by the pipeline (tools/governance/permissions.py); how deep, with how much and how
they end together is decided where runs are started. A call that is made again after a crash finds the same children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

from foliot.tools.backends.agent import Agents, Delegated, DelegationOrder, answer_of, failure_of, order_for, task_names
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

MOST_TASKS: Final = 20
AT_ONCE: Final = 10
MOST_STEPS: Final = 1000
WAIT_SECONDS: Final = 300
LONGEST_WAIT: Final = 3600
_AGENT: Final = "The name of an agent that you may call: one of your tools named agent:NAME, without `agent:`."
_TOLD: Final = "What it is told. It knows nothing of this conversation."


class DelegateTool:
    """Runs tasks side by side, each as a run of its own, and answers when all of them have ended."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.definition = ToolDefinition(
            name="delegate",
            description=(
                "Gives tasks to other agents, which work on them at the same time, and waits for all of their answers. "
                "One that fails does not stop the others."
            ),
            schema=object_schema(
                {
                    "tasks": {
                        "type": "array",
                        "description": f"What to do and who does it, up to {MOST_TASKS}.",
                        "items": object_schema(
                            {
                                "id": optional("string", "What to call the task in the answer."),
                                "agent": text(_AGENT, minLength=1),
                                "task": text(_TOLD),
                            },
                            ["agent", "task"],
                        ),
                    }
                },
                ["tasks"],
            ),
            effect="idempotent",
            timeout=None,  # the limits of the children and of the caller bound it
            category="orchestration",
            breaker=False,
        )

    def callees(self, call: Invocation) -> Iterable[tuple[str, str]]:
        return [(agent, told) for _, agent, told in _tasks(call)]

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        _in_a_run(call)
        tasks = _tasks(call)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(task_id: str, agent: str, told: str) -> tuple[str, dict[str, Any]]:
            async with room:
                order = order_for(call, agent, told, part=task_id)
                return task_id, await self._outcome(order)

        return {"results": dict(await asyncio.gather(*(one(*task) for task in tasks)))}

    async def _outcome(self, order: DelegationOrder) -> dict[str, Any]:
        try:
            return _entry(await self._agents(order))
        except ToolError as error:
            return {"output": "", "error": error.message, "complete": False}


def _tasks(call: Invocation) -> list[tuple[str, str, str]]:
    """Id, agent and text of each task. Raises `ToolArgumentsInvalid`."""
    tasks = cast("list[dict[str, Any]]", call.arguments["tasks"])  # the schema was checked
    if not tasks:
        raise ToolArgumentsInvalid("at least one task is required", field="tasks")
    if len(tasks) > MOST_TASKS:
        raise ToolArgumentsInvalid(f"at most {MOST_TASKS} tasks in one call, and there are {len(tasks)}", field="tasks")
    found: list[tuple[str, str, str]] = []
    for at, (task_id, task) in enumerate(zip(task_names(tasks), tasks, strict=True)):
        if not task["task"].strip():
            raise ToolArgumentsInvalid(f"tasks[{at}]: task is required", field=f"tasks/{at}/task")
        if any(task_id == known for known, _, _ in found):
            raise ToolArgumentsInvalid(f"tasks[{at}]: duplicate id", field=f"tasks/{at}/id")
        found.append((task_id, task["agent"].strip(), task["task"]))
    return found


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
