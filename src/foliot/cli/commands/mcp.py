"""`foliot mcp`: the tools that MCP servers bring, whether they are still what was agreed to; and being one."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from foliot.cli.commands.mcp_serve import serve
from foliot.cli.connect import namespace, run
from foliot.cli.errors import tell
from foliot.cli.findings import count
from foliot.cli.invocation import current
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.cli.terminal import confirm, out
from foliot.errors import FoliotError, InvalidInput, NotFound, UsageError
from foliot.printable import one_line
from foliot.resources.agreed import EFFECTS, ISOLATIONS, RISKS
from foliot.store.base import Document, Filter, Key, ResourceStore

if TYPE_CHECKING:
    from foliot.catalog.mcp_sync import Synced
    from foliot.tools.mcp.connections import McpConnections
    from foliot.tools.mcp.pins import Announced

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = 60
OPERATIONS = ("read", "write", "delete", "admin")


def allow_option(command: F) -> F:
    return click.option(
        "--allow",
        multiple=True,
        metavar="COMMAND",
        help="A program that may be started as a server, besides those in the setting mcp_commands.",
    )(command)


@click.group()
def mcp() -> None:
    """Tools of MCP servers, and Foliot as one of them.

    \b
    foliot apply -f server.yaml        declare an McpServer
    foliot mcp sync                    make a Tool of each tool that the servers offer
    foliot mcp tools NAME              what a server offers now, compared with what was accepted
    foliot mcp accept SERVER TOOL      agree to a definition that the server changed
    foliot mcp serve                   be an MCP server: agents and governed tools for other programs
    """


mcp.add_command(serve)


@mcp.command()
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Go on, for all servers of all namespaces, each at its sync_interval.")
@allow_option
def sync(name: str | None, watch: bool, allow: tuple[str, ...]) -> int:
    """Make Tools of what a server offers, or all servers of the namespace.

    A tool whose definition the server changed since it was first seen is not updated: calls of it are refused until
    `foliot mcp accept`. Tools of a server that was deleted are deleted by --watch, and by a worker.
    """
    if watch and name:
        raise UsageError("--watch looks after all servers, and takes no name.")
    return run(_watch(allow) if watch else _sync(name, allow))


@mcp.command()
@click.argument("name")
@allow_option
@output_option("table", "json", default="table", help="table or json")
def tools(name: str, allow: tuple[str, ...], output: str) -> None:
    """What a server offers right now, and which Tool each became. Stores nothing."""
    rows = run(_tools(name, allow))
    if output == "json":
        out(as_json(rows))
        return
    headings = ("TOOL", "NAME", "STATE", "DIGEST", "DESCRIPTION")
    out(table(headings, [_row(entry) for entry in rows]))


@mcp.command()
@click.argument("name", metavar="SERVER")
@click.argument("tool", required=False)
@click.option("--all", "every", is_flag=True, help="Each tool of the server that is quarantined, one after the other.")
@click.option("--digest", default="", metavar="DIGEST", help="Accept only this definition (a beginning is enough).")
@click.option("--risk", type=click.Choice(RISKS), help="The least risk_level that a Tool may say of it.")
@click.option("--effect", type=click.Choice(EFFECTS), help="The least effect that a Tool may say of it.")
@click.option("--isolation", type=click.Choice(ISOLATIONS), help="The weakest isolation_mode of a Tool of it.")
@click.option("--operation", multiple=True, metavar="CLASS", help="An operation class that a Tool of it must say.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@allow_option
def accept(name: str, tool: str | None, every: bool, yes: bool, allow: tuple[str, ...], **said: Any) -> None:
    """Agree to the definition that a server announces now, so that its tool can be called again.

    TOOL is the server's own name for it, or the name of the Tool. The definition is shown first.

    What Tools say of its risk, effect and isolation is never lowered by accepting what the server says of itself, nor
    by applying a Tool: --risk, --effect, --isolation and --operation do that.
    """
    if every == (tool is not None):
        raise UsageError("Name a tool, or give --all.")
    digest = str(said.pop("digest"))
    if every and digest:
        raise UsageError("--digest is of one tool.", hint="Leave out --all.")
    for accepted in run(_accept(name, tool, digest, yes, allow, _levels(**said))):
        out(f"tool/{accepted} accepted")


def _levels(risk: str | None, effect: str | None, isolation: str | None, operation: tuple[str, ...]) -> dict[str, Any]:
    given = {"risk_level": risk, "effect": effect, "isolation_mode": isolation, "operation_classes": operation}
    for word in operation:
        if word not in OPERATIONS:
            raise UsageError(f"--operation: {word!r} is none.", hint=f"There are: {', '.join(OPERATIONS)}.")
    return {field: value for field, value in given.items() if value}


@asynccontextmanager
async def _opened(allow: tuple[str, ...]) -> AsyncGenerator[tuple[ResourceStore, McpConnections]]:
    from foliot.catalog.mcp_connect import opened_connections
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        store = SqlResourceStore(
            database, lambda: load_keyring(settings), existing=lambda: load_keyring(settings, create=False)
        )
        async with opened_connections(store, settings, allow=allow, environ=os.environ) as connections:
            yield store, connections
    finally:
        await database.close()


async def _server(store: ResourceStore, name: str) -> Document:
    try:
        return await store.get(Key("McpServer", namespace(), name))
    except NotFound:
        page = await store.list(Filter("McpServer", namespace()))
        names = ", ".join(str(each["metadata"]["name"]) for each in page.items)
        hint = f"There are: {names}." if names else "There is none in this namespace yet: apply one."
        raise NotFound(f"There is no MCP server {name!r} in namespace {namespace()!r}.", hint=hint) from None


async def _sync(name: str | None, allow: tuple[str, ...]) -> int:
    from foliot.catalog.mcp_sync import sync_server

    code = 0
    async with _opened(allow) as (store, connections):
        servers = [await _server(store, name)] if name else (await store.list(Filter("McpServer", namespace()))).items
        if not servers:
            out(f"There are no MCP servers in namespace {namespace()}.", err=True)
        for document in servers:
            label = f"mcp-server/{document['metadata']['name']}"
            try:
                _report(label, await sync_server(store, document, connections))
            except FoliotError as error:
                code = tell(error, color=current().color)
                out(f"{label} not synced")
    return code


async def _watch(allow: tuple[str, ...]) -> int:
    from foliot.catalog.mcp_keeping import McpKeeper

    def synced(document: Document, outcome: Synced | FoliotError) -> None:
        label = f"mcp-server/{document['metadata']['name']}"
        if isinstance(outcome, FoliotError):
            tell(outcome, color=current().color)
            out(f"{label} not synced")
        else:
            _report(label, outcome)

    async with _opened(allow) as (store, connections):
        await McpKeeper(store, connections, synced=synced).run()
    return 0


def _report(label: str, synced: Synced) -> None:
    out(
        f"{label} synced: {count(len(synced.generated), 'tool')}"
        f" ({len(synced.created)} created, {len(synced.updated)} updated, {len(synced.deleted)} deleted)"
    )
    for name, why in sorted(synced.quarantined.items()):
        out(f"  tool/{name} is quarantined: {why}")
    for entry in synced.discovered:
        if entry["state"] == "invalid":
            out(f"  {one_line(str(entry['name']))} cannot be used: {one_line(entry['problem'])}")


async def _tools(name: str, allow: tuple[str, ...]) -> list[dict[str, Any]]:
    from foliot.catalog.mcp_sync import tools_in
    from foliot.tools.mcp.server import server_spec
    from foliot.tools.mcp.sync import plan_sync

    async with _opened(allow) as (store, connections):
        document = await _server(store, name)
        server = server_spec(document)
        announced = await connections.tools(server, refresh=True)
        existing = await tools_in(store, server.namespace)
        plan = plan_sync(server, announced, existing, await store.agreed(server.namespace))
    new = {str(tool["metadata"]["name"]) for tool in plan.create}
    rows: list[dict[str, Any]] = []
    for entry in plan.discovered:
        state = "new" if entry["state"] == "ready" and entry.get("tool") in new else entry["state"]
        rows.append({**entry, "state": state, **_definition(announced.get(entry["name"]))})
    return rows


def _definition(tool: Announced | None) -> dict[str, Any]:
    if tool is None:
        return {}
    return {"description": tool.description, "input_schema": dict(tool.input_schema), "hints": dict(tool.hints)}


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    state = str(entry["state"])
    if entry.get("changed"):
        state = f"{state} ({', '.join(entry['changed'])})"
    digest = str(entry.get("digest", "")).removeprefix("sha256:")[:12]
    words = one_line(str(entry.get("description", "")))
    shown = words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"
    return one_line(str(entry["name"])), str(entry.get("tool", "-")), state, digest or "-", shown or "-"


async def _accept(
    server: str, tool: str | None, digest: str, yes: bool, allow: tuple[str, ...], levels: Mapping[str, Any]
) -> list[str]:
    from foliot.catalog.mcp_sync import accept_tool, announced_tool, sync_server

    accepted: list[str] = []
    async with _opened(allow) as (store, connections):
        document = await _server(store, server)
        wanted = [tool] if tool is not None else []
        if tool is None:
            synced = await sync_server(store, document, connections)
            wanted = [str(entry["name"]) for entry in synced.discovered if entry["state"] == "quarantined"]
        for each in wanted:
            found = await announced_tool(store, document, connections, each)
            if not yes:
                await _show(store, document, found)
                confirm(f"Let agents use {found.name} of {server} as described?")
            # What was shown is what is accepted: a definition that changes meanwhile is refused.
            synced = await accept_tool(
                store, document, connections, found.name, digest=digest or found.pin.digest, levels=levels
            )
            entry = next(entry for entry in synced.discovered if entry["name"] == found.name)
            if entry["state"] != "ready":
                raise InvalidInput(f"{one_line(found.name)} cannot be used: {one_line(str(entry.get('problem', '')))}")
            accepted.append(str(entry["tool"]))
    return accepted


async def _show(store: ResourceStore, document: Document, found: Announced) -> None:
    """Show the announced definition and, where it differs, the one that was agreed to."""
    metadata = document["metadata"]
    shown: dict[str, Any] = {"name": found.name, **_definition(found)}
    for row in await store.agreed(metadata.get("namespace", "default"), metadata["name"], found.name):
        before: dict[str, Any] = json.loads(row.definition) if row.definition else {}
        if changed := {part: before[part] for part in before if before[part] != found.parts()[part]}:
            shown["agreed_to_before"] = changed
    out(as_json(shown))
