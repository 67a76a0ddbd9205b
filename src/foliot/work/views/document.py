"""A task as an object of the API: `apiVersion, kind, metadata, spec, status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from foliot.common.times import iso
from foliot.kernel.graph import events as t
from foliot.kernel.graph.lifecycle import API_PHASES
from foliot.kernel.messages import Usage
from foliot.store.base import Document
from foliot.work.tasks.base import PRIORITIES, Command, TaskInfo
from foliot.work.views.story import API_MESSAGE, MessageStory, TaskStory

API_VERSION = "foliot.dev/v1"


def outline(info: TaskInfo) -> Document:
    """Returns the document of a task without reading its events: for lists."""
    target = {"system": info.target} if info.target_kind == "system" else {"agent": info.target}
    spec: dict[str, Any] = {**target, "priority": priority_word(info.priority)}
    if info.lane:
        spec["lane"] = info.lane
    return {
        "apiVersion": API_VERSION,
        "kind": "Task",
        "metadata": {
            "name": info.name,
            "namespace": info.namespace,
            "uid": info.uid,
            "labels": info.labels,
            "resourceVersion": str(info.revision),
            "createdAt": iso(info.created_at),
        },
        "spec": spec,
        "status": status_outline(info),
    }


def status_outline(info: TaskInfo) -> dict[str, Any]:
    summary = info.summary
    begun = info.attempt if info.phase != "queued" else info.attempt - 1
    status: dict[str, Any] = {"phase": API_PHASES[info.phase], "attempts": begun}  # type: ignore[index]  # the store holds no other
    times = {"startedAt": info.started_at, "completedAt": info.ended_at, "archivedAt": info.archived_at}
    status |= {name: iso(at) for name, at in times.items() if at is not None}
    if error := summary.get("error") or (summary.get("reason") if info.phase == "cancelled" else ""):
        status["lastError"] = error
    for name, key in (("lastOutput", "output"), ("waiting", "waiting"), ("tokens", "tokens"), ("costUsd", "cost_usd")):
        if summary.get(key) is not None:
            status[name] = summary[key]
    for name, value in (("spawnedBy", info.spawned_by), ("parent", info.parent)):
        if value:
            status[name] = value
    return status


def document_of(story: TaskStory) -> Document:
    """Everything: what was asked for, how it stands, its messages, joins and history."""
    document = outline(story.info)
    document["spec"] = spec_of(story.command)
    document["status"] |= {
        **_claim(story),
        "output": output_of(story),
        "messages": [_message(each) for each in story.messages.values()],
        "joins": [
            {
                "node": join.node,
                "round": join.round,
                "required": join.required,
                "received": list(join.came),
                "missing": list(join.missing),
                "failed": join.absent,
                "since": iso(join.since),
                **({"until": iso(join.until)} if join.until is not None else {}),
            }
            for join in story.joins
        ],
        "history": _history(story),
    }
    return document


def spec_of(command: Command) -> dict[str, Any]:
    spec: dict[str, Any] = {command.target_kind: command.target, "input": dict(command.input)}
    if command.message:
        spec["message"] = command.message
    spec["priority"] = command.priority
    for name in ("lane", "idempotency_key", "max_turns", "timeout", "session", "user"):
        if value := getattr(command, name):
            spec[name] = value
    for name in ("requirements", "retry"):
        if given := msgspec.to_builtins(getattr(command, name)):
            spec[name] = given
    return spec


def priority_word(number: int) -> str:
    return next((word for word, value in PRIORITIES.items() if value == number), str(number))


def output_of(story: TaskStory) -> dict[str, str]:
    """Flat texts, for those who read a result by key: the whole, and a part for each agent that was at work."""
    done = [each for each in story.messages.values() if each.ended is not None and each.run is not None]
    output: dict[str, str] = {story.command.target_kind: story.command.target}
    if topic := story.command.input.get("topic"):
        output["topic"] = topic
    ended = story.state.ended
    if isinstance(ended, t.TaskSucceeded):
        output["result"] = ended.output
        output |= {f"result.{agent}": text for agent, text in ended.outputs.items() if len(ended.outputs) > 1}
    elif ended is not None:
        output["result"] = "cancelled" if isinstance(ended, t.TaskCancelled) else "failed"
    if done:
        last = max(done, key=lambda each: (each.ended_at or 0.0, each.seq))
        output["last_agent"] = last.message.to
        output["last_output"] = last.ended.output if last.ended else ""
    output["execution_order"] = " -> ".join(each.message.to for each in done)
    output["agents_executed"] = str(len(done))
    output["tokens_used_total"] = str(sum(_usage(each).total_tokens for each in done))
    for number, each in enumerate(done, 1):
        output |= {f"agent.{number}.{key}": text for key, text in _agent(each).items()}
    return output


def _agent(each: MessageStory) -> dict[str, str]:
    ended, run = each.ended, each.run
    assert ended is not None, "only those that have ended are shown"
    assert run is not None, "and had a run"
    sent = each.message
    return {
        "name": sent.to,
        "steps": str(run.summary.get("steps", 0)),
        "tool_calls": str(run.summary.get("tool_calls", 0)),
        "duration_ms": str(round(each.seconds(0.0) * 1000)),
        "tokens_used": str(ended.usage.total_tokens),
        "token_usage_source": ended.usage.source,
        "outcome": ended.outcome,
        "run": run.run_id,
    }


def _usage(each: MessageStory) -> Usage:
    return each.ended.usage if each.ended else Usage()


def _message(each: MessageStory) -> dict[str, Any]:
    sent = each.message
    shown: dict[str, Any] = {
        "id": sent.id,
        "from": sent.sender,
        "to": sent.to,
        "type": sent.kind,
        "phase": API_MESSAGE[each.phase],
        "attempt": sent.attempt,
        "attempts": each.attempts,
        "hop": sent.hop,
        "branch": sent.branch,
        "round": sent.round,
        "sentAt": iso(each.sent_at),
        "content": sent.payload,
    }
    if sent.parent_id:
        shown["parentId"] = sent.parent_id
    if each.run is not None:
        shown["run"] = each.run.run_id
        shown["runPhase"] = each.run.phase
        if each.run.worker and each.ended is None:
            shown["worker"] = each.run.worker
        if each.phase == "retry_pending" and each.run.due_at is not None:
            shown["nextAttemptAt"] = iso(each.run.due_at)
    if each.ended_at is not None:
        shown["completedAt"] = iso(each.ended_at)
    if each.ended is not None and each.ended.outcome != "succeeded":
        shown["lastError"] = each.ended.error or each.ended.reason
    elif each.live is not None and each.live.retry is not None:
        shown["lastError"] = each.live.retry.message or each.live.retry.reason
    if each.cut is not None:
        shown["ended"] = each.cut.reason
    return shown


def _claim(story: TaskStory) -> dict[str, Any]:
    """Returns the worker of a task, and its next attempt, by the names that lists of tasks have columns for."""
    held = [each.run for each in story.live if each.run is not None and each.run.held and each.run.worker]
    shown: dict[str, Any] = {}
    if held:
        shown["claimedBy"] = shown["assignedWorker"] = ", ".join(dict.fromkeys(run.worker or "" for run in held))
        until = min((run.lease_until for run in held if run.lease_until is not None), default=None)
        if until is not None:
            shown["leaseUntil"] = iso(until)
    due = [each.run.due_at for each in story.live if each.phase == "retry_pending" and each.run is not None]
    if times := [at for at in due if at is not None]:
        shown["nextAttemptAt"] = iso(min(times))
    return shown


def _history(story: TaskStory) -> list[dict[str, str]]:
    entries: list[tuple[float, str, str]] = []
    if story.info.started_at is not None:
        entries.append((story.info.started_at, "running", "a worker has begun it"))
    for record in story.records:
        match record.event:
            case t.TaskAccepted(by=by):
                entries.append((record.at, "accepted", f"by {by}" if by else ""))
            case t.TaskCancelRequested(by=by, reason=reason):
                entries.append((record.at, "cancel_requested", f"{reason}{f' (by {by})' if by else ''}"))
            case t.TaskRequeued(attempt=attempt, by=by):
                entries.append((record.at, "requeued", f"attempt {attempt}{f', by {by}' if by else ''}"))
            case t.TaskSucceeded():
                entries.append((record.at, "succeeded", ""))
            case t.TaskFailed(message=message):
                entries.append((record.at, "failed", message))
            case t.TaskCancelled(reason=reason):
                entries.append((record.at, "cancelled", reason))
            case t.TaskDeadLettered(message=message):
                entries.append((record.at, "deadletter", message))
            case _:
                pass
    entries += _of_runs(story.live)
    return [
        {"timestamp": iso(at), "type": kind, **({"message": text} if text else {})}
        for at, kind, text in sorted(entries, key=lambda entry: entry[0])
    ]


def _of_runs(live: Sequence[MessageStory]) -> list[tuple[float, str, str]]:
    entries: list[tuple[float, str, str]] = []
    for each in live:
        if each.run is None or each.live is None:
            continue
        if each.run.phase == "waiting":
            entries.append((each.run.updated_at, "waiting_approval", each.message.to))
        elif each.live.retry is not None:
            why = each.live.retry.message or each.live.retry.reason
            entries.append((each.run.updated_at, "retry_scheduled", f"{each.message.to}: {why}"))
    return entries
