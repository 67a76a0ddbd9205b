"""Rules are read from several lists: what they say together was true at one moment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from foliot.engine.definition.governance import StoredRules
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.base import Delete, Filter, Key, Page, Put, ResourceStore


def declared(kind: str, name: str, **spec: Any) -> Put:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    return Put(document)


class Moving:
    """A store in which a ban moves from a policy to a permission after permissions were read, and before policies."""

    def __init__(self, store: ResourceStore) -> None:
        self._store = store
        self.moved = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, filter: Filter, *, cursor: str | None = None) -> Page:
        if filter.kind == "AgentPolicy" and not self.moved:
            self.moved = True
            ban = declared("ToolPermission", "pay", operation_rules=[{"operation_class": "*", "verdict": "deny"}])
            await self._store.write([ban, Delete(Key("AgentPolicy", "default", "ban"))])
        return await self._store.list(filter, cursor=cursor)


async def test_a_ban_that_moves_is_seen_in_one_of_its_places(tmp_path: Path) -> None:
    async with Runtime(settings=load_settings({"home": str(tmp_path)}, {})) as runtime:
        await runtime.inside.resources.write(
            [declared("AgentPolicy", "ban", apply_mode="global", blocked_tools=["pay"])]
        )
        store = Moving(runtime.inside.resources)
        rules = await StoredRules(store, clock=time.time).rules("default")  # pyright: ignore[reportArgumentType]
        assert store.moved
        assert rules.policies or rules.permissions
