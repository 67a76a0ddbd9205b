"""Moments as text: ISO 8601 in UTC, ending in Z.

A moment is a float, seconds since 1970. This is how every document, log line and table of Foliot writes it, and how
people may write one: as filters of lists, on the command line and over HTTP (`read_moment`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from time import gmtime, strftime
from typing import Final

from foliot.common.durations import seconds

MOMENT_FORMS: Final = "2026-11-16, 2026-11-16T09:30:00Z, seconds since 1970, or an age such as 2h or 7d"
_LONGEST: Final = 64
# What is earlier or later is no count of seconds: a year, a number of days, milliseconds.
_FIRST_SECOND: Final = 1e8
_LAST_SECOND: Final = 1e11
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
# In an address a `+` that was not encoded is a blank.
_LOST_PLUS: Final = re.compile(r"(T.*) (\d\d(?::?\d\d)?)$")


@lru_cache(64)  # and often of the same moment
def iso(at: float) -> str:
    """Return the moment to the millisecond: `2026-11-16T09:30:00.125Z`."""
    # As `datetime` has it, at a third of the price: rounded to microseconds, then cut.
    whole, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_to_the_second(whole)}.{rest // 1000:03d}Z"


def iso_seconds(at: float) -> str:
    """Return the moment to the second, cut: `2026-11-16T09:30:00Z`."""
    return f"{_to_the_second(round(at * 1_000_000) // 1_000_000)}Z"


def read_moment(text: str, *, now: float) -> float:
    """Return the moment that a person or a program names: a time, a date, an age before `now`, seconds since 1970.

    A time without a zone is in UTC; a date is its first moment. A number is taken for seconds since 1970 only where
    that can be meant (0, or from 1973 on). Raises `ValueError`, which says what was expected.
    """
    body = text.strip()
    moment: float | None = None
    if body and len(body) <= _LONGEST:
        moment = _seconds(body) if _NUMBER.fullmatch(body) else _age(body, now)
        moment = _time(body) if moment is None else moment
    if moment is None or not isfinite(moment):
        raise ValueError(f"must be a time: {MOMENT_FORMS}")
    return moment


def _seconds(text: str) -> float | None:
    count = float(text)
    return count if count == 0 or _FIRST_SECOND <= count <= _LAST_SECOND else None


def _age(text: str, now: float) -> float | None:
    try:
        return now - seconds(text)
    except ValueError:
        return None


def _time(text: str) -> float | None:
    from datetime import UTC, datetime  # most commands start without it

    try:
        moment = datetime.fromisoformat(_LOST_PLUS.sub(r"\1+\2", text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


@lru_cache(64)  # what is written down together is mostly of the same second
def _to_the_second(at: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(at))
