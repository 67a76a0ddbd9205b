"""The runs of turns: how a session has its agent answer, in the background of this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from foliot.common.process import in_words
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, NotFound, Unavailable, UsageError
from foliot.kernel.run.compaction import replaceable
from foliot.kernel.run.events import CancelRequested
from foliot.resources.references import qualified
from foliot.runtime.agent import check_active, within
from foliot.sessions.turns import with_time_limit
from foliot.store.journal.base import TERMINAL, RunHeld, RunInfo
from foliot.store.sessions.base import Place
from foliot.store.sessions.inbox_rules import INBOX, AgentObject

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside
    from foliot.runtime.results import RunResult
    from foliot.sessions.base import NewTurn, TurnOptions


# A turn that is stopped is waited for so many seconds, and two leases of whoever may have died with it.
LONGEST_END: Final = 30.0


class SessionTurns:
    """`TurnRuns` of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    async def begin(self, turn: NewTurn) -> None:
        """Stores the run of a turn and drives it in the background; see `TurnRuns`."""
        await self._inside.warm.freshen(turn.session.place)
        await self._inside.background.driven(turn.run_id, self._drive(turn))

    async def _drive(self, turn: NewTurn) -> RunResult:
        inside, place = self._inside, turn.session.place
        if turn.compacts:
            return await inside.compact(
                within(place.agent, place.namespace),
                run_id=turn.run_id,
                identity=turn.identity,
                after=turn.after,
                turn=turn,
                check=False,
                in_transaction=turn.in_transaction,
            )
        return await inside.run(
            within(place.agent, place.namespace),
            turn.input,
            run_id=turn.run_id,
            identity=turn.identity,
            after=turn.after,
            options=turn.options.for_run(),
            labels=turn.labels,
            adjust=partial(with_time_limit, options=turn.options),
            turn=turn,
            stream=True,
            check=False,
            in_transaction=turn.in_transaction,
        )

    async def wake(self, run_id: str) -> None:
        """Lets a run hear what is stored for it; see `TurnRuns`."""
        await self._inside.background.wake(run_id)

    async def cancel(self, run_id: str, *, by: str, reason: str, wait: bool = True) -> None:
        """Cancels a run and waits for its end; see `TurnRuns`."""
        inside, runs = self._inside, self._inside.runs
        try:
            message = signal(run_id, CancelRequested(by, reason), inside.clock())
            await runs.journal.signal(message)
        except Conflict:
            pass  # it has ended
        else:
            await inside.background.wake(run_id, message, stay=wait)
        if not wait:
            return
        # A holder that died without proof of it is replaced when its lease is over.
        latest = time.monotonic() + LONGEST_END + 2 * runs.lease_seconds
        next_change = inside.next_change()
        while (info := await runs.journal.get(run_id)).phase not in TERMINAL or runs.has(run_id):
            if time.monotonic() > latest:
                raise _not_ended(info, here=runs.has(run_id))
            if not runs.has(run_id):
                with contextlib.suppress(RunHeld):  # another process ends it
                    await inside.background.resume(info, stay=True)
            await next_change()
            next_change = inside.next_change()
        # A call that was told to end is not waited for long, and the fence around it is closed behind it. What the
        # kernel has to end may be much, on a busy machine.
        if not await inside.fences.cleaned_up(LONGEST_END):
            raise Unavailable(
                f"run {run_id} has ended, and programs that it started are still being ended",
                hint="they end by themselves; ask again",
            )

    def agent_object(self, place: Place) -> AgentObject | None:
        """Returns the rules of an agent that is an object of this process; see `TurnRuns`."""
        return agent_object(self._inside, place.namespace, place.agent)

    async def check(self, namespace: str, agent: str, model: str) -> None:
        """Raises unless there is such an agent, and such a model; see `TurnRuns`."""
        known = await self._inside.agent(within(agent, namespace))
        check_active(known)
        if model:
            await self._inside.models.model_of(qualified(model, known.namespace), known.namespace)

    async def check_active(self, place: Place) -> None:
        """Raises `InactiveAgent` for an agent that takes no new work; see `TurnRuns`."""
        with contextlib.suppress(NotFound, UsageError):  # words for an agent that is not there wait for it
            check_active(await self._inside.agent(within(place.agent, place.namespace)))

    async def check_turn(self, place: Place, options: TurnOptions, files: Sequence[str]) -> None:
        """Raises unless a turn may begin with these options, and its model reads these files; see `TurnRuns`."""
        await self._inside.check_turn(within(place.agent, place.namespace), options.for_run(), files)

    async def check_compaction(self, place: Place, head: str) -> None:
        """Raises `Conflict` when a summary could replace nothing; see `TurnRuns`."""
        tail = await self._inside.kept_tail(within(place.agent, place.namespace))
        said = await self._inside.runs.conversations.read(head)
        if not replaceable(said.messages, tail, summarised=said.summarised > 0):
            raise Conflict(
                f"there is nothing to compact yet: the newest {tail} messages always stay as they are",
                hint="it is worth it in a longer conversation",
            )


def agent_object(inside: Inside, namespace: str, name: str) -> AgentObject | None:
    """Returns the rules of an agent that is an object of this process; None for another."""
    known = inside.known_agent(namespace, name)
    return None if known is None else AgentObject(known.document["spec"].get(INBOX, {}), known.is_of_python)


def _not_ended(info: RunInfo, *, here: bool) -> Unavailable:
    keeps = "a tool of it has not stopped yet" if here else f"{in_words(info.worker or '')} drives it"
    return Unavailable(
        f"run {info.id} was told to end, and has not: {keeps}",
        hint=f"it ends as soon as that is over; `foliot why {info.id}` says what it does",
    )
