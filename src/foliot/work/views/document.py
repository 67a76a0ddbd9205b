"""The Task document: `apiVersion, kind, metadata, spec, status`, the same wherever a task is shown.

`outline` makes it from what lists read, `task_document` with everything that the story of a task tells besides.
`info_of` reads the info of a task out of either. Members of the status have the names that earlier clients read:
`messages`, `join_states`, `history`, `trace`, and who has the task (`claimedBy`, `assignedWorker`, `leaseUntil`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from foliot.common.times import iso
from foliot.kernel.graph import events as t
from foliot.kernel.graph.lifecycle import API_PHASES, WAITING
from foliot.kernel.messages import Usage
from foliot.resources.wording import WRITTEN_AS, written_as
from foliot.store.base import Document
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import PRIORITIES, Command, TargetKind, TaskInfo
from foliot.work.tasks.commands import command_of, spec_of
from foliot.work.views.story import API_MESSAGE, MessageStory, TaskStory
from foliot.work.views.task_trace import task_trace

API_VERSION: Final = "foliot.dev/v1"
MOST_HISTORY: Final = 200
_PHASES: Final = {WAITING: "waiting", **{shown: phase for phase, shown in API_PHASES.items()}}
# Members of the status, and where the info of a task has them.
_TIMES: Final = {
    "startedAt": "started_at",
    "completedAt": "ended_at",
    "archivedAt": "archived_at",
    "updatedAt": "updated_at",
    "dueAt": "timer_at",
    "leaseUntil": "lease_until",
    "lastHeartbeat": "heartbeat_at",
    "nextAttemptAt": "next_attempt_at",
}
_SUMMARY: Final = {
    "lastOutput": "output",
    "reason": "reason",
    "waiting": "waiting",
    "tokens": "tokens",
    "costUsd": "cost_usd",
    "messageCount": "messages",
}


def outline(info: TaskInfo) -> Document:
    """Makes the document of a task from what lists read: what was asked for and how it stands, without its events."""
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
            **({WRITTEN_AS: info.written} if info.written else {}),
        },
        "spec": dict(info.spec),
        "status": status_outline(info),
    }


def shown_phase(info: TaskInfo) -> str:
    """Returns the phase of a task as objects and lists write it.

    Clients of the older version know one word for all that waits; they are given that for the tasks they have written.
    """
    waiting: dict[str, Any] = info.summary.get("waiting") or {}
    if info.phase == "waiting" and waiting.get("reason", "approval") != "approval" and not info.written:
        return WAITING
    return API_PHASES[info.phase]  # type: ignore[index]  # the store holds no other


def status_outline(info: TaskInfo) -> dict[str, Any]:
    """Makes the status of a task from what lists read."""
    summary = info.summary
    begun = info.attempt if info.phase != "queued" else info.attempt - 1
    status: dict[str, Any] = {"phase": shown_phase(info), "attempts": begun}
    times = {name: getattr(info, field) for name, field in _TIMES.items()}
    status |= {name: iso(at) for name, at in times.items() if at is not None}
    if error := summary.get("error") or (summary.get("reason") if info.phase == "cancelled" else ""):
        status["lastError"] = error
    status |= {name: summary[key] for name, key in _SUMMARY.items() if summary.get(key) is not None}
    claim = (("claimedBy", info.claimed_by), ("assignedWorker", info.claimed_by or summary.get("worker")))
    for name, value in (("spawnedBy", info.spawned_by), ("parent", info.parent), *claim):
        if value:
            status[name] = value
    if info.phase in ENDED:
        status["output"] = _short_output(info)
    return status


def _short_output(info: TaskInfo) -> dict[str, str]:
    """Returns of the output of an ended task what lists read: see `output_of`, which has all of it."""
    summary = info.summary
    result = summary.get("output", "") if info.phase == "succeeded" else _bad_result(info.phase)
    return {info.target_kind: info.target, "result": result, **_token_texts(summary.get("tokens") or 0)}


def _bad_result(phase: str) -> str:
    return "cancelled" if phase == "cancelled" else "failed"


def _token_texts(total: int) -> dict[str, str]:
    """An estimate is made only where the provider does not count: so both are the same number."""
    return {"tokens_used_total": str(total), "tokens_estimated_total": str(total)}


def info_of(document: Document) -> TaskInfo:
    """Reads the info of a task out of its document. Its key, which only the store knows, is 0; times are in ms."""
    metadata, status, written = document["metadata"], document["status"], written_as(document)
    spec: dict[str, Any] = _normal_spec(document) if written else document["spec"]
    phase = _PHASES[status["phase"]]
    kind: TargetKind = "system" if spec.get("system") else "agent"
    summary = {key: status[name] for name, key in _SUMMARY.items() if name in status}
    if phase != "cancelled" and "lastError" in status:
        summary["error"] = status["lastError"]
    if "assignedWorker" in status and "claimedBy" not in status:
        summary["worker"] = status["assignedWorker"]
    times = {field: _seconds(status.get(name)) for name, field in _TIMES.items()}
    created = _seconds(metadata["createdAt"]) or 0.0
    return TaskInfo(
        key=0,
        uid=metadata.get("uid", ""),  # not shown in the older version
        namespace=metadata["namespace"],
        name=metadata["name"],
        target_kind=kind,
        target=spec.get(kind, ""),
        phase=phase,
        revision=int(metadata["resourceVersion"]),
        attempt=status["attempts"] + (phase == "queued"),
        priority=PRIORITIES[spec.get("priority", "normal")],
        lane=spec.get("lane", ""),
        spawned_by=status.get("spawnedBy", ""),
        parent=status.get("parent", ""),
        labels=metadata.get("labels") or {},
        summary=summary,
        timer_at=times["timer_at"],
        created_at=created,
        updated_at=times["updated_at"] or created,
        started_at=times["started_at"],
        ended_at=times["ended_at"],
        archived_at=times["archived_at"],
        spec=spec,
        written=written,
        claimed_by=status.get("claimedBy", ""),
        lease_until=times["lease_until"],
        heartbeat_at=times["heartbeat_at"],
        next_attempt_at=times["next_attempt_at"],
    )


def _normal_spec(document: Document) -> dict[str, Any]:
    """Returns the spec of a Task that is shown as its author wrote it, in normal form."""
    from foliot.resources.validate import validate_document  # only for these: it loads every kind

    told = {name: value for name, value in document.items() if name != "status"}
    normal, _ = validate_document(told)
    return document["spec"] if normal is None else spec_of(command_of(normal))


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def task_document(story: TaskStory) -> Document:
    """Makes the document of a task with everything: its output, messages, joins and history, and who has it."""
    document = outline(story.info)
    document["status"] |= {
        **_claim(story),
        "output": output_of(story),
        "messages": messages_of(story),
        "join_states": _joins(story),
        "history": _history(story),
        "trace": task_trace(story),
        "asked": _asked(story.command),
    }
    return document


def _asked(command: Command) -> dict[str, str]:
    """Returns what of a request a Task has no words for, or would not say twice."""
    given = {name: getattr(command, name) for name in ("message", "idempotency_key", "user", "by")}
    return {name: value for name, value in given.items() if value}


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
        output["result"] = _bad_result("cancelled" if isinstance(ended, t.TaskCancelled) else "failed")
    if done:
        last = max(done, key=lambda each: (each.ended_at or 0.0, each.seq))
        output["last_agent"] = last.message.to
        output["last_output"] = last.ended.output if last.ended else ""
    output["execution_order"] = " -> ".join(each.message.to for each in done)
    output["agents_executed"] = str(len(done))
    output |= _token_texts(sum(_usage(each).total_tokens for each in done))
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
        "estimated_tokens": str(ended.usage.total_tokens),
        "token_usage_source": ended.usage.source,
        "outcome": ended.outcome,
        "run": run.run_id,
    }


def _usage(each: MessageStory) -> Usage:
    return each.ended.usage if each.ended else Usage()


def messages_of(story: TaskStory) -> list[dict[str, Any]]:
    """Returns every message of a task as its document has it."""
    return [_message(story, each) for each in story.messages.values()]


def _message(story: TaskStory, each: MessageStory) -> dict[str, Any]:
    sent, run = each.message, each.run
    shown: dict[str, Any] = {
        "timestamp": iso(each.sent_at),
        "message_id": sent.id,
        "idempotency_key": sent.id,  # sending it again gives the same one
        "task_id": story.info.id,
        "attempt": sent.attempt,
        "system": story.plan.system,
        "from_agent": sent.sender,
        "to_agent": sent.to,
        "branch_id": sent.branch,
        "parent_branch_id": sent.parent_branch,
        "type": sent.kind,
        "content": sent.payload,
        "trace_id": f"{story.info.id}/a{sent.attempt:03}",
        "parent_id": sent.parent_id,
        "phase": API_MESSAGE[each.phase],
        "attempts": each.attempts,
        "max_attempts": story.command.retry.max_attempts,
        "last_error": _error(each),
        "worker": each.worker,
        "hop": sent.hop,
        "round": sent.round,
    }
    if each.ended_at is not None:
        shown["processed_at"] = iso(each.ended_at)
    if run is not None:
        shown["run"] = run.run_id
        shown["run_phase"] = run.phase
        if each.phase == "retry_pending" and run.due_at is not None:
            shown["next_attempt_at"] = iso(run.due_at)
    return shown


def _error(each: MessageStory) -> str:
    if each.ended is not None and each.ended.outcome != "succeeded":
        return each.ended.error or each.ended.reason
    if each.live is not None and each.live.retry is not None:
        return each.live.retry.message or each.live.retry.reason
    if each.phase == "retry_pending" and each.live is not None and each.live.trace.waiting is not None:
        return each.live.trace.waiting.message
    return each.cut.reason if each.cut is not None else ""


def _joins(story: TaskStory) -> list[dict[str, Any]]:
    """Returns the rounds of joins: those that activated their agent, in the order in which they did, then the open."""
    found = [_activated(story, each) for each in story.messages.values() if each.message.sources]
    for join in story.joins:
        shown: dict[str, Any] = {
            "attempt": story.info.attempt,
            "node": join.node,
            "round": join.round,
            "mode": _mode(story, join.node),
            "expected": len(join.came) + len(join.missing) + len(join.absent),
            "quorum_required": join.required,
            "activated": False,
            "sources": [{"from_agent": agent} for agent in join.came],
            "missing": [*join.missing],
            "failed": join.absent,
            "since": iso(join.since),
        }
        if join.until is not None:
            shown["until"] = iso(join.until)
        found.append(shown)
    return found


def _activated(story: TaskStory, each: MessageStory) -> dict[str, Any]:
    sent = each.message
    node = story.plan.nodes.get(sent.to)
    came = [source.agent for source in sent.sources]
    sent_at = {identity: message.sent_at for identity, message in story.messages.items()}
    expected = node.join.expected if node is not None and node.join is not None else came
    return {
        "attempt": sent.attempt,
        "node": sent.to,
        "round": sent.round,
        "mode": _mode(story, sent.to),
        "expected": len(expected),
        "quorum_required": sent.required,
        "activated": True,
        "activated_at": iso(each.sent_at),
        "activated_by": max(sent.sources, key=lambda source: sent_at.get(source.message_id, 0.0)).message_id,
        "sources": [
            {
                "message_id": source.message_id,
                "from_agent": source.agent,
                "branch_id": source.branch,
                **({"timestamp": iso(sent_at[source.message_id])} if source.message_id in sent_at else {}),
                "payload": source.payload,
            }
            for source in sent.sources
        ],
        "missing": [agent for agent in expected if agent not in came],
    }


def _mode(story: TaskStory, name: str) -> str:
    node = story.plan.nodes.get(name)
    return node.join.mode if node is not None and node.join is not None else "wait_for_all"


def _claim(story: TaskStory) -> dict[str, Any]:
    """Returns the worker of a task, and its next attempt, by the names that lists of tasks have columns for."""
    held = [each for each in story.live if each.run is not None and each.run.held and each.worker]
    shown: dict[str, Any] = {}
    if held:
        shown["claimedBy"] = shown["assignedWorker"] = ", ".join(dict.fromkeys(each.worker for each in held))
        leases = [each.run.lease_until for each in held if each.run is not None]
        if times := [until for until in leases if until is not None]:
            shown["leaseUntil"] = iso(min(times))
        beats = [each.run.heartbeat_at for each in held if each.run is not None]
        if times := [at for at in beats if at is not None]:
            shown["lastHeartbeat"] = iso(max(times))
    retried = [each for each in story.live if each.phase == "retry_pending" and each.run is not None]
    if moments := [each.run.due_at for each in retried if each.run is not None and each.run.due_at is not None]:
        shown["nextAttemptAt"] = iso(min(moments))
    if error := next((text for each in retried if (text := _error(each))), ""):
        shown["lastError"] = error
    return shown


def _history(story: TaskStory) -> list[dict[str, str]]:
    """Returns the changes of a task, each with the worker that it is about, the newest ones."""
    entries: list[tuple[float, str, str, str]] = []
    for record in story.records:
        match record.event:
            case t.TaskAccepted(by=by):
                entries.append((record.at, "accepted", "", f"by {by}" if by else ""))
            case t.TaskCancelRequested(by=by, reason=reason):
                entries.append((record.at, "cancel_requested", "", f"{reason}{f' (by {by})' if by else ''}"))
            case t.TaskRequeued(attempt=attempt, by=by):
                entries.append((record.at, "requeued", "", f"attempt {attempt}{f', by {by}' if by else ''}"))
            case t.TaskSucceeded():
                entries.append((record.at, "succeeded", _last_worker(story), ""))
            case t.TaskFailed(message=message):
                entries.append((record.at, "failed", _last_worker(story), message))
            case t.TaskCancelled(reason=reason):
                entries.append((record.at, "cancelled", _last_worker(story), reason))
            case t.TaskDeadLettered(message=message):
                entries.append((record.at, "deadletter", _last_worker(story), message))
            case _:
                pass
    accepted = [entry for entry in entries if entry[1] == "accepted"]
    rest = [entry for entry in entries if entry[1] != "accepted"]
    # In this order for what is of the same moment: an end comes behind what led to it.
    newest = sorted([*accepted, *_of_runs(story), *rest], key=lambda entry: entry[0])[-MOST_HISTORY:]
    return [
        {
            "timestamp": iso(at),
            "type": kind,
            **({"worker": worker} if worker else {}),
            **({"message": text} if text else {}),
        }
        for at, kind, worker, text in newest
    ]


def _of_runs(story: TaskStory) -> list[tuple[float, str, str, str]]:
    """Returns who took which run when; the first time, that the task is running."""
    entries: list[tuple[float, str, str, str]] = []
    for each in story.messages.values():
        for moment in each.live.moments if each.live is not None else ():
            text = f"{each.message.to}: {moment.message}" if moment.message else each.message.to
            entries.append((moment.at, moment.type, moment.worker, text))
    claims = [entry for entry in entries if entry[1] == "claim"]
    if claims:
        at, _, worker, _ = min(claims)
        entries.append((at, "running", worker, "a worker has begun it"))
    elif story.info.started_at is not None:
        entries.append((story.info.started_at, "running", "", "a worker has begun it"))
    return entries


def _last_worker(story: TaskStory) -> str:
    ended = [each for each in story.messages.values() if each.ended_at is not None and each.worker]
    return max(ended, key=lambda each: (each.ended_at or 0.0, each.seq)).worker if ended else ""
