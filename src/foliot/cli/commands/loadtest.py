"""`foliot loadtest`: many tasks, faults among them, and gates that say whether the result is good enough."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from foliot.cli.commands.wait import parse_seconds
from foliot.cli.errors import say
from foliot.cli.invocation import current, is_terminal
from foliot.cli.loadtest.load import (
    SYSTEM,
    Load,
    LoadOutcome,
    baseline,
    create_all,
    run_name,
    wait_for_end,
    wait_for_workers,
)
from foliot.cli.loadtest.report import (
    PROFILES,
    Gates,
    GateVerdict,
    Measured,
    fill,
    judge,
    measure,
    metrics_of,
    slowest,
    summary_of,
)
from foliot.cli.local import LocalClient
from foliot.cli.reach import run
from foliot.cli.runtimes import opened, whoami
from foliot.cli.show.output import as_json, json_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, paint
from foliot.common.times import iso
from foliot.kernel.identity import acting
from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import PRIORITIES

GATE_VIOLATED = 2
NAMESPACE = "loadtest"
READ_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class LoadTestServices:
    """The surroundings of a load test: preparation, workers, and reporting."""

    setup: bool
    timeout_agent: str
    workers: int
    capacity: int
    min_ready: int
    ready_timeout: float
    verbose: bool


def _rate(name: str, what: str) -> Any:
    return click.option(name, type=click.FloatRange(0.0, 1.0), default=0.0, metavar="RATE", help=what)


def _gate(name: str, what: str) -> Any:
    return click.option(name, type=float, default=None, metavar="N", help=what)


@click.command()
@click.option("--tasks", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="How many.")
@click.option(
    "--create-concurrency", type=click.IntRange(min=1), default=10, show_default=True, help="Tasks submitted at a time."
)
@click.option("--run-timeout", default="5m", show_default=True, metavar="TIME", help="Give up after this long.")
@click.option(
    "--task-system", "system", default=SYSTEM, show_default=True, metavar="NAME", help="The system that does the tasks."
)
@click.option(
    "--topic-prefix",
    default="loadtest-topic",
    show_default=True,
    metavar="TEXT",
    help="The topics of the tasks begin so.",
)
@click.option(
    "--task-priority",
    "priority",
    type=click.Choice(list(PRIORITIES)),
    default="high",
    show_default=True,
    help="Their priority.",
)
@click.option(
    "--message-retry-attempts",
    "retry_attempts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Attempts of each message, the first included.",
)
@click.option(
    "--message-retry-backoff",
    "retry_backoff",
    default="200ms",
    show_default=True,
    metavar="TIME",
    help="The pause before the second attempt; it doubles.",
)
@click.option(
    "--message-retry-max-backoff",
    "retry_max_backoff",
    default="2s",
    show_default=True,
    metavar="TIME",
    help="The longest pause between attempts.",
)
@click.option("--setup/--no-setup", default=True, show_default=True, help="Apply the systems of the test first.")
@click.option("--workers", type=click.IntRange(0, 1), default=1, show_default=True, help="1: work here too; 0: do not.")
@click.option("--capacity", type=click.IntRange(min=1), default=16, show_default=True, help="Runs at a time, here.")
@click.option(
    "--min-ready-workers",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Start when so many workers are ready.",
)
@click.option(
    "--worker-ready-timeout", default="45s", show_default=True, metavar="TIME", help="Give up waiting for them then."
)
@_rate("--inject-invalid-system-rate", "Share of tasks for a system that does not exist.")
@_rate("--inject-timeout-system-rate", "Share of tasks for an agent that is too slow for its limit.")
@_rate("--inject-expired-lease-rate", "Share of tasks whose first worker takes them and dies.")
@_rate("--inject-tool-failure-rate", "Share of tasks whose tool fails.")
@click.option(
    "--timeout-agent-duration",
    default="1ms",
    show_default=True,
    metavar="TIME",
    help="The time limit of the slow agent.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides which tasks get which fault.")
@click.option("--quality-profile", "profile", type=click.Choice(list(PROFILES)), help="Gates: default or ci.")
@_gate("--min-success-rate", "Of what ended.")
@_gate("--max-deadletter-rate", "Of what ended; -1: any.")
@_gate("--max-failed-rate", "Of what ended; -1: any.")
@_gate("--max-timed-out", "Tasks that had not ended in time; -1: any.")
@_gate("--min-retry-total", "Attempts beyond the first; -1: any.")
@_gate("--min-takeover-events", "Runs that another worker took over; -1: any.")
@_gate("--max-queue-p99-ms", "From accepted to the first step; -1: any.")
@_gate("--min-throughput", "Tasks per second; -1: any.")
@json_option("text, or json: the report.", name="as_json_")
def loadtest(**options: Any) -> int:
    """Run many tasks, some with faults, and check the result against gates.

    \b
    foliot loadtest                                      fifty tasks, worked on in this process
    foliot loadtest --tasks 500 --workers 0              by the workers that are there
    foliot loadtest --quality-profile ci --inject-expired-lease-rate 0.2

    It works in namespace `loadtest` unless -n names another, with a model that plays a script. Its tasks stay:
    `foliot task list -n loadtest --label foliot.dev/loadtest=RUN` shows them.

    Exit code: 0 good enough, 2 a gate is not reached, 1 it could not be done.
    """
    gates = fill(options["profile"], {name: options.pop(name) for name in Gates.__struct_fields__})
    load = Load(
        namespace=current().namespace or NAMESPACE,
        tasks=options["tasks"],
        create_concurrency=options["create_concurrency"],
        run_timeout=parse_seconds(options["run_timeout"]),
        system=options["system"],
        topic_prefix=options["topic_prefix"],
        priority=options["priority"],
        retry_attempts=options["retry_attempts"],
        retry_backoff=parse_seconds(options["retry_backoff"]),
        retry_max_backoff=parse_seconds(options["retry_max_backoff"]),
        rates={
            "invalid_system": options["inject_invalid_system_rate"],
            "timeout_system": options["inject_timeout_system_rate"],
            "expired_lease": options["inject_expired_lease_rate"],
            "tool_failure": options["inject_tool_failure_rate"],
        },
        seed=options["seed"],
    )
    around = LoadTestServices(
        setup=options["setup"],
        timeout_agent=options["timeout_agent_duration"],
        workers=options["workers"],
        capacity=options["capacity"],
        min_ready=options["min_ready_workers"],
        ready_timeout=parse_seconds(options["worker_ready_timeout"]),
        verbose=not options["as_json_"],
    )
    report, verdict = run(_loadtest(load, gates, around))
    if options["as_json_"]:
        out(as_json(report))
    else:
        _tell(report, verdict)
    return 0 if verdict.passed else GATE_VIOLATED


async def _loadtest(load: Load, gates: Gates, around: LoadTestServices) -> tuple[dict[str, Any], GateVerdict]:
    current().store_settings()  # before anything is written to a server that cannot do the rest
    started = time.time()
    name = run_name(started)
    async with opened() as runtime:
        if around.setup:
            await _set_up(runtime, load.namespace, around.timeout_agent)
        # Faults that are injected at birth must find their runs before a live worker of this process does.
        outcomes = await create_all(runtime, load, name) if load.rates.get("expired_lease") else None
        async with _working(runtime, around):
            await wait_for_workers(runtime, around.min_ready, around.ready_timeout)
            if outcomes is None:
                outcomes = await create_all(runtime, load, name)
            late = await wait_for_end(runtime, load, outcomes, _progress(around.verbose))
        measured = await _measured(runtime, load, outcomes)
    summary = summary_of(outcomes, measured, len(late))
    metrics = metrics_of(summary, measured)
    verdict = judge(gates, summary, metrics)
    report = {
        "timestamp": iso(started),
        "run_id": name,
        "config": {**msgspec.to_builtins(load), "gates": msgspec.to_builtins(gates)},
        "summary": summary,
        "metrics": metrics,
        "gates": {"passed": verdict.passed, "violations": verdict.violations},
        "top_slowest": slowest(measured),
    }
    return report, verdict


async def _set_up(runtime: Runtime, namespace: str, timeout: str) -> None:
    """Through the reader, as any manifest: what is not said is filled in, what is wrong is found."""
    text = msgspec.json.encode({"kind": "List", "items": baseline(namespace, timeout=timeout)}).decode()
    bundle = parse_text(text, "loadtest.json")
    bundle.raise_for_errors()
    client = LocalClient(runtime, caller=acting("", whoami(), "cli"))
    await client.resources.apply([item.given for item in bundle.items])


@asynccontextmanager
async def _working(runtime: Runtime, around: LoadTestServices) -> AsyncGenerator[None]:
    """A worker in this process, if one is wanted."""
    if not around.workers:
        yield
        return
    offer = Offer(
        f"loadtest-{socket.gethostname()}-{os.getpid()}", runtime.inside.runs.worker, capacity=around.capacity
    )
    worker = runtime.inside.tasking.worker(offer)
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        worker.drain()
        await asyncio.gather(working, return_exceptions=True)


async def _measured(runtime: Runtime, load: Load, outcomes: list[LoadOutcome]) -> list[Measured]:
    gate = asyncio.Semaphore(READ_AT_ONCE)

    async def one(name: str) -> Measured:
        async with gate:
            info = await runtime.inside.tasking.tasks.get(load.namespace, name)
            batch = await runtime.inside.tasking.stories.happenings(load.namespace, name)
            return measure(info, batch.events)

    return await asyncio.gather(*(one(outcome.name) for outcome in outcomes if outcome.created))


def _progress(shown: bool) -> Any:
    live = shown and is_terminal(sys.stderr)

    def told(done: int, total: int) -> None:
        if live:
            out(f"\r{done} of {total} tasks have ended", err=True, nl=done == total)

    return told


def _tell(report: dict[str, Any], verdict: GateVerdict) -> None:
    summary, metrics = report["summary"], report["metrics"]
    rows = [[name.replace("_", " "), f"{value:,}"] for name, value in summary.items() if value or name == "timed_out"]
    out(paint(report["run_id"], bold=True))
    out(table(["TASKS", "COUNT"], rows))
    out()
    out(table(["MEASURED", "VALUE"], [[name.replace("_", " "), f"{metrics[name]:,}"] for name in metrics]))
    if report["top_slowest"]:
        out()
        slow = [[each["task"], each["phase"], f"{each['duration_ms']:,}"] for each in report["top_slowest"]]
        out(table(["SLOWEST", "PHASE", "MS"], slow))
    out()
    for violation in verdict.violations:
        say("gate", violation, fg="red")
    if verdict.passed:
        out(paint("Every gate is reached.", fg="green"))
