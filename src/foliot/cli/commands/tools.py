"""`foliot tools`: tools as things of their own, outside any run."""

from __future__ import annotations

from pathlib import Path

import click

from foliot.cli.commands.tool_calls import call, describe, list_tools, test
from foliot.cli.manifests import files_option


@click.group()
def tools() -> None:
    """Tools, outside any run."""


for command in (list_tools, describe, call, test):
    tools.add_command(command)


@tools.command()
@files_option(required=False)
@click.option("--nats", "url", metavar="URL", help="The NATS server; the setting nats (FOLIOT_NATS) otherwise.")
@click.option(
    "--callers",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Whose calls are served, a TOML file; the setting nats_callers (FOLIOT_NATS_CALLERS) otherwise.",
)
@click.option("--tool", "names", multiple=True, metavar="NAME", help="Serve only this one. Can be repeated.")
@click.option("--shared", is_flag=True, help="Other programs serve other tools: take only calls of one's own.")
@click.option("--create-stream", is_flag=True, help="Make the JetStream stream AGENT when it is not there.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=3, show_default=True, help="Calls at a time.")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for the last calls.")
def serve(
    files: tuple[str, ...],
    url: str | None,
    callers: Path | None,
    names: tuple[str, ...],
    shared: bool,
    create_stream: bool,
    concurrency: int,
    drain: float,
) -> None:
    """Answer calls of tools that come over NATS, through the same rules as any other call.

    \b
    foliot tools serve --nats nats://localhost:4222 --callers callers.toml -f tools.yaml --create-stream
    foliot tools serve --tool search          one of the tools in the store

    Calls come on tool.execute.NAME and are answered on tool.result.ID; tool.list tells what is served. Without -f the
    tools of the namespace in the store are served. Rules, limits and budgets come from the store. Who calls is known by
    a key, by the subject, or not at all, as the file of callers says; what a message says of its sender does not count.
    Ctrl-C finishes what is under way.
    """
    from functools import partial

    from foliot.cli.services import serve_until_told
    from foliot.cli.serving import Serving, serve_tools

    order = Serving(files, url, callers, names, shared, create_stream, concurrency, drain)
    serve_until_told(partial(serve_tools, order))
