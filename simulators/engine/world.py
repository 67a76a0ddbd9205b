"""The simulated world: the one true journal, the ledger of effects, chance, and the faults that are still to come."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, Literal, TypeAlias, TypeVar

from foliot.engine.driver.runs import Runs
from foliot.kernel.run.spec import RunSpec
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.base import Invocation
from simulators.engine.history import Acted, Begun, History, Noted
from simulators.engine.profiles import Profile
from simulators.engine.virtual_loop import VirtualLoop, context_of

T = TypeVar("T")
Fate: TypeAlias = Literal["crash", "pause", "stop"]

EPOCH: Final = 1_750_000_000.0
FAULTS_END_AT: Final = 60.0


class World:
    """The state that all simulated processes share. `over`: the history is closed, nothing has an effect any more."""

    def __init__(
        self,
        loop: VirtualLoop,
        chance: Random,
        profile: Profile,
        specs: dict[str, RunSpec],
        journal: MemoryJournal,
        make_runs: Callable[..., Runs],
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.profile = profile
        self.specs = specs
        self.journal = journal
        self.make_runs = make_runs
        self.history = History(specs)
        self.acts: Counter[str] = Counter()
        self.alive: set[str] = set()  # names of processes; membership only, never walked
        self.over = False
        self.outside = context_of(None)
        self.lease_of: Callable[[str], tuple[str | None, float | None]] = self._lease_in_memory
        self._faults_left = profile.faults
        self._away_until = float("-inf")
        self._occasions = 0

    @property
    def now(self) -> float:
        return EPOCH + self.loop.time()

    def maybe(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    def soon(self) -> float:
        """A short time: mostly next to nothing, sometimes long enough for others to come in between."""
        return 0.0 if self.chance.random() < 0.5 else self.chance.choice((0.001, 0.02, 0.2, 1.5))

    def later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedules a callback that belongs to no process."""
        self.loop.call_later(delay, callback, *args, context=self.outside)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=context_of(None))

    # --- faults

    @property
    def faulty(self) -> bool:
        return self._faults_left > 0 and self.loop.time() < FAULTS_END_AT and not self.over

    def fate(self) -> Fate | None:
        """Draws the fault that befalls a process at this occasion."""
        profile = self.profile
        self._occasions += 1
        if profile.crash_at:
            return "crash" if self._occasions in profile.crash_at else None
        if not self.faulty:
            return None
        roll = self.chance.random()
        chances: tuple[tuple[Fate, float], ...] = (
            ("crash", profile.crash),
            ("pause", profile.pause),
            ("stop", profile.stop),
        )
        for fate, probability in chances:
            if roll < probability:
                self._faults_left -= 1
                return fate
            roll -= probability
        return None

    @property
    def occasions(self) -> int:
        """How many points there were at which a process could have died."""
        return self._occasions

    def disk_fails(self) -> bool:
        """Whether the store does not answer this time."""
        there_for = self.loop.time() - self._away_until
        if there_for < 0:
            return True
        if not self.faulty:
            return False
        if there_for >= self.profile.recovery * self.profile.lease_seconds and self.maybe(self.profile.outage):
            seconds = self.profile.lease_seconds * self.chance.choice(self.profile.outages)
            self.note("store", "", f"OUTAGE   for {seconds:g} s")
            self._away_until = self.loop.time() + seconds
        elif not self.maybe(self.profile.disk):
            return False
        self._faults_left -= 1
        return True

    # --- the ledger

    def begin(self, worker: str, call: Invocation) -> None:
        if not self.over:
            self.history.items.append(
                Begun(
                    self.loop.time(), worker, call.run_id, call.call_id, call.tool, call.idempotency_key, call.attempt
                )
            )

    def act(self, worker: str, call: Invocation) -> None:
        """The effect itself: in one instant, and for ever."""
        if not self.over:
            self.acts[call.idempotency_key] += 1
            holder, until = self.lease_of(call.run_id)
            held = holder == worker and until is not None and self.now <= until
            key = call.idempotency_key
            self.history.items.append(
                Acted(self.loop.time(), worker, call.run_id, call.call_id, call.tool, key, call.attempt, held)
            )

    def _lease_in_memory(self, run_id: str) -> tuple[str | None, float | None]:
        row = at_once(self.journal.get(run_id))
        return row.worker, row.lease_until

    def note(self, worker: str, run_id: str, text: str) -> None:
        if not self.over:
            self.history.items.append(Noted(self.loop.time(), worker, run_id, text))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, such as the methods of `MemoryJournal`."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the journal in memory must not wait")
