"""Sessions: created, found again, spoken to; their turns begin one after the other, whichever process is there.

What is said is stored first. Whoever stored it then begins a turn if none is at work, and whoever ends a turn begins
the next one; that only one of them succeeds is decided by the row of the session (`begin_turn`). A process that dies in
between leaves something unanswered: every process that stays looks for that now and then (`sweep`).

An idle session is a row. A task, a timer and a connection exist only while a turn begins, is at work, or waits for a
silence (`debounce`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foliot.common.cancellation import stop_tasks
from foliot.common.cursors import read_cursor, write_cursor
from foliot.common.pages import Part
from foliot.engine.base import Clock
from foliot.engine.driver.ids import new_run_id
from foliot.engine.driver.journal import storable
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import InboxOptions, mode_of, mode_problem, next_turn
from foliot.kernel.messages import Message
from foliot.kernel.run.spec import digest
from foliot.kernel.run.state import State
from foliot.sessions.base import Found, NewTurn, TurnOptions, TurnRuns, TurnView
from foliot.sessions.turns import TurnSettlement, details_of, identity_of, input_of, message_of, options_of, title_of
from foliot.store.base import Database
from foliot.store.journal.base import Journal
from foliot.store.sessions.base import NewInput, NewSession, Place, Said, Session, SessionBusy, SessionKind
from foliot.store.sessions.database import SqlSessions, begin_turn

log = logging.getLogger(__name__)

# Somebody else changed what waits just now: so often it is looked at again before it is left to the next sweep.
TRIES: Final = 8
STOPPED: Final = "stopped"
_CURSOR: Final = "sessions"


class SessionService:
    """The sessions of an installation, as one process serves them."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        turns: TurnRuns,
        *,
        clock: Clock,
        inbox: InboxOptions | None = None,
    ) -> None:
        self.store = SqlSessions(database)
        self._journal = journal
        self._turns = turns
        self._clock = clock
        self._inbox = inbox or InboxOptions()
        self._beginning: set[asyncio.Task[Any]] = set()
        self._silences: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    # --- sessions ------------------------------------------------------------------------------------------------

    async def create(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Creates a session, which is active in its place from then on.

        Raises `Conflict` when the id is taken, `NotFound` for an agent that is not there, or another user's place.
        """
        new = await self._new(place, identity, id, kind, title, model, options)
        return await self.store.create(new, now=self._clock())

    async def resolve(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Returns the active session of a place, or creates it; of many who ask at once all get the same one."""
        new = await self._new(place, identity, id, kind, title, model, options)
        session, _ = await self.store.resolve(new, now=self._clock())
        return session

    async def rotate(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Archives the active session of a place, if there is one, and creates another, in one transaction."""
        new = await self._new(place, identity, id, kind, title, model, options)
        return await self.store.rotate(new, now=self._clock())

    async def archive(self, id: str, *, identity: Identity | None, namespace: str = "") -> Session:
        """Archives a session: it takes nothing new, and answers what waits. Raises `NotFound`."""
        await self.get(id, identity=identity, namespace=namespace)
        return await self.store.archive(id, now=self._clock())

    async def active(self, place: Place, *, identity: Identity | None) -> Session | None:
        """Returns the active session of a place."""
        return await self.store.active(_own_place(place, identity))

    async def get(self, id: str, *, identity: Identity | None, namespace: str = "") -> Session:
        """Returns a session of the caller, in a namespace if one is given. Raises `NotFound` for what is not theirs."""
        session = await self.store.get(id)
        foreign = identity is not None and identity.user != session.place.user
        if foreign or (namespace and session.place.namespace != namespace):
            raise NotFound(f"there is no session {id!r}", hint="`foliot sessions` lists them")
        return session

    async def list(
        self,
        namespace: str,
        *,
        identity: Identity | None,
        agent: str = "",
        user: str = "",
        channel: str = "",
        kind: SessionKind | str = "",
        archived: bool = False,
        limit: int = 50,
        cursor: str = "",
    ) -> Part[Session]:
        """Lists sessions, the last used first; those of the caller, or of a `user` for the operator."""
        before = read_cursor(cursor, tuple[float, int], kind=_CURSOR) if cursor else None
        found = await self.store.list(
            namespace,
            agent=agent,
            user=user if identity is None else identity.user,
            mine=identity is not None,
            channel=channel,
            kind=kind,
            archived=archived,
            limit=limit + 1,
            before=before,
        )
        page = found[:limit]
        last = page[-1] if len(found) > limit else None
        return Part(page, None if last is None else write_cursor((last.active_at, last.key), kind=_CURSOR))

    async def change(
        self,
        id: str,
        *,
        identity: Identity | None,
        title: str | None = None,
        model: str | None = None,
        options: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> Session:
        """Changes what is given. A turn at work keeps its model, the next one has the new. Raises `NotFound`."""
        await self.get(id, identity=identity, namespace=namespace)
        return await self.store.change(id, title=title, model=model, options=options, now=self._clock())

    async def delete(self, id: str, *, identity: Identity | None, namespace: str = "") -> None:
        """Deletes a session, and what was not answered. Raises `NotFound`, `SessionBusy` during a turn."""
        await self.get(id, identity=identity, namespace=namespace)
        await self.store.delete(id)

    async def search(
        self,
        namespace: str,
        text: str,
        *,
        identity: Identity | None,
        session: str | None = None,
        limit: int = 20,
    ) -> Sequence[Found]:
        """Searches what was said in the caller's sessions, the best first."""
        raise InvalidInput("there is no index to search")

    async def history(
        self,
        id: str,
        *,
        identity: Identity | None,
        before: int | None = None,
        limit: int = 50,
        namespace: str = "",
    ) -> Sequence[TurnView]:
        """Returns turns with their messages, the newest last, of all branches; `before` is the number of a turn."""
        session = await self.get(id, identity=identity, namespace=namespace)
        turns = await self.store.turns(session, limit=limit, before=before)
        infos = {info.id: info for info in await self._journal.many([turn.run_id for turn in turns])}
        return [
            TurnView(turn.number, turn.run_id, turn.parent, turn.began_at, turn.ended_at, infos[turn.run_id].phase, ())
            for turn in reversed(turns)
            if turn.run_id in infos
        ]

    async def _new(
        self,
        place: Place,
        identity: Identity | None,
        id: str | None,
        kind: SessionKind,
        title: str,
        model: str,
        options: dict[str, Any] | None,
    ) -> NewSession:
        place = _own_place(place, identity)
        await self._turns.check(place.namespace, place.agent)
        return NewSession(id or new_run_id(self._clock()), place, kind, title, model, options or {})

    # --- speaking ------------------------------------------------------------------------------------------------

    async def say(
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
    ) -> Said:
        """Says something to a session; durable on return. It begins a turn, is heard by the one at work, or waits.

        The same `key` twice is one input, and gives the same outcome. `place` is where it came from: inputs of two
        places are never answered together. When no turn can begin, `problem` says why, and it waits until one can.
        Raises `NotFound`, `SessionArchived`, `InvalidInput`, and `Conflict` when the inbox is full or the key belongs
        to other words.
        """
        word = mode_of(mode)
        if word is None:
            raise InvalidInput(mode_problem(mode))
        said = message_of(message)
        session = await self.get(id, identity=identity, namespace=namespace)
        by = identity.actor if identity is not None and identity.actor != session.place.user else ""
        kept = details_of(identity, options, details or {})
        with storable(f"what is said to session {id}"):
            what = digest(msgspec.json.encode((word, said, place, kept)))
        new = NewInput(key or new_run_id(self._clock()), word, said, what, by, place, kept)
        outcome = await self.store.say(id, new, now=self._clock(), options=self._inbox_of(session))
        if outcome.act == "start":
            return replace(outcome, problem=await self._begin(id))
        if outcome.act == "wake":
            await self._turns.wake(outcome.run_id)
        return outcome

    async def stop(self, id: str, *, identity: Identity | None, drop: bool = False, namespace: str = "") -> bool:
        """Stops the turn at work; returns when nothing of it acts any more, and whether there was one.

        What waits stays and is answered next; with `drop` it is taken out. Raises `NotFound`.
        """
        session = await self.get(id, identity=identity, namespace=namespace)
        if drop:
            await self.store.drop_waiting(id)
        if not session.turn:
            return False
        by = "" if identity is None else identity.actor
        await self._turns.cancel(session.turn, by=by, reason=STOPPED)
        return True

    # --- turns ---------------------------------------------------------------------------------------------------

    def settlement(self, state: State) -> TurnSettlement:
        """Returns what the end of a run that is a turn brings about; for `Runs.turn_settlement`."""
        assert state.created is not None, "only a run that was created is driven"
        return TurnSettlement(state.created.session, self.look, clock=self._clock)

    def look(self, id: str) -> None:
        """Has the next turn of a session begin in the background, if one is due."""
        if not self._closed:
            task = asyncio.create_task(self._begin(id))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, id: str) -> str:
        """Begins the next turn of a session if none is at work and something is due; what keeps it from it, if so."""
        try:
            for _ in range(TRIES):
                try:
                    return await self._begin_once(id)
                except SessionBusy:
                    continue  # somebody else was faster, or took something out: what is left is looked at again
            return ""
        except NotFound as error:
            if error.details.get("session") == id:
                return ""
            problem = error
        except Conflict:
            return ""  # the sweep looks again
        except FoliotError as error:
            problem = error
        except Exception as error:
            log.exception("no turn of session %s could begin", id)
            return str(error)
        log.warning("no turn of session %s can begin: %s", id, problem.message)
        return problem.message

    async def _begin_once(self, id: str) -> str:
        session = await self.store.get(id)
        if session.turn or self._closed:
            return ""
        waiting = await self.store.waiting(session)
        due = next_turn([each.waiting() for each in waiting], self._clock(), self._inbox_of(session))
        if due is None:
            return ""
        if not due.inputs:
            self._look_at(id, due.at)
            return ""
        chosen = [each for each in waiting if each.seq in due.inputs]
        messages = input_of(chosen, ())
        run_id = new_run_id(self._clock())
        body = begin_turn(
            session, run_id, due.inputs, now=self._clock(), title="" if session.title else title_of(messages)
        )
        await self._turns.begin(
            NewTurn(
                session,
                run_id,
                session.turns + 1,
                session.head,
                messages,
                due.inputs,
                identity_of(session, chosen),
                options_of(session, chosen),
                body,
            )
        )
        return ""

    def _look_at(self, id: str, at: float) -> None:
        """Looks again when what was collected has been silent for long enough: one timer for each such session."""
        if (earlier := self._silences.pop(id, None)) is not None:
            earlier.cancel()
        self._silences[id] = asyncio.get_running_loop().call_later(
            max(0.0, at - self._clock()), self._fallen_silent, id
        )

    def _fallen_silent(self, id: str) -> None:
        self._silences.pop(id, None)
        self.look(id)

    def _inbox_of(self, session: Session) -> InboxOptions:
        given = session.options.get("inbox")
        return self._inbox if given is None else msgspec.convert(given, InboxOptions)

    # --- closing -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Begins no more turns. What waits is found by the next process that looks."""
        self._closed = True
        for timer in self._silences.values():
            timer.cancel()
        self._silences.clear()
        await stop_tasks(*self._beginning)


def _own_place(place: Place, identity: Identity | None) -> Place:
    """The place of the caller. Raises `NotFound` for that of another user."""
    if identity is None or place.user == identity.user:
        return place
    if place.user:
        raise NotFound(f"there is no session of user {place.user!r} here", hint="leave the user out for your own")
    return replace(place, user=identity.user)
