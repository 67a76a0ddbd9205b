"""A small HTTP endpoint of a process that serves nothing else: `/metrics`, `/healthz`, and `/livez`.

`/healthz` is for whoever watches: it asks the store. `/livez` is for whoever restarts: an absent store is no reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from foliot.engine.telemetry.metrics import CONTENT_TYPE, Metrics
from foliot.errors import UsageError
from foliot.store.base import Database, round_trip

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def serving(
    metrics: Metrics,
    *,
    port: int,
    host: str = LOOPBACK,
    state: Callable[[], str] | None = None,
    database: Database | None = None,
) -> AsyncGenerator[int]:
    """Serve while this lasts; yields the port (a free one for 0). Raises `UsageError` when the port is taken.

    `state` is told by `/healthz`, which answers 503 when it is "stopped", or when the `database` does not answer.
    """

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        said = state() if state is not None else "ready"
        if said != "stopped" and database is not None and await round_trip(database) is None:
            said = "store unavailable"
        return web.json_response({"status": said}, status=503 if said in ("stopped", "store unavailable") else 200)

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=0)
    app.router.add_get("/metrics", show)
    app.router.add_get("/healthz", health)
    app.router.add_get("/livez", live)
    # Who scrapes comes every few seconds: a line for each would drown the log.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(
                f"metrics cannot be served on {host}:{port}: {error.strerror}", hint="choose another port, or 0 for any"
            ) from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
