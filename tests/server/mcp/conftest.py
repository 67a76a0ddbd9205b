from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette

from foliot.catalog.apply import apply_documents
from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings, load_settings
from foliot.store.queue.placement import Offer

WORLD = """\
kind: ModelEndpoint
metadata: {name: talker}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: echo}
      turns: [{say: "You said {input}.", chunk: 4}]
    - match: {agent: clerk}
      turns:
        - {say: "Let me look.", call: {add: {one: 2, other: 3}}}
        - {say: "It is {last_result}."}
    - match: {agent: careful}
      turns:
        - {call: {pay: {amount: 5}}}
        - {say: "Done: {last_result}"}
    - match: {agent: asker}
      turns:
        - {call: {ask_user: {question: "Which colour?", choices: [red, blue]}}}
        - {say: "It is {last_result}."}
    - match: {agent: judge}
      turns: [{say: {verdict: fine}}]
    - match: {agent: broken}
      turns: [{fail: auth}]
    - match: {agent: slow}
      turns: [{call: {hold: {}}}, {say: "It was held."}]
    - match: {agent: first}
      turns: [{call: {pay: {amount: 1}}}, {say: "A draft, {last_result}"}]
    - match: {agent: second}
      turns: [{say: "Finished."}]
---
kind: Tool
metadata: {name: add}
spec:
  type: function
  function: "mcp_tools:add"
  description: Adds two numbers.
  effect: read
  input_schema:
    type: object
    properties: {one: {type: integer}, other: {type: integer}}
    required: [one, other]
---
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "mcp_tools:pay", effect: once, operation_classes: [write]}
---
kind: Tool
metadata: {name: hold}
spec: {type: function, function: "mcp_tools:hold", effect: read}
---
kind: Tool
metadata: {name: fail}
spec: {type: function, function: "mcp_tools:fail", effect: read}
---
kind: Tool
metadata: {name: forbidden}
spec: {type: function, function: "mcp_tools:fail", effect: read, operation_classes: [admin]}
---
kind: ToolPermission
metadata: {name: payments}
spec:
  tool_ref: pay
  operation_rules: [{operation_class: write, verdict: approval_required}]
---
kind: ToolPermission
metadata: {name: nobody}
spec:
  tool_ref: forbidden
  operation_rules: [{operation_class: admin, verdict: deny}]
---
kind: AgentSystem
metadata: {name: line}
spec:
  description: Two at work.
  agents: [first, second]
  graph: {first: {edges: [{to: second}]}, second: {}}
---
kind: Agent
metadata: {name: judge}
spec:
  model_ref: talker
  output_schema: {type: object, properties: {verdict: {type: string}}, required: [verdict]}
---
kind: Agent
metadata: {name: clerk}
spec: {model_ref: talker, description: Does sums., tools: [add]}
---
kind: Agent
metadata: {name: careful}
spec: {model_ref: talker, tools: [pay]}
---
kind: Agent
metadata: {name: asker}
spec: {model_ref: talker, tools: [ask_user]}
---
kind: Agent
metadata: {name: slow}
spec: {model_ref: talker, tools: [hold]}
---
kind: Agent
metadata: {name: first}
spec: {model_ref: talker, tools: [pay]}
---
kind: Agent
metadata: {name: second}
spec: {model_ref: talker}
---
kind: Agent
metadata: {name: echo}
spec: {model_ref: talker}
---
kind: Agent
metadata: {name: broken}
spec: {model_ref: talker}
"""

# Function tools of the manifests above. `hold` returns when the test that uses it says so.
MODULE = """\
import asyncio

def add(one: int, other: int) -> int:
    return one + other

def pay(amount: int) -> str:
    return f"paid {amount}"

def fail() -> str:
    raise ValueError("it does not work")

holding = asyncio.Event()
release = asyncio.Event()

async def hold() -> str:
    holding.set()
    await release.wait()
    return "released"
"""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """Where the store is: SQLite in the home, or what a test that is parametrised by `store` says."""
    return request.getfixturevalue("postgres_url") if getattr(request, "param", "sqlite") == "postgres" else ""


@pytest.fixture
def settings(tmp_path: Path, store: str) -> Settings:
    return load_settings({"home": str(tmp_path)} | ({"store": store} if store else {}), {})


@pytest.fixture
def tools_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mcp_tools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mcp_tools", None)
    yield tmp_path
    sys.modules.pop("mcp_tools", None)


@pytest.fixture
async def runtime(settings: Settings, tools_module: Path) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        bundle = parse_text(WORLD, "world.yaml")
        bundle.raise_for_errors()
        await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])
        yield runtime


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """The application on a free port of this machine; its address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve([listening]))
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        app.state.services.closing.set()
        server.should_exit = True
        await task
        listening.close()


@pytest.fixture
def serve() -> Callable[[Starlette], AbstractAsyncContextManager[str]]:
    return served


@pytest.fixture
async def url(runtime: Runtime, settings: Settings) -> AsyncIterator[str]:
    async with served(create_app(runtime, settings=settings, auth=Anonymous())) as url:
        yield f"{url}/mcp"


@pytest.fixture
async def worker(runtime: Runtime) -> AsyncIterator[None]:
    """Somebody who does the runs of tasks."""
    working = runtime.inside.tasking.worker(Offer("test", runtime.inside.runs.worker, capacity=4), grace=5)
    task = asyncio.create_task(working.run())
    yield
    working.drain()
    await task
