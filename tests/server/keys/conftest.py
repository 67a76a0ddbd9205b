from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings
from foliot.tools.function import tool

MANIFEST = """
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {pay: {amount: 5}}}, {say: "Paid: {last_result}."}]
---
kind: ToolPermission
metadata: {name: pay}
spec: {tool_ref: pay, operation_rules: [{verdict: approval_required}]}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [pay]}
---
kind: Task
metadata: {name: form}
spec: {agent: desk, mode: template}
---
kind: TaskSchedule
metadata: {name: nightly}
spec: {task_ref: form, schedule: "0 3 * * *"}
"""


@tool
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"{amount} euros"


Server = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings, tools=[pay]) as runtime:
        yield runtime


@pytest.fixture
def another(settings: Settings) -> Server:
    """Another server on the same store, until the end of the block."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[httpx.AsyncClient]:
        async with Runtime(settings=settings, tools=[pay]) as runtime:
            app = create_app(runtime, settings=settings, auth=Anonymous())
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield client

    return opened


@pytest.fixture
async def waiting(http: httpx.AsyncClient, runtime: Runtime) -> str:
    """The id of a run that waits for consent."""
    applied = await http.post("/v1/apply", content=MANIFEST)
    assert applied.status_code == 200, applied.text
    result = await runtime.run("desk", "pay", run_id="r1")
    assert result.waiting is not None
    return "r1"
