"""Keeping the generated Tools of an McpServer in step with what the server announces.

Called by `foliot mcp`, and by whoever hears that a server's tools changed. Writes only what `plan_sync` allows, and the
status of the McpServer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.printable import one_line
from foliot.store.base import DeclaredBy, Delete, Document, Filter, Key, Put, ResourceStore
from foliot.store.mcp_pins import keep_agreed
from foliot.tools.base import ToolError
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.pins import Announced
from foliot.tools.mcp.server import ServerSpec, server_spec
from foliot.tools.mcp.sync import Consent, SyncPlan, is_generated_for, plan_sync

MOST_CONFLICTS: Final = 5


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did: names of Tools that were created, updated and deleted, and what is kept from use and why."""

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
    """What the server says now about `tool`: its own name, or the name of the generated Tool. Raises `NotFound`."""
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
    found: list[Document] = []
    cursor: str | None = None
    while True:
        page = await store.list(Filter("Tool", namespace), cursor=cursor)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


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
    await store.write(changes, by=DeclaredBy.of(current), also=partial(keep_agreed, agreed, plan.agreed))
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
        "lastSyncedAt": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
