"""When a worker looks at the queue again by itself. No clock and no I/O: told what happened, it says how long to wait.

While there may be more it looks at once. When it finds nothing it waits a little longer every time, up to a bound, but
never beyond the moment when the next run that it knows of becomes due. Where others were faster, or the database does
not answer, it waits for a random while, so that many workers do not come back at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable

from foliot.store.claims import Claims

# Behind the moment when something is due, so that it is due by then.
_JUST_AFTER = 0.002


class Pace:
    """`chance` gives numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float], *, floor: float = 2.0, ceiling: float = 5.0) -> None:
        self._chance = chance
        self._floor = floor
        self._ceiling = ceiling
        self._patience = floor
        self._crowd = 0
        self._errors = 0

    def found(self, claims: Claims, now: float) -> float:
        """Seconds to wait after a look that worked."""
        self._errors = 0
        if claims.more:
            self._patience, self._crowd = self._floor, 0
            return 0.0
        if claims.leases:
            self._patience, self._crowd = self._floor, 0
        elif claims.refused.get("taken"):
            # Whoever was faster may leave some; looking at once would only get in each other's way again.
            self._crowd = min(self._crowd + 1, 8)
            return min(self._floor, 0.01 * 2**self._crowd) * (0.5 + self._chance() / 2)
        wait = self._patience
        if not claims.leases:
            self._crowd = 0
            self._patience = min(self._ceiling, self._patience * 1.5)
        if claims.next_due is not None:
            wait = min(wait, max(0.0, claims.next_due - now) + _JUST_AFTER)
        return wait

    def rung(self) -> None:
        """Somebody said that there is work: what comes next is not a long silence."""
        self._patience = self._floor

    def failed(self) -> float:
        """Seconds to wait after a look that the database did not answer: half a second at first, ten at most."""
        self._errors = min(self._errors + 1, 6)
        return min(10.0, 0.25 * 2**self._errors) * (0.5 + self._chance() / 2)


class Round:
    """Where a worker looks next: from the top, and where there is more than one look sees, also all the way round.

    In turns, so that neither what is urgent nor what stands far behind has to wait for the other.
    """

    def __init__(self) -> None:
        self._place = ""
        self._from_top = True

    @property
    def place(self) -> str:
        """Where to look now; "" is the top."""
        return "" if self._from_top else self._place

    def looked(self, claims: Claims) -> None:
        if not self._from_top:
            self._place, self._from_top = claims.cursor, True
        elif claims.cursor:
            self._place, self._from_top = self._place or claims.cursor, False
        else:
            self._place = ""
