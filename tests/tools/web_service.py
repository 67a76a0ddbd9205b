"""A real HTTP server on loopback whose answers a test writes, and the parts to call it with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from foliot.tools.backends.callbacks import Callbacks
from foliot.tools.backends.web import Web
from foliot.tools.base import AuthSpec, Caller, Invocation, ToolDefinition
from foliot.tools.masking import Masker
from foliot.tools.outbound.guard import Outbound
from foliot.tools.secrets import EnvironmentSecrets, Secrets

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """`answer` is called for every request; what came is kept in `requests`."""

    def __init__(self, answer: Handler) -> None:
        self.answer = answer
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return await self.answer(request)


@asynccontextmanager
async def serving(answer: Handler, *, host: str = "127.0.0.1") -> AsyncGenerator[Service]:
    service = Service(answer)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        service.url = f"http://{host}:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()


@asynccontextmanager
async def way_out(
    environ: Mapping[str, str] | None = None,
    policy: Outbound | None = None,
    *,
    callbacks: Callbacks | None = None,
    connect_timeout: float = 10.0,
) -> AsyncGenerator[Web]:
    """The parts of a runtime that may call loopback; secrets come from `environ`."""
    secrets = Secrets(EnvironmentSecrets(environ or {}), Masker())
    made = Web(secrets, policy or Outbound(allow_loopback=True), callbacks=callbacks, connect_timeout=connect_timeout)
    try:
        yield made
    finally:
        await made.close()


def definition(endpoint: str, *, type: str = "http", auth: AuthSpec | None = None, **fields: Any) -> ToolDefinition:
    return ToolDefinition("search", type=type, endpoint=endpoint, auth=auth, **fields)


def call(arguments: dict[str, Any] | None = None, **fields: Any) -> Invocation:
    caller = Caller(namespace="default", agent="clerk", task="task-1")
    given: dict[str, Any] = {"idempotency_key": "key-1", "caller": caller, "trace_id": "trace-1", **fields}
    return Invocation("run-1", "call-1", "search", arguments or {}, **given)
