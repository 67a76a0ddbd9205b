"""`foliot mcp`: the tools that MCP servers bring, whether they are still what was agreed to; and being one."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from foliot.cli.errors import tell
from foliot.cli.invocation import current
from foliot.cli.reach import namespace, remote, run
from foliot.cli.runtimes import opened, whoami
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import confirm, out
from foliot.common.text import counted, one_line
from foliot.errors import Conflict, FoliotError, NotFound, UsageError
from foliot.resources.agreed import EFFECTS, ISOLATIONS, RISKS
from foliot.store.base import Document, Filter, Key, ResourceStore

if TYPE_CHECKING:
    from foliot.catalog.mcp import Synced
    from foliot.client.remote import RemoteClient
    from foliot.tools.mcp.connections import McpConnections


# --- mcp serve -------------------------------------------------------------------------------------------------------

# `foliot mcp serve`: agents and governed tools for an MCP client that starts this process.


@click.command()
def serve() -> None:
    """Serve agents, systems and governed tools of the namespace over MCP, on the standard streams.

    \b
    In the settings of an MCP client:
      {"command": "foliot", "args": ["mcp", "serve", "--namespace", "default"]}
    `foliot server` offers the same over HTTP, at /mcp.
    """
    run(_serve())


async def _serve() -> None:
    from foliot.server.mcp.stdio import serve_stdio

    async with opened() as runtime:
        await serve_stdio(runtime, namespace=namespace(), user=whoami())


# --- mcp -------------------------------------------------------------------------------------------------------------

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
    """List, sync and accept tools of MCP servers; serve Foliot as one.

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
    """Make a Tool of each tool that a server offers, or all servers of the namespace.

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
    """List the tools that a server offers now, and the Tool made for each. Stores nothing."""
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
    """Accept the definition that a server announces now, so that its tool can be called again.

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
async def _opened(
    allow: tuple[str, ...], *, patient: bool = False
) -> AsyncGenerator[tuple[ResourceStore, McpConnections]]:
    """The store and connections. Somebody who sits in front of it hears at once what is wrong with a server."""
    from foliot.catalog.mcp import opened_connections

    async with opened() as runtime:
        inside = runtime.inside
        async with opened_connections(
            inside.resources,
            inside.settings,
            allow=allow,
            environ=os.environ,
            patient=patient,
            fences=inside.fences,
        ) as connections:
            yield inside.resources, connections


async def _server(store: ResourceStore, name: str) -> Document:
    try:
        return await store.get(Key("McpServer", namespace(), name))
    except NotFound:
        page = await store.list(Filter("McpServer", namespace()))
        names = ", ".join(str(each["metadata"]["name"]) for each in page.items)
        hint = f"There are: {names}." if names else "There is none in this namespace yet: apply one."
        raise NotFound(f"There is no MCP server {name!r} in namespace {namespace()!r}.", hint=hint) from None


async def _sync(name: str | None, allow: tuple[str, ...]) -> int:
    from foliot.catalog.mcp import sync_server

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
    from foliot.catalog.mcp import McpKeeper

    def synced(document: Document, outcome: Synced | FoliotError) -> None:
        label = f"mcp-server/{document['metadata']['name']}"
        if isinstance(outcome, FoliotError):
            tell(outcome, color=current().color)
            out(f"{label} not synced")
        else:
            _report(label, outcome)

    async with _opened(allow, patient=True) as (store, connections):
        await McpKeeper(store, connections, synced=synced).run()
    return 0


def _report(label: str, synced: Synced) -> None:
    out(
        f"{label} synced: {counted(len(synced.generated), 'tool')}"
        f" ({len(synced.created)} created, {len(synced.updated)} updated, {len(synced.deleted)} deleted)"
    )
    for name, why in sorted(synced.quarantined.items()):
        out(f"  tool/{name} is quarantined: {why}")
    for entry in synced.discovered:
        if entry["state"] == "invalid":
            out(f"  {one_line(str(entry['name']))} cannot be used: {one_line(entry['problem'])}")


async def _tools(name: str, allow: tuple[str, ...]) -> list[dict[str, Any]]:
    async with _desk(name, allow) as desk:
        return await desk.offered()


class _Desk(Protocol):
    """One MCP server, through the store or through a server of Foliot."""

    async def offered(self) -> list[dict[str, Any]]: ...

    async def accept(self, tool: str, digest: str, levels: Mapping[str, Any]) -> str: ...


@dataclass(frozen=True, slots=True)
class _Here:
    store: ResourceStore
    connections: McpConnections
    document: Document

    async def offered(self) -> list[dict[str, Any]]:
        from foliot.catalog.mcp import offered_tools

        return await offered_tools(self.store, self.document, self.connections)

    async def accept(self, tool: str, digest: str, levels: Mapping[str, Any]) -> str:
        from foliot.catalog.mcp import accept_tool

        synced = await accept_tool(self.store, self.document, self.connections, tool, digest=digest, levels=levels)
        return next(str(entry["tool"]) for entry in synced.discovered if entry["name"] == tool)


@dataclass(frozen=True, slots=True)
class _There:
    client: RemoteClient
    name: str

    async def offered(self) -> list[dict[str, Any]]:
        return await self.client.tools.offered(self.name, namespace=namespace())

    async def accept(self, tool: str, digest: str, levels: Mapping[str, Any]) -> str:
        return await self.client.tools.accept(self.name, tool, digest, dict(levels), namespace=namespace())


@asynccontextmanager
async def _desk(name: str, allow: tuple[str, ...]) -> AsyncGenerator[_Desk]:
    # The MCP server is asked by whoever may use it: this machine, or the server of Foliot on its own.
    if current().settings().server is None:
        async with _opened(allow) as (store, connections):
            yield _Here(store, connections, await _server(store, name))
        return

    if allow:
        raise UsageError("--allow is about this machine, and the MCP server is asked by the server of Foliot.")
    async with remote() as client:
        yield _There(client, name)


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
    accepted: list[str] = []
    async with _desk(server, allow) as desk:
        offered = await desk.offered()
        for entry in _wanted(server, tool, offered):
            if not yes:
                shown = ("name", "description", "input_schema", "hints", "agreed_to_before")
                out(as_json({part: entry[part] for part in shown if part in entry}))
                confirm(f"Let agents use {one_line(entry['name'])} of {server} as described?")
            # What was shown is what is accepted: a definition that changes meanwhile is refused.
            if digest and not entry["digest"].removeprefix("sha256:").startswith(digest.removeprefix("sha256:")):
                raise Conflict(
                    f"{server} announces another definition of {one_line(entry['name'])!r} than the one to accept: "
                    f"{entry['digest']}",
                    hint=f"Look at it again with `foliot mcp tools {server}`.",
                )
            accepted.append(await desk.accept(entry["name"], entry["digest"], levels))
    return accepted


def _wanted(server: str, tool: str | None, offered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The offered tools to accept: one by its own name or that of its Tool, or all that are quarantined."""
    there = [entry for entry in offered if "digest" in entry]
    if tool is None:
        return [entry for entry in there if entry["state"] == "quarantined"]
    found = [entry for entry in there if entry["name"] == tool] or [e for e in there if e.get("tool") == tool]
    if not found:
        names = ", ".join(sorted(one_line(entry["name"]) for entry in there)) or "nothing"
        raise NotFound(f"MCP server {server!r} does not offer {tool!r}.", hint=f"It offers {names}.")
    return found[:1]
