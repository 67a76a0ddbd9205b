"""`foliot channels`: the channels that people talk to agents by, and what becomes of the answers."""

from __future__ import annotations

import click
import msgspec

from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, output_option, render
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.common.text import one_line
from foliot.store.channels import ChannelDelivery

_name = click.argument("name", metavar="CHANNEL")


@click.group()
def channels() -> None:
    """List channels, show what they deliver, and try again what was given up.

    \b
    foliot channels list                   with what went wrong last
    foliot channels deliveries NAME        answers that wait, were sent or given up, and why
    foliot channels retry NAME NUMBER      deliver one that was given up
    """


@channels.command("list")
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
def list_command(output: str, all_namespaces: bool) -> int:
    """List channels, with what went wrong last."""
    return run(_list(output, None if all_namespaces else namespace()))


async def _list(output: str, space: str | None) -> int:
    async with connected() as client:
        found = await client.channels.list(namespace=space)
    if not found and output in ("table", "wide"):
        out(f"No channels found in {'any namespace' if space is None else f'namespace {space}'}.", err=True)
        return 0
    out(render(found, output, single=False, namespaced=space is None, prefixed=False))
    return 0


@channels.command()
@_name
@click.option("--state", default="", metavar="STATE", help="Only those that stand so: pending, sent or failed.")
@output_option("table", "json", default="table", help="table or json.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="The newest N.")
def deliveries(name: str, state: str, output: str, limit: int) -> int:
    """List answers that wait, were sent or were given up, newest first, with the reason."""
    return run(_deliveries(name, state, output, limit))


async def _deliveries(name: str, state: str, output: str, limit: int) -> int:
    async with connected() as client:
        found = await client.channels.deliveries(name, namespace=namespace(), state=state, limit=limit)
    if output == "json":
        out(as_json([msgspec.to_builtins(each) for each in found]))
    elif found:
        out(table(("NUMBER", "STATE", "TRIES", "TO", "RUN", "ERROR"), [_row(each) for each in found]))
    else:
        out("There are no such deliveries.", err=True)
    if output != "json" and any(each.state == "failed" for each in found):
        out(f"`foliot channels retry {name} NUMBER` delivers one that was given up.", err=True)
    return 0


def _row(each: ChannelDelivery) -> tuple[str, ...]:
    to = "/".join(part for part in (each.group or each.to, each.thread) if part)
    return str(each.key), each.state, str(each.attempts), one_line(to, 40), each.run_id, one_line(each.error, 160)


@channels.command()
@_name
@click.argument("numbers", type=click.IntRange(min=1), nargs=-1, required=True, metavar="NUMBER...")
def retry(name: str, numbers: tuple[int, ...]) -> int:
    """Deliver answers that were given up once more. Whoever keeps the channels does it next."""
    return run(_retry(name, numbers))


async def _retry(name: str, numbers: tuple[int, ...]) -> int:
    async with connected() as client:
        for number in numbers:
            await client.channels.retry(name, number, namespace=namespace())
            out(f"delivery {number} of channel/{name} is due again")
    return 0
