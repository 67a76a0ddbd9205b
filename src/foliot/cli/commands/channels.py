"""`foliot channels`: the channels that people talk to agents by, and what becomes of the answers."""

from __future__ import annotations

import click
import msgspec

from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, output_option, render
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.store.channels import ChannelDelivery

_name = click.argument("name", metavar="CHANNEL")


@click.group()
def channels() -> None:
    """List channels, show what they deliver, try again what was given up, and link your account.

    \b
    foliot channels list                   with what went wrong last
    foliot channels deliveries NAME        answers that wait, were sent or given up, and why
    foliot channels retry NAME NUMBER      deliver one that was given up
    foliot channels link CODE              speak as yourself, by a code that a channel showed
    foliot channels links                  who has linked an account
    foliot channels unlink ID              end a link
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


@channels.command()
@click.argument("code", metavar="CODE")
def link(code: str) -> int:
    """Let a channel know you by the code that it has shown you. Enter no code that somebody else gave you."""
    return run(_link(code))


async def _link(code: str) -> int:
    async with connected() as client:
        linked = await client.channels.link(code, namespace=namespace())
    out(f"{one_line(linked.sender, 80)!r} on channel/{linked.channel} speaks as {linked.user} from now on")
    out(f"`foliot channels unlink {linked.id}` ends that. Do so if this is not you.", err=True)
    return 0


@channels.command()
@output_option("table", "json", default="table", help="table or json.")
def links(output: str) -> int:
    """List who has linked what they are called on channels; an admin sees all links."""
    return run(_links(output))


async def _links(output: str) -> int:
    async with connected() as client:
        found = await client.channels.links(namespace=namespace())
    if output == "json":
        out(as_json([msgspec.to_builtins(each) for each in found]))
    elif found:
        rows = [(each.id, each.channel, one_line(each.sender, 40), each.user, iso(each.linked_at)) for each in found]
        out(table(("ID", "CHANNEL", "SENDER", "USER", "LINKED"), rows))
    else:
        out(f"No one has linked an account in namespace {namespace()}.", err=True)
    return 0


@channels.command()
@click.argument("id", metavar="ID")
def unlink(id: str) -> int:
    """End a link at once: what its sender writes reaches no agent from then on."""
    return run(_unlink(id))


async def _unlink(id: str) -> int:
    async with connected() as client:
        await client.channels.unlink(id, namespace=namespace())
    out(f"link {id} has ended")
    return 0
