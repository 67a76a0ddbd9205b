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
from foliot.cli.invocation import current
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.version import __version__


@click.command()
@output_option("text", "json", default="text", help="text or json.")
def version(output: str) -> None:
    """Show the version of Foliot, of Python, and of the manifests it reads."""
    import platform

    from foliot.cli.output import API_VERSION

    if output == "json":
        facts = {"foliot": __version__, "python": platform.python_version(), "apiVersion": API_VERSION}
        click.echo(as_json(facts))
    else:
        click.echo(f"foliot {__version__} (Python {platform.python_version()}, manifests {API_VERSION})")


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
        click.echo(as_json({name: {"value": value, "origin": origin} for name, value, origin in rows}))
    else:
        click.echo(table(["SETTING", "VALUE", "FROM"], [list(row) for row in rows]))


for _command in (get_contexts, current_context, use_context, set_context, delete_context):
    config.add_command(_command)
