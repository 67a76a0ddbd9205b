"""`foliot worker`: a process that does the runs of tasks until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import click

from foliot.cli.invocation import current
from foliot.cli.logs import configure
from foliot.cli.stop_signals import StopSignals, serve_until_told
from foliot.cli.terminal import out
from foliot.common.cancellation import stop_tasks
from foliot.common.text import counted
from foliot.errors import UsageError
from foliot.store.queue.placement import REGION, Offer

if TYPE_CHECKING:
    from foliot.runtime.runtime import Runtime
    from foliot.work.worker.worker import Worker

GRACE: Final = "30s"


@click.command()
@click.option("--name", metavar="NAME", help="What to call it.  [default: the machine and the number of the process]")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at the same time, exactly.  [default: as the load allows, up to 1024]",
)
@click.option(
    "--region",
    default=REGION,
    show_default=True,
    metavar="REGION",
    help="Where it is: for tasks that must run there.",
)
@click.option("--gpu", is_flag=True, help="It has a GPU.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="A model it serves; all, when none is named.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Something else that tasks can ask for.")
@click.option("--nats", metavar="URL", help="NATS, where it hears of work.  [default: the setting]")
@click.option(
    "--grace", default=GRACE, show_default=True, metavar="TIME", help="How long runs may go on when it is stopped."
)
@click.option("--once", is_flag=True, help="End when there is nothing to do.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /metrics, /healthz and /livez there, on loopback; 0 takes a free port.",
)
def worker(
    name: str | None,
    capacity: int | None,
    region: str,
    gpu: bool,
    models: tuple[str, ...],
    labels: tuple[str, ...],
    nats: str | None,
    grace: str,
    once: bool,
    metrics_port: int | None,
) -> int:
    """Do the runs of tasks, as many at a time as there are places, until SIGTERM or Ctrl-C.

    Without --capacity the places follow the load: runs that wait for their models cost next to nothing, so there may be
    many of them, as long as the process stays prompt and has memory left; eight may start programs on this machine.

    Start as many as you like, on as many machines: they share the store, and no run is done by two. When one is stopped
    it takes no more, lets its runs go on for a while, and hands the rest back; when one dies, the others take over.
    Stopping it twice hands everything back at once. It also compares the Tools of MCP servers with what they offer.
    """
    if nats is not None:
        current().give("nats", nats)
    from foliot.common.process import identity

    offer = Offer(
        name=_name(name),
        identity=identity(),
        region=region.strip(),
        gpu=gpu,
        models=models,
        labels=_labels(labels),
    )
    working = partial(_work, offer, capacity, _seconds(grace), once=once, metrics_port=metrics_port)
    return serve_until_told(working)


async def _work(
    offer: Offer,
    capacity: int | None,
    grace: float,
    signals: StopSignals,
    *,
    once: bool,
    metrics_port: int | None,
) -> int:
    from foliot.cli.runtimes import opened, reloading_plugins
    from foliot.settings.settings import mask_password
    from foliot.store.secrets.keyring import check_keys
    from foliot.work.worker.places import Places

    settings = current().store_settings()
    configure(settings, service=True, tells="foliot.work.worker.performer")
    check_keys(settings)
    async with (
        opened(store_wait=inf) as runtime,
        reloading_plugins(runtime),
        mcp_kept_in_step(runtime, wanted=not once),
    ):
        worker = runtime.inside.tasking.worker(offer, grace=grace, once=once, places=Places(capacity))
        async with _measured(runtime, worker, metrics_port):
            store = mask_password(settings.store)
            out(f"Worker {offer.name} has {places_line(capacity)} on {store}. Ctrl-C stops it.", err=True)
            out(enforced_line(await runtime.inside.tasking.enforced()), err=True)
            if not once:
                worker.probe()
            keeping = None if once else asyncio.create_task(runtime.inside.tasking.housekeeper(settings).run())
            try:
                signals.told(partial(_drain, worker))
                await worker.run()
            finally:
                await stop_tasks(keeping)
        out(f"Worker {offer.name} has stopped.", err=True)
    return 0


def places_line(capacity: int | None) -> str:
    """Says how many places a worker has."""
    return "as many places as the load allows" if capacity is None else counted(capacity, "place")


def enforced_line(isolation: Sequence[str]) -> str:
    """Says what a worker that starts can enforce around programs."""
    if not isolation:
        return "It can fence in no programs: runs whose tools need that are left to others (see `foliot doctor`)."
    return f"It can enforce {', '.join(isolation)}; what containers can, `foliot workers -o wide` shows in a moment."


@contextlib.asynccontextmanager
async def mcp_kept_in_step(runtime: Runtime, *, wanted: bool = True) -> AsyncGenerator[None]:
    """Keeps the Tools of MCP servers in step with what the servers offer, meanwhile, if MCP is installed."""
    from importlib.util import find_spec

    if not wanted or find_spec("mcp") is None:
        yield
        return
    from foliot.catalog.mcp import McpKeeper, opened_connections
    from foliot.store.resources.database import SqlResourceStore
    from foliot.store.secrets.keyring import load_keyring

    settings = current().store_settings()
    store = SqlResourceStore(
        runtime.inside.tasking.database,
        partial(load_keyring, settings),
        existing=partial(load_keyring, settings, create=False),
    )
    async with opened_connections(store, settings, fences=runtime.inside.fences) as connections:
        keeping = asyncio.create_task(McpKeeper(store, connections).run())
        try:
            yield
        finally:
            await stop_tasks(keeping)


@contextlib.asynccontextmanager
async def _measured(runtime: Runtime, worker: Worker, port: int | None) -> AsyncGenerator[None]:
    """Counts what the worker does, for a scraper, meanwhile, if a port was named."""
    if port is None:
        yield
        return
    from foliot.engine.telemetry.http import LOOPBACK, serving
    from foliot.runtime.telemetry import measured

    with measured(runtime) as metrics:
        async with serving(
            metrics, port=port, state=lambda: worker.phase, database=runtime.inside.tasking.database
        ) as taken:
            out(f"Metrics are at http://{LOOPBACK}:{taken}/metrics", err=True)
            yield


def _drain(worker: Worker) -> None:
    if worker.phase == "ready":
        runs = worker.current
        under_way = f" {runs} under way may go on; again hands them back at once." if runs else ""
        out(f"Stopping: no more runs are taken.{under_way}", err=True)
    worker.drain()


def _name(given: str | None) -> str:
    from foliot.settings.settings import NAME

    if given is None:
        return f"{socket.gethostname()}-{os.getpid()}"
    if len(given) <= 253 and NAME.fullmatch(given):
        return given
    raise UsageError(
        f"--name: {given!r} cannot be the name of a worker",
        hint="letters, digits, dots, dashes and underscores, with a letter or digit at both ends",
    )


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--label: {pair!r} is no label", hint="such as disk=ssd")
        labels[key.strip()] = value.strip()
    return labels


def _seconds(text: str) -> float:
    from foliot.common.durations import seconds

    try:
        return seconds(text)
    except ValueError:
        raise UsageError(f"--grace: {text!r} is not a length of time", hint="such as 30s, 5m or 0s") from None
