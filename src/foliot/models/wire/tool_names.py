"""Names that a provider accepts for tools, and the way back.

Foliot's names may hold dots and more (`memory.write`); providers take letters, digits, `_` and `-`. The same alias is
used in the declarations, in the replayed history and for reading the answer: a provider that saw one name in the
declarations and another in the history refuses the request.

Invariant: aliases depend only on the set of names, never on their order, so that prompt caches hit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from foliot.kernel.messages import ToolSpec

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]+")
FALLBACK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "additionalProperties": True,
}


class ToolNames:
    """Aliases for one set of tools. Made by `tool_names`, which caches it; not to be changed."""

    def __init__(self, names: Iterable[str], limit: int, letter_first: bool) -> None:
        self._limit = limit
        self._letter_first = letter_first
        self._wire: dict[str, str] = {}
        self._real: dict[str, str] = {}
        taken: set[str] = set()
        ordered = sorted(set(names))
        # A name that is fine as it stands keeps itself, whatever else would like to be called so.
        for name in ordered:
            if self._clean(name) == name and name.lower() not in taken:
                taken.add(name.lower())
                self._put(name, name)
        for name in ordered:
            if name not in self._wire:
                alias = self._free(self._clean(name), taken)
                taken.add(alias.lower())
                self._put(name, alias)
        self._taken = frozenset(taken)

    def wire(self, name: str) -> str:
        """The provider's name for a tool, also for one that is only in the history and no longer offered."""
        return self._wire.get(name) or self._free(self._clean(name), self._taken)

    def real(self, alias: str) -> str:
        """Foliot's name; a name that was never offered comes back as the model wrote it."""
        return self._real.get(alias, alias)

    def _put(self, name: str, alias: str) -> None:
        self._wire[name] = alias
        self._real[alias] = name

    def _clean(self, name: str) -> str:
        alias = name
        if _REFUSED.search(name):
            alias = _REFUSED.sub("_", name).strip("_-")
        alias = alias or "tool"
        if self._letter_first and not (alias[0].isalpha() or alias[0] == "_"):
            alias = f"_{alias}"
        return alias[: self._limit]

    def _free(self, base: str, taken: set[str] | frozenset[str]) -> str:
        alias, number = base, 1
        while alias.lower() in taken:
            number += 1
            suffix = f"_{number}"
            alias = base[: self._limit - len(suffix)] + suffix
        return alias


@lru_cache(maxsize=512)
def _cached(names: tuple[str, ...], limit: int, letter_first: bool) -> ToolNames:
    return ToolNames(names, limit, letter_first)


def tool_names(tools: Iterable[ToolSpec], *, limit: int = 64, letter_first: bool = False) -> ToolNames:
    """The aliases for these tools. An agent asks with the same tools at every step, so they are kept."""
    return _cached(tuple(tool.name for tool in tools), limit, letter_first)


def ordered_tools(tools: Iterable[ToolSpec]) -> list[ToolSpec]:
    """Each tool once, in the order of the names: the one order that does not depend on how they were gathered."""
    unique: dict[str, ToolSpec] = {}
    for tool in tools:
        unique.setdefault(tool.name, tool)
    return [unique[name] for name in sorted(unique)]


def schema_of(tool: ToolSpec) -> dict[str, Any]:
    """The tool's schema, or the fallback; always says that it is an object, because every provider insists."""
    if tool.schema is None:
        return FALLBACK_SCHEMA
    if tool.schema.get("type") == "object" and "properties" in tool.schema:
        return tool.schema
    return {"properties": {}, **tool.schema, "type": "object"}


def description_of(tool: ToolSpec) -> str:
    return tool.description or f"Invoke tool {tool.name}"
