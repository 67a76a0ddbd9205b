"""Versions of tools, and what people may ask for: `search`, `search@1`, `search@^1.2`, `search@~1.2.3`, `search@1.2.3`.

A bare name means the highest version that is not a pre-release. `^1.2` is anything compatible by semantic versioning
(below the next number that breaks: the first that is not zero), `~1.2` anything below the next minor; `1` and `1.2`
are whatever begins so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Any, Final

from foliot.errors import InvalidInput

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_ASKED: Final = re.compile(r"([\^~=]?)(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z.-]+)?")


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """Ordered as semantic versioning says: a pre-release comes before its release; build data does not count."""

    numbers: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    def __lt__(self, other: Version) -> bool:
        if self.numbers != other.numbers:
            return self.numbers < other.numbers
        if not self.pre or not other.pre:
            return bool(self.pre) and not other.pre
        return [_part(part) for part in self.pre] < [_part(part) for part in other.pre]


def _part(part: str) -> tuple[Any, ...]:
    """Numbers come before words and are compared as numbers."""
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """Raises `InvalidInput`."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:80]!r} is not a version", hint="a version reads 1.4.0")
    return Version((int(match[1]), int(match[2]), int(match[3])), tuple(match[4].split(".")) if match[4] else ())


@dataclass(frozen=True, slots=True)
class Constraint:
    """Versions from `low` up to but not including `high`. `exact` is one version and nothing else."""

    text: str
    low: Version = Version((0, 0, 0))
    high: tuple[int, int, int] | None = None
    exact: Version | None = None

    def allows(self, version: Version) -> bool:
        if self.exact is not None:
            return version == self.exact
        if version.pre and not (self.low.pre and version.numbers == self.low.numbers):
            return False  # nobody gets a pre-release who did not ask for one
        return version >= self.low and (self.high is None or version.numbers < self.high)


@lru_cache(maxsize=4096)
def parse_constraint(text: str) -> Constraint:
    """Parses the text behind the `@`; empty is any version. Raises `InvalidInput`."""
    if not text:
        return Constraint("")
    match = _ASKED.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:80]!r} says no version", hint="ask for 1, 1.2, ^1.2, ~1.2 or 1.2.3")
    sign, given = match[1], [int(part) for part in match.group(2, 3, 4) if part is not None]
    major, minor, patch = (*given, 0, 0)[:3]
    low = Version((major, minor, patch), tuple(match[5][1:].split(".")) if match[5] else ())
    if sign == "^":
        return Constraint(text, low, _next_breaking(given))
    if sign == "~":
        return Constraint(text, low, (major, minor + 1, 0) if len(given) > 1 else (major + 1, 0, 0))
    if len(given) == 3 or sign == "=":
        return Constraint(text, exact=low)
    return Constraint(text, low, (major, minor + 1, 0) if len(given) == 2 else (major + 1, 0, 0))


def _next_breaking(given: list[int]) -> tuple[int, int, int]:
    """The first number that is not zero is the one that breaks; in `^0` and `^0.0` the last one that was given."""
    for index, number in enumerate(given):
        if number or index == len(given) - 1:
            bumped = (*given[:index], number + 1, 0, 0)
            return bumped[0], bumped[1], bumped[2]
    raise AssertionError("there is at least one number")


def split_request(text: str) -> tuple[str, Constraint]:
    """`name@constraint` in two. Raises `InvalidInput`."""
    name, _, asked = text.partition("@")
    if not name.strip():
        raise InvalidInput(f"{text[:80]!r} names no tool")
    return name.strip(), parse_constraint(asked.strip())
