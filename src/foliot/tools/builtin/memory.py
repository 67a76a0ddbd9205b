"""Shared memory of a task: notes by key, which all its agents can write and read while the task lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, text

LONGEST_KEY: Final = 256
LONGEST_VALUE: Final = 64 * 1024
MOST_LISTED: Final = 100
DEFAULT_FOUND: Final = 10
_KEYS: Final = ("task-memory",)


class SharedMemory(Protocol):
    """The memory of the task that a run belongs to. Everything raises `ToolDenied` for a run without a task."""

    async def get(self, run_id: str, key: str) -> str | None: ...

    async def put(self, run_id: str, key: str, value: str) -> None:
        """Raises `ToolError` when the memory of the task is full."""
        ...

    async def entries(self, run_id: str) -> Sequence[tuple[str, str]]:
        """Returns all entries, by key."""
        ...


class MemoryRead:
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.definition = ToolDefinition(
            name="memory.read",
            description="Reads what an agent of this task has written under a key.",
            schema=object_schema({"key": text("The key.", minLength=1, maxLength=LONGEST_KEY)}, ["key"]),
            effect="read",
            category="memory",
            resource_keys=_KEYS,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        key = _key(call, "memory.read")
        value = await self._memory.get(call.run_id, key)
        return {"found": False, "key": key} if value is None else {"found": True, "key": key, "value": value}


class MemoryWrite:
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.definition = ToolDefinition(
            name="memory.write",
            description="Writes something for all agents of this task under a key. What was there is replaced.",
            schema=object_schema(
                {
                    "key": text("The key.", minLength=1, maxLength=LONGEST_KEY),
                    "value": text("What to remember; may be empty.", maxLength=LONGEST_VALUE),
                },
                ["key", "value"],
            ),
            effect="idempotent",
            repeats=True,
            category="memory",
            resource_keys=_KEYS,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        key = _key(call, "memory.write")
        await self._memory.put(call.run_id, key, str(call.arguments.get("value", "")))
        return {"status": "ok", "key": key}


class MemoryList:
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.definition = ToolDefinition(
            name="memory.list",
            description="Lists what the agents of this task have written, by key.",
            schema=object_schema({"prefix": text("Only keys that begin so.", maxLength=LONGEST_KEY)}),
            effect="read",
            category="memory",
            resource_keys=_KEYS,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        prefix = str(call.arguments.get("prefix", "")).strip()
        found = [entry for entry in await self._memory.entries(call.run_id) if entry[0].startswith(prefix)]
        shown = [{"key": key, "value": value} for key, value in found[:MOST_LISTED]]
        return {"entries": shown, "count": len(found)}


class MemorySearch:
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.definition = ToolDefinition(
            name="memory.search",
            description="Finds what the agents of this task have written: a text in a key or a value, in any case.",
            schema=object_schema(
                {
                    "query": text("What to look for.", minLength=1, maxLength=1000),
                    "top_k": {"type": "integer", "description": f"At most so many; {DEFAULT_FOUND} by default."},
                },
                ["query"],
            ),
            effect="read",
            category="memory",
            resource_keys=_KEYS,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        query = str(call.arguments["query"]).strip().casefold()
        if not query:
            raise ToolArgumentsInvalid("memory.search: query must not be blank", field="query")
        asked = call.arguments.get("top_k") or 0
        limit = min(asked if asked > 0 else DEFAULT_FOUND, MOST_LISTED)
        found = [
            {"key": key, "value": value}
            for key, value in await self._memory.entries(call.run_id)
            if query in key.casefold() or query in value.casefold()
        ]
        return {"results": found[:limit], "count": min(len(found), limit)}


def _key(call: Invocation, tool: str) -> str:
    key = str(call.arguments["key"]).strip()
    if not key:
        raise ToolArgumentsInvalid(f"{tool}: key must not be blank", field="key")
    return key
