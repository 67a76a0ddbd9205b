"""`foliot workers`: who does the runs of tasks, how much may be done at once, and what is held back as it fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import API_VERSION, as_json, as_list, as_yaml, output_option
from foliot.cli.show.tables import cell, since, table
from foliot.cli.terminal import out
from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.errors import UsageError
from foliot.store.queue.limits import Limit

if TYPE_CHECKING:
    from foliot.store.base import Document
    from foliot.store.queue.limits import ClassInfo
    from foliot.store.queue.workers import WorkerInfo

_SCOPES: Final = ("namespace", "agent", "lane")
_FORMATS: Final = ("table", "wide", "json", "yaml", "name")


@click.group(invoke_without_command=True)
@output_option(*_FORMATS, default="table", help="table, wide, json, yaml or name.")
@click.pass_context
def workers(context: click.Context, output: str) -> int | None:
    """List the workers, which do the runs of tasks: how busy each is, and its last sign of life.

    `lost` is one that should have given a sign long ago; others take over what it had. Start one with `foliot worker`.
    """
    return None if context.invoked_subcommand is not None else run(_list(output))


@workers.command()
@output_option("table", "json", default="table", help="table or json.")
def limits(output: str) -> int:
    """List the limits on concurrent runs of a namespace, an agent or a lane, over all workers."""
    return run(_limits(output))


@workers.command()
@click.argument("scope", type=click.Choice(_SCOPES))
@click.argument("name")
@click.argument("most", metavar="N|none")
def limit(scope: Any, name: str, most: str) -> int:
    """Let at most N runs of a namespace, an agent or a lane be at work at once; `none` lifts the limit.

    NAME is a namespace, or an agent or lane of the namespace you work in (or namespace/name). Runs that must wait lose
    nothing: no attempt, and not their place. With 0 no new run begins.
    """
    return run(_limit(scope, name, most))


@workers.command()
@output_option("table", "json", default="table", help="table or json.")
def classes(output: str) -> int:
    """List classes of runs whose last runs failed. After five in a row only one a minute is started.

    A run that succeeds ends it; so does `foliot workers mend`.
    """
    return run(_classes(output))


@workers.command()
@click.argument("key", metavar="CLASS")
def mend(key: str) -> int:
    """Start runs of a held-back class again, after you have repaired the cause."""
    return run(_mend(key))


async def _list(output: str) -> int:
    now = time.time()
    async with connected() as operations:
        found = await operations.workers.list()
    documents = [_document(info, now) for info in found]
    match output:
        case "json":
            out(as_json(as_list(documents)))
        case "yaml":
            out(as_yaml(documents))
        case "name":
            out("\n".join(info.name for info in found), nl=bool(found))
        case _ if found:
            out(_table(found, now, wide=output == "wide"))
        case _:
            out("No workers found. `foliot worker` starts one.", err=True)
    return 0


def _document(info: WorkerInfo, now: float) -> Document:
    return {
        "apiVersion": API_VERSION,
        "kind": "Worker",
        "metadata": {"name": info.name, "labels": info.labels, "createdAt": iso(info.started_at)},
        "spec": {
            "region": info.region,
            "capabilities": {
                "gpu": info.gpu,
                "supported_models": list(info.models),
                **({"isolation": list(info.isolation)} if info.isolation else {}),
            },
            "max_concurrent_tasks": info.capacity,
        },
        "status": {
            "phase": info.state(now),
            "currentTasks": info.current,
            "lastHeartbeat": iso(info.heartbeat_at),
            "identity": info.identity,
        },
    }


def _table(found: Sequence[WorkerInfo], now: float, *, wide: bool) -> str:
    headings = ["NAME", "STATE", "RUNS", "REGION", "GPU", "HEARTBEAT", "AGE"]
    if wide:
        headings += ["MODELS", "LABELS", "ISOLATION", "PROCESS"]
    moment = datetime.fromtimestamp(now, UTC)
    rows: list[list[str]] = []
    for info in found:
        row = [
            one_line(info.name),
            info.state(now),
            f"{info.current}/{info.capacity}",
            cell(info.region, now=moment),
            "yes" if info.gpu else "-",
            since(iso(info.heartbeat_at), now=moment),
            since(iso(info.started_at), now=moment),
        ]
        if wide:
            models = cell(list(info.models), now=moment, cut=None)
            fences = cell(list(info.isolation), now=moment, cut=None)
            row += [models, cell(info.labels, now=moment, cut=None, pairs=True), fences, one_line(info.identity)]
        rows.append(row)
    return table(headings, rows)


async def _limits(output: str) -> int:
    async with connected() as operations:
        found = await operations.workers.limits()
    if output == "json":
        out(as_json([{"scope": each.scope, "name": each.name, "max": each.max_running} for each in found]))
    elif found:
        out(table(["SCOPE", "NAME", "AT ONCE"], [_limit_row(each) for each in found]))
    else:
        out("There are no limits. `foliot workers limit --help` says how to set one.", err=True)
    return 0


def _limit_row(each: Limit) -> list[str]:
    return [each.scope, one_line(each.name), str(each.max_running)]


async def _limit(scope: Any, name: str, most: str) -> int:
    full = name if scope == "namespace" or "/" in name else f"{namespace()}/{name}"
    async with connected() as operations:
        if most.lower() == "none":
            await operations.workers.clear_limit(scope, full)
            out(f"{scope} {full}: no limit")
            return 0
        if not most.isdecimal():
            raise UsageError(f"{most!r} is not a number of runs", hint="such as 4; `none` lifts the limit")
        await operations.workers.set_limit(Limit(scope, full, int(most)))
    out(f"{scope} {full}: at most {int(most)} at once")
    return 0


async def _classes(output: str) -> int:
    now = time.time()
    async with connected() as operations:
        found = await operations.workers.failing_classes()
    if output == "json":
        out(as_json([_class_data(each, now) for each in found]))
    elif found:
        headings = ["CLASS", "NAMESPACE", "AGENT", "LANE", "STATE", "FAILURES", "LAST"]
        out(table(headings, [_class_row(each, now) for each in found]))
    else:
        out("Nothing has failed lately.", err=True)
    return 0


def _class_data(each: ClassInfo, now: float) -> dict[str, Any]:
    opened = None if each.opened_at is None else iso(each.opened_at)
    return {
        "class": each.key,
        "namespace": each.namespace,
        "agent": each.agent,
        "lane": each.lane,
        "state": each.state(now),
        "failures": each.failures,
        "failedAt": iso(each.failed_at),
        "openedAt": opened,
    }


def _class_row(each: ClassInfo, now: float) -> list[str]:
    moment = datetime.fromtimestamp(now, UTC)
    names = [one_line(text) or "-" for text in (each.key, each.namespace, each.agent, each.lane)]
    return [*names, each.state(now), str(each.failures), since(iso(each.failed_at), now=moment)]


async def _mend(key: str) -> int:
    async with connected() as operations:
        await operations.workers.mend_class(key)
    out(f"{key}: runs are begun again")
    return 0
