"""A run as its journal tells it."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.common.threads import unhurried
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.errors import Unencodable
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import (
    Event,
    InputReceived,
    RunCancelled,
    RunCreated,
    RunDeadLettered,
    RunFailed,
    RunSucceeded,
    SessionCompacted,
    Terminal,
)
from foliot.kernel.run.loop import fold
from foliot.kernel.run.spec import RunSpec, decode_spec
from foliot.kernel.run.state import State
from foliot.store.journal.base import Entry, Journal, Phase, RunInfo, Signal
from foliot.store.journal.chain import changed_journal, check

MOST_SPECS = 256
_messages = msgspec.json.Decoder(tuple[Message, ...])


class Specs:
    """Specs by digest. They never change, so the ones used last are kept: a thousand runs of an agent share one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, RunSpec] = OrderedDict()

    async def get(self, journal: Journal, digest: str) -> RunSpec:
        """Raises `NotFound`, `UnknownEvent`."""
        spec = self._kept.get(digest)
        if spec is None:
            spec = self._kept[digest] = decode_spec(await journal.get_blob(digest))
            if len(self._kept) > MOST_SPECS:
                self._kept.popitem(last=False)
        return spec


class JournalFacts(Struct, frozen=True):
    """The content of a journal: each fact with its time, and the chain link that the next one follows."""

    facts: list[tuple[float, Event]]
    link: bytes


async def told_by(run_id: str, entries: Sequence[Entry], *, trusting: bool = False) -> JournalFacts:
    """The facts of a journal that is read from its beginning. Raises `JournalChanged`, unless one is `trusting`."""
    return await unhurried(sum(len(entry.data) for entry in entries), _told_by, run_id, entries, trusting)


def _told_by(run_id: str, entries: Sequence[Entry], trusting: bool) -> JournalFacts:
    found = check(run_id, entries)
    if found.changed and not trusting:
        raise changed_journal(run_id, found.changed)
    return JournalFacts([(entry.at, decode(entry.data)) for entry in entries], found.link)


async def load_run(
    journal: Journal, run_id: str, *, upto: int | None = None, trusting: bool = False
) -> tuple[RunInfo, State]:
    """The run and the fold of its journal (of the first `upto` events). Raises `NotFound`, `JournalChanged`."""
    info, state, _ = await read_run(journal, run_id, upto=upto, trusting=trusting)
    return info, state


async def read_run(
    journal: Journal, run_id: str, *, upto: int | None = None, trusting: bool = False
) -> tuple[RunInfo, State, list[tuple[float, Event]]]:
    """Loads a run like `load_run`, with its folded facts and their times: the journal is read once for both."""
    info = await journal.get(run_id)
    told = await told_by(run_id, await journal.read(run_id, limit=upto), trusting=trusting)
    return info, await load_state(journal, Specs(), run_id, told=told), told.facts


async def load_state(journal: Journal, specs: Specs, run_id: str, *, told: JournalFacts | None = None) -> State:
    """The fold of a run's journal, or of what it `told` to whoever has read it.

    Raises `Conflict` if it has no beginning, `JournalChanged` if it is not what was recorded.
    """
    if told is None:
        told = await told_by(run_id, await journal.read(run_id))
    facts = told.facts
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        raise Conflict(f"the journal of run {run_id} does not begin with its creation")
    state = fold(await specs.get(journal, created.spec), run_id, facts, await read_history(journal, created))
    state.link = told.link
    return state


async def read_facts(journal: Journal, run_id: str, *, limit: int | None = None) -> list[tuple[float, Event]]:
    """Reads the facts of a run, each with its time. Raises `JournalChanged`."""
    return (await told_by(run_id, await journal.read(run_id, limit=limit))).facts


async def read_history(journal: Journal, created: RunCreated) -> tuple[Message, ...]:
    """Reads the messages that came before the run, in full."""
    if created.after:
        return await read_conversation(journal, created.after)
    if not created.history:
        return ()
    told = await journal.get_blob(created.history)
    return await unhurried(len(told), _messages.decode, told)


# Stands for messages that a summary has replaced: nobody has to read them.
_REPLACED: Final = Message("user", ())


async def read_conversation(journal: Journal, run_id: str) -> tuple[Message, ...]:
    """Reads the conversation of a run up to its last boundary, from its own journal and those of the turns before it.

    A turn in which everything before it was replaced by a summary is the first that has to be read. Raises `NotFound`,
    `Conflict`, `JournalChanged`.
    """
    turns: list[tuple[str, RunCreated, list[tuple[float, Event]]]] = []
    while run_id:
        facts = (await told_by(run_id, await journal.read(run_id))).facts
        if not facts or not isinstance(created := facts[0][1], RunCreated):
            raise Conflict(f"the journal of run {run_id} does not begin with its creation")
        turns.append((run_id, created, facts))
        run_id = "" if _is_summarised(created, facts) else created.after
    oldest = turns[-1][1]
    if _is_summarised(*turns[-1][1:]):
        messages: tuple[Message, ...] = (_REPLACED,) * oldest.before
    else:
        messages = await read_history(journal, oldest)
    specs = Specs()
    for turn, created, facts in reversed(turns):
        messages = fold(await specs.get(journal, created.spec), turn, facts, messages).settled_messages()
    return messages


def _is_summarised(created: RunCreated, facts: Sequence[tuple[float, Event]]) -> bool:
    return bool(created.before) and any(
        isinstance(event, SessionCompacted) and event.replaced >= created.before for _, event in facts
    )


# --- summary ---------------------------------------------------------------------------------------------------------

# What listings show of a run, written whenever it changes phase.

LONGEST_PREVIEW = 200


def phase_of(terminal: Terminal) -> Phase:
    match terminal:
        case RunSucceeded():
            return "succeeded"
        case RunCancelled():
            return "cancelled"
        case RunFailed() | RunDeadLettered():
            return "failed"


def summary_of(state: State, worker: str = "") -> dict[str, Any]:
    """Returns the summary of a run for lists; while it has not ended, with the worker that had it last."""
    usage = state.spent.usage()
    summary: dict[str, Any] = {
        "steps": state.spent.steps,
        "tool_calls": state.spent.tool_calls,
        "tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
    }
    match state.ended:
        case RunSucceeded(output=output):
            summary["output"] = preview(output)
        case RunFailed() | RunDeadLettered() as failed:
            summary["error"] = preview(failed.message)
            summary["reason"] = failed.reason
        case RunCancelled() as cancelled:
            summary["reason"] = cancelled.reason
        case None if state.waiting is not None:
            waiting = state.waiting
            summary["waiting"] = {"reason": waiting.reason, "owner": waiting.owner, "until": waiting.until}
            if state.paused is not None:
                summary["waiting"]["budget"] = state.paused.budget
                summary["waiting"]["basis"] = state.paused.basis
        case None:
            pass
    if worker and state.ended is None:
        summary["worker"] = worker
    return summary


def preview(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PREVIEW else line[: LONGEST_PREVIEW - 1] + "…"


# --- signals ---------------------------------------------------------------------------------------------------------

# Saying something to a run from outside.


def signal(run_id: str, event: Event, at: float, *, signal_id: str | None = None) -> Signal:
    """The event as a signal. The same `signal_id` twice is heard once. Raises `InvalidInput`."""
    with storable(f"what is said to run {run_id}"):
        data = encode(event)
    return Signal(signal_id or secrets.token_hex(12), run_id, at, type_of(event), data)


async def was_said(journal: Journal, run_id: str, input_id: str) -> bool:
    """Whether a run was told the input of this id, heard or not. Raises `NotFound`."""
    # In this order: a signal moves into the journal, never back.
    if any(each.id == input_id for each in await journal.signals([run_id])):
        return True
    facts = await read_facts(journal, run_id)
    return any(isinstance(event, InputReceived) and event.input_id == input_id for _, event in facts)


@contextmanager
def storable(what: str) -> Generator[None]:
    """Around the encoding of what somebody gave. Raises `InvalidInput` for what JSON cannot carry."""
    try:
        yield
    except (Unencodable, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"{what} cannot be stored: {error}",
            hint="half of a surrogate pair is no character: decode the bytes as what they are, or leave them out",
        ) from error
