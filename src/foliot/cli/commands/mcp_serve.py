"""`foliot mcp serve`: agents and governed tools for an MCP client that starts this process."""

from __future__ import annotations

import click

from foliot.cli.connect import namespace, run
from foliot.cli.runtimes import opened, whoami


@click.command()
def serve() -> None:
    """Be an MCP server on the standard streams: agents, systems and governed tools of the namespace.

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
