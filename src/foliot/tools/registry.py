"""Which tools there are, by name and version.

A registry may stand on another: what it has itself comes first, then what the other has. So a runtime adds its tools to
those of the process, and an agent its own to those of the runtime, without anybody else seeing them. Which tool is
meant is decided by looking it up, before anything runs, and never by how a call went.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from hashlib import sha256
from typing import Any, Final, get_args

import msgspec

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.tools.base import Effect, OnUnknown, Tool, ToolDefinition

# --- versions --------------------------------------------------------------------------------------------------------

# Versions of tools, and what people may ask for: `search`, `search@1`, `search@^1.2`, `search@~1.2.3`, `search@1.2.3`.
#
# A bare name means the highest version that is not a pre-release. `^1.2` is anything compatible by semantic versioning
# (below the next number that breaks: the first that is not zero), `~1.2` anything below the next minor; `1` and `1.2`
# are whatever begins so.

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


# --- registry --------------------------------------------------------------------------------------------------------

_canonical = msgspec.json.Encoder(order="deterministic").encode


def schema_digest(schema: Mapping[str, Any] | None) -> str:
    """Names what arguments a tool takes, whatever the order in which its schema is written."""
    return f"sha256:{sha256(_canonical(schema)).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Locked:
    """The version of one tool that a run is pinned to."""

    version: str
    digest: str


class ToolRegistry:
    """Tools in the order in which they were registered."""

    def __init__(self, tools: Iterable[Tool] = (), *, parent: ToolRegistry | None = None) -> None:
        self._parent = parent
        self._tools: dict[str, dict[Version, Tool]] = {}
        self._changes = 0
        self.register(*tools)

    @property
    def changes(self) -> int:
        """Grows with every change here or below: as long as it is the same, so is everything that can be resolved."""
        return self._changes + (self._parent.changes if self._parent is not None else 0)

    def register(self, *tools: Tool) -> None:
        """Add all of them, or none. The same object again is no collision.

        Raises `Conflict` for a name and version that is taken, `InvalidInput` for a tool that cannot be called.
        """
        seen: dict[tuple[str, Version], Tool] = {}
        for tool in tools:
            definition = tool.definition
            if not definition.name.strip():
                raise InvalidInput("a tool has no name")
            check_effect(definition)
            key = definition.name, parse_version(definition.version)
            known = seen.get(key) or self._tools.get(key[0], {}).get(key[1])
            if known is not None and known is not tool:
                raise Conflict(
                    f'tool "{definition.name}" version "{definition.version}" is already registered',
                    hint="give it another name or another version",
                )
            seen[key] = tool
        for (name, version), tool in seen.items():
            self._tools.setdefault(name, {})[version] = tool
        self._changes += 1

    def unregister(self, name: str, version: str) -> None:
        """Raises `NotFound`."""
        versions = self._tools.get(name, {})
        if versions.pop(parse_version(version), None) is None:
            raise NotFound(f'tool "{name}" version "{version}" is not registered here')
        if not versions:
            del self._tools[name]
        self._changes += 1

    def resolve(self, request: str) -> Tool:
        """The highest version that `name@constraint` allows; of a plain name the highest that is not deprecated.

        Raises `NotFound` with the versions that there are.
        """
        name, constraint = split_request(request)
        found = self.find(name, constraint)
        if found is not None:
            return found
        versions = self.versions(name)
        if not versions:
            raise NotFound(f'tool "{name}" not found')
        raise NotFound(
            f'tool "{name}" version "{constraint.text or "*"}" is not available',
            hint=f"available: {', '.join(versions)}",
            available_versions=versions,
        )

    def find(self, name: str, constraint: Constraint) -> Tool | None:
        """The same without an error. A name that is known here hides the one of the parent, whatever its versions."""
        versions = self._tools.get(name)
        if versions is None:
            return self._parent.find(name, constraint) if self._parent is not None else None
        fitting = [version for version in versions if constraint.allows(version)]
        if not constraint.text:
            fitting = [each for each in fitting if not versions[each].definition.deprecated_since] or fitting
        return versions[max(fitting)] if fitting else None

    def versions(self, name: str) -> list[str]:
        """Returns the known versions, lowest first."""
        versions = self._tools.get(name)
        if versions is None:
            return self._parent.versions(name) if self._parent is not None else []
        return [versions[version].definition.version for version in sorted(versions)]

    def __contains__(self, name: str) -> bool:
        return name in self._tools or (self._parent is not None and name in self._parent)

    def definitions(self, wanted: Callable[[ToolDefinition], bool] | None = None) -> list[ToolDefinition]:
        """Lists the tools that can be resolved here: own ones first, each name once per version, in order of
        registration.
        """
        own = [tool.definition for versions in self._tools.values() for tool in versions.values()]
        below = self._parent.definitions() if self._parent is not None else []
        listed = [*own, *(each for each in below if each.name not in self._tools)]
        return [each for each in listed if wanted is None or wanted(each)]


def check_effect(definition: ToolDefinition) -> None:
    """Raises `InvalidInput` for a tool of which nobody could say whether it may be repeated."""
    for field, given, known in (
        ("effect", definition.effect, get_args(Effect)),
        ("on_unknown", definition.on_unknown, get_args(OnUnknown)),
    ):
        if given not in known:
            raise InvalidInput(
                f'tool "{definition.name}" declares unknown {field} "{given}"', hint=f"one of {', '.join(known)}"
            )


def read_only(categories: Iterable[str] | None = None) -> Callable[[ToolDefinition], bool]:
    """A filter for `definitions`: tools that change nothing, and are of one of these categories if any are given."""
    allowed = None if categories is None else frozenset(categories)
    return lambda each: each.effect == "read" and (allowed is None or each.category in allowed)


def lock(definitions: Iterable[ToolDefinition]) -> dict[str, Locked]:
    """Pins the tools of a run, by the plain names that its model sees. Raises `Conflict` for two of one name."""
    locked: dict[str, Locked] = {}
    for each in definitions:
        if each.name in locked:
            raise Conflict(
                f'two versions of tool "{each.name}" in one agent: {locked[each.name].version} and {each.version}',
                hint="the model calls tools by name: give one of them another name",
            )
        locked[each.name] = Locked(each.version, schema_digest(each.schema))
    return locked


# Tools of this process that every runtime knows. Filled by whoever imports them, looked up by name.
GLOBAL: Final = ToolRegistry()
