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

from fastapi import APIRouter, FastAPI

from foliot.client.local import LocalClient
from foliot.common.cancellation import stop_tasks
from foliot.runtime.runtime import Runtime
from foliot.runtime.telemetry import measured
from foliot.server.auth.guard import check_routes
from foliot.server.context import Authenticator, Services
from foliot.server.http.envelope import Envelope, Limits
from foliot.server.http.index import index_routes
from foliot.server.http.problems import report_errors
from foliot.server.http.rates import Rates
from foliot.server.mcp.http import Door
from foliot.server.openai.errors import report
from foliot.server.runs.driven import declared_work
from foliot.settings.settings import Settings
from foliot.version import __version__
from foliot.work.triggers.endpoints import WebhookEndpoints

# In the order in which paths are matched: particular ones before those with a {kind}.
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
    "work_tasks",
    "work_runs",
    "audit",
    "operations",
    "triggers",
    "tools",
    "watch",
    "tasks",
    "task_looks",
    "runs",
    "approvals",
    "agents",
    "workers",
    "webhooks",
    "tool_callbacks",
    "resources",
)


ABOUT: Final[dict[str, Any]] = {
    "title": "Foliot",
    "version": __version__,
    "summary": "Durable runs of agents, with tools that are governed.",
}


def create_app(runtime: Runtime, *, settings: Settings, auth: Authenticator, limits: Limits | None = None) -> FastAPI:
    """The server of an open runtime. Raises `FoliotError` when handlers and the route table do not match."""
    limits = limits or Limits()
    services = Services(runtime, settings, auth, _client(runtime, settings))
    services.rates = Rates(limits.rate, limits.burst, limits.auth_failures)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        addresses = WebhookEndpoints(services.database, services.resources)
        attending = asyncio.create_task(addresses.run())
        counting = ExitStack()
        runtime.share()
        if find_spec("prometheus_client") is not None:
            services.metrics = counting.enter_context(measured(runtime))
        try:
            yield
        finally:
            counting.close()
            services.closing.set()
            await stop_tasks(attending)
            await door.close()
            await services.drives.close()

    app = FastAPI(
        **ABOUT,
        lifespan=lifespan,
        # Served by a guarded route of our own; the pages that show it load scripts from elsewhere.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Runs are traced by what their journals say; and what a request failed with is for our log alone.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.services = services
    app.state.mcp = door = Door(runtime, services.drives, services.closing, services.streams)
    report_errors(app, report)
    include_routers(app)
    check_routes(app)
    index_routes(app)
    app.add_middleware(Envelope, limits=limits, report=report)
    return app


def described() -> dict[str, Any]:
    """The description of the API without a server: the same as its `/openapi.json`."""
    from foliot.server.openapi.document import describe

    app = FastAPI(**ABOUT)
    # The routes that a FastAPI application adds by itself are not ours.
    app.router.routes.clear()
    include_routers(app)
    return describe(app)


def include_routers(app: FastAPI) -> None:
    """Add every route."""
    for name in ROUTERS:
        app.router.routes.extend(_router(name).routes)  # as they are: their paths are whole


def _router(name: str) -> APIRouter:
    router = import_module(f"foliot.server.routes.{name}").router
    assert isinstance(router, APIRouter), f"server/routes/{name}.py exports no router"
    return router


def _client(runtime: Runtime, settings: Settings) -> LocalClient:
    async def budgets_changed(namespace: str) -> None:
        from time import time

        from foliot.engine.budgets.wakeups import wake_paused

        await wake_paused(runtime.runs.journal, namespace, clock=time)

    async def models_changed(namespace: str) -> None:
        from time import time

        from foliot.engine.budgets import wakeups

        await wakeups.models_changed(runtime.tasking.database, namespace, clock=time)

    async def close() -> None:
        """The runtime is closed by whoever opened it."""

    work = declared_work(runtime)
    return LocalClient(
        runtime.resources,
        close=close,
        budgets_changed=budgets_changed,
        models_changed=models_changed,
        work=lambda: work,
    )
