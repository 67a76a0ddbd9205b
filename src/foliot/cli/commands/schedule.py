"""`foliot schedule`: what is due when, what became of it, and a task right now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.cli.logs import configure
from foliot.cli.reach import connected, namespace, run
from foliot.cli.runtimes import whoami
from foliot.cli.show.output import as_json, as_yaml, output_option, render
from foliot.cli.show.tables import since, table
from foliot.cli.stop_signals import StopSignals, serve_until_told
from foliot.cli.terminal import out
from foliot.cli.triggers import pairs, triggering
from foliot.common.text import one_line
from foliot.common.times import iso_seconds
from foliot.errors import FoliotError, UsageError
from foliot.resources import cron
from foliot.resources.cron import time_zone_problem
from foliot.resources.kinds import phase_of
from foliot.settings.settings import mask_password
from foliot.work.triggers.schedule import NOBODY_KEEPS, Cron, neglected_since, read_schedule, zone_of
from foliot.work.triggers.scheduler import Scheduler

if TYPE_CHECKING:
    from foliot.store.base import Document
    from foliot.store.triggers import Slot
    from foliot.work.triggers.schedule import Timing

_SHOWN = 5
_name = click.argument("name", metavar="SCHEDULE")


@click.group()
def schedule() -> None:
    """List, run and serve schedules, which make tasks by the clock.

    \b
    foliot apply -f schedule.yaml      declare a TaskSchedule, after a Task with mode template
    foliot schedule serve              make the tasks when they are due, until stopped
    foliot schedule slots NAME         every time it was due, and what became of it
    foliot schedule run NAME           make a task right now
    """


@schedule.command("list")
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
def list_command(output: str, all_namespaces: bool) -> int:
    """List schedules: what they make, when they were due last and are due next."""
    return run(_list(output, None if all_namespaces else namespace()))


async def _list(output: str, space: str | None) -> int:
    async with connected() as triggers:
        found = await triggers.schedules.list(namespace=space)
    if not found and output in ("table", "wide"):
        out(f"No schedules found in {'any namespace' if space is None else f'namespace {space}'}.", err=True)
        return 0
    out(render(found, output, single=False, namespaced=space is None, prefixed=False))
    return 0


@schedule.command()
@_name
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def show(name: str, output: str) -> int:
    """Show one schedule: its rules, its next times, and the last ones with their tasks."""
    return run(_show(name, output))


async def _show(name: str, output: str) -> int:
    async with connected() as triggers:
        document = await triggers.schedules.get(name, namespace=namespace())
        slots = await triggers.schedules.slots(name, namespace=namespace(), limit=_SHOWN)
    read = read_schedule(document)
    following = [] if read.suspend else _following(read.timing, time.time(), _SHOWN)
    match output:
        case "json":
            times = [_utc(slot) for slot in following]
            out(as_json({**document, "next": times, "slots": [_entry(each) for each in slots]}))
        case "yaml":
            out(as_yaml([document]))
        case _:
            out(_text(document, following, slots))
    return 0


@schedule.command()
@_name
@output_option("table", "json", default="table", help="table or json.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="The newest N.")
def slots(name: str, output: str, limit: int) -> int:
    """List every time the schedule was due, newest first: the task it made, or why it made none."""
    return run(_slots(name, output, limit))


async def _slots(name: str, output: str, limit: int) -> int:
    async with connected() as triggers:
        document = await triggers.schedules.get(name, namespace=namespace())
        found = await triggers.schedules.slots(name, namespace=namespace(), limit=limit)
    if output == "json":
        out(as_json([_entry(slot) for slot in found]))
    elif found:
        out(_slot_table(found, document["spec"].get("time_zone", "UTC")))
    if neglected := neglect(document):
        warn(neglected)
    elif not found:
        out("It has not been due yet.", err=True)
    return 0


def neglect(document: Document) -> str:
    """Returns a sentence about a schedule at which no process looks; blank when one does."""
    since = neglected_since(document, now=time.time())
    zone = document["spec"].get("time_zone", "UTC")
    return f"Nothing was decided since {_local(since, zone)}: {NOBODY_KEEPS}." if since is not None else ""


@schedule.command("run")
@_name
@click.option("--input", "given", multiple=True, metavar="KEY=VALUE", help="Input besides what the schedule gives.")
@output_option("name", "json", default="name", help="name or json.")
def run_command(name: str, given: tuple[str, ...], output: str) -> int:
    """Make a task of the schedule right now, whatever its times and its concurrency policy say.

    Prints the name of the task, which a worker does; or the id of the session to which it said something.
    """
    return run(_run(name, pairs(given, "--input"), output))


async def _run(name: str, given: dict[str, str], output: str) -> int:
    async with connected() as triggers:
        fired = await triggers.schedules.run(name, namespace=namespace(), by=whoami(), given=given)
    if not (fired.task or fired.session):
        hint = f"`foliot schedule slots {name}` shows what happened."
        raise FoliotError(f"No task was made: {fired.reason}", hint=hint)
    made = {"session": fired.session} if fired.session else {"task": fired.task, "phase": fired.phase}
    out(as_json(made) if output == "json" else fired.session or fired.task)
    return 0


@schedule.command("next")
@click.argument("expression", metavar="CRON|SCHEDULE")
@click.option("--time-zone", default="UTC", show_default=True, metavar="ZONE", help="For a cron expression.")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="How many.")
def next_command(expression: str, time_zone: str, count: int) -> int:
    """Show the next times of a cron expression such as "0 9 * * 1", or of a schedule by its name."""

    timing: Timing
    if " " in expression.strip() or expression.startswith("@"):
        if (wrong := time_zone_problem(time_zone)) is not None:
            raise UsageError(f"--time-zone: {wrong}", hint="an IANA name such as Europe/Berlin")
        try:
            timing = Cron(cron.canonical(expression), time_zone)
        except ValueError as error:
            hint = 'minute hour day month weekday, such as "0 9 * * MON" (Mondays at nine), or @daily'
            raise UsageError(f"{expression!r} is no cron expression: {error}", hint=hint) from None
    else:
        timing, time_zone = run(_timing(expression))
    for slot in _following(timing, time.time(), count):
        out(f"{_local(slot, time_zone)}  {_utc(slot)}")
    return 0


async def _timing(name: str) -> tuple[Timing, str]:
    async with connected() as triggers:
        read = read_schedule(await triggers.schedules.get(name, namespace=namespace()))
    return read.timing, read.zone


@schedule.command()
def serve() -> int:
    """Make the tasks of all schedules when they are due, until SIGTERM or Ctrl-C.

    Start as many as you like, on as many machines: each time of a schedule is dealt with once.
    """
    return serve_until_told(_serve)


async def _serve(signals: StopSignals) -> int:
    settings = current().store_settings()
    configure(settings, service=True)
    async with triggering() as (database, store, tasks, posts):
        scheduler = Scheduler(database, store, tasks, clock=database.clock, posts=posts)
        out(f"Making tasks by the clock on {mask_password(settings.store)}. Ctrl-C stops it.", err=True)
        await signals.wait_beside(scheduler.run())
        out("Stopped.", err=True)
    return 0


# --- how it looks --------------------------------------------------------------------------------------------------


def _following(timing: Timing, after: float, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (slot := timing.after(found[-1] if found else after)) is not None:
        found.append(slot)
    return found


def _text(document: Document, following: Sequence[int], slots: Sequence[Slot]) -> str:
    spec: dict[str, Any] = document["spec"]
    status: dict[str, Any] = document.get("status") or {}
    zone, phase = spec.get("time_zone", "UTC"), phase_of(document)
    facts = {
        "Name": document["metadata"]["name"],
        "Makes": f"tasks after {spec['task_ref']}" if spec.get("task_ref") else "",
        "Says": f"a message to agent {spec['session']['agent']}" if spec.get("session") else "",
        "When": f"{spec.get('schedule') or spec.get('at')} ({zone})",
        "Phase": phase if phase != "Pending" else "Pending: no process has looked at it yet",
        "Warning": neglect(document),
        "Error": status.get("lastError", ""),
        "While one runs": spec.get("concurrency_policy", "forbid"),
        "What was missed": f"{spec.get('missed', 'skip')}, deadline {spec.get('starting_deadline_seconds', 300)} s",
        "Jitter": spec.get("jitter", "") if spec.get("jitter", "0s") != "0s" else "",
        "Under way": ", ".join(status.get("activeRuns", [])),
        "Last success": status.get("lastSuccessfulTime", ""),
    }
    lines = [f"{name + ':':17} {one_line(str(value))}" for name, value in facts.items() if value]
    if following:
        lines += ["", "Next:", *(f"  {_local(slot, zone)}" for slot in following)]
    if slots:
        lines += ["", "Last:", *(f"  {line}" for line in _slot_table(slots, zone).splitlines())]
    return "\n".join(lines)


def _slot_table(slots: Sequence[Slot], zone: str) -> str:
    now = datetime.now(UTC)
    rows = [
        [
            _local(each.slot / 1000, zone),
            each.kind,
            each.state,
            one_line(each.task or each.reason) or "-",
            since(_utc(each.decided_at), now=now) if each.decided_at else "-",
        ]
        for each in slots
    ]
    return table(("SLOT", "KIND", "STATE", "TASK_OR_REASON", "DECIDED"), rows)


def _entry(slot: Slot) -> dict[str, Any]:
    return {
        "slot": _utc(slot.slot / 1000),
        "kind": slot.kind,
        "state": slot.state,
        "task": slot.task,
        "reason": slot.reason,
        "decidedAt": _utc(slot.decided_at) if slot.decided_at else "",
    }


def _utc(moment: float) -> str:
    return iso_seconds(moment)


def _local(moment: float, zone: str) -> str:
    return datetime.fromtimestamp(int(moment), zone_of(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z").strip()
