"""`foliot version` and `foliot config show`: what runs here, and with which settings."""

from __future__ import annotations

import click

from foliot.cli.commands.contexts import (
    current_context,
    delete_context,
    get_contexts,
    set_context,
    use_context,
)
from foliot.cli.connect import run
from foliot.cli.invocation import current
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.cli.terminal import out
from foliot.version import __version__


@click.command()
@output_option("text", "json", default="text", help="text or json.")
def version(output: str) -> None:
    """Show the version of Foliot, of Python, and of the manifests it reads; with --server also that of the server."""
    import platform

    from foliot.cli.output import API_VERSION

    # Only when it is asked for on the line: who wants to know what is installed does not want to wait for a server.
    asked = "server" in current().flags or "context" in current().flags
    server = run(_server_version()) if asked else None
    if output == "json":
        facts = {"foliot": __version__, "python": platform.python_version(), "apiVersion": API_VERSION}
        out(as_json({**facts, **({"server": server} if server else {})}))
    else:
        out(f"foliot {__version__} (Python {platform.python_version()}, manifests {API_VERSION})")
        if server:
            out(f"server {server} at {current().settings().server}")


async def _server_version() -> str:
    from foliot.cli.operating import remote

    async with remote() as client:
        return await client.version()


@click.command()
@output_option("table", "json", default="table", help="table or json.")
def capabilities(output: str) -> int:
    """What this installation, or the server, can do: for programs that ask before they try. Names do not change."""
    found = run(_capabilities())
    if output == "json":
        out(as_json([{"id": name, "enabled": enabled, "description": text} for name, enabled, text in found]))
    else:
        rows = [[name, "yes" if enabled else "no", text] for name, enabled, text in found]
        out(table(["CAPABILITY", "HERE", "WHAT"], rows))
    return 0


async def _capabilities() -> list[tuple[str, bool, str]]:
    if current().settings().server is None:
        from foliot.capabilities import listed_capabilities

        return [(each["id"], each["enabled"], each["description"]) for each in listed_capabilities()]
    from foliot.cli.operating import remote

    async with remote() as client:
        return [(each.id, each.enabled, each.description) for each in await client.capabilities()]


@click.group()
def config() -> None:
    """Settings come from flags, the environment, the context in use and Foliot's own file, in this order.

    A context names a server that commands are asked of, as with kubectl. Naming a server (--server, FOLIOT_SERVER) or
    a store (--store, FOLIOT_STORE) is stronger than the context in use.
    """


@config.command()
@output_option("table", "json", default="table", help="table or json.")
def show(output: str) -> None:
    """Show every setting, its value, and where the value came from."""
    rows = [(name, str(value), origin) for name, value, origin in current().settings().explain()]
    if output == "json":
        out(as_json({name: {"value": value, "origin": origin} for name, value, origin in rows}))
    else:
        out(table(["SETTING", "VALUE", "FROM"], [list(row) for row in rows]))


for _command in (get_contexts, current_context, use_context, set_context, delete_context):
    config.add_command(_command)
