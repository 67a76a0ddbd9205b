"""A small HTTP endpoint of a process that serves nothing else: `/metrics`, and `/healthz` for whoever restarts it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from foliot.engine.telemetry.metrics import CONTENT_TYPE, Metrics
from foliot.errors import UsageError

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def serving(
    metrics: Metrics, *, port: int, host: str = LOOPBACK, state: Callable[[], str] | None = None
) -> AsyncGenerator[int]:
    """Serve while this lasts; yields the port (a free one for 0). Raises `UsageError` when the port is taken.

    `state` is told by `/healthz`, which answers 503 when it is "stopped".
    """

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        said = state() if state is not None else "ready"
        return web.json_response({"status": said}, status=503 if said == "stopped" else 200)

    app = web.Application(client_max_size=0)
    app.router.add_get("/metrics", show)
    app.router.add_get("/healthz", health)
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
