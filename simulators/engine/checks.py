"""The promises of the engine, each as a function over a history: what it yields is broken.

They know nothing of how the engine works; only the kernel's fold is used, to say what the durable journal means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from foliot.engine.driver.journal import phase_of
from foliot.engine.explain.replay import replay
from foliot.kernel.arguments import parse_object
from foliot.kernel.errors import KernelError
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.calls import is_repeatable
from foliot.kernel.run.contract import signature_of
from foliot.kernel.run.events import (
    ModelResponded,
    RunCancelled,
    RunDeadLettered,
    RunFailed,
    RunSucceeded,
    StepStarted,
    ToolFinished,
    ToolStarted,
    UnknownDecided,
)
from foliot.kernel.run.loop import apply
from foliot.kernel.run.state import State, owner_of
from foliot.store.journal.base import TERMINAL
from simulators.engine.history import Acted, Asked, Begun, Cancelled, Claimed, History, Item, Stored, brief

Check: TypeAlias = Callable[[History], Iterator[str]]
ENDS: Final = (RunSucceeded, RunFailed, RunCancelled, RunDeadLettered)


def _folded(history: History) -> Iterator[tuple[Item, State | None]]:
    """Each thing that happened, with the fold of what was durable of its run when it did."""
    states = {run_id: State(spec, run_id) for run_id, spec in history.specs.items()}
    broken: set[str] = set()
    for item in history.items:
        state = states.get(item.run_id)
        if isinstance(item, Stored) and state is not None and item.run_id not in broken:
            try:
                for entry, event in zip(item.entries, item.events, strict=True):
                    apply(state, event, entry.at)
            except KernelError:
                broken.add(item.run_id)  # `journals_are_whole` says so
        yield item, None if item.run_id in broken else state


def nothing_acts_before_it_is_durable(history: History) -> Iterator[str]:
    """A tool is begun, and acts, only behind its durable start; a model is shown only what is durable."""
    started: set[tuple[str, str, int]] = set()
    for item, state in _folded(history):
        match item:
            case Stored():
                for event in item.events:
                    if isinstance(event, ToolStarted):
                        started.add((item.run_id, event.call_id, event.attempt))
            case Begun() | Acted():
                if (item.run_id, item.call_id, item.attempt) not in started:
                    yield f"{item.run_id}: {item.call_id} acted before its start {item.attempt} was durable"
                elif state is not None and isinstance(item, Begun):
                    call = state.call(item.call_id)
                    if call is not None and (call.phase, call.attempts) != ("running", item.attempt):
                        yield f"{item.run_id}: {item.call_id} was begun by {item.worker} while it is {call.phase}"
            case Asked() if state is not None:
                shown = item.request.messages
                if shown != tuple(state.transcript) and (state.asking or len(shown) > len(state.transcript)):
                    yield f"{item.run_id}: the model was shown messages that are not durable"
            case _:
                pass


def nothing_begins_behind_a_cancel(history: History) -> Iterator[str]:
    """Behind a cancel that is stored no question and no call is begun, in whatever process the run is driven."""
    cancelled: set[str] = set()
    for item in history.items:
        if isinstance(item, Cancelled):
            cancelled.add(item.run_id)
        elif isinstance(item, Stored) and item.run_id in cancelled:
            for event in item.events:
                if isinstance(event, ToolStarted | StepStarted):
                    yield f"{item.run_id}: {brief(event)} was stored by {item.worker} behind a cancel"


def finished_work_is_not_done_again(history: History) -> Iterator[str]:
    """Checks that there is no second answer of a step, no question for an answered step, no call begun that has a
    result.
    """
    answered: set[tuple[str, int]] = set()
    finished: set[tuple[str, str]] = set()
    for item, state in _folded(history):
        match item:
            case Stored():
                for event in item.events:
                    if isinstance(event, ModelResponded):
                        if (item.run_id, event.step) in answered:
                            yield f"{item.run_id}: step {event.step} was answered a second time"
                        answered.add((item.run_id, event.step))
                    elif isinstance(event, ToolFinished):
                        finished.add((item.run_id, event.result.call_id))
            case Begun() if (item.run_id, item.call_id) in finished:
                yield f"{item.run_id}: the finished call {item.call_id} was begun again by {item.worker}"
            case Asked() if state is not None and not state.asking:
                yield f"{item.run_id}: {item.worker} asked the model although no question is open"
            case _:
                pass


def once_effects_happen_once(history: History) -> Iterator[str]:
    """A `once` call acts at most once, but for each time that a person said "run", or if it declares `retry`."""
    allowed: Counter[tuple[str, str]] = Counter()
    acted: Counter[tuple[str, str]] = Counter()
    for item in history.items:
        if isinstance(item, Stored):
            for event in item.events:
                if isinstance(event, UnknownDecided) and event.decision == "run":
                    allowed[item.run_id, event.call_id] += 1
        elif isinstance(item, Acted):
            rule = next(rule for rule in history.specs[item.run_id].tools if rule.name == item.tool)
            call = (item.run_id, item.call_id)
            acted[call] += 1
            if rule.effect == "once" and rule.on_unknown != "retry" and acted[call] > 1 + allowed[call]:
                yield f"{item.run_id}: the once effect of {item.call_id} happened {acted[call]} times"


def calls_in_doubt_are_not_made_again(history: History) -> Iterator[str]:
    """Checks that no `once` call begins beside the same call of its run that may have acted, unless a person said
    "run".
    """
    for item, state in _folded(history):
        if not isinstance(item, Begun) or state is None or (call := state.call(item.call_id)) is None:
            continue
        if call.effect != "once" or is_repeatable(call) or call.cleared:
            continue
        same = signature_of(state, call.name, parse_object(call.arguments)[0] or {})
        beside = [
            other.id
            for other in state.calls
            if other is not call
            and other.phase == "unknown"
            and signature_of(state, other.name, parse_object(other.arguments)[0] or {}) == same
        ]
        if beside or same in state.unsettled:
            yield f"{item.run_id}: {item.call_id} was begun although the same call may have acted ({beside})"


def repeats_keep_their_key(history: History) -> Iterator[str]:
    """All attempts of a call carry the key of its durable starts, and no other call has it.

    But for one: the same call made again, after nobody could tell how it had ended.
    """
    keys: dict[tuple[str, str], str] = {}
    owners: dict[str, tuple[str, str]] = {}
    unsettled: set[str] = set()

    def seen(call: tuple[str, str], key: str) -> Iterator[str]:
        if keys.setdefault(call, key) != key:
            yield f"{call[0]}: {call[1]} ran under the keys {keys[call]} and {key}"
        if owners.setdefault(key, call) != call and key not in unsettled:
            yield f"{call[0]}: {call[1]} and {owners[key]} share the key {key}"

    for item in history.items:
        if isinstance(item, Begun | Acted):
            yield from seen((item.run_id, item.call_id), item.key)
        elif isinstance(item, Stored):
            for event in item.events:
                if isinstance(event, ToolStarted):
                    yield from seen((item.run_id, event.call_id), event.key)
                elif isinstance(event, ToolFinished) and event.result.error is not None and event.result.error.unknown:
                    unsettled.add(event.result.error.key)


def journals_are_whole(history: History) -> Iterator[str]:
    """Gap-free, legal, at most one terminal event and it is the last; one result per call, in the order of calls."""
    seqs: Counter[str] = Counter()
    ended: set[str] = set()
    results: Counter[tuple[str, str]] = Counter()
    for item in history.stored():
        for entry, event in zip(item.entries, item.events, strict=True):
            if entry.seq != seqs[item.run_id] + 1:
                yield f"{item.run_id}: seq {entry.seq} follows {seqs[item.run_id]}"
            seqs[item.run_id] = entry.seq
            if item.run_id in ended:
                yield f"{item.run_id}: {entry.type} was recorded after the end"
            if isinstance(event, ENDS):
                ended.add(item.run_id)
            elif isinstance(event, ToolFinished):
                results[item.run_id, event.result.call_id] += 1
    for (run_id, call_id), count in results.items():
        if count > 1:
            yield f"{run_id}: {call_id} has {count} results"
    last: dict[str, State | None] = {}
    for item, state in _folded(history):
        if isinstance(item, Stored):
            last[item.run_id] = state
    for run_id, state in last.items():
        if state is None:
            yield f"{run_id}: the journal holds a fact that cannot follow those before it"
        else:
            yield from _results_in_order(run_id, state)


def _results_in_order(run_id: str, state: State) -> Iterator[str]:
    transcript = state.transcript
    for index, message in enumerate(transcript):
        if not message.calls or (index + 1 == len(transcript) and state.calls):
            continue
        after = transcript[index + 1].parts if index + 1 < len(transcript) else ()
        given = [part.call_id for part in after if isinstance(part, ToolResult)]
        if given != [call.id for call in message.calls]:
            yield f"{run_id}: calls {[call.id for call in message.calls]} have the results {given}"


def someone_always_owns_the_run(history: History) -> Iterator[str]:
    """At every durable point there is a worker with a lease, a timer with a time, or a person; the row agrees."""
    for item, state in _folded(history):
        if not isinstance(item, Stored) or state is None:
            continue
        owner = owner_of(state)
        if state.ended is not None:
            if item.phase != phase_of(state.ended):
                yield f"{item.run_id}: it ended, and its row says {item.phase}"
        elif owner.kind == "nobody":
            yield f"{item.run_id}: nobody owns it ({owner.what})"
        elif owner.kind == "timer" and owner.until is None:
            yield f"{item.run_id}: it waits for a timer that has no time"
        elif item.phase == "waiting" and state.waiting is None:
            yield f"{item.run_id}: it was let go to wait, and nobody was told for what"
        elif item.phase in TERMINAL:
            yield f"{item.run_id}: its row says {item.phase}, and its journal has not ended"
    for run_id, row in history.rows.items():
        if row.phase == "running" and (row.lease_until is None or row.worker is None):
            yield f"{run_id}: it is running without a lease"


def only_the_holder_writes(history: History) -> Iterator[str]:
    """Every append was made under the newest epoch: a zombie changes nothing."""
    holder: dict[str, tuple[int, str]] = {}
    for item in history.items:
        if isinstance(item, Claimed):
            holder[item.run_id] = (item.epoch, item.worker)
        elif isinstance(item, Stored):
            if holder.get(item.run_id) != (item.epoch, item.worker):
                yield f"{item.run_id}: {item.worker} wrote under epoch {item.epoch}; held: {holder.get(item.run_id)}"
            if item.phase not in (None, "running"):
                holder.pop(item.run_id, None)


def every_run_comes_to_rest(history: History) -> Iterator[str]:
    """Checks that each run ends or waits for a person once faults have stopped."""
    for run_id in history.specs:
        row = history.rows.get(run_id)
        if row is None:
            yield f"{run_id}: it was lost"
        elif row.phase == "waiting":
            owner = row.summary.get("waiting", {}).get("owner")
            if owner != "person":
                yield f"{run_id}: it waits for {owner} for ever"
        elif row.phase not in TERMINAL:
            yield f"{run_id}: it is {row.phase} for ever"


def replays_find_no_difference(history: History) -> Iterator[str]:
    """The kernel, asked again, decides everything as it was recorded."""
    for run_id in dict.fromkeys(item.run_id for item in history.stored()):
        found = replay(history.specs[run_id], run_id, history.journal(run_id))
        if found.difference is not None:
            difference = found.difference
            yield f"{run_id}: seq {difference.seq} is {difference.recorded}; replayed: {difference.replayed}"


def nothing_unexpected_is_raised(history: History) -> Iterator[str]:
    """The engine raises what it says it raises, no task is left with an error nobody sees, and no run ends for a fault
    of the engine itself."""
    yield from history.problems
    for item in history.items:
        for event in item.events if isinstance(item, Stored) else ():
            if isinstance(event, RunDeadLettered) and event.reason == "internal":
                yield f"{item.run_id}: {event.message}"


CHECKS: Final[tuple[Check, ...]] = (
    nothing_acts_before_it_is_durable,
    nothing_begins_behind_a_cancel,
    finished_work_is_not_done_again,
    once_effects_happen_once,
    calls_in_doubt_are_not_made_again,
    repeats_keep_their_key,
    journals_are_whole,
    someone_always_owns_the_run,
    only_the_holder_writes,
    every_run_comes_to_rest,
    replays_find_no_difference,
    nothing_unexpected_is_raised,
)


def violations(history: History) -> list[str]:
    """Everything that is broken, each with the promise it breaks."""
    return [f"{check.__name__}: {broken}" for check in CHECKS for broken in check(history)]
