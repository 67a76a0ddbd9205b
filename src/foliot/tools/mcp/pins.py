"""Pins: the definition that a server announced for a tool, and whether it is still the accepted one.

A description is an instruction to a model, so a server that changes it behind people's backs can make agents do other
things. Each definition is pinned when it is first seen; a different one under the same name is not used until a person
accepts it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from foliot.resources.digest import canonical_json

if TYPE_CHECKING:
    from mcp_types import Tool as WireTool

HINTS: Final = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")
WORDS: Final = {
    "description": "its description",
    "input_schema": "the schema of its arguments",
    "output_schema": "the schema of its results",
    "hints": "what it says about its effects",
}


@dataclass(frozen=True)
class Announced:
    """A tool as its server describes it. `hints` are only those that were given; None of them is a promise."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    hints: Mapping[str, bool] = field(default_factory=dict[str, bool])

    def parts(self) -> dict[str, Any]:
        return {
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "hints": self.hints,
        }

    def text(self) -> str:
        """The definition as it is stored when somebody agrees to it."""
        return canonical_json(self.parts()).decode()

    @cached_property
    def pin(self) -> Pin:
        parts = self.parts()
        digest = _sha256({"name": self.name, **parts})
        return Pin(f"sha256:{digest}", {part: _sha256(value)[:16] for part, value in parts.items()})


@dataclass(frozen=True, slots=True)
class Pin:
    """The digest of a definition, and a short one of each of its parts, to say which part changed."""

    digest: str
    parts: Mapping[str, str]

    def text(self) -> str:
        """Give the form that is stored."""
        return json.dumps({"digest": self.digest, **self.parts}, separators=(",", ":"))

    def changed(self, other: Pin) -> list[str]:
        """The parts in which the two differ; empty when they are the same definition."""
        if self.digest == other.digest:
            return []
        return [part for part in WORDS if self.parts.get(part) != other.parts.get(part)] or list(WORDS)


def read_pin(text: str) -> Pin:
    """The pin as it is stored. One that cannot be read equals no definition: what is damaged refuses."""
    try:
        fields = json.loads(text)
    except ValueError:
        return Pin("", {})
    if not isinstance(fields, dict):
        return Pin("", {})
    parts = {str(key): str(value) for key, value in cast("dict[Any, Any]", fields).items()}
    return Pin(parts.pop("digest", ""), parts)


def in_words(changed: list[str]) -> str:
    """`its description and the schema of its arguments`."""
    words = [WORDS.get(part, part) for part in changed]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing"


def announced(tool: WireTool) -> Announced:
    """From the SDK's own form. Raises `ValueError` for one that cannot be written as JSON, and so not be pinned."""
    given = tool.annotations
    hints = {hint: getattr(given, hint) for hint in HINTS if given is not None and getattr(given, hint) is not None}
    made = Announced(tool.name, tool.description or "", tool.input_schema, tool.output_schema, hints)
    _ = made.pin
    return made


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()
