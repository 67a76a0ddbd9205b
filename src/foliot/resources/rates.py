"""The arithmetic of limits on how often a model is asked. Pure: the same counts, the same time.

A limit is a window that slides: at no time have more than so many requests, or tokens, begun within its length. What
has begun is counted in slots of a thousandth of the window, each at its end, so that it is a thousand rows at most and
the count errs only on the side of waiting. Who has to wait keeps a place: for whoever is in front of it room is kept,
so that nobody overtakes, and `earliest` says when its turn comes if nobody in front gives up.

Several limits on one line hold together (`latest`): each counts in slots of its own window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from foliot.errors import InvalidInput

Bound: TypeAlias = Literal["", "requests", "tokens", "calls at a time", "the provider"]
# Room is kept for somebody in front for so long after its turn came; then it is gone, or busy: its place stays.
GRACE: Final = 5.0
_SLOTS: Final = 1024
# How far ahead a turn is guessed that depends on when calls under way end.
_LONGEST_GUESS: Final = 60.0


@dataclass(frozen=True, slots=True)
class RateLimits:
    """`requests` and `tokens` in any `per` seconds; None: no limit. Raises `InvalidInput` where nothing could pass.

    `burst` is how many of the requests may come at once: never more than these in their share of the time.
    """

    requests: int | None = None
    tokens: int | None = None
    per: float = 60.0
    concurrency: int | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens", "per", "concurrency", "burst"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} must be above 0, not {value!r}", hint="leave it out for no limit")

    @property
    def none(self) -> bool:
        return self.requests is None and self.tokens is None and self.concurrency is None

    @property
    def counted(self) -> bool:
        """Whether it has to be known what began within the window."""
        return self.requests is not None or self.tokens is not None

    def slot(self, now: float) -> float:
        """The time that what begins now is counted at."""
        return slot_at(self.per, now)

    def wanted(self, tokens: int) -> int:
        """The tokens that room is kept for: no more than there can ever be."""
        return tokens if self.tokens is None else min(tokens, self.tokens)

    def in_words(self) -> str:
        said = [
            f"{value:,} {name}"
            for name, value in (("requests", self.requests), ("tokens", self.tokens))
            if value is not None
        ]
        rate = f"{' and '.join(said)} in {self.per:g} s" if said else ""
        calls = f"{self.concurrency:,} calls at a time" if self.concurrency is not None else ""
        return ", ".join(each for each in (rate, calls) if each)


NO_LIMITS: Final = RateLimits()


def slot_at(per: float, now: float) -> float:
    """Return the time at which a window of this length counts what begins now."""
    width = per / _SLOTS
    return math.ceil(now / width) * width


class Declarer(NamedTuple):
    """The endpoint through which a line is asked: what it declares holds for all who stand in that line."""

    endpoint: str
    model: str
    version: str = ""


class Counted(NamedTuple):
    """The counters of a turn: by window the slot; and whether its tokens and calls in progress are counted."""

    slots: tuple[tuple[float, float], ...] = ()
    tokens: bool = False
    calls: bool = False


class UsedSlot(NamedTuple):
    """The requests and tokens that began in one slot."""

    at: float
    requests: int
    tokens: int


class QueueAhead(NamedTuple):
    """The requests ahead in the queue, and the tokens they want."""

    requests: int = 0
    tokens: int = 0


class RateLine(NamedTuple):
    """The state of one line. `used` is what began within the window, the oldest first; `active` is under way.

    `seconds` is what a call takes, about; until `paused_until` the provider wants to hear nothing.
    """

    used: Sequence[UsedSlot] = ()
    ahead: QueueAhead = QueueAhead()
    active: int = 0
    seconds: float = 2.0
    paused_until: float = 0.0


def earliest(limits: RateLimits, line: RateLine, tokens: int, now: float) -> tuple[float, Bound]:
    """Return when the turn of a request for `tokens` comes, and what it waits for: `now` and "" when it may pass."""
    found: list[tuple[float, Bound]] = [(max(now, line.paused_until), "the provider")]
    if (most := limits.requests) is not None:
        requests = [(each.at, each.requests) for each in line.used]
        wanted = line.ahead.requests + 1
        found.append((fits_at(most, limits.per, requests, wanted, now), "requests"))
        if limits.burst is not None and limits.burst < most:
            share = limits.per * limits.burst / most
            found.append((fits_at(limits.burst, share, requests, wanted, now), "requests"))
    if (most := limits.tokens) is not None:
        # One that wants more than the limit passes when nothing else is in the window: it would wait for ever.
        wanted = line.ahead.tokens + limits.wanted(tokens)
        found.append((fits_at(most, limits.per, [(each.at, each.tokens) for each in line.used], wanted, now), "tokens"))
    if (most := limits.concurrency) is not None and line.active + line.ahead.requests >= most:
        rounds = (line.active + line.ahead.requests - most) // most + 1
        found.append((now + min(_LONGEST_GUESS, max(0.05, line.seconds * rounds)), "calls at a time"))
    due, bound = max(found, key=lambda each: each[0])
    return (due, bound) if due > now else (now, "")


class TurnDue(NamedTuple):
    """The time when a turn comes, what it waits for, and by which limit; `at` is now if it may pass."""

    at: float
    bound: Bound = ""
    limits: RateLimits = NO_LIMITS


def latest(
    limits: Sequence[RateLimits], line: RateLine, used: Mapping[float, Sequence[UsedSlot]], tokens: int, now: float
) -> TurnDue:
    """Return when a turn comes that all the `limits` of a line allow. `used` is by the length of their windows."""
    found = [TurnDue(max(now, line.paused_until), "the provider" if line.paused_until > now else "")]
    for each in limits:
        at, bound = earliest(each, line._replace(used=used.get(each.per, ())), tokens, now)
        found.append(TurnDue(at, bound, each))
    return max(found, key=lambda due: due.at)


def donor_of(per: float, known: Sequence[float]) -> float:
    """Return the window from which one of a new length takes over what began: the shortest that holds all of it."""
    return min((each for each in known if each >= per), default=max(known))


def most_wanted(limits: Sequence[RateLimits], tokens: int) -> int:
    """Return the tokens that room is kept for under all of these limits."""
    return min((each.wanted(tokens) for each in limits), default=tokens)


def fits_at(most: int, seconds: float, used: Sequence[tuple[float, int]], wanted: int, now: float) -> float:
    """Return when `wanted` more fit into the window. What passes meanwhile takes the place of what leaves it."""
    inside = [(at, amount) for at, amount in used if at + seconds > now]
    total = sum(amount for _, amount in inside)
    if total + wanted <= most:
        return now
    # What is in there above the limit, since it was lowered, leaves without anybody taking its place.
    surplus = max(0, total - most)
    rounds, place = divmod(wanted - 1 - max(0, most - total), most)
    left = -surplus
    for at, amount in inside:
        left += amount
        if left > place:
            return at + seconds * (rounds + 1)
    return now + seconds * (rounds + 1)


class SlidingWindow:
    """A counter of what begins in one process, by which no span of the window's length has more than a limit allows."""

    __slots__ = ("_total", "_used")

    def __init__(self) -> None:
        self._used: deque[tuple[float, int]] = deque()  # by slot, the oldest first
        self._total = 0

    def wait(self, most: int, seconds: float, now: float, *, ahead: int = 0) -> float:
        """Return the seconds until there is room for one more behind the `ahead` that others wait for."""
        while self._used and self._used[0][0] + seconds <= now:
            self._total -= self._used.popleft()[1]
        if self._total + ahead < most:  # nearly always: a call need not look at a thousand slots
            return 0.0
        return max(0.0, fits_at(most, seconds, self._used, ahead + 1, now) - now)

    def add(self, seconds: float, now: float) -> None:
        """Count one that begins now."""
        slot, amount = slot_at(seconds, now), 1
        if self._used and self._used[-1][0] == slot:
            amount += self._used.pop()[1]
        self._used.append((slot, amount))
        self._total += 1


def averaged(seconds: float, last: float) -> float:
    """Estimate what a call takes: an average that forgets."""
    return seconds + 0.2 * (max(0.0, last) - seconds)
