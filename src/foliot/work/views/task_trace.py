"""The trace of a task as earlier clients read it: `status.trace`, one list over all its agents.

Those clients take the state of an agent from it: `agent_start`, then `agent_end` or `agent_error` with what the agent
took. Between these come its steps: `model_call`, `model_error`, `tool_call`, `tool_approval_pending`. Nothing is kept
for this; it is read from the journals of the runs that were looked into, as `/v1/tasks/{name}/trace` is. It is a log:
an event stands at the time of the fact that tells it, and says nothing that a later fact could change, so that events
are only added behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.engine.explain.trace import Ask, CallTrace, StepTrace
from foliot.kernel.graph import events as t
from foliot.kernel.messages import Usage
from foliot.work.views.story import LiveRun, MessageStory, TaskStory

MOST_EVENTS: Final = 1000
LONGEST: Final = 300
_PHASES: Final = {
    t.TaskSucceeded: "succeeded",
    t.TaskFailed: "failed",
    t.TaskCancelled: "cancelled",
    t.TaskDeadLettered: "dead_lettered",
}


def task_trace(story: TaskStory) -> list[dict[str, Any]]:
    """Returns the events of a task in the order of time, the newest ones. Members that say nothing are left out."""
    found: list[tuple[float, dict[str, Any]]] = []
    for each in story.messages.values():
        if each.live is not None:
            head = {"attempt": each.message.attempt, "branch_id": each.message.branch, "agent": each.message.to}
            found += [(at, head | event) for at, event in _of_run(each, each.live)]
    # Behind those of its runs: what follows from the end of an agent is of the same moment.
    attempt = 1
    for record in story.records:
        attempt = record.event.attempt if isinstance(record.event, t.TaskRequeued) else attempt
        if (event := _of_task(story, record.event, attempt)) is not None:
            found.append((record.at, event))
    found.sort(key=lambda pair: pair[0])
    counts: dict[int, int] = {}
    events: list[dict[str, Any]] = []
    for at, event in found:
        attempt: int = event["attempt"]
        counts[attempt] = counts.get(attempt, 0) + 1
        told = {name: value for name, value in event.items() if value not in ("", 0, None)}
        events.append({"timestamp": iso(at), "step_id": f"a{attempt:03}.s{counts[attempt]:04}", **told})
    return events[-MOST_EVENTS:]


def _of_task(story: TaskStory, fact: t.TaskEvent, attempt: int) -> dict[str, Any] | None:
    match fact:
        case t.TaskAccepted():
            return {"attempt": 1, "type": "task_start", "message": f"{story.command.target_kind}={story.info.target}"}
        case t.MessageSent(message=sent) if sent.parent_id:
            text = f"from={sent.sender} to={sent.to}"
            event = {"attempt": sent.attempt, "branch_id": sent.branch, "agent": sent.sender, "type": "agent_message"}
            return event | {"message": text}
        case t.TaskSucceeded() | t.TaskFailed() | t.TaskCancelled() | t.TaskDeadLettered():
            event = {"attempt": attempt, "type": "task_summary", **_tokens(fact.usage)}
            return event | {"message": f"phase={_PHASES[type(fact)]}"}
        case _:
            return None


def _of_run(each: MessageStory, run: LiveRun) -> Iterator[tuple[float, dict[str, Any]]]:
    for moment in run.moments:
        if moment.type in ("claim", "takeover"):
            worker = f"worker={moment.worker}" if moment.worker else ""
            yield moment.at, {"type": "agent_start", "worker": moment.worker, "message": worker}
    for step in run.trace.steps:
        for at, event in _of_step(step, run.parked):
            yield at, {"step": step.number, **event}
    if (ended := each.ended) is not None and each.ended_at is not None:
        failed = ended.outcome != "succeeded"
        text = (ended.error or ended.reason or ended.outcome) if failed else ended.output
        began = run.moments[0].at if run.moments else each.sent_at
        yield (
            each.ended_at,
            {
                "type": "agent_error" if failed else "agent_end",
                "worker": each.worker,
                "error_code": ended.code,
                "error_reason": ended.reason if failed else "",
                "message": one_line(text, LONGEST),
                "latency_ms": round(1000 * max(0.0, each.ended_at - began)),
                "tool_calls": len(run.trace.calls),
                "memory_writes": sum(mark.kind == "memory" for mark in run.trace.marks),
                **_tokens(ended.usage),
            },
        )


def _of_step(step: StepTrace, parked: Mapping[str, float]) -> Iterator[tuple[float, dict[str, Any]]]:
    for ask in step.asks:
        if ask.error:
            yield ask.at + (ask.seconds or 0.0), _failed(ask)
    if step.answered_at is not None:
        text = step.text or ", ".join(f"calls {call.name}" for call in step.calls)
        took = {"latency_ms": round(1000 * step.seconds) if step.seconds is not None else 0}
        yield (
            step.answered_at,
            {"type": "model_call", "message": one_line(text, LONGEST), **took, **_tokens(step.usage)},
        )
    for call in step.calls:
        if call.id in parked:
            yield parked[call.id], _head(call) | {"type": "tool_approval_pending", "message": call.approval}
        if call.finished_at is not None:
            yield call.finished_at, _call(call)


def _failed(ask: Ask) -> dict[str, Any]:
    return {"type": "model_error", "error_reason": ask.error, "message": one_line(ask.message, LONGEST)}


def _head(call: CallTrace) -> dict[str, Any]:
    return {"tool": call.name, "tool_request_id": call.id, "tool_calls": 1, "tool_attempt": 1}


def _call(call: CallTrace) -> dict[str, Any]:
    event = _head(call) | {"type": "tool_call", "tool_attempt": max(1, len(call.starts))}
    if call.error is not None:
        event |= {"error_code": call.error.code, "error_reason": call.error.reason, "retryable": call.error.retryable}
    if call.seconds is not None:
        event["latency_ms"] = round(1000 * call.seconds)
    return event | {"message": one_line(call.error.message if call.error is not None else call.result, LONGEST)}


def _tokens(usage: Usage) -> dict[str, Any]:
    if not usage.total_tokens:
        return {}
    return {
        "tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "token_usage_source": usage.source,
    }
