"""Lengths of time as people write them: `1h30m`, `250ms`, `0s`, and with days `2d`.

One canonical text per length, so that `90m` and `1h30m` are the same definition with the same digest. It is read by
every parser of Go durations, because days are written as hours and nothing below a nanosecond is kept. Manifests,
settings, flags of commands and the waits that providers ask for are all read by this grammar. Lengths that were
measured are shown shorter, by `duration` and `age`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)")
_LONGEST: Final = 2**63 - 1
# What anybody may declare to wait: longer is a slip of the pen, and far from where numbers of seconds break timers.
LONGEST_SECONDS: Final = 10 * 366 * 86_400.0
_LONGEST_TEXT: Final = 64
_SECOND: Final = _UNITS["s"]


def nanoseconds(text: str) -> int:
    """Raises `ValueError` with a sentence for people when `text` is not a length of time."""
    body = text.strip().removeprefix("+")
    if body == "0":
        return 0
    if body.startswith("-"):
        raise ValueError("a duration cannot be negative")
    if body.replace(".", "", 1).isdecimal():
        raise ValueError("a duration needs a unit: ns, us, ms, s, m, h or d")
    if not body or len(body) > _LONGEST_TEXT:
        raise ValueError("not a duration")
    total, place = 0, 0
    while place < len(body):
        part = _PART.match(body, place)
        if part is None:
            raise ValueError("not a duration; the units are ns, us, ms, s, m, h and d")
        whole, _, fraction = part[1].partition(".")
        # Exact without `decimal`, which would make every command start later: in units of 10**-64 nanoseconds.
        total += int(f"{whole}{fraction}") * _UNITS[part[2]] * 10 ** (_LONGEST_TEXT - len(fraction))
        place = part.end()
    if (total := total // 10**_LONGEST_TEXT) > _LONGEST:
        raise ValueError("longer than 292 years")
    return total


@lru_cache(maxsize=1024)
def seconds(text: str) -> float:
    """The length in seconds, for timers. Raises `ValueError` as `nanoseconds` does."""
    return nanoseconds(text) / _SECOND


@lru_cache(maxsize=1024)
def canonical(text: str) -> str:
    """The one text of this length: `90m` -> `1h30m`, `1500ms` -> `1.5s`, `2d` -> `48h`. Raises `ValueError`."""
    total = nanoseconds(text)
    if total == 0:
        return "0s"
    for unit in ("ns", "us", "ms"):
        if total < _UNITS[unit] * 1_000:
            return f"{_decimal(total, _UNITS[unit])}{unit}"
    hours, rest = divmod(total, _UNITS["h"])
    minutes, rest = divmod(rest, _UNITS["m"])
    parts = (
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{_decimal(rest, _SECOND)}s" if rest else "",
    )
    return "".join(parts)


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")


def duration(seconds: float | None) -> str:
    """Return a length that was measured: `12ms`, `0.4s`, `3.2s`, `1m05s`, `2h10m`, `3d4h`; `-` when it is not known."""
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def age(seconds: float) -> str:
    """Return a length in the largest unit of which there are two: `42s`, `17m`, `5h`, `3d`."""
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
