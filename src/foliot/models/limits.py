"""Turns at a model that may only be asked so often: one line for each key and model at a provider.

A provider counts requests and tokens by key and model, so the limit belongs to these and not to a run or an endpoint:
two endpoints with the same key stand in the same line, each with its own limit on what passes there together. Where
there is a store, lines are in it and hold over all processes (engine/limiting/models.py); `LocalTurns` is for one.

Whoever finds no room is told how long it takes, and has a place: what waits longer than a moment is let go with it, and
comes back when it is time (`ASKER` says which run asks).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from foliot.kernel.messages import Usage
from foliot.resources.rates import GRACE, Ahead, Bound, Limits, Line, Used, averaged, earliest

Clock: TypeAlias = Callable[[], float]
# The run for which a model is asked, and whether it may have a place in a line. Nobody's question waits where it is.
ASKER: ContextVar[tuple[str, bool]] = ContextVar("asker", default=("", False))
# Providers whose limits do not count what was read from a cache.
_CACHE_READS_FREE: Final = frozenset({"anthropic", "groq"})


class Turn(NamedTuple):
    """`wait` is 0 for whoever may ask now; else about how many seconds it takes, for what, and how many are in front.

    `slot` is the time that it is counted at, `at` when it began.
    """

    wait: float
    ahead: int = 0
    bound: Bound = ""
    slot: float = 0.0
    at: float = 0.0


class Turns(Protocol):
    """The lines of an installation, by key."""

    async def take(self, key: str, asker: str, limits: Limits, tokens: int, *, queue: bool) -> Turn:
        """A turn for a question that is expected to take `tokens`. With `queue` a place is taken when there is none."""
        ...

    async def settle(self, key: str, asker: str, turn: Turn, limits: Limits, more: int) -> None:
        """The call is over, and took `more` tokens than expected, or fewer. Never raises."""
        ...

    async def pause(self, key: str, seconds: float) -> None:
        """Let nobody pass for so long: the provider asked for it. A longer pause that runs already stays."""
        ...

    async def leave(self, asker: str) -> None:
        """Give up the place in any line of somebody who needs none any more."""
        ...


def counted(provider: str, usage: Usage) -> int:
    """The tokens that the provider's limit counts."""
    free = usage.cache_read_tokens if provider in _CACHE_READS_FREE else 0
    return max(0, usage.total_tokens - free)


@dataclass(slots=True)
class _Place:
    number: int
    tokens: int
    due: float


@dataclass(slots=True)
class _Line:
    used: dict[float, tuple[int, int]] = field(default_factory=dict[float, tuple[int, int]])
    places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    active: int = 0
    seconds: float = 2.0
    paused_until: float = 0.0
    last: int = 0


class LocalTurns:
    """The lines of one process. `clock` is any that only goes forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    async def take(self, key: str, asker: str, limits: Limits, tokens: int, *, queue: bool) -> Turn:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        now = self._clock()
        for at in [at for at in line.used if at + limits.per <= now]:
            del line.used[at]
        mine = line.places.get(asker)
        front = [
            each.tokens
            for each in line.places.values()
            if (mine is None or each.number < mine.number) and each.due + GRACE > now
        ]
        used = [Used(at, *amounts) for at, amounts in sorted(line.used.items())]
        seen = Line(used, Ahead(len(front), sum(front)), line.active, line.seconds, line.paused_until)
        due, bound = earliest(limits, seen, tokens, now)
        if due <= now:
            self._forget(asker)
            slot = limits.slot(now)
            requests, taken = line.used.get(slot, (0, 0))
            line.used[slot] = (requests + 1, taken + tokens)
            line.active += 1
            return Turn(0.0, slot=slot, at=now)
        if queue and mine is None:
            line.last += 1
            line.places[asker] = _Place(line.last, limits.wanted(tokens), due)
        elif queue and mine is not None:
            mine.due = due
        return Turn(due - now, len(front), bound)

    async def settle(self, key: str, asker: str, turn: Turn, limits: Limits, more: int) -> None:
        line = self._lines[key]
        line.active -= 1
        line.seconds = averaged(line.seconds, self._clock() - turn.at)
        if more and turn.slot in line.used:
            requests, tokens = line.used[turn.slot]
            line.used[turn.slot] = (requests, max(0, tokens + more))

    async def pause(self, key: str, seconds: float) -> None:
        line = self._lines.setdefault(key, _Line())
        line.paused_until = max(line.paused_until, self._clock() + seconds)

    async def leave(self, asker: str) -> None:
        self._forget(asker)

    def _forget(self, asker: str) -> None:
        for line in self._lines.values():
            line.places.pop(asker, None)
