"""Cron expressions, checked as they are written down.

Five fields (minute, hour, day of month, month, day of week) with lists, ranges, steps and the English names of months
and days; or `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`. An expression that can
never come true, such as 30 February, is refused.
"""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from foliot.common.suggestions import suggestion

MACROS: Final = frozenset({"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"})
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LONGEST: Final = 1000
_PART: Final = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first: int = 0

    def number(self, word: str) -> int:
        if word in self.names:
            return self.names.index(word) + self.first
        if not word.isdecimal() or len(word) > 4:
            raise ValueError(f"{word!r} is no {self.name}")
        value = int(word)
        if not self.low <= value <= self.high:
            raise ValueError(f"the {self.name} {value} is not within {self.low} to {self.high}")
        return value


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, tuple(_MONTHS), 1),
    _Field("day of the week", 0, 7, tuple(_DAYS)),
)


def canonical(expression: str) -> str:
    """The expression in lower case with single spaces. Raises `ValueError` that says what is wrong with it."""
    text = expression.strip().lower()
    if text.startswith("@"):
        if text not in MACROS:
            raise ValueError(f"unknown word {text}")
        return text
    if len(text) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    words = text.split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"expected 5 fields, found {len(words)}")
    values = [_values(field, word) for field, word in zip(_FIELDS, words, strict=True)]
    _, _, days, months, _ = values
    if words[4] == "*" and all(min(days) > _LONGEST_MONTH[month - 1] for month in months):
        raise ValueError("no month has that day, so it would never come")
    return " ".join(words)


def field_values(expression: str) -> list[set[int]]:
    """The values that each of the five fields of a canonical expression lets through; Sunday may be 0 and 7."""
    return [_values(field, word) for field, word in zip(_FIELDS, expression.split(), strict=True)]


def _values(field: _Field, word: str) -> set[int]:
    values: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no {field.name}")
        start, end, step = match.groups()
        stride = int(step) if step else 1
        if stride == 0:
            raise ValueError(f"the step of {part!r} is 0")
        if start == "*":
            if end:
                raise ValueError(f"{part!r} is no {field.name}")
            low, high = field.low, field.high
        else:
            low = field.number(start)
            high = field.number(end) if end else (field.high if step else low)
            if low > high:
                raise ValueError(f"the range {part!r} ends before it begins")
        values.update(range(low, high + 1, stride))
    return values


# --- timezones -------------------------------------------------------------------------------------------------------

# Names of time zones.


@lru_cache(maxsize=256)
def time_zone_problem(name: str) -> str | None:
    """Returns what is wrong with a time zone, with the nearest name; None when `name` is an IANA time zone.

    Where a machine has no time zone data at all, nothing can be said against a name.
    """
    if name == "UTC":
        return None
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = sorted(zoneinfo.available_timezones())
        if not known:
            return None
        hint = suggestion(name, known)
        return f"unknown time zone; {hint}" if hint else "unknown time zone"
    return None
