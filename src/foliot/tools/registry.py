"""Which tools there are, by name and version.

A registry may stand on another: what it has itself comes first, then what the other has. So a runtime adds its tools to
those of the process, and an agent its own to those of the runtime, without anybody else seeing them. Which tool is
meant is decided by looking it up, before anything runs, and never by how a call went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, get_args

import msgspec

from foliot.common.versions import Constraint, Version, parse_version, split_request
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.tools.base import Effect, OnUnknown, Tool, ToolDefinition

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
