"""When a schedule is due: its slots, as seconds since 1970. Pure: no clock, no store.

A slot is a time that the schedule names. Local times are those of its time zone, and where clocks are changed they are
treated as Debian's cron does it:

    minute and hour are fixed (`30 2 * * *`)   a time that is skipped comes at the first minute that exists again; one
                                               that comes twice counts once, the first time
    minute or hour begin with * (`*/15 * * *`) real time goes on: what is skipped never comes, what is repeated does

If both day fields are restricted, a day that either of them names will do; a field that covers its whole range (`*`,
`1-31`) restricts nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from foliot.resources import cron

_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HOUR: Final = 3600.0
_MINUTE: Final = timedelta(minutes=1)
_CHANGE: Final = timedelta(hours=3)  # no clock is set back by more


class Found(NamedTuple):
    """Slots, oldest first. `more`: there are older ones that were not asked for."""

    slots: list[int]
    more: bool


class Timing(Protocol):
    def after(self, moment: float) -> int | None:
        """The first slot behind `moment`; None when there will be none."""
        ...

    def newest(self, after: float, upto: float, count: int) -> Found:
        """The newest `count` slots behind `after`, not behind `upto`."""
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """One slot in all."""

    at: int

    def after(self, moment: float) -> int | None:
        return self.at if self.at > moment else None

    def newest(self, after: float, upto: float, count: int) -> Found:
        return Found([self.at] if after < self.at <= upto and count else [], False)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: str = "UTC"

    def after(self, moment: float) -> int | None:
        return next(self._from(moment), None)

    def newest(self, after: float, upto: float, count: int) -> Found:
        """Looks forward from a point that moves back until enough is found, so that a year without anybody looking
        costs no more than a day, whatever the expression."""
        window = _HOUR
        while True:
            start = max(after, upto - window)
            found: list[int] = []
            for slot in self._from(start):
                if slot > upto:
                    break
                found.append(slot)
            if start == after or len(found) > count:
                return Found(found[-count:] if count else [], len(found) > count)
            window *= 2

    def _from(self, moment: float) -> Iterator[int]:
        """The slots behind `moment`, in order, each once."""
        if (words := _words(self.expression)) is None:
            return
        zone = zone_of(self.zone)
        passing = self._goes_with_real_time()
        try:
            start = datetime.fromtimestamp(int(moment // 1), zone)
            wall = start.replace(tzinfo=None, fold=0)
            if (
                passing
                and (start - _CHANGE).utcoffset() != (start.astimezone(UTC) + _CHANGE).astimezone(zone).utcoffset()
            ):
                wall -= _CHANGE  # what was passed once may come again
            last = moment
            for slot in _passing(CronSim(words, wall), zone) if passing else _fixed(CronSim(words, wall), zone):
                if slot > last:
                    last = slot
                    yield slot
        except (OverflowError, ValueError, OSError):
            return  # beyond the year 9999

    def _goes_with_real_time(self) -> bool:
        minute, hour = (_words(self.expression) or "").split()[:2]
        return minute.startswith("*") or hour.startswith("*")


def _fixed(walls: Iterable[datetime], zone: tzinfo) -> Iterator[int]:
    """Times on the wall as slots: one that is skipped comes at the first minute there is, one that is repeated once."""
    for wall in walls:
        while not _exists(wall, zone):
            wall += _MINUTE
        yield int(wall.replace(tzinfo=zone).timestamp())


def _passing(walls: Iterable[datetime], zone: tzinfo) -> Iterator[int]:
    """Times on the wall as slots: one that is skipped never comes, one that is repeated comes twice."""
    again: list[int] = []
    for wall in walls:
        if not _exists(wall, zone):
            continue
        slot = int(wall.replace(tzinfo=zone).timestamp())
        if again and slot >= again[0]:  # the repetition begins when the first pass is over
            yield from again
            again = []
        yield slot
        if (second := int(wall.replace(tzinfo=zone, fold=1).timestamp())) != slot:
            again.append(second)
    yield from again


def _exists(wall: datetime, zone: tzinfo) -> bool:
    return wall.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wall


def timing_of(schedule: str, at: str, zone: str) -> Timing:
    """The timing of a TaskSchedule, from its normalised fields."""
    if not at:
        return Cron(schedule, zone)
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_of(zone))
    return Once(int(moment.timestamp()))


def delay_of(uid: str, slot: int, jitter: float, following: int | None) -> float:
    """How much later than `slot` it begins: below `jitter`, and before the next slot, so that their order holds.

    It follows from the schedule and the slot alone: every process, at any time, arrives at the same one.
    """
    if jitter <= 0:
        return 0.0
    room = jitter if following is None else min(jitter, following - slot)
    chance = int.from_bytes(hashlib.sha256(f"{uid}/{slot}".encode()).digest()[:8], "big") / 2**64
    return room * chance


@lru_cache(maxsize=1024)
def _words(expression: str) -> str | None:
    """The expression as the library reads it; None when it can never come true."""
    words = _MACROS.get(expression, expression).split()
    values = cron.field_values(" ".join(words))
    whole = [60, 24, 31, 12, 7]
    for place, found in enumerate(values):
        if len({0 if place == 4 and value == 7 else value for value in found}) == whole[place]:
            words[place] = "*"
        elif place > 1 or not words[place].startswith("*"):
            # Spelled out: for the library `*/2` restricts no day, and `3-3/2` does not end at 3.
            words[place] = ",".join(map(str, sorted(found)))
    text = " ".join(words)
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        return None
    return text


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The time zone of this name. UTC is known also where a machine has no data about the others."""
    return UTC if name == "UTC" else ZoneInfo(name)
