"""`foliot task run` and `foliot task wait`: have work done, and stay until it is."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import click
from msgspec.structs import replace

from foliot.cli.commands.run import looks_like_files
from foliot.cli.commands.wait import parse_seconds
from foliot.cli.errors import warn
from foliot.cli.reach import run
from foliot.cli.runtimes import reached, whoami
from foliot.cli.show.output import as_json
from foliot.cli.terminal import out
from foliot.cli.watch.questions import stays, wait_option
from foliot.cli.watch.run import leave
from foliot.cli.watch.task import choose_task_view, finish_task, follow
from foliot.cli.watch.task_target import EXAMPLE, Order, choose_name, find_task, parse_pairs, task_argument, understand
from foliot.errors import FoliotError, Unavailable, UsageError
from foliot.kernel.identity import acting
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import PRIORITIES, Accepted
from foliot.work.views.document import outline


@dataclass(frozen=True, slots=True)
class Manner:
    """How it is to be shown and done."""

    detach: bool
    here: bool | None
    as_json: bool
    quiet: bool
    stays: bool


@click.command(name="run")
@click.argument("target", metavar="TARGET")
@click.argument("message", required=False, default="")
@click.option("-i", "--input", "inputs", multiple=True, metavar="KEY=VALUE", help="What every agent is given.")
@click.option("--name", default="", metavar="NAME", help="Name of the task.  [default: made up]")
@click.option("--key", default="", metavar="KEY", help="Asking again with the same key finds the same task.")
@click.option("--priority", type=click.Choice(list(PRIORITIES)), metavar="WORD", help="low, normal, high or critical.")
@click.option("--lane", metavar="LANE", help="A line of its own, for limits and fairness.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the task and its runs.")
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Messages along one line, at most.")
@click.option("--timeout", metavar="TIME", help="Cancel it after this long (30s, 5m, 1h).")
@click.option("-d", "--detach", is_flag=True, help="Only have it accepted, and say its name.")
@click.option("--here/--no-here", default=None, help="Do its work in this process.  [default: when no worker is alive]")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@wait_option()
def task_run(
    target: str,
    message: str,
    inputs: tuple[str, ...],
    name: str,
    key: str,
    detach: bool,
    here: bool | None,
    as_json: bool,
    quiet: bool,
    wait: bool | None,
    labels: tuple[str, ...],
    timeout: str | None,
    **options: Any,
) -> int:
    """Have a system or an agent do something, and watch its graph fill in.

    TARGET is the name of a system, an agent or a Task, or a manifest or folder of them, which is applied first.
    MESSAGE is what the first agents are told; without it, the input `topic` is.

    \b
    foliot task run report "Three lines on clocks"
    foliot task run ./my-team                         a folder, such as `foliot init` writes
    foliot task run report -i topic=clocks -i tone=dry --detach
    foliot task run report "…" > result.txt           progress on stderr, the result on stdout

    The work is done by whatever workers there are (`foliot worker`); when none is alive that could, by this process.
    Ctrl-C cancels the task; twice leaves it as it is.

    Exit code: 0 succeeded, 1 failed or dead-lettered, 8 waits for a person, 130 cancelled or Ctrl-C.
    """
    changes = {field: value for field, value in options.items() if value is not None}
    if timeout is not None:
        changes["timeout"] = parse_seconds(timeout)
    if key:
        changes["idempotency_key"] = key
    order = Order(target, message, name, parse_pairs(inputs, "input"), parse_pairs(labels, "label"), changes)
    return run(_run(order, Manner(detach, here, as_json, quiet, stays(wait))))


async def _run(order: Order, manner: Manner) -> int:
    if not order.target.strip():
        raise UsageError("What should be done, and by whom? TARGET is empty.", hint=EXAMPLE)
    async with reached(*_folders(order.target)) as client:
        command, declared = await understand(client, order, quiet=manner.quiet or manner.as_json)
        identity = acting("", whoami(), "cli").also_ordered_by(*command.identity.ordered_by)
        command = replace(await choose_name(client, command, declared, order), by=whoami(), identity=identity)
        try:
            accepted = await client.tasks.submit(command)
        except FoliotError as error:
            if error.message == "message is required":
                raise UsageError("What should be done? There is no message.", hint=EXAMPLE) from None
            raise
        if manner.detach:
            return _detached(accepted, as_json_=manner.as_json)
        if accepted.duplicate and not manner.quiet:
            warn(f"Task {accepted.task.name} was there already ({accepted.task.phase}).")
        view = choose_task_view(json=manner.as_json, quiet=manner.quiet)
        followed = await follow(client, view, accepted.task, here=manner.here, stays=manner.stays)
        code = await finish_task(client, view, accepted.task, followed)
    return leave(code)


def _folders(target: str) -> list[str]:
    if not looks_like_files(target):
        return []
    path = os.path.abspath(target)
    return [path if os.path.isdir(path) else os.path.dirname(path)]


def _detached(accepted: Accepted, *, as_json_: bool) -> int:
    if as_json_:
        out(as_json({**outline(accepted.task), "duplicate": accepted.duplicate}))
    else:
        again = " (it was there already)" if accepted.duplicate else ""
        out(accepted.task.name)
        out(f"Accepted{again}. `foliot task wait {accepted.task.name}` follows it.", err=True)
    return 0


@click.command(name="wait")
@task_argument(required=False)
@click.option("--timeout", metavar="TIME", help="Give up waiting after this long (30s, 5m, 1h).")
@click.option("--here/--no-here", default=False, help="Also do its work in this process.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@wait_option()
def task_wait(name: str | None, timeout: str | None, here: bool, as_json: bool, quiet: bool, wait: bool | None) -> int:
    """Follow a task until it ends, and print its result. Ctrl-C cancels the task; twice leaves it.

    Exit code: as `foliot task run`; 7 when the time is over.
    """
    seconds = None if timeout is None else parse_seconds(timeout)
    return run(_wait(name, seconds, Manner(False, here, as_json, quiet, stays(wait))))


async def _wait(name: str | None, seconds: float | None, manner: Manner) -> int:
    view = choose_task_view(json=manner.as_json, quiet=manner.quiet)
    async with reached() as client:
        task = await find_task(client, name)
        try:
            async with asyncio.timeout(None if task.phase in ENDED else seconds):
                followed = await follow(client, view, task, here=manner.here, stays=manner.stays)
        except TimeoutError:
            phase = (await client.tasks.get(task.name, namespace=task.namespace)).phase
            raise Unavailable(
                f"Task {task.name} is still {phase} after {seconds:g} seconds.", hint=f"foliot why {task.name}"
            ) from None
        code = await finish_task(client, view, task, followed)
    return leave(code)
