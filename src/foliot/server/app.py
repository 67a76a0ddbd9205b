"""The application: every router, behind one guard, in one envelope.

    app = create_app(runtime, settings=settings, auth=auth)

The runtime must be open, and stays the caller's to close. A router is added by a line in `ROUTERS`, and its routes by
rows in route_table.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from starlette.applications import Starlette
from starlette.types import ASGIApp

from foliot.common.cancellation import stop_tasks
from foliot.runtime.runtime import Runtime
from foliot.runtime.session_posts import RuntimePosts
from foliot.runtime.telemetry import measured
from foliot.server.auth.guard import check_routes
from foliot.server.context import Authenticator, ServedResources, Services
from foliot.server.http.envelope import EnvelopeMiddleware, RequestLimits
from foliot.server.http.rates import Rates
from foliot.server.http.routing import PathRouter, Route, RouteGroup
from foliot.server.mcp.http import McpEndpoint
from foliot.server.openai.errors import report
from foliot.settings.settings import Settings
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.hooks import HookWatcher

ROUTERS: Final = (
    "health",
    "metrics",
    "about",
    "auth",
    "tokens",
    "users",
    "openai",
    "mcp",
    "bundles",
    "audit",
    "operations",
    "triggers",
    "tools",
    "watch",
    "tasks",
    "task_looks",
    "runs",
    "sessions",
    "folders",
    "approvals",
    "agents",
    "workers",
    "webhooks",
    "tool_callbacks",
    "resources",
)


class Application(Starlette):
    """The router in its envelope. Starlette's own layers around errors would find nothing left to do."""

    def __init__(self, router: PathRouter, limits: RequestLimits) -> None:
        super().__init__()
        self.router = router
        self._limits = limits

    def build_middleware_stack(self) -> ASGIApp:
        return EnvelopeMiddleware(self.router, self._limits, report)


def create_app(
    runtime: Runtime, *, settings: Settings, auth: Authenticator, limits: RequestLimits | None = None
) -> Starlette:
    """The server of an open runtime. Raises `FoliotError` when handlers and the route table do not match."""
    limits = limits or RequestLimits()
    services = Services(runtime, settings, auth, ServedResources.of(runtime.resources))
    services.rates = Rates(limits.rate, limits.burst, limits.auth_failures)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        addresses = WebhookEndpoints(services.database, services.resources)
        attending = asyncio.create_task(addresses.run())
        keeping = asyncio.create_task(services.channels.run())
        watching = asyncio.create_task(_hooks(runtime).run())
        counting = ExitStack()
        runtime.inside.share()
        if find_spec("prometheus_client") is not None:
            services.metrics = counting.enter_context(measured(runtime))
        try:
            yield
        finally:
            counting.close()
            services.closing.set()
            await stop_tasks(attending, keeping, watching)
            await door.close()
            await services.drives.close()

    routes = load_routes()
    check_routes(routes)
    app = Application(PathRouter(routes, lifespan), limits)
    app.state.services = services
    app.state.mcp = door = McpEndpoint(runtime, services.drives, services.closing, services.streams)
    return app


def _hooks(runtime: Runtime) -> HookWatcher:
    inside = runtime.inside
    return HookWatcher(
        inside.database,
        inside.resources,
        inside.tasking.tasks,
        RuntimePosts(inside.sessions, inside.database, clock=inside.clock),
        holder=str(inside.runs.worker),
        check=inside.grants.check_watched,
        clock=inside.clock,
    )


def described() -> dict[str, Any]:
    """Return the description of the API without a server: the same as its `/openapi.json`."""
    from foliot.server.openapi.document import describe

    return describe(load_routes())


def load_routes() -> tuple[Route, ...]:
    """Return the routes of all modules."""
    return tuple(route for name in ROUTERS for route in _router(name))


def _router(name: str) -> RouteGroup:
    router = import_module(f"foliot.server.routes.{name}").router
    assert isinstance(router, RouteGroup), f"server/routes/{name}.py exports no router"
    return router
