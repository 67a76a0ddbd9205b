"""The runs of turns: how a session has its agent answer, in the background of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from foliot.engine.driver.journal import signal
from foliot.errors import Conflict
from foliot.kernel.run.events import CancelRequested
from foliot.resources.references import qualified
from foliot.runtime.agent import within
from foliot.sessions.turns import with_time_limit
from foliot.store.journal.base import TERMINAL
from foliot.store.sessions.base import Place

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside
    from foliot.runtime.results import RunResult
    from foliot.sessions.base import NewTurn, TurnOptions


class SessionTurns:
    """`TurnRuns` of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    async def begin(self, turn: NewTurn) -> None:
        """Stores the run of a turn and drives it in the background; see `TurnRuns`."""
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
            adjust=partial(with_time_limit, options=turn.options),
            turn=turn,
            stream=True,
            check=False,
            in_transaction=turn.in_transaction,
        )

    async def wake(self, run_id: str) -> None:
        """Lets a run hear what is stored for it; see `TurnRuns`."""
        runs = self._inside.runs
        driver = runs.local(run_id)
        if driver is None or driver.is_over:
            await self._inside.background.wake(run_id)
            return
        for each in await runs.journal.signals([run_id]):
            driver.deliver(each)

    async def cancel(self, run_id: str, *, by: str, reason: str) -> None:
        """Cancels a run and waits for its end; see `TurnRuns`."""
        inside = self._inside
        try:
            message = signal(run_id, CancelRequested(by, reason), inside.clock())
            await inside.runs.journal.signal(message)
        except Conflict:
            pass  # it has ended
        else:
            await inside.background.wake(run_id, message, stay=True)
        while (await inside.runs.journal.get(run_id)).phase not in TERMINAL or inside.runs.has(run_id):
            await inside.pause()

    async def check(self, namespace: str, agent: str, model: str) -> None:
        """Raises unless there is such an agent, and such a model; see `TurnRuns`."""
        known = await self._inside.agent(within(agent, namespace))
        if model:
            await self._inside.models.model_of(qualified(model, known.namespace), known.namespace)

    async def check_turn(self, place: Place, options: TurnOptions, files: Sequence[str]) -> None:
        """Raises unless a turn may begin with these options, and its model reads these files; see `TurnRuns`."""
        await self._inside.check_turn(within(place.agent, place.namespace), options.for_run(), files)
