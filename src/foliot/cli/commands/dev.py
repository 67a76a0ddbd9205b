"""`foliot dev services up | down | status`: a private PostgreSQL and NATS for trying the production set-up."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from foliot.cli.invocation import current
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out

if TYPE_CHECKING:
    from foliot.dev.development import DevServices


@click.group()
def dev() -> None:
    """Start and stop private services for development. Not for production."""


@dev.group()
def services() -> None:
    """Start and stop a PostgreSQL and a NATS server of your own, on loopback, under FOLIOT_HOME."""


@services.command()
def up() -> None:
    """Start both servers (those that run already stay as they are) and print how to use them.

    Their data is kept when they are stopped. To set up the present shell:

        eval "$(foliot dev services up)"
    """
    postgres, nats = _services().up()
    out(f"{postgres.name} {postgres.version} and {nats.name} {nats.version} are running.", err=True)
    out(f"export FOLIOT_STORE={shlex.quote(postgres.url)}")
    out(f"export FOLIOT_NATS={shlex.quote(nats.url)}")


@services.command()
@click.option("--purge", is_flag=True, help="Delete their data as well.")
def down(purge: bool) -> None:
    """Stop both servers. Their data is kept, unless you ask for its deletion."""
    _services().down(purge=purge)
    out("Stopped; all data is deleted." if purge else "Stopped; `foliot dev services up` starts them again.")


@services.command()
@output_option("table", "json", default="table", help="table or json.")
@click.pass_context
def status(context: click.Context, output: str) -> None:
    """Show which servers run, where, and their versions. The exit code is 1 unless both run."""
    found = _services().status()
    if output == "json":
        out(as_json([{**asdict(each), "folder": str(each.folder)} for each in found]))
    else:
        rows = [
            [
                each.name,
                "running" if each.running else "stopped",
                each.address or "-",
                str(each.pid or "-"),
                each.version or "-",
                str(each.folder),
            ]
            for each in found
        ]
        out(table(["SERVICE", "STATE", "ADDRESS", "PID", "VERSION", "FOLDER"], rows))
    context.exit(0 if all(each.running for each in found) else 1)


def _services() -> DevServices:
    from foliot.dev.development import DevServices

    current().only_here("What `foliot dev` starts")
    return DevServices(current().settings().home)
