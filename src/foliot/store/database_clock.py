"""The database's time in this process, without asking for it: measured now and then, carried by a clock nobody sets.

Leases are judged by it, so that a machine whose own clock is minutes off neither steals a run nor loses one early. The
clock that carries it between two measurements goes on while the machine is suspended, and never jumps.

A measurement is as good as its answer was quick: the database may have looked at its clock at any moment in between.
One that is worse than what is known already, with its age reckoned in, is left aside, unless the two contradict each
other: then the database's clock was set, or this is another database by now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

# How often it is measured again. Two good clocks part by less than this share of the time that passes.
MEASURE_EVERY: Final = 10.0
DRIFT: Final = 2e-4
# After this long without a measurement it is told: the longer it lasts, the further the two clocks may have parted.
UNMEASURED: Final = 60.0
# A machine's own clock that is off by more is told by `foliot doctor` and `foliot why`.
NOTABLE: Final = 2.0


# Seconds on a clock of this machine that is never set and goes on in suspend, where there is one. It is asked twenty
# times in a step, so there is no function of our own around it.
steady: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def boot() -> str:
    """Which boot `steady` counts from; "" where all processes of the machine do not share such a clock."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class DatabaseClock:
    """Call it for the database's time, from any thread. Until it was measured it is the machine's own."""

    def __init__(self, *, steady: Callable[[], float] = steady, wall: Callable[[], float] = time.time) -> None:
        self._steady = steady
        self._base = wall() - steady()
        self._doubt = float("inf")  # by how much it may be wrong, as of `_measured_at`
        self._measured_at = self._asked_at = steady()

    def __call__(self) -> float:
        return self._base + self._steady()

    @property
    def unmeasured(self) -> float:
        """The seconds since the database last told the time."""
        return self._steady() - self._asked_at

    def measured(self, theirs: float, asked: float, answered: float) -> None:
        """The database said `theirs` when it was asked between these two moments of the steady clock."""
        self._asked_at = answered
        doubt = (answered - asked) / 2
        base = theirs - (asked + answered) / 2
        known = self._doubt + (answered - self._measured_at) * DRIFT
        apart = abs(base - self._base)
        if doubt > known and apart <= doubt + known:
            return
        if apart > doubt + known + NOTABLE:
            log.warning("the database's clock was set, by %+.1f s: leases go by it", base - self._base)
        self._base, self._doubt, self._measured_at = base, doubt, answered


async def follow(clock: DatabaseClock, measure: Callable[[], Awaitable[None]]) -> None:
    """Measure a clock now and then, until cancelled. One that cannot be measured for long is told, once."""
    told = False
    while True:
        await asyncio.sleep(MEASURE_EVERY)
        try:
            await measure()
        except Exception as error:  # the last measurement goes on
            log.debug("the database's clock cannot be measured: %s", type(error).__name__)
            if clock.unmeasured > UNMEASURED and not told:
                told = True
                log.warning(
                    "the database's clock could not be measured for %.0f s (%s): leases go by the last measurement",
                    clock.unmeasured,
                    type(error).__name__,
                )
        else:
            if told:
                log.info("the database's clock is measured again")
            told = False
