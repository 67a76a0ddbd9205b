"""A run as its journal tells it."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from foliot.common.threads import unhurried
from foliot.errors import Conflict, InvalidInput, NotFound
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
from foliot.kernel.run.past import Past
from foliot.kernel.run.spec import RunSpec, decode_spec
from foliot.kernel.run.state import State
from foliot.kernel.tokens import estimate_messages
from foliot.store.journal.base import Entry, Journal, Phase, RunInfo, Signal
from foliot.store.journal.chain import JournalChanged, changed_journal, check

MOST_SPECS = 256
# Folding a fact takes about as long as decoding so many bytes: who folds many does so beside the event loop.
FACT: Final = 200
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
    return await unhurried(_bytes(entries), _told_by, run_id, entries, trusting)


def _bytes(*journals: Sequence[Entry]) -> int:
    return sum(len(entry.data) for entries in journals for entry in entries)


def _all_told_by(journals: Mapping[str, Sequence[Entry]]) -> dict[str, list[tuple[float, Event]]]:
    return {run_id: _told_by(run_id, entries, trusting=False).facts for run_id, entries in journals.items()}


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
    state = await load_state(journal, Specs(), run_id, told=told)
    if not trusting:
        check_definition(info, _creation(run_id, told.facts))
    return info, state, told.facts


def check_definition(info: RunInfo, created: RunCreated) -> None:
    """Raises `JournalChanged` when the row of a run names another definition than its first event."""
    if info.spec != created.spec:
        raise JournalChanged(
            f"run {info.id} was changed in the store: its definition is not the one that event 1 has recorded",
            hint="restore the store from a backup",
            run=info.id,
        )


async def load_state(
    journal: Journal,
    specs: Specs,
    run_id: str,
    *,
    told: JournalFacts | None = None,
    conversations: Conversations | None = None,
) -> State:
    """The fold of a run's journal, or of what it `told` to whoever has read it.

    Raises `Conflict` if it has no beginning, `JournalChanged` if it is not what was recorded.
    """
    if told is None:
        told = await told_by(run_id, await journal.read(run_id))
    created = _creation(run_id, told.facts)
    history = await read_history(journal, created, conversations)
    spec = await specs.get(journal, created.spec)
    state = await unhurried(FACT * len(told.facts), fold, spec, run_id, told.facts, history)
    state.link = told.link
    return state


async def read_facts(journal: Journal, run_id: str, *, limit: int | None = None) -> list[tuple[float, Event]]:
    """Reads the facts of a run, each with its time. Raises `JournalChanged`."""
    return (await told_by(run_id, await journal.read(run_id, limit=limit))).facts


async def read_history(
    journal: Journal, created: RunCreated, conversations: Conversations | None = None
) -> tuple[Message, ...]:
    """Reads the messages that came before the run, with a summary in the place of those that it stands for."""
    if created.after:
        return (await (conversations or Conversations(journal)).read(created.after)).messages
    if not created.history:
        return ()
    told = await journal.get_blob(created.history)
    return await unhurried(len(told), _messages.decode, told)


# --- conversations ---------------------------------------------------------------------------------------------------

# The turns of a conversation, read at once and kept for the next one.

# Stands for messages that a summary has replaced: nobody has to read them.
_REPLACED: Final = Message("user", ())
# So many conversations are kept for their next turn, of so many bytes in all.
MOST_WARM: Final = 512
MOST_WARM_SIZE: Final = 32 * 1024 * 1024
# What a message takes in memory besides its text, about: a short one is mostly that.
MESSAGE_SIZE: Final = 200


class Turn(NamedTuple):
    """A turn of a conversation, and the number of the first message that it added."""

    run_id: str
    first: int


class Conversation(Struct, frozen=True):
    """A conversation after one of its turns, the last of `turns`.

    A summary that stands for `summarised` messages is the first of `messages`. `turns` begin with the one that holds
    the first message after it. `sized` are the tokens of it all as the provider of `model` counted them, 0 when it did
    not; `size` is what it takes in memory, in bytes, about.
    """

    messages: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    summarised: int = 0
    sized: int = 0
    model: str = ""
    size: int = 0

    @property
    def base(self) -> str:
        """The turn at which reading it has to begin."""
        return self.turns[0].run_id if self.turns else ""

    @property
    def count(self) -> int:
        """The messages that were said in it, summarised ones included."""
        return _count(self.summarised, len(self.messages))

    def turn_of(self, number: int) -> str:
        """The turn that the message of this number belongs to; for one that is to come, nothing."""
        found = ""
        for turn in self.turns:
            if turn.first > number:
                break
            found = turn.run_id
        return found


def followed_by(before: Conversation, state: State) -> Conversation:
    """The conversation after one more turn, whose transcript begins with it."""
    reading = _Reading(before)
    reading.end_turn(state)
    return reading.conversation()


class _Reading:
    """A conversation that is being read: turn after turn is put to its end, and none is read twice for a later one."""

    def __init__(self, before: Conversation) -> None:
        self._past = Past(before.messages)
        self._turns = list(before.turns)
        self._summarised, self._size = before.summarised, before.size
        self._sized, self._model = before.sized, before.model

    def follow(self, spec: RunSpec, run_id: str, facts: Sequence[tuple[float, Event]]) -> None:
        """Takes in the next turn."""
        created = _creation(run_id, facts)
        # Most turns only add to what was said; a summary, a fork and a run that compacts look at all of it.
        whole = created.compacts or created.fork is not None
        if whole or any(isinstance(event, SessionCompacted) for _, event in facts):
            self.end_turn(fold(spec, run_id, facts, self._past.messages))
            return
        state = fold(spec, run_id, facts, past=self._past)
        if state.calls:  # ids of calls that wait for their results are not those of messages that were said
            self._past = Past(self._past.messages)
        self._add(state, Turn(run_id, self._count + 1), state.settled_messages())

    def end_turn(self, state: State) -> None:
        """Takes in a turn whose transcript begins with all that was said before it."""
        messages, begun = state.settled_messages(), Turn(state.run_id, self._count + 1)
        if state.summarised == self._summarised:
            self._add(state, begun, messages[len(self._past.messages) :])
        else:
            self._past, self._size = Past(), 0
            self._add(state, begun, messages)

    def _add(self, state: State, begun: Turn, messages: Sequence[Message]) -> None:
        self._past.messages += messages
        self._turns.append(begun)
        if state.base:
            kept = next((index for index, turn in enumerate(self._turns) if turn.run_id == state.base), 0)
            del self._turns[:kept]
        self._summarised, self._model = state.summarised, state.spec.model
        self._sized = state.tokens if state.known_tokens else 0
        self._size += _length(messages)

    @property
    def _count(self) -> int:
        return _count(self._summarised, len(self._past.messages))

    def conversation(self) -> Conversation:
        """Returns the conversation so far."""
        turns, messages = tuple(self._turns), tuple(self._past.messages)
        return Conversation(messages, turns, self._summarised, self._sized, self._model, self._size)


def _count(summarised: int, messages: int) -> int:
    return summarised + messages - (1 if summarised else 0)


def _length(messages: Sequence[Message]) -> int:
    return 4 * estimate_messages(messages) + MESSAGE_SIZE * len(messages)


class Conversations:
    """Reads conversations, and keeps the last ones by the turn that they end with: an ended turn never changes."""

    def __init__(self, journal: Journal, specs: Specs | None = None) -> None:
        self._journal = journal
        self._specs = specs or Specs()
        self._kept: OrderedDict[str, Conversation] = OrderedDict()
        self._size = 0

    def forget(self) -> None:
        """Drops what was read: it is read again when it is needed."""
        self._kept.clear()
        self._size = 0

    async def read(self, run_id: str) -> Conversation:
        """Reads a conversation up to the last boundary of its turn `run_id`: that turn, and at once those before it.

        Reading begins where the newest summary ends. Raises `NotFound`, `Conflict`, `JournalChanged`.
        """
        if (kept := self._kept.get(run_id)) is not None:
            self._kept.move_to_end(run_id)
            return kept
        head = await told_by(run_id, await self._journal.read(run_id))
        created = _creation(run_id, head.facts)
        turns = {run_id: head.facts}
        oldest = run_id
        if created.after and (base := _base(created, head.facts)) != run_id:
            stored = await self._journal.turns(run_id, first=base)
            turns.update(await unhurried(_bytes(*stored.values()), _all_told_by, stored))
            while oldest != base and (before := _creation(oldest, turns[oldest]).after):
                if before not in turns:
                    raise NotFound(f"run {before}, which run {oldest} continues, does not exist any more")
                oldest = before
        chain = [run_id]
        while chain[-1] != oldest:
            chain.append(_creation(chain[-1], turns[chain[-1]]).after)
        created = [_creation(turn, turns[turn]) for turn in chain]
        specs = {name: await self._specs.get(self._journal, name) for name in {each.spec for each in created}}
        reading = _Reading(await self._before(created[-1]))

        def read() -> Conversation:
            for turn in reversed(chain):
                reading.follow(specs[_creation(turn, turns[turn]).spec], turn, turns[turn])
            return reading.conversation()

        conversation = await unhurried(FACT * sum(map(len, turns.values())), read)
        if run_id == chain[0] and _has_ended(head.facts):
            self._keep(conversation)
        return conversation

    async def _before(self, created: RunCreated) -> Conversation:
        """The conversation before the first turn that is read."""
        if created.after:
            return Conversation((_REPLACED,) * created.before, (), created.summarised)
        messages = await read_history(self._journal, created)
        return Conversation(messages, size=_length(messages))

    def ended(self, state: State) -> None:
        """Keep the conversation after a turn that ended here, if the one before it is kept. Other runs are not."""
        created = state.created
        if created is None or state.ended is None or created.history or not (created.session or created.after):
            return
        before = self._kept.get(created.after) if created.after else Conversation()
        if before is not None:
            self._keep(followed_by(before, state))
            # It goes on after the new turn. Kept for each of its turns, it would take the places of others; who answers
            # an earlier turn again reads it.
            if created.after in self._kept and state.run_id in self._kept:
                self._size -= self._kept.pop(created.after).size

    def _keep(self, conversation: Conversation) -> None:
        head = conversation.turns[-1].run_id
        if head in self._kept or conversation.size > MOST_WARM_SIZE // 4:
            return
        self._kept[head] = conversation
        self._size += conversation.size
        while len(self._kept) > MOST_WARM or self._size > MOST_WARM_SIZE:
            self._size -= self._kept.popitem(last=False)[1].size


async def read_conversation(journal: Journal, run_id: str) -> tuple[Message, ...]:
    """Reads the messages of a conversation up to the last boundary of one of its turns. Raises as `Conversations`."""
    return (await Conversations(journal).read(run_id)).messages


def _creation(run_id: str, facts: Sequence[tuple[float, Event]]) -> RunCreated:
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        raise Conflict(f"the journal of run {run_id} does not begin with its creation")
    return created


def _base(created: RunCreated, facts: Sequence[tuple[float, Event]]) -> str:
    """The turn at which reading the conversation begins; blank for its first."""
    cut = [event.kept_from for _, event in facts if isinstance(event, SessionCompacted) and event.kept_from]
    return cut[-1] if cut else created.base


def _has_ended(facts: Sequence[tuple[float, Event]]) -> bool:
    return isinstance(facts[-1][1], Terminal)


# --- summary ---------------------------------------------------------------------------------------------------------

# What listings show of a run, written whenever it changes phase.

LONGEST_PREVIEW = 200
# An answer stands in the journal already; a line of it is enough to know it again.
LONGEST_ANSWER = 100


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
            summary["output"] = preview(output, LONGEST_ANSWER)
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


def preview(text: str, longest: int = LONGEST_PREVIEW) -> str:
    """Returns the beginning of a text, as one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


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
