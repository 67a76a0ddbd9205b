"""The messages of a task as meters and auditors want them: one record for each moment of each message.

Nothing is kept for this. The records are a fold over what happened to the task and to its runs, so they are there for
every task that is, however many processes have died over it, and they cannot contradict the journals.

    an attempt begins     message.attempt_started
    it is tried again     message.retry_scheduled   with the delay and the error
    it was handed on      message.completed         forwarded, with whom to; message.forwarded for auditors
    it was the last       message.completed         with how the task stood then
    it was given up       message.completed         deadletter, with the error
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from foliot.common.times import iso
from foliot.kernel.graph import events as t
from foliot.kernel.messages import Usage
from foliot.kernel.run import events as e
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.events import Happening, RunHappening, TaskHappening

COMPONENT: Final = "agent-message-consumer"
KIND: Final = "TaskMessage"


class MessageRecord(Struct, frozen=True):
    """One moment of one message. `worker` is who had it last."""

    at: float
    type: str
    status: str
    message_id: str
    agent: str
    worker: str = ""
    attempt: int = 1
    usage: Usage = Usage()
    tool_calls: int = 0
    metadata: dict[str, Any] = {}

    def metering(self, task: TaskInfo) -> dict[str, Any]:
        tokens = self.usage.total_tokens
        return {
            "timestamp": iso(self.at),
            "component": COMPONENT,
            "type": self.type,
            "namespace": task.namespace,
            "task": task.name,
            "system": task.target if task.target_kind == "system" else "",
            "agent": self.agent,
            "worker": self.worker,
            "attempt": self.attempt,
            "message_id": self.message_id,
            "status": self.status,
            "tokens_used": tokens,
            "tokens_estimated": tokens if self.usage.source == "estimated" else 0,
            "tool_calls": self.tool_calls,
            "metadata": self.metadata,
        }

    def audit(self, task: TaskInfo) -> dict[str, Any]:
        forwarded = self.status == "forwarded"
        done = self.type == "message.completed" and not forwarded
        return {
            "timestamp": iso(self.at),
            "component": COMPONENT,
            "action": "message.forwarded" if forwarded else self.type,
            "outcome": self.status if done else "success",
            "namespace": task.namespace,
            "resource_kind": KIND,
            "resource_name": self.message_id,
            "principal": self.worker,
            "message": str(self.metadata.get("error", "")),
            "metadata": self.metadata,
        }


class _Run(Struct):
    """The facts about the run of a message."""

    worker: str = ""
    attempt: int = 1
    begun: int = 0
    tool_calls: int = 0


def message_records(happenings: Sequence[Happening]) -> Iterator[MessageRecord]:
    """The records of a task, in the order of time. `happenings` begin with its first."""
    messages = _messages_of_runs(happenings)
    runs: dict[str, _Run] = {}
    forwarded = _forwarded(happenings)
    endings = {each.at: each.fact for each in happenings if isinstance(each.fact, t.TaskSucceeded | t.TaskFailed)}
    for each in happenings:
        if isinstance(each, TaskHappening):
            if isinstance(each.fact, t.MessageEnded):
                ended, run = each.fact, runs.get(each.fact.run_id, _Run())
                status, more = _end_of(ended, forwarded.get(ended.message_id, []), each.at in endings)
                yield MessageRecord(
                    each.at, "message.completed", status, ended.message_id, _agent(ended.message_id), run.worker,
                    max(ended.attempts, run.attempt), ended.usage, run.tool_calls, more,
                )  # fmt: skip
            continue
        run, message = runs.setdefault(each.run_id, _Run()), messages.get(each.run_id, "")
        match each.fact:
            case e.RunClaimed(attempt=attempt, worker=worker):
                run.worker, run.attempt = worker, attempt
                if attempt > run.begun:  # taking it up again, after a pause or elsewhere, begins no other attempt
                    run.begun = attempt
                    yield MessageRecord(
                        each.at, "message.attempt_started", "running", message, each.agent, worker, attempt
                    )
            case e.RunRetried(attempt=attempt, message=told, reason=reason, due=due):
                delay = max(0.0, (due or each.at) - each.at)
                more = {"delay": f"{delay:g}s", "error": told or reason}
                yield MessageRecord(
                    each.at, "message.retry_scheduled", "retrypending", message, each.agent, run.worker, attempt,
                    metadata=more,
                )  # fmt: skip
            case e.RunSucceeded(tool_calls=made) | e.RunFailed(tool_calls=made) | e.RunCancelled(tool_calls=made):
                run.tool_calls = made
            case _:
                pass


def _end_of(ended: t.MessageEnded, to: list[str], last: bool) -> tuple[str, dict[str, Any]]:
    if to:
        return "forwarded", {"forwarded_to": to}
    if ended.outcome == "failed":
        return "deadletter", {"error": ended.error or ended.reason}
    if ended.outcome == "cancelled":
        return "cancelled", {}
    return "succeeded" if last else "running", {}


def _forwarded(happenings: Iterable[Happening]) -> dict[str, list[str]]:
    """Maps each message to the agents that its receiver handed on to."""
    found: dict[str, list[str]] = {}
    for each in happenings:
        if isinstance(each.fact, t.MessageSent) and (before := each.fact.message.parent_id):
            found.setdefault(before, []).append(each.fact.message.to)
    return found


def _messages_of_runs(happenings: Iterable[Happening]) -> dict[str, str]:
    """Which message each run is of. One that has ended says it; the others began in the order of their messages."""
    found: dict[str, str] = {}
    waiting: dict[str, deque[str]] = {}
    begun: list[RunHappening] = []
    for each in happenings:
        match each.fact:
            case t.MessageEnded(message_id=message, run_id=run_id) if run_id:
                found[run_id] = message
            case t.MessageSent(message=message, activates=True):
                waiting.setdefault(message.to, deque()).append(message.id)
            case e.RunCreated() if isinstance(each, RunHappening):
                begun.append(each)
            case _:
                pass
    known = set(found.values())
    for each in begun:
        if each.run_id not in found:
            line = waiting.get(each.agent, deque[str]())
            while line and line[0] in known:
                line.popleft()
            found[each.run_id] = line.popleft() if line else ""
    return found


def _agent(message_id: str) -> str:
    return message_id.rpartition("/")[2]
