"""Keeps the turns of sessions coming: begins the next one when something waits and none is at work.

Whoever stored an input looks, whoever ended a turn looks, and every server looks now and then for what was
left (`sweep`): a process may die between storing and looking. Any number of them may look at once. The row of the
session decides who begins the turn, in the transaction that stores its run; the others find `SessionBusy` and are done.

An idle session costs nothing here. There is a task while a turn begins, and a timer while collected inputs wait for a
silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.engine.base import Clock
from foliot.engine.driver.ids import new_run_id
from foliot.errors import FoliotError, NotFound, Unavailable
from foliot.kernel.backoff import backoff
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import InboxOptions, next_turn
from foliot.kernel.messages import Message
from foliot.kernel.run.state import State
from foliot.sessions.base import NewTurn, TurnOptions, TurnRuns
from foliot.sessions.turns import (
    HelperSettlement,
    TurnSettlement,
    identity_of,
    input_of,
    labels_of,
    options_of,
    title_of,
)
from foliot.store.journal.base import JournalConflict, RunTaken
from foliot.store.sessions.base import NONE_DROPPED, Dropped, Session, SessionBusy
from foliot.store.sessions.database import SqlSessions, begin_turn
from foliot.tools.secrets.masking import Masker

log = logging.getLogger(__name__)

# Somebody else changed what waits just now: so often it is looked at again before it is left to the next sweep.
TRIES: Final = 8
# Whoever changed a session last has the first go at it.
PATIENCE: Final = 2.0
# After a crash of a busy process: a few at a time.
MOST_AT_ONCE: Final = 100
# A session whose turn cannot begin (its agent is gone) is tried again, less and less often.
FIRST_REST: Final = 10.0
LONGEST_REST: Final = 600.0


class TurnKeeper:
    """The turns of all sessions, as one process begins them."""

    def __init__(
        self,
        store: SqlSessions,
        turns: TurnRuns,
        *,
        clock: Clock,
        new_id: Callable[[float], str] = new_run_id,
        masker: Masker | None = None,
    ) -> None:
        self._store = store
        self._masker = masker
        self._turns = turns
        self._clock = clock
        self._new_id = new_id
        self._looking: set[asyncio.Task[Any]] = set()
        self._silences: dict[str, asyncio.TimerHandle] = {}
        self._rests: dict[str, tuple[int, float]] = {}
        self._swept = 0
        self._closed = False

    def settlement(self, state: State) -> TurnSettlement | HelperSettlement:
        """Returns what the end or the wait of a turn, or of a run below one, brings about."""
        assert state.created is not None, "only a run that was created is driven"
        if not state.created.session:
            return HelperSettlement(state.created.root, clock=self._clock, masker=self._masker)
        return TurnSettlement(state.created.session, self.look, clock=self._clock, masker=self._masker)

    def look(self, id: str) -> None:
        """Has the next turn of a session begin in the background, if one is due."""
        if not self._closed:
            task = asyncio.create_task(self.begin_next(id))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def looked(self) -> None:
        """Waits until every look that is under way has begun the turn that was due, if one was."""
        while self._looking:
            await asyncio.wait(set(self._looking))

    async def begin_next(self, id: str, *, told: bool = False) -> str:
        """Begins the next turn of a session, if none is at work and something is due; returns what keeps it from it.

        `told`: whoever asks tells people what is returned, and it need not be told in the log.
        What waits stays stored, whatever happens here. Never raises.
        """
        try:
            for _ in range(TRIES):
                try:
                    await self._begin_next(id)
                    self._rests.pop(id, None)
                    break
                except SessionBusy:
                    continue  # somebody was faster, or took something out: what is left is looked at again
            return ""
        except (RunTaken, JournalConflict, Unavailable) as error:
            # Others were at the same rows. Any other conflict stays until somebody mends it, and is told.
            log.info("session %s is looked at again: %s", id, error.message)
            return ""
        except FoliotError as error:
            if isinstance(error, NotFound) and error.details.get("session") == id:
                return ""  # deleted meanwhile
            return self._rest(id, error.message, told)
        except Exception as error:
            log.exception("no turn of session %s could begin", id)
            return self._rest(id, f"{type(error).__name__}: {error}", told)

    async def _begin_next(self, id: str) -> None:
        session = await self._store.get(id)
        if session.turn or self._closed:
            return
        waiting = await self._store.waiting(session)
        rules = InboxOptions()
        if any(each.mode == "collect" for each in waiting):  # nothing else waits for a silence
            rules = await self._store.rules(session, self._turns.agent_object(session.place))
        due = next_turn([each.waiting() for each in waiting], self._clock(), rules)
        if due is None:
            return
        if not due.inputs:
            self._look_at(id, due.at)
            return
        chosen = [each for each in waiting if each.seq in due.inputs]
        dropped = await self._store.dropped(session, chosen[0].place)
        await self.begin(
            session,
            input_of(chosen, dropped),
            identity=identity_of(session, [*dropped.newest, *chosen]),
            options=options_of(session, chosen),
            inputs=due.inputs,
            summarised=dropped,
            title=title_of(input_of(chosen)),
            labels=labels_of(chosen),
        )

    async def begin(
        self,
        session: Session,
        messages: Sequence[Message],
        *,
        identity: Identity,
        options: TurnOptions,
        inputs: Sequence[int] = (),
        again: Sequence[int] = (),
        summarised: Dropped = NONE_DROPPED,
        title: str = "",
        after: str | None = None,
        parent: int | None = None,
        compacts: bool = False,
        labels: dict[str, str] | None = None,
        instead: str = "",
    ) -> str:
        """Begins a turn that answers these inputs; returns the id of its run, which is stored by then.

        `again` are inputs that another turn has answered before, the run `instead`. One that `compacts` answers
        nothing. It goes on after the head of the session, or after the run `after`, which is that of the turn
        `parent`. Raises `SessionBusy` when another turn began meanwhile, and what keeps a run of the agent from
        beginning.
        """
        now = self._clock()
        run_id = self._new_id(now)
        body = begin_turn(
            session, run_id, inputs, now=now, parent=parent, title="" if session.title else title, summarised=summarised
        )
        await self._turns.begin(
            NewTurn(
                session,
                run_id,
                session.turns + 1,
                session.head if after is None else after,
                tuple(messages),
                (*inputs, *again),
                identity,
                options,
                body,
                compacts,
                labels or {},
                instead,
            )
        )
        return run_id

    def _look_at(self, id: str, at: float) -> None:
        """Looks again when those who were collected have been silent for long enough."""
        if (earlier := self._silences.pop(id, None)) is not None:
            earlier.cancel()
        loop, left = asyncio.get_running_loop(), max(0.0, at - self._clock())
        self._silences[id] = loop.call_later(left, self._fallen_silent, id)

    def _fallen_silent(self, id: str) -> None:
        self._silences.pop(id, None)
        self.look(id)

    # --- what was left -------------------------------------------------------------------------------------------

    async def sweep(self, *, patience: float = PATIENCE) -> list[str]:
        """Begins turns that nobody began, of sessions that were left alone for a while; returns their ids.

        A look sees one page of them, and the next one goes on behind it. Raises `Unavailable`.
        """
        now = self._clock()
        page = await self._store.unanswered(quiet_since=now - patience, after=self._swept, limit=MOST_AT_ONCE)
        self._swept = page[-1][0] if len(page) == MOST_AT_ONCE else 0
        if not page and not self._swept:
            self._rests.clear()
        # Also those that wait for a silence: it may be shorter by now, as their agent is declared.
        due = [id for _, id in page if self._rests.get(id, (0, 0.0))[1] <= now]
        for id in due:
            await self.begin_next(id)
        return due

    def _rest(self, id: str, why: str, told: bool) -> str:
        times = self._rests.get(id, (0, 0.0))[0] + 1
        self._rests[id] = times, self._clock() + backoff(times, FIRST_REST, LONGEST_REST)
        level = logging.WARNING if times == 1 and not told else logging.DEBUG
        log.log(level, "session %s waits for an answer, and no turn can begin: %s", id, why)
        return why

    async def close(self) -> None:
        """Begins no more turns. What waits is found by the next process that looks."""
        self._closed = True
        for timer in self._silences.values():
            timer.cancel()
        self._silences.clear()
        await stop_tasks(*self._looking)
