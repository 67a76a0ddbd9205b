"""Token buckets: so many at once, and so many a second after that.

A bucket is one number, the time at which it will be full again. So a full one need not be remembered, and a clock that
stands still or goes back gains nobody anything.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Final, NamedTuple

MOST_REMEMBERED: Final = 16_384
_ROUNDING: Final = 1e-9  # what is left over by rounding is no debt


class Rate(NamedTuple):
    """A token comes back after `each` seconds, up to `burst` of them. An `each` of 0 has no limit."""

    each: float
    burst: float

    @classmethod
    def per_second(cls, rate: float, burst: float) -> Rate:
        """Return the rate of so many tokens a second; 0 has no limit."""
        return cls(1.0 / rate if rate > 0 else 0.0, max(1.0, burst))

    def wait(self, full_at: float, now: float, *, ahead: int = 0) -> float:
        """Return the seconds until there is a token behind the `ahead` that others wait for; 0.0 when there is now."""
        wait = max(full_at - now, 0.0) + self.each * (ahead + 1 - self.burst)
        return wait if self.each and wait > _ROUNDING else 0.0

    def taken(self, full_at: float, now: float) -> float:
        """Return when the bucket will be full again, after one token was taken from it."""
        return max(full_at, now) + self.each


class TokenBucket:
    """One bucket, full at first."""

    __slots__ = ("_full_at", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._full_at = float("-inf")

    def take(self, now: float) -> float:
        """Take one token: 0.0, or the seconds to wait until there is one, and then nothing was taken."""
        if wait := self._rate.wait(self._full_at, now):
            return wait
        self._full_at = self._rate.taken(self._full_at, now)
        return 0.0


class NamedBuckets:
    """One bucket per name, in bounded memory."""

    def __init__(self, rate: Rate, *, most: int = MOST_REMEMBERED) -> None:
        self._rate = rate
        self._most = most
        self._full_at: dict[str, float] = {}

    def take(self, name: str, now: float) -> float:
        """Take one token, as `TokenBucket.take`."""
        if wait := self.wait(name, now):
            return wait
        if len(self._full_at) >= self._most and name not in self._full_at:
            self._forget(now)
        self._full_at[name] = self._rate.taken(self._full_at.get(name, now), now)
        return 0.0

    def wait(self, name: str, now: float) -> float:
        """Return what `take` would, taking nothing."""
        return self._rate.wait(self._full_at.get(name, now), now)

    def __len__(self) -> int:
        return len(self._full_at)

    def _forget(self, now: float) -> None:
        """Make room: full buckets tell nothing; when all are in use, those go that have the least to say."""
        self._full_at = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._most:
            for name in nsmallest(self._most // 4 or 1, self._full_at, key=self._full_at.__getitem__):
                del self._full_at[name]
