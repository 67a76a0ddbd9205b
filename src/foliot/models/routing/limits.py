"""Turns at a model that may only be asked so often: one line for each key and model at a provider.

A provider counts requests and tokens by key and model, so the limit belongs to these and not to a run or an endpoint:
endpoints with the same key stand in the same line, and whatever any of them declares holds for all who stand there. An
endpoint is known to declare something from the first time it is asked. Where there is a store, lines are in it and hold
over all processes (engine/limits/shared.py); `LocalTurns` is for one.

Whoever finds no room is told how long it takes, and has a place: what waits longer than a moment is let go with it, and
comes back when it is time (`ASKER` says which run asks).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from foliot.kernel.messages import Usage
from foliot.resources.rates import (
    GRACE,
    NO_LIMITS,
    Bound,
    Counted,
    Declarer,
    QueueAhead,
    RateLimits,
    RateLine,
    UsedSlot,
    averaged,
    donor_of,
    latest,
    most_wanted,
)

Clock: TypeAlias = Callable[[], float]
# The run for which a model is asked, and whether it may have a place in a line. Nobody's question waits where it is.
ASKER: ContextVar[tuple[str, bool]] = ContextVar("asker", default=("", False))
# Providers whose limits do not count what was read from a cache.
_CACHE_READS_FREE: Final = frozenset({"anthropic", "groq"})


class ModelTurn(NamedTuple):
    """`wait` is 0 for whoever may ask now; else about how many seconds it takes, for what, and how many are in front.

    `limits` are those that it waits for. A turn that was taken began `at`, and is `counted` there.
    """

    wait: float
    ahead: int = 0
    bound: Bound = ""
    limits: RateLimits = NO_LIMITS
    at: float = 0.0
    counted: Counted = Counted()


PASS: Final = ModelTurn(0.0)
"""The turn of whoever asks where nothing is limited: it is counted nowhere."""


class Turns(Protocol):
    """The lines of an installation, by key."""

    def is_free(self, key: str) -> bool:
        """Whether it is known that nobody declares a limit for this line, and its provider wants no pause."""
        ...

    async def take(
        self, key: str, asker: str, limits: RateLimits, tokens: int, *, queue: bool, by: Declarer | None = None
    ) -> ModelTurn:
        """A turn for a question that is expected to take `tokens`. With `queue` a place is taken when there is none.

        `by` is the endpoint that declares `limits`, which may be none: from now on they hold for all in this line.
        """
        ...

    async def settle(self, key: str, asker: str, turn: ModelTurn, more: int) -> None:
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
    used: dict[float, dict[float, tuple[int, int]]] = field(default_factory=dict[float, dict[float, tuple[int, int]]])
    places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    declared: dict[str, RateLimits] = field(default_factory=dict[str, RateLimits])
    active: int = 0
    seconds: float = 2.0
    paused_until: float = 0.0
    last: int = 0


class LocalTurns:
    """The lines of one process. `clock` is any that only goes forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def is_free(self, key: str) -> bool:
        line = self._lines.get(key)
        return line is None or not (line.declared or line.paused_until > self._clock())

    async def take(
        self, key: str, asker: str, limits: RateLimits, tokens: int, *, queue: bool, by: Declarer | None = None
    ) -> ModelTurn:
        if limits.none and self.is_free(key):
            return PASS
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        now = self._clock()
        every = self._declared(line, limits, by)
        windows = {each.per for each in every if each.counted}
        for per in windows.difference(line.used):
            line.used[per] = dict(line.used[donor_of(per, [*line.used])]) if line.used else {}
        for per, slots in line.used.items():
            for at in [at for at in slots if at + per <= now]:
                del slots[at]
        mine = line.places.get(asker)
        front = [
            each.tokens
            for each in line.places.values()
            if (mine is None or each.number < mine.number) and each.due + GRACE > now
        ]
        used = {per: [UsedSlot(at, *amounts) for at, amounts in sorted(line.used[per].items())] for per in windows}
        seen = RateLine((), QueueAhead(len(front), sum(front)), line.active, line.seconds, line.paused_until)
        due = latest(every, seen, used, tokens, now)
        if due.at <= now:
            self._forget(asker)
            slots = tuple((per, RateLimits(per=per).slot(now)) for per in windows)
            for per, slot in slots:
                requests, taken = line.used[per].get(slot, (0, 0))
                line.used[per][slot] = (requests + 1, taken + tokens)
            line.active += 1
            return ModelTurn(0.0, at=now, counted=Counted(slots, tokens=True, calls=True))
        if queue and mine is None:
            line.last += 1
            line.places[asker] = _Place(line.last, most_wanted(every, tokens), due.at)
        elif queue and mine is not None:
            mine.due = due.at
        return ModelTurn(due.at - now, len(front), due.bound, due.limits)

    async def settle(self, key: str, asker: str, turn: ModelTurn, more: int) -> None:
        if not turn.counted.calls:
            return
        line = self._lines[key]
        line.active -= 1
        line.seconds = averaged(line.seconds, self._clock() - turn.at)
        for per, slot in turn.counted.slots:
            if more and slot in line.used.get(per, {}):
                requests, tokens = line.used[per][slot]
                line.used[per][slot] = (requests, max(0, tokens + more))

    def _declared(self, line: _Line, limits: RateLimits, by: Declarer | None) -> list[RateLimits]:
        if by is not None:
            line.declared.pop(by.endpoint, None)
            if not limits.none:
                line.declared[by.endpoint] = limits
        every = [*line.declared.values()]
        return every if limits.none or by is not None else [*every, limits]

    async def pause(self, key: str, seconds: float) -> None:
        line = self._lines.setdefault(key, _Line())
        line.paused_until = max(line.paused_until, self._clock() + seconds)

    async def leave(self, asker: str) -> None:
        self._forget(asker)

    def _forget(self, asker: str) -> None:
        for line in self._lines.values():
            line.places.pop(asker, None)
