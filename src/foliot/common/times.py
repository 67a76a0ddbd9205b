"""Moments as text: ISO 8601 in UTC, ending in Z.

A moment is a float, seconds since 1970. This is how every document, log line and table of Foliot writes it.
"""

from __future__ import annotations

from functools import lru_cache
from time import gmtime, strftime


@lru_cache(64)  # and often of the same moment
def iso(at: float) -> str:
    """Return the moment to the millisecond: `2026-11-16T09:30:00.125Z`."""
    # As `datetime` has it, at a third of the price: rounded to microseconds, then cut.
    whole, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_to_the_second(whole)}.{rest // 1000:03d}Z"


def iso_seconds(at: float) -> str:
    """Return the moment to the second, cut: `2026-11-16T09:30:00Z`."""
    return f"{_to_the_second(round(at * 1_000_000) // 1_000_000)}Z"


@lru_cache(64)  # what is written down together is mostly of the same second
def _to_the_second(at: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(at))
