"""One fact about a task, and everything that follows from it, as one transaction.

The pure graph (kernel/graph/advance.py) says what follows; here it becomes rows: events of the task, runs that begin,
signals to runs that must stop, the task's own row. It is run inside the transaction that brought the fact about (the
end of a run, a cancellation, a timer), so all of it commits together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from foliot.bus.base import Ticket
from foliot.engine.definition.freeze import execution_of
from foliot.engine.definition.run_scope import missing_in
from foliot.engine.driver.doubts import family
from foliot.engine.driver.ids import id_from
from foliot.engine.driver.journal import LONGEST_ANSWER, preview, signal
from foliot.kernel.execution import execution_class_key
from foliot.kernel.graph.advance import Moves, advance, decode_state, encode_state, phase
from foliot.kernel.graph.events import (
    Envelope,
    MessageEnded,
    TaskCancelled,
    TaskCancelRequested,
    TaskDeadLettered,
    TaskEvent,
    TaskFailed,
    TaskRequeued,
    TaskSucceeded,
    encode_fact,
    fact_type,
)
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import EQUALITY, CancelRequested, RunCreated, Unsettled
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.traces import under_message
from foliot.store import tasks
from foliot.store.journal.base import TASK_LABEL, Entry, NewRun, identity_labels
from foliot.store.journal.cancelling import cancel_locked, lock_with_those_below
from foliot.store.journal.chain import first_link, link_of
from foliot.store.journal.database import create_runs
from foliot.store.journal.leases import lock_runs
from foliot.store.queue import queue
from foliot.store.queue.queue import QueueItem
from foliot.store.transaction import Row, Tx, many, one, rows
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Pinned, opening

# --- advancing -------------------------------------------------------------------------------------------------------

# By agent: calls that may have acted and were not settled.
InDoubt: TypeAlias = Mapping[str, tuple[Unsettled, ...]]


class TaskRef(Struct, frozen=True):
    """A task as a transaction about it needs it: its row's key, and what never changes."""

    key: int
    uid: str
    namespace: str
    name: str
    priority: int
    lane: str
    command: Command
    pinned: Pinned

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}"

    def class_key(self, spec: RunSpec) -> str:
        """Which runs the failures of a run of this spec say something about."""
        return execution_class_key(self.namespace, spec.agent, self.lane, execution_of(spec))


def tell(
    task: TaskRef, fact: TaskEvent, now: float, started: float | None = None, in_doubt: InDoubt | None = None
) -> Tx[list[Ticket]]:
    """Record a fact and what follows; tickets for the runs that became due. Raises `Conflict`, `IllegalEvent`.

    `started` is when work on the task began, if whoever tells knows. `in_doubt` are calls that runs of the task may
    have made before: those that begin now hold them.
    """
    row = yield from tasks.lock(task.key)
    return (yield from tell_locked(task, row, fact, now, started, in_doubt))


class Outcome(Struct):
    """The part of a fact's outcome that is counted: how long its message was in flight, and how the task ended.

    `waited` and `took` are in seconds; the latter from where the attempt at the task began.
    """

    waited: float | None = None
    status: str = ""
    took: float = 0.0


def tell_locked(
    task: TaskRef,
    row: Row,
    fact: TaskEvent,
    now: float,
    started: float | None = None,
    in_doubt: InDoubt | None = None,
    outcome: Outcome | None = None,
) -> Tx[list[Ticket]]:
    """Applies the fact like `tell`, when the caller has already locked the row. `outcome` is filled in."""
    plan = task.pinned.plan_for(task.id)
    state = decode_state(row["graph"])
    flying = state.running.get(fact.message_id) if outcome is not None and isinstance(fact, MessageEnded) else None
    moves = advance(plan, state, fact, now)
    ended = moves.ended is not None
    if outcome is not None:
        outcome.waited = None if flying is None else max(0.0, now - flying.since)
        outcome.status = phase(state) if ended else ""
        outcome.took = max(0.0, now - (state.since or row["created_at"]))
    # A task that is ending waits for its runs, which were told: to be told again at every look would not help them.
    deadline = None if state.ending is not None else deadline_of(task.command, state.since or row["created_at"])
    yield from tasks.change(
        row,
        tasks.TaskChange(
            phase="queued" if isinstance(fact, TaskRequeued) and not ended else phase(state),
            attempt=state.attempt,
            graph=encode_state(state),
            summary=summary_of(msgspec.json.decode(row["summary"]), moves),
            timer_at=None if ended else earliest(moves.timer, deadline),
            started_at=started,
            ended_at=now if ended else None,
            facts=[(fact_type(each), encode_fact(each)) for each in moves.facts],
        ),
        now,
    )
    if moves.stop:
        yield from _stop(task, moves, row["revision"], now)
    return (yield from begin_runs(task, moves.activate, now, in_doubt, state.told_by))


def begin_runs(
    task: TaskRef,
    envelopes: Sequence[Envelope],
    now: float,
    in_doubt: InDoubt | None = None,
    told_by: Sequence[str] = (),
    *,
    definitions: Mapping[str, bytes] = {},
) -> Tx[list[Ticket]]:
    """Creates the runs that these messages activate, and queues them. `told_by` have changed what they are told.

    `definitions` is what a new task is pinned to itself; it is kept with the specs of its runs.
    """
    command = task.command
    identity = command.acts_as.also_ordered_by(*told_by)
    runs: list[tuple[NewRun, Sequence[Entry]]] = []
    for envelope in envelopes:
        parts = task.pinned.parts_of(envelope.to)
        spec = parts.spec
        run_id = run_id_for(task.uid, envelope.id, now)
        created = RunCreated(
            agent=spec.agent,
            spec=parts.digest,
            input=opening(command, envelope),
            namespace=spec.namespace,
            definitions=parts.definitions,
            task=task.id,
            identity=identity,
            system=task.pinned.plan.system,
            template=command.template,
            root=task.uid,
            equality=EQUALITY,
            unsettled=() if in_doubt is None else in_doubt.get(spec.agent, ()),
            trace=under_message(command.trace, run_id) if command.trace else "",
            missing=missing_in(spec),
        )
        new = NewRun(
            id=run_id,
            namespace=task.namespace,
            agent=spec.agent,
            spec=parts.digest,
            created_at=now,
            labels={**command.labels, TASK_LABEL: task.name, **identity_labels(identity)},
            content={parts.digest: parts.frozen},
            root=family(spec.namespace, run_id, task.id, task.uid).name,
        )
        kind, data = type_of(created), encode(created)
        link = link_of(first_link(run_id), 1, now, kind, data)
        runs.append((new, [Entry(1, now, kind, data, link)]))
    keys = yield from create_runs(runs, now, definitions=definitions)
    tickets: list[Ticket] = []
    items: list[QueueItem] = []
    for envelope, (new, _), key in zip(envelopes, runs, keys, strict=True):
        parts = task.pinned.parts_of(envelope.to)
        items.append(
            QueueItem(
                run=key,
                run_id=new.id,
                task=task.key,
                namespace=task.namespace,
                agent=new.agent,
                lane=task.lane,
                class_key=task.class_key(parts.spec),
                priority=task.priority,
                due_at=now,
                requirements=requirements_of(command, parts.isolation),
                max_running=parts.max_running,
            )
        )
        tickets.append(
            Ticket(
                id=envelope.id,
                run_id=new.id,
                namespace=task.namespace,
                agent=new.agent,
                task=task.name,
                message_id=envelope.id,
                attempt=envelope.attempt,
                due_at=now,
                system=task.pinned.plan.system,
                sender=envelope.sender,
                branch=envelope.branch,
                parent_branch=envelope.parent_branch,
                parent_id=envelope.parent_id,
                kind=envelope.kind,
                payload=envelope.payload,
            )
        )
    yield from many("task_run_add", [(task.key, ticket.message_id, ticket.run_id) for ticket in tickets])
    yield from queue.enqueue(items)
    return tickets


def requirements_of(command: Command, isolation: Sequence[str]) -> str:
    """Returns what a worker must have and enforce to take a run of a command, as the queue stores it."""
    needs = command.requirements
    if isolation:
        needs = msgspec.structs.replace(needs, isolation=tuple(sorted({*needs.isolation, *isolation})))
    return msgspec.json.encode(needs).decode()


def lock_live_runs(task: TaskRef) -> Tx[None]:
    """Every run of a locked task that has not ended, ahead of the one that ends: each may have to be stopped."""
    live = yield from rows("queue_of_task", task=task.key)
    yield from lock_runs([row["run"] for row in live])


def _stop(task: TaskRef, moves: Moves, revision: int, now: float) -> Tx[None]:
    """Ask the runs of messages to end, with all below them; whoever holds one, or takes it next, does.

    One that is being let go meanwhile is waited for, so that it either sees the signal or is woken.
    """
    asked = next((fact for fact in moves.facts if isinstance(fact, TaskCancelRequested)), None)
    why = CancelRequested(asked.by, asked.reason) if asked else CancelRequested("task", "the task has failed")
    keys: list[int] = []
    for message_id in moves.stop:
        if (found := (yield from one("task_run_find", task=task.key, message=message_id))) is not None:
            keys.append(found["key"])
    live, below = yield from lock_with_those_below(keys)
    told = [signal(row["id"], why, now, signal_id=f"{row['id']}/stop/{revision}") for row in live]
    yield from many("signal_add", [msgspec.structs.asdict(each) for each in told])
    yield from cancel_locked(live, below, now)
    for row in live:
        yield from queue.wake(row["id"], now)


def run_id_for(uid: str, message_id: str, now: float) -> str:
    """The id of the run that a message activates: always the same for the same message of the same task."""
    chance = int.from_bytes(blake2b(f"{uid}|{message_id}".encode(), digest_size=8).digest(), "big")
    return id_from(now, chance)


def summary_of(before: dict[str, Any], moves: Moves) -> dict[str, Any]:
    """Returns the summary of a task for lists."""
    summary = {**before, "messages": before.get("messages", 0) + len(moves.activate)}
    if any(isinstance(each, TaskRequeued) for each in moves.facts):
        summary.pop("worker", None)  # of the attempt before
    if workers := [each.worker for each in moves.facts if isinstance(each, MessageEnded) and each.worker]:
        summary["worker"] = workers[-1]
    if moves.ended is None:
        for stale in ("output", "error", "reason"):
            summary.pop(stale, None)
        return summary
    usage = moves.ended.usage
    summary["tokens"] = usage.total_tokens
    summary["cost_usd"] = usage.cost_usd
    match moves.ended:
        case TaskSucceeded(output=output):
            summary["output"] = preview(output, LONGEST_ANSWER)
        case TaskFailed() | TaskDeadLettered() as failed:
            summary["error"] = preview(failed.message)
            summary["reason"] = failed.reason
        case TaskCancelled() as cancelled:
            summary["reason"] = cancelled.reason or "cancelled"
    return summary


def deadline_of(command: Command, since: float) -> float | None:
    """Returns the deadline of an attempt that began at `since`."""
    return None if command.timeout is None else since + command.timeout


def earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
