"""Chat: something is said to a session, and what happens in the turn that answers it comes back as a stream.

    chat      says something, and yields the events of the turn that answers it, up to its one end
    answers   the same for what was said before: for whoever came back, or left the saying to somebody else
    watch     yields the events of a session turn after turn, from a place on

A turn does not belong to its readers. It is driven in the background of some process; a reader hears of it by the hub
when that is this one, else by the journal, with pieces that the relay carries. No turn waits for a reader: one that is
slow misses pieces and no event, one that is gone is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, Final, Protocol, TypeGuard

from msgspec import Struct

from foliot.engine.approval.documents import shown
from foliot.engine.live.hub import Interleaved, Live, Reader, Recorded
from foliot.errors import NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import InputReceived, RunCreated
from foliot.sessions.base import TurnOptions
from foliot.sessions.below import AsksBelow
from foliot.sessions.chat_events import (
    ChatEvent,
    ChatPlace,
    EndEvent,
    ErrorEvent,
    InputEvent,
    TurnStory,
    WaitingEvent,
    read_place,
)
from foliot.sessions.idle import IdleReaders
from foliot.sessions.service import SessionService
from foliot.store.journal.base import Journal
from foliot.store.sessions.base import Input, Session
from foliot.store.sessions.database import input_id
from foliot.tools.secrets.masking import Masker

# So many facts are read at once.
PAGE: Final = 500
# A run that is driven here tells of itself. All the same it is looked at after so many seconds: its lease may be lost.
LOOK_AFTER: Final = 5.0
# A session in which nothing happens is looked at with all others that are read here; by its own reader so seldom.
LOOK_AT_IDLE: Final = 60.0
# After so many looks that found nothing it is asked whether there is such a run at all.
MOST_EMPTY_LOOKS: Final = 30
# So many turns are read at once by whoever catches up with a session.
TURNS: Final = 50
_BY_PEOPLE: Final = frozenset({"approval", "input", "unknown_effect", "budget"})


class LiveRuns(Protocol):
    """The runs of an installation as they go on; given by the runtime."""

    def watch(self, run_id: str, *, elsewhere: bool = False) -> AbstractContextManager[Reader]:
        """Reads along what happens to a run here, and with `elsewhere` the pieces of it from other processes."""
        ...

    def drives(self, run_id: str) -> bool:
        """Whether this process drives the run now: then readers here hear of everything at once."""
        ...

    def next_change(self) -> Callable[[], Awaitable[None]]:
        """Returns how to wait until something may have happened in the store, from now on. One of `NextChange`."""
        ...

    async def changed(self, stirred: asyncio.Event, next_change: Callable[[], Awaitable[None]]) -> None:
        """Returns when the event is set, or something may have happened in the store."""
        ...

    async def is_asked(self, namespace: str, approval: str) -> bool:
        """Whether there is an approval of this name by now, for people to decide."""
        ...

    async def only_waits_below(self, run_id: str) -> bool:
        """Whether all that a run does is to wait for runs below it, which wait for people or a budget."""
        ...


class _Start(Struct, frozen=True):
    """The beginning of the reading of a run: behind a place, or with an input that it took while it worked."""

    place: ChatPlace | None = None
    input: str = ""


class Chat:
    """The streams of an installation's sessions, as one process serves them."""

    def __init__(
        self, sessions: SessionService, journal: Journal, runs: LiveRuns, *, masker: Masker | None = None
    ) -> None:
        self.sessions = sessions
        self._journal = journal
        self._runs = runs
        self._masker = masker
        self._idle = IdleReaders(sessions.store, runs.next_change)

    async def chat(
        self,
        id: str,
        message: Message | str,
        *,
        identity: Identity | None,
        mode: str = "followup",
        key: str | None = None,
        place: str = "",
        options: TurnOptions | None = None,
        details: dict[str, Any] | None = None,
        namespace: str = "",
        pauses: bool = False,
    ) -> AsyncGenerator[ChatEvent]:
        """Says something, and yields the events of the turn that answers it. Raises as `SessionService.say`.

        What waits behind others is answered when it is its turn; what a turn hears while it works is answered by that
        one. Saying the same again, with its `key`, yields the same turn from its first event on.
        The last event is the one `end`. With `pauses` that may be one of status `waiting`, when a person has to decide
        before the turn goes on; without, the stream stays open until somebody has.
        """
        said = await self.sessions.say(
            id,
            message,
            identity=identity,
            mode=mode,
            key=key,
            place=place,
            options=options,
            details=details,
            namespace=namespace,
        )
        if said.problem:
            yield ErrorEvent("", code="not_started", message=said.problem, retries=True)
            yield EndEvent("", status="waiting", message=f"no turn can begin yet: {said.problem}")
            return
        answers = self.answers(id, said.seq, identity=identity, namespace=namespace, pauses=pauses)
        async with aclosing(answers) as events:
            async for event in events:
                yield event

    async def answers(
        self, id: str, seq: int, *, identity: Identity | None, namespace: str = "", pauses: bool = False
    ) -> AsyncGenerator[ChatEvent]:
        """Yields the events of the turn that answers the input of this number, up to its one end.

        Of a turn that was at work when it was said, events come from the moment on at which it heard of it. Raises
        `NotFound`.
        """
        session = await self.sessions.get(id, identity=identity, namespace=namespace)
        followed = ""
        while True:
            next_change = self._runs.next_change()
            seen = await self.sessions.store.get(session.id)
            said = await self._input(session, seq)
            if said.status == "dropped":
                yield EndEvent("", status="dropped", message=said.reason)
                return
            if said.status == "pending" or said.run_id in ("", followed):
                if not pauses:
                    await self._idle.changed(seen, within=LOOK_AFTER)
                    continue
                turn, asked = await self._waits(session)
                for event in asked:
                    yield event
                if asked:
                    # What is said waits behind a turn that waits for a person.
                    yield EndEvent(turn, asked[-1].place, status="waiting", message=asked[-1].message)
                    return
                await next_change()
                continue
            followed = said.run_id
            async with aclosing(self._turn(session, followed, _Start(input=input_id(id, seq)), seq, pauses)) as events:
                async for event in events:
                    if not isinstance(event, EndEvent):
                        yield event
                        if pauses and event.run == followed and _is_for_people(event):
                            yield EndEvent(followed, event.place, status="waiting", message=event.message)
                            return
                        continue
                    if event.status == "waiting":  # the stream pauses
                        yield event
                        return
                    # A turn may end before it has taken in what it was told: then the next one answers that.
                    said = await self._input(session, seq)
                    if said.status == "consumed" and said.run_id == followed:
                        yield event
                        return

    async def _waits(self, session: Session) -> tuple[str, list[WaitingEvent]]:
        """Returns the turn at work, and what it and the runs below it ask people, when it waits for them."""
        run_id = (await self.sessions.store.get(session.id)).turn
        if not run_id:
            return "", []
        if (await self._journal.get(run_id)).phase != "waiting":
            below = AsksBelow(self._journal, session.place.namespace, run_id, mask=self._mask)
            asked = [event for event in await below.changes() if _is_for_people(event)]
            if not asked or not await self._runs.only_waits_below(run_id):
                return run_id, []
            for event in asked:
                await self._can_be_decided(session, event)
            return run_id, asked
        story = TurnStory(run_id, mask=self._mask)
        last: ChatEvent | None = None
        while entries := await self._journal.read(run_id, after=story.seq, limit=PAGE):
            for each in entries:
                last = [last, *story.events(Recorded(run_id, each.seq, each.at, decode(each.data)))][-1]
        if not isinstance(last, WaitingEvent) or not _is_for_people(last):
            return run_id, []
        await self._can_be_decided(session, last)
        return run_id, [last]

    def _mask(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return shown(arguments, self._masker)

    async def watch(
        self,
        id: str,
        *,
        identity: Identity | None,
        after: str = "",
        namespace: str = "",
        follow: bool = True,
    ) -> AsyncGenerator[ChatEvent]:
        """Yields the events of a session turn after turn, each turn with its one end.

        It begins with the turn at work, or behind the event of place `after`. Without `follow` it is done when no turn
        is at work any more. Raises `NotFound` for a session or a place that is not the caller's, `InvalidInput` for
        what is no place.
        """
        session = await self.sessions.get(id, identity=identity, namespace=namespace)
        last = session.turns - 1 if session.turn else session.turns
        if after:
            place = read_place(after)
            turn = await self.sessions.store.turn_of(place.run)
            if turn is None:
                raise _no_place(after)
            async with aclosing(self._turn(session, place.run, _Start(place))) as events:
                async for event in events:
                    yield event
            last = turn.number
        while True:
            seen = await self.sessions.get(id, identity=identity, namespace=namespace)  # it may be deleted
            runs = await self._turns_after(session, last)
            for number, run_id in runs:
                async with aclosing(self._turn(session, run_id, _Start())) as events:
                    async for event in events:
                        yield event
                last = number
            if not runs:
                if not follow:
                    return
                await self._idle.changed(seen, within=LOOK_AT_IDLE)

    async def _turn(
        self, session: Session, run_id: str, start: _Start, number: int | None = None, pauses: bool = False
    ) -> AsyncGenerator[ChatEvent]:
        """Yields the events of one turn from `start` on, up to its end. Raises `NotFound` for another session's run.

        `number` is that of an input which may be among those that the turn began with: then all of it is told. With
        `pauses` it is told as well what the turn has asked people before, as long as it waits for them. When it only
        waits for runs below it that ask people, the last event is then an `end` of status `waiting`.
        """
        asked: WaitingEvent | None = None
        story = TurnStory(run_id, mask=self._mask)
        below = AsksBelow(self._journal, session.place.namespace, run_id, mask=self._mask)
        telling = not start.input
        async with aclosing(self._lived(run_id, below)) as batches:
            async for items in batches:
                for item in items:
                    below.take(item)
                    fact = item.event if isinstance(item, Recorded) else None
                    if isinstance(fact, RunCreated):
                        if fact.session != session.id:
                            raise _no_place(run_id)
                        telling = telling or number in fact.inputs
                    elif isinstance(fact, InputReceived):
                        telling = telling or fact.input_id == start.input
                    events = story.events(item)
                    for event in events:
                        if not isinstance(event, InputEvent):
                            asked = event if isinstance(event, WaitingEvent) else None
                    if not telling and not story.ended:
                        continue
                    for event in events if telling else events[-1:]:
                        if not _was_read(start.place, event):
                            if isinstance(event, WaitingEvent):
                                await self._can_be_decided(session, event)
                            yield event
                    if story.ended:
                        return
                if pauses and asked is not None and (await self._journal.get(run_id)).phase == "waiting":
                    await self._can_be_decided(session, asked)
                    yield asked
                if not below.is_due():
                    continue
                for event in await below.changes():
                    await self._can_be_decided(session, event)
                    yield event
                waits = [event for event in below.open if _is_for_people(event)] if pauses else []
                if waits and await self._runs.only_waits_below(run_id):
                    yield EndEvent(run_id, status="waiting", message=waits[-1].message)
                    return

    async def _lived(self, run_id: str, below: AsksBelow) -> AsyncGenerator[Sequence[Live]]:
        """Yields what is recorded of a run from its first fact on, and pieces among it, as it happens.

        When runs `below` it may ask something, also nothing, whenever something may have happened in the store.
        """
        stirred = asyncio.Event()
        with self._runs.watch(run_id, elsewhere=True) as reader:
            reader.call(stirred.set)
            pieces, seq, empty = Interleaved(reader), 0, 0
            here = False  # all that is recorded comes by the hub, and nothing before it is missing
            while True:
                stirred.clear()
                next_change = self._runs.next_change()
                if here and (heard := _in_order(reader.taken(), seq)) is not None:
                    seq = max([seq, *(item.seq for item in heard if isinstance(item, Recorded))])
                    yield heard
                else:
                    here = False
                    entries = await self._journal.read(run_id, after=seq, limit=PAGE)
                    records = [Recorded(run_id, each.seq, each.at, decode(each.data)) for each in entries]
                    driven = self._runs.drives(run_id)
                    if len(entries) < PAGE and driven:
                        # Pieces stay where they are: from now on they are read in the order in which they came.
                        here = True
                        yield records
                    else:
                        yield pieces.among(records)
                    empty = 0 if entries else empty + 1
                    if entries:
                        seq = entries[-1].seq
                        continue
                    if empty >= MOST_EMPTY_LOOKS:
                        empty = 0
                        await self._journal.get(run_id)
                if here and self._runs.drives(run_id):
                    if below.may_be:
                        await self._runs.changed(stirred, next_change)
                    else:
                        await _within(stirred, LOOK_AFTER)
                    here = self._runs.drives(run_id) or stirred.is_set()
                else:
                    here = False
                    await self._runs.changed(stirred, next_change)

    async def _can_be_decided(self, session: Session, event: WaitingEvent) -> None:
        """Waits until what is asked can be decided: approvals are stored right after the journal says that they are."""
        for ask in event.asks:
            for _ in range(MOST_EMPTY_LOOKS if ask.kind == "approval" else 0):
                next_change = self._runs.next_change()
                if await self._runs.is_asked(session.place.namespace, ask.id):
                    break
                await next_change()

    async def _input(self, session: Session, seq: int) -> Input:
        found = await self.sessions.store.inputs(session.key, after=seq - 1, limit=1)
        if not found or found[0].seq != seq:
            raise NotFound(f"nothing of number {seq} was said to session {session.id}")
        return found[0]

    async def _turns_after(self, session: Session, number: int) -> list[tuple[int, str]]:
        """Lists the turns of a session behind one of them, the oldest first."""
        found: list[tuple[int, str]] = []
        before: int | None = None
        while turns := await self.sessions.store.turns(session, limit=TURNS, before=before):
            found += [(each.number, each.run_id) for each in turns if each.number > number]
            before = turns[-1].number
            if before <= number:
                break
        return found[::-1]


def _in_order(items: Sequence[Live], seq: int) -> list[Live] | None:
    """Returns what a reader was told behind a fact; None when a fact is missing between."""
    kept: list[Live] = []
    for item in items:
        if isinstance(item, Recorded):
            if item.seq <= seq:
                continue
            if item.seq != seq + 1:
                return None
            seq = item.seq
        kept.append(item)
    return kept


def _is_for_people(event: ChatEvent) -> TypeGuard[WaitingEvent]:
    return isinstance(event, WaitingEvent) and event.reason in _BY_PEOPLE


def _was_read(place: ChatPlace | None, event: ChatEvent) -> bool:
    if place is None or not event.place:
        return False
    there = read_place(event.place)
    return place.covers(there.seq, there.part or 0)


async def _within(stirred: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stirred.wait()
    except TimeoutError:
        pass


def _no_place(text: str) -> NotFound:
    return NotFound(
        f"{text[:80]!r} is no place in this session", hint="watch without a place begins at the turn at work"
    )
