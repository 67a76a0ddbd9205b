"""The invariants of a workshop that has come to rest, whatever befell it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from foliot.kernel.graph.advance import advance, encode_state, fold, new_state
from foliot.kernel.graph.events import (
    Envelope,
    MessageEnded,
    MessageSent,
    TaskAccepted,
    TaskCancelled,
    TaskDeadLettered,
    TaskEvent,
    TaskFailed,
    TaskRequeued,
    TaskSucceeded,
    decode_fact,
)
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded
from foliot.store.journal.packing import unpacked
from foliot.store.tasks import fact_of
from foliot.store.transaction import Row
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Pinner, first_words, opening, unpack
from simulators.workshop.cast import RULES, Troupe
from simulators.workshop.database import Truth

_ENDS = (TaskSucceeded, TaskFailed, TaskCancelled, TaskDeadLettered)
_RUN_ENDS = (RunSucceeded, RunFailed, RunCancelled, RunDeadLettered)
ONCE = {rule.name for rule in RULES if rule.effect == "once"}


def task_problems(
    truth: Truth, commands: Mapping[str, Command], expected: Mapping[str, str], cancelled: set[str]
) -> Iterator[str]:
    """Every task: there once, ended once, with the right output, and its state the fold of its facts."""
    for name, command in commands.items():
        found = truth.read("task_named", {"namespace": "default", "name": name})
        if not found:
            yield f"task {name} was lost"
            continue
        row = found[0]
        events = [(each["at"], decode_fact(fact_of(each))) for each in _events(truth, name, row)]
        facts = [fact for _, fact in events]
        yield from _history_problems(name, row, facts)
        lock = truth.read("task_lock", {"key": row["key"]})[0]
        plan = unpack(lock["plan"], truth.read("blob_get", {"digest": lock["plan"]})[0]["data"]).plan_for(
            f"default/{name}"
        )
        if encode_state(fold(plan, events)) != lock["graph"]:
            yield f"task {name}: the stored state is not the fold of its facts"
        match facts[-1]:
            case TaskSucceeded(output=output) if output != expected[name]:
                yield f"task {name} ({command.target}) gave {output!r} instead of {expected[name]!r}"
            case TaskSucceeded():
                pass
            case TaskCancelled() if name in cancelled:
                pass
            case last:
                yield f"task {name} is {row['phase']}: {last}"


def _events(truth: Truth, name: str, row: Row) -> list[Row]:
    return truth.read("task_event_read", {"namespace": "default", "name": name, "after": 0, "count": 10_000})


def _history_problems(name: str, row: Row, facts: list[TaskEvent]) -> Iterator[str]:
    if len(facts) != row["revision"]:
        yield f"task {name}: {len(facts)} facts at revision {row['revision']}"
    ends = sum(isinstance(fact, _ENDS) for fact in facts)
    again = sum(isinstance(fact, TaskRequeued) for fact in facts)
    if ends != 1 + again:
        yield f"task {name} ended {ends} times with {again} requeues"
    sent = Counter(fact.message.id for fact in facts if isinstance(fact, MessageSent) and fact.activates)
    done = Counter(fact.message_id for fact in facts if isinstance(fact, MessageEnded))
    for message_id, count in sent.items():
        if count > 1 or done[message_id] != 1:
            yield f"message {message_id}: sent {count} times, ended {done[message_id]} times"


def run_problems(truth: Truth, commands: Mapping[str, Command]) -> Iterator[str]:
    """Every run: of one message, ended once, gone from the queue."""
    for name in commands:
        runs = truth.read("task_runs", {"namespace": "default", "name": name})
        for row in runs:
            entries = truth.read("event_read", {"id": row["run_id"], "after": 0, "count": 10_000})
            events = [unpacked(entry["type"], entry["data"], entry.get("pin") or b"") for entry in entries]
            ends = sum(isinstance(decode(event), _RUN_ENDS) for event in events)
            if ends != 1:
                yield f"run {row['run_id']} of {row['message']} ended {ends} times"
            if row["due_at"] is not None or row["held"] is not None:
                yield f"run {row['run_id']} has ended and is still in the queue"


def effect_problems(acts: Mapping[str, int], tools: Mapping[str, str], rerun: set[str]) -> Iterator[str]:
    """Checks that no `once` effect happened twice, unless a person said so."""
    for key, count in acts.items():
        if count > 1 and tools[key] in ONCE and key not in rerun:
            yield f"{tools[key]} ({key}) took effect {count} times"


def theft_problems(truth: Truth) -> Iterator[str]:
    """Checks that no run is taken from a living worker before its lease is over, whatever clocks say."""
    for run, victim, until, thief, at in truth.thefts():
        yield f"run {run} of {victim} was stolen by {thief} at {at:.1f}, with a lease until {until:.1f}"


# --- reference -------------------------------------------------------------------------------------------------------

# What a task must come to, worked out without workers, database or faults.


async def reference(command: Command) -> str:
    """The output of the task when nothing goes wrong."""
    pinned, _ = await Pinner(Troupe()).pin(command)
    plan = pinned.plan_for(f"{command.namespace}/{command.name}")
    state = new_state()
    moves = advance(plan, state, TaskAccepted(first_words(command), command.input), 0.0)
    waiting: deque[Envelope] = deque(moves.activate)
    while waiting:
        envelope = waiting.popleft()
        moves = advance(plan, state, MessageEnded(envelope.id, "succeeded", output=_says(command, envelope)), 0.0)
        waiting.extend(moves.activate)
    assert isinstance(moves.ended, TaskSucceeded), f"{command.target} does not succeed even in peace"
    return moves.ended.output


def _says(command: Command, envelope: Envelope) -> str:
    told = opening(command, envelope)[0].text
    return f"{envelope.to}:{blake2b(f'{envelope.to}|{told}'.encode(), digest_size=4).hexdigest()}"
