"""Keeping the generated Tools of an McpServer in step with what the server announces.

Called by `foliot mcp`, and by whoever hears that a server's tools changed. Writes only what `plan_sync` allows, and the
status of the McpServer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.common.durations import seconds
from foliot.common.pages import read_all
from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.common.waits import Waits
from foliot.engine.definition.endpoints import bound_hosts, stored_secrets
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound
from foliot.resources.references import target_of
from foliot.settings.settings import Settings
from foliot.store.base import DeclaredBy, Delete, Document, Filter, Key, Put, ResourceStore
from foliot.store.resources.mcp_pins import keep_agreed
from foliot.tools.base import ToolError
from foliot.tools.fences import Fences
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.pins import Announced
from foliot.tools.mcp.process import ServerSpec, auth_headers, secret_values, server_spec
from foliot.tools.mcp.sync import GENERATED_LABEL, Consent, SyncPlan, is_generated_for, plan_sync
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.secrets.auth import CallAuth, TokenCache

MOST_CONFLICTS: Final = 5


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync: names of Tools that were created, updated and deleted, and those in quarantine with the
    reason.
    """

    created: list[str]
    updated: list[str]
    deleted: list[str]
    generated: list[str]
    quarantined: Mapping[str, str]
    discovered: list[dict[str, Any]]


async def sync_server(
    store: ResourceStore,
    document: Document,
    connections: McpConnections,
    *,
    accept: Mapping[str, Consent] | None = None,
) -> Synced:
    """Ask the server of an McpServer resource for its tools, and store them as Tools.

    `accept` says what a person agreed to, by tool; another definition is not accepted.
    Raises `ToolError` when the server cannot be asked; its status says so then. `NotFound` when the resource is gone.
    """
    server = server_spec(document)
    try:
        announced = await connections.tools(server, refresh=True)
    except ToolError as error:
        await _set_status(store, document, {"phase": "Error", "lastError": error.message})
        raise
    for attempt in range(MOST_CONFLICTS):
        try:
            return await _store(store, document, server, announced, connections, accept or {})
        except Conflict:
            if attempt + 1 == MOST_CONFLICTS:
                raise
            document = await store.get(_key(document))
    raise AssertionError("the last attempt returns or raises")


async def announced_tool(store: ResourceStore, document: Document, connections: McpConnections, tool: str) -> Announced:
    """Returns the server's present definition of `tool`: its own name, or the generated Tool's.

    Raises `NotFound`; `InvalidInput` for a blank name, before the server is asked.
    """
    if not tool.strip():
        raise InvalidInput(f"{tool[:80]!r} names no tool", hint="`foliot mcp tools SERVER` lists them")
    server = server_spec(document)
    announced = await connections.tools(server, refresh=True)
    if tool in announced:
        return announced[tool]
    for row in await store.agreed(server.namespace):
        if (row.server, row.name) == (server.name, tool) and row.tool in announced:
            return announced[row.tool]
    try:
        stored = await store.get(Key("Tool", server.namespace, tool))
    except NotFound:
        pass
    else:
        if is_generated_for(server, stored) and stored["spec"]["mcp_tool_name"] in announced:
            return announced[stored["spec"]["mcp_tool_name"]]
    offered = ", ".join(sorted(announced)) or "nothing"
    raise NotFound(f"{server} does not offer {tool!r}", hint=f"it offers {offered}")


async def offered_tools(store: ResourceStore, document: Document, connections: McpConnections) -> list[dict[str, Any]]:
    """Compare what a server offers right now with the Tool that each became or would become, and with the agreements.

    Stores nothing. Raises `ToolError` when the server cannot be asked.
    """
    server = server_spec(document)
    announced = await connections.tools(server, refresh=True)
    tools, agreed = await tools_in(store, server.namespace), await store.agreed(server.namespace)
    plan = plan_sync(server, announced, tools, agreed)
    new = {str(tool["metadata"]["name"]) for tool in plan.create}
    before = {row.tool: row for row in agreed if (row.namespace, row.server) == server.key}
    rows: list[dict[str, Any]] = []
    for entry in plan.discovered:
        row = {**entry, "state": "new" if entry["state"] == "ready" and entry.get("tool") in new else entry["state"]}
        rows.append(row)
        if (tool := announced.get(entry["name"])) is None:
            continue
        row |= {"description": tool.description, "input_schema": dict(tool.input_schema), "hints": dict(tool.hints)}
        known = before.get(tool.name)
        agreed_to: dict[str, Any] = json.loads(known.definition) if known is not None and known.definition else {}
        parts = tool.parts()
        if changed := {part: agreed_to[part] for part in agreed_to if agreed_to[part] != parts[part]}:
            row["agreed_to_before"] = changed
    return rows


async def accept_tool(
    store: ResourceStore,
    document: Document,
    connections: McpConnections,
    tool: str,
    *,
    digest: str = "",
    levels: Mapping[str, Any] | None = None,
) -> Synced:
    """Agree to the definition that the server announces now for `tool`, and sync.

    With `digest`, only if it is that one (a beginning is enough). `levels` (fields of `Levels`) are what Tools have to
    say of it at least; without them nothing is lowered, whatever the server says of itself. Raises `NotFound`,
    `Conflict`, and `InvalidInput` for a definition of which no Tool can be made.
    """
    found = await announced_tool(store, document, connections, tool)
    now = found.pin.digest
    if digest and not now.removeprefix("sha256:").startswith(digest.removeprefix("sha256:")):
        raise Conflict(
            f"{server_spec(document)} announces another definition of {found.name!r} than the one to accept: {now}",
            hint=f"look at it again with `foliot mcp tools {document['metadata']['name']}`",
        )
    synced = await sync_server(store, document, connections, accept={found.name: Consent(now, levels or {})})
    entry = next(entry for entry in synced.discovered if entry["name"] == found.name)
    if entry.get("state") == "invalid":
        raise InvalidInput(f"{one_line(found.name)} cannot be used: {one_line(str(entry.get('problem', '')))}")
    return synced


async def tools_in(store: ResourceStore, namespace: str) -> list[Document]:
    """Every Tool of a namespace."""
    return await read_all(store.list, Filter("Tool", namespace))


async def _store(
    store: ResourceStore,
    document: Document,
    server: ServerSpec,
    announced: Mapping[str, Announced],
    connections: McpConnections,
    accept: Mapping[str, Consent],
) -> Synced:
    tools = await tools_in(store, server.namespace)
    agreed = await store.agreed(server.namespace)  # after the Tools: one that is gone has left there how strict it was
    current = await store.get(_key(document))
    if server_spec(current).digest != server.digest:
        raise InvalidInput(f"{server} was changed while its tools were listed", hint="sync it again")
    plan = plan_sync(server, announced, tools, agreed, accept=accept)
    versions = {tool["metadata"]["name"]: str(tool["metadata"]["resourceVersion"]) for tool in tools}
    changes: list[Put | Delete] = [Put(tool, expect="absent", own=True) for tool in plan.create]
    changes += [Put(tool, expect=versions[tool["metadata"]["name"]], own=True) for tool in plan.update]
    changes += [Delete(Key("Tool", server.namespace, name), expect=versions[name]) for name in plan.delete]
    changes += _tool_states(server, plan, {tool["metadata"]["name"]: tool for tool in tools})
    changes.append(_status(current, _ready(plan, connections, server)))
    # The generated Tools are as much the work of whoever declared their server as if they had written them.
    await store.write(changes, by=DeclaredBy.of(current), in_transaction=partial(keep_agreed, agreed, plan.agreed))
    return Synced(
        created=[tool["metadata"]["name"] for tool in plan.create],
        updated=[tool["metadata"]["name"] for tool in plan.update],
        deleted=plan.delete,
        generated=plan.generated,
        quarantined=plan.quarantined,
        discovered=plan.discovered,
    )


def _tool_states(server: ServerSpec, plan: SyncPlan, before: Mapping[str, Document]) -> list[Put | Delete]:
    """The status of each Tool, where it says something else so far."""
    changes: list[Put | Delete] = []
    for name in plan.generated:
        status: dict[str, Any] = {"phase": "Ready"}
        if name in plan.quarantined:
            status = {"phase": "Quarantined", "lastError": plan.quarantined[name]}
        if name not in before or (before[name].get("status") or {}) != status:
            metadata = {"name": name, "namespace": server.namespace}
            changes.append(Put({"kind": "Tool", "metadata": metadata, "status": status}, only="status"))
    return changes


def _ready(plan: SyncPlan, connections: McpConnections, server: ServerSpec) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Ready", "discoveredTools": plan.discovered, "generatedTools": plan.generated}
    if plan.quarantined:
        status["lastError"] = f"quarantined until accepted: {', '.join(sorted(plan.quarantined))}"
    for health in connections.health():
        if (health.namespace, health.name) == server.key:
            status |= {"protocolVersion": health.protocol, "implementation": health.implementation}
    return status


def _status(document: Document, said: Mapping[str, Any]) -> Put:
    metadata = document["metadata"]
    status = {
        **said,
        "lastSyncedAt": iso(time.time()),
        "observedGeneration": metadata.get("generation", 1),
    }
    key = {"name": metadata["name"], "namespace": metadata.get("namespace", "default")}
    return Put({"kind": "McpServer", "metadata": key, "status": status}, only="status")


async def _set_status(store: ResourceStore, document: Document, said: Mapping[str, Any]) -> None:
    """Keep the known tools: a server that does not answer today has not lost them."""
    current = await store.get(_key(document))
    before: dict[str, Any] = current.get("status") or {}
    known = {name: before[name] for name in ("discoveredTools", "generatedTools") if name in before}
    await store.write([_status(current, {**known, **said})])


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return Key("McpServer", metadata.get("namespace", "default"), metadata["name"])


# --- mcp connect -----------------------------------------------------------------------------------------------------

# Connections to MCP servers as the settings allow them, on the secrets of a store.


@asynccontextmanager
async def opened_connections(
    store: ResourceStore,
    settings: Settings,
    *,
    allow: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    patient: bool = True,
    fences: Fences | None = None,
) -> AsyncGenerator[McpConnections]:
    """Connections for one command, closed at its end. `allow`: what may be started besides the settings' commands.

    Servers that are programs are started in sandboxes of `fences`; without it none is started.
    """
    secrets = stored_secrets(store, environ)
    client = OutboundClient(Guard(Outbound(allow_hosts=settings.outbound_allow)), waits=Waits(settings.lease))
    connections = McpConnections(
        allowed_commands={*settings.mcp_commands, *allow},
        fences=fences,
        granted_mounts=settings.sandbox_mounts,
        granted_images=settings.container_images,
        resolve_secret=secret_values(secrets),
        secret_hosts=partial(bound_hosts, store),
        authorize=auth_headers(CallAuth(secrets, TokenCache(client, secrets.masker))),
        guard=client.guard.addresses,
        environ=environ,
        patient=patient,
    )
    try:
        yield connections
    finally:
        await connections.close()
        await client.close()


# --- mcp keeping -----------------------------------------------------------------------------------------------------

# Keeping the Tools of all McpServers in step, again and again, for as long as a worker or a server lives.
#
#     keeper = McpKeeper(store, connections)
#     await keeper.run()          until it is cancelled
#
# When a server is due is read from its own status, so that several processes on one store share the work instead of
# doing it several times. One server that hangs or fails does not keep the others waiting: each is asked by itself, and
# never again before it has answered.

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
            key = _mcp_keeping_key(document)
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
        servers = {_mcp_keeping_key(document) for document in await self._all(Filter("McpServer"))}
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
                log.warning("MCP server %s/%s could not be synced: %s", *_mcp_keeping_key(document), error)
                outcome = error
        if self._synced is not None:
            self._synced(document, outcome)

    async def _all(self, filter: Filter) -> list[Document]:
        return await read_all(self._store.list, filter)


def _mcp_keeping_key(document: Document) -> tuple[str, str]:
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
