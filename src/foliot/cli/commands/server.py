"""`foliot server`: the HTTP API and the scheduler. `foliot up`: with a worker besides, in one process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

import click

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.cli.logs import configure
from foliot.cli.stop_signals import StopSignals, serve_until_told
from foliot.cli.terminal import out
from foliot.errors import Unavailable, UsageError
from foliot.settings.settings import mask_password
from foliot.store.queue.placement import REGION, Offer

if TYPE_CHECKING:
    from foliot.runtime.runtime import Runtime
    from foliot.server.http.serve import Listen
    from foliot.work.triggers.scheduler import Scheduler
    from foliot.work.worker.worker import Worker


# --- server listening ------------------------------------------------------------------------------------------------

# Where a server listens, told by flags, and what has to be in order before others can reach it.

F = TypeVar("F", bound=Callable[..., Any])
# Files that a server has open besides its connections: the store, models, tools.
BESIDES: Final = 256


class Flags(TypedDict):
    """The flags that `listening` adds to a command."""

    listen: str | None
    host: str | None
    port: int | None
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    insecure: bool


def listening(command: F) -> F:
    """Give a command the flags of a server."""
    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help="Listen where others can reach it although there is no token yet, or no TLS. Nobody is let in without "
            "a token even then.",
        ),
        click.option("--tls-client-ca", metavar="FILE", help="Talk only to those with a certificate signed by it."),
        click.option("--tls-key", metavar="FILE", help="The private key of the certificate."),
        click.option("--tls-cert", metavar="FILE", help="A certificate, to be reached by https."),
        click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Only the port; 0: any free one."),
        click.option("--host", metavar="ADDRESS", help="Only the address to listen on."),
        click.option("--listen", metavar="ADDRESS:PORT", help="Where to listen.  [default: the setting `listen`]"),
    ):
        command = option(command)
    return command


def take(**flags: Unpack[Flags]) -> None:
    """Have the settings of this invocation say what the flags say."""
    invocation = current()
    if flags["listen"] is not None:
        invocation.give("listen", flags["listen"])
    host, port = flags["host"], flags["port"]
    if host is not None or port is not None:
        given_host, _, given_port = invocation.settings().listen.rpartition(":")
        shown = f"[{host}]" if host and ":" in host and not host.startswith("[") else host
        invocation.give("listen", f"{shown or given_host}:{port if port is not None else given_port}")
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        value = flags[name]
        if value is not None:
            invocation.give(name, value)


def check_reach(listen: Listen, *, local: bool, known: bool, insecure: bool) -> None:
    """Checks the address before others can reach the server. `known`: callers can authenticate.

    Raises `UsageError` when nobody can, and warns when who they are would be sent in clear; not when `insecure` is so
    on purpose.
    """
    if local or insecure:
        return
    if not known:
        raise UsageError(
            f"{listen.host} can be reached from elsewhere, and there is no token yet",
            hint="make one with `foliot tokens create --admin`, or listen on 127.0.0.1",
        )
    if listen.cert is None:
        warn(
            f"{listen.host} can be reached from elsewhere, and without TLS: tokens are sent in clear. Set tls_cert and "
            "tls_key, or let a proxy on this machine do it; --insecure says that it is meant."
        )


def allow_open_files(connections: int) -> None:
    """Have the system let this process open as many files as there may be connections, as far as it can."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        warn(f"the limit of open files stays at {soft}: {error}")
        return
    if most < wanted:
        warn(f"max_connections is {connections}, but the system allows {hard} open files (ulimit -n)")


# --- server ----------------------------------------------------------------------------------------------------------

GRACE: Final = 30.0


@click.group(invoke_without_command=True)
@listening
@click.pass_context
def server(context: click.Context, **flags: Unpack[Flags]) -> int | None:
    """Serve the HTTP API, and keep schedules, until SIGTERM or Ctrl-C. Workers do the runs: see `foliot worker`.

    Commands of the same user with the same FOLIOT_HOME are let in by the key in its file `local.key`, which the server
    makes when it first starts. Everybody else needs a token: `foliot tokens create`.
    """
    if context.invoked_subcommand is not None:
        return None
    take(**flags)
    return serve_until_told(partial(_serve, insecure=flags["insecure"]))


@server.command()
def openapi() -> int:
    """Print the description of the API (OpenAPI 3.1) as JSON."""
    from foliot.server.app import described

    out(json.dumps(described(), indent=2))
    return 0


@click.command()
@listening
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at a time, exactly.  [default: as the load allows, up to 1024]",
)
@click.option(
    "--region",
    default=REGION,
    show_default=True,
    metavar="REGION",
    help="Where its worker is: for tasks that must run there.",
)
def up(capacity: int | None, region: str, **flags: Unpack[Flags]) -> int:
    """Serve the HTTP API with a worker and the scheduler in one process, on the store of the settings."""
    take(**flags)
    return serve_until_told(partial(_up, capacity, region.strip(), insecure=flags["insecure"]))


async def _serve(signals: StopSignals, *, insecure: bool) -> int:
    async with _opened() as runtime, _reachable(runtime, "the scheduler", insecure=insecure):
        tasking = runtime.inside.tasking
        housekeeper = tasking.housekeeper(current().store_settings())
        await signals.wait_beside(housekeeper.run(), tasking.timekeeper().run(), _scheduler(runtime).run())
        out("Stopping: requests under way are finished …", err=True)
    return 0


async def _up(capacity: int | None, region: str, signals: StopSignals, *, insecure: bool) -> int:
    from foliot.cli.commands.worker import enforced_line, mcp_kept_in_step, places_line

    async with _opened() as runtime, mcp_kept_in_step(runtime):
        tasking = runtime.inside.tasking
        tasking.performer.stream = True  # whoever follows a run here sees answers as they are written
        worker = _worker(runtime, capacity, region)
        async with _reachable(runtime, f"a worker with {places_line(capacity)} and the scheduler", insecure=insecure):
            out(enforced_line(await tasking.enforced()), err=True)
            worker.probe()
            working = asyncio.create_task(worker.run())
            try:
                housekeeper = tasking.housekeeper(current().store_settings())
                await signals.wait_beside(_while(working), _scheduler(runtime).run(), housekeeper.run())
            finally:
                out("Stopping: runs under way may go on for a while …", err=True)
                worker.drain()
                await asyncio.wait({working})
    return 0


def _scheduler(runtime: Runtime) -> Scheduler:
    """The keeper of schedules. Any number of processes may have one: each time of a schedule is dealt with once."""
    from foliot.runtime.session_posts import RuntimePosts
    from foliot.work.triggers.scheduler import Scheduler

    inside = runtime.inside
    posts = RuntimePosts(inside.sessions, inside.database, clock=inside.clock)
    return Scheduler(inside.database, inside.resources, inside.tasking.tasks, clock=inside.clock, posts=posts)


def _worker(runtime: Runtime, capacity: int | None, region: str) -> Worker:
    from foliot.work.worker.places import Places

    name = f"{socket.gethostname()}-{os.getpid()}"
    offer = Offer(name, runtime.inside.runs.worker, region=region)
    return runtime.inside.tasking.worker(offer, grace=GRACE, places=Places(capacity))


@asynccontextmanager
async def _opened() -> AsyncGenerator[Runtime]:
    from foliot.server.http.start import begin, settle

    begin()
    try:
        from foliot.cli.runtimes import opened, reloading_plugins
        from foliot.store.secrets.keyring import check_keys

        settings = current().store_settings()
        configure(settings, service=True)
        check_keys(settings)
        async with opened(store_wait=inf) as runtime, reloading_plugins(runtime):
            yield runtime
    finally:
        settle()


@asynccontextmanager
async def _reachable(runtime: Runtime, besides: str = "", *, insecure: bool = False) -> AsyncGenerator[None]:
    """The API of the runtime, while the block runs. Says where it is, and who is let in."""
    from foliot.server.app import create_app
    from foliot.server.auth.authentication import TokenAuth, is_loopback
    from foliot.server.http.connections import Bounds
    from foliot.server.http.serve import HttpServer, limits_of, listen_of
    from foliot.server.http.start import settle
    from foliot.server.runs.takeover import taking_up
    from foliot.store.secrets.local_key import LocalKey

    settings = current().store_settings()
    listen = listen_of(settings)
    database = runtime.inside.tasking.database
    local = is_loopback(listen.host)
    auth = TokenAuth(database, local=local, local_key=LocalKey.made(settings.home), settings=settings)
    check_reach(listen, local=local, known=local or await auth.configured(), insecure=insecure)
    if settings.max_connections:
        allow_open_files(settings.max_connections)
    app = create_app(runtime, settings=settings, auth=auth, limits=limits_of(settings))
    try:
        bounds = Bounds(connections=settings.max_connections)
        async with HttpServer(app, listen, bounds=bounds) as http, taking_up(runtime, app.state.services.drives):
            settle()
            with_it = f", with {besides}" if besides else ""
            out(f"Foliot is at {http.url}{with_it}, on {mask_password(settings.store)}.", err=True)
            try:
                known = await auth.describe()
            except Unavailable as error:  # it listens already, and says 503 until the store answers
                known = f"who is let in is not known yet: {error.message}"
            out(f"{known[:1].upper()}{known[1:]}. Ctrl-C stops it.", err=True)
            yield
    finally:
        await auth.close()


async def _while(working: asyncio.Task[None]) -> None:
    """Return when it ends, and leave it alone when this is cancelled: it is drained."""
    await asyncio.wait({working})
    await working
