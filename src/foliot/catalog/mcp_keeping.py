"""Keeping the Tools of all McpServers in step, again and again, for as long as a worker or a server lives.

    keeper = McpKeeper(store, connections)
    await keeper.run()          until it is cancelled

When a server is due is read from its own status, so that several processes on one store share the work instead of
doing it several times. One server that hangs or fails does not keep the others waiting: each is asked by itself, and
never again before it has answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from foliot.catalog.mcp_sync import Synced, sync_server
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound
from foliot.resources.durations import seconds
from foliot.resources.references import target_of
from foliot.stopping import stop_tasks
from foliot.store.base import Delete, Document, Filter, Key, ResourceStore
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.sync import GENERATED_LABEL

log = logging.getLogger(__name__)

EVERY: Final = 300.0
# How soon a server that is declared, changed or deleted is noticed.
LOOK_EVERY: Final = 15.0
AT_ONCE: Final = 4


class McpKeeper:
    """`every` is the interval in seconds of servers that name none; one of 0 means that a server is never asked here.

    `synced` hears of each sync: the McpServer, and what was done, or the error.
    """

    def __init__(
        self,
        store: ResourceStore,
        connections: McpConnections,
        *,
        every: float = EVERY,
        look_every: float = LOOK_EVERY,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        synced: Callable[[Document, Synced | FoliotError], None] | None = None,
    ) -> None:
        self._store = store
        self._connections = connections
        self._every = every
        self._look_every = look_every
        self._clock = clock
        self._sleep = sleep
        self._synced = synced
        self._room = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look, sync what is due, and sleep. Ends only by being cancelled; what is under way then is stopped."""
        try:
            while True:
                try:
                    await self.begin_due()
                    await self.collect()
                except FoliotError as error:
                    log.warning("the MCP servers could not be looked up: %s", error)
                await self._sleep(self._look_every)
        finally:
            tasks = list(self._under_way.values())
            await stop_tasks(*tasks)

    async def once(self) -> None:
        """Sync everything that is due now, and return when that is done."""
        await self.begin_due()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self.collect()

    async def begin_due(self) -> None:
        """Begin to sync each server that is due and not under way already. Raises `FoliotError`."""
        for document in await self._all(Filter("McpServer")):
            key = _key(document)
            if key not in self._under_way and self._is_due(document):
                task = asyncio.create_task(self._sync(document))
                self._under_way[key] = task
                task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("syncing MCP server %s/%s broke", *key, exc_info=error)

    async def collect(self) -> list[str]:
        """Delete generated Tools whose server is gone; their names. Raises `FoliotError`."""
        # The Tools first: a server that is declared meanwhile is in the second list, with Tools that are not.
        tools = await self._all(Filter("Tool"))
        servers = {_key(document) for document in await self._all(Filter("McpServer"))}
        gone = [tool for tool in tools if (owner := _owner(tool)) is not None and owner not in servers]
        deleted: list[str] = []
        for tool in gone:
            metadata = tool["metadata"]
            key = Key("Tool", metadata.get("namespace", "default"), metadata["name"])
            try:
                await self._store.write([Delete(key, expect=str(metadata["resourceVersion"]))])
            except (Conflict, NotFound):
                continue  # somebody else has deleted or adopted it
            deleted.append(metadata["name"])
            log.info("tool %s/%s is deleted: its MCP server is gone", key.namespace, key.name)
        return deleted

    def _is_due(self, document: Document) -> bool:
        spec: dict[str, Any] = document["spec"]
        interval = seconds(spec["sync_interval"]) if spec.get("sync_interval") else self._every
        if interval <= 0:
            return False
        status: dict[str, Any] = document.get("status") or {}
        if status.get("observedGeneration") != document["metadata"].get("generation", 1):
            return True  # never asked, or declared anew since
        return _seconds_at(status.get("lastSyncedAt")) + interval <= self._clock()

    async def _sync(self, document: Document) -> None:
        async with self._room:
            outcome: Synced | FoliotError
            try:
                outcome = await sync_server(self._store, document, self._connections)
            except FoliotError as error:
                # Its status says so too. It is due again after its interval, and then asked again.
                log.warning("MCP server %s/%s could not be synced: %s", *_key(document), error)
                outcome = error
        if self._synced is not None:
            self._synced(document, outcome)

    async def _all(self, filter: Filter) -> list[Document]:
        page = await self._store.list(filter)
        found = list(page.items)
        while page.cursor is not None:
            page = await self._store.list(filter, cursor=page.cursor)
            found += page.items
        return found


def _key(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace", "default"), metadata["name"]


def _owner(tool: Document) -> tuple[str, str] | None:
    """The McpServer that a Tool was generated for; None for every other Tool."""
    metadata, spec = tool["metadata"], tool["spec"]
    labels: dict[str, str] = metadata.get("labels") or {}
    if labels.get(GENERATED_LABEL) != "true" or spec.get("type") != "mcp" or not spec.get("mcp_server_ref"):
        return None
    home: str = metadata.get("namespace", "default")
    try:
        _, namespace, name = target_of("McpServer", str(spec["mcp_server_ref"]), home)
    except InvalidInput:
        return None
    # Tools are generated beside their server: one that says otherwise was not, whatever its labels claim.
    return (namespace, name) if namespace == home else None


def _seconds_at(text: str | None) -> float:
    """Seconds since 1970; 0 for what cannot be read, which is long ago."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return 0.0
