"""Spans of time that budgets count in. Days, weeks and months begin at midnight where the budget says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Window: TypeAlias = Literal["run", "day", "week", "month", "total"]


class Span(NamedTuple):
    """The name of a span, unique among those of its window; and when it ends, in seconds since 1970, if it does."""

    period: str
    until: float | None


def span_of(window: Window, zone: str, now: float, root: str) -> Span:
    """The span that `now` is in. `root` is the run whose spending counts when each run has a span of its own."""
    match window:
        case "run":
            return Span(f"run:{root}", None)
        case "total":
            return Span("total", None)
        case _:
            return _calendar(window, zone, now)


def _calendar(window: Literal["day", "week", "month"], zone: str, now: float) -> Span:
    place = _zone(zone)
    today = datetime.fromtimestamp(now, place).date()
    if window == "day":
        name, following = today.isoformat(), today + timedelta(days=1)
    elif window == "week":
        year, week, weekday = today.isocalendar()
        name, following = f"{year}-W{week:02}", today + timedelta(days=8 - weekday)
    else:
        name = f"{today.year}-{today.month:02}"
        following = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return Span(name, datetime(following.year, following.month, following.day, tzinfo=place).timestamp())


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # It was known where it was declared. Without its rules here, a day that is off by hours beats no budget at all.
        return UTC
