from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import openai
import pytest
import uvicorn
from starlette.applications import Starlette

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
      count: input
      turns:
        - {say: "You said {input}.", chunk: 4, usage: {input_tokens: 7, output_tokens: 5, cache_read_tokens: 2}}
    - match: {agent: rememberer}
      count: input
      turns: [{say: "First {first_input}, now {input}."}]
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
    - match: {agent: cut}
      turns: [{say: "This goes on and", stop: length}]
    - match: {agent: broken}
      turns: [{fail: auth}]
    - match: {agent: stutterer}
      count: input
      turns: [{say: "A whole answer.", fail: overloaded, times: 1, fail_at: 5, chunk: 5}]
    - match: {agent: slow}
      turns: [{call: {hold: {}}}, {say: "It was held."}]
    - match: {agent: forecaster}
      turns: [{say: "I ask.", call: {get_weather: {city: Oslo}}}, {say: "It says {last_result}."}]
    - match: {agent: planner}
      turns:
        - call: [{get_weather: {city: Oslo}}, {get_weather: {city: Rome}}]
        - {say: "Done."}
    - match: {agent: mixed}
      turns:
        - call: [{add: {one: 2, other: 3}}, {get_weather: {city: Oslo}}]
        - {say: "Both."}
    - match: {agent: reader}
      loop: true
      turns: [{say: "I read {last_result}."}]
    - match: {agent: first}
      turns: [{say: "A draft of {input}"}]
    - match: {agent: second}
      turns: [{say: "Finished."}]
---
kind: Tool
metadata: {name: add}
spec: {type: function, function: "openai_tools:add", effect: read}
---
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "openai_tools:pay", effect: once, operation_classes: [write]}
---
kind: Tool
metadata: {name: hold}
spec: {type: function, function: "openai_tools:hold", effect: read}
---
kind: ToolPermission
metadata: {name: payments}
spec:
  tool_ref: pay
  operation_rules: [{operation_class: write, verdict: approval_required}]
---
kind: AgentSystem
metadata: {name: line}
spec:
  agents: [first, second]
  graph: {first: {edges: [{to: second}]}, second: {}}
---
kind: Agent
metadata: {name: judge}
spec:
  model_ref: talker
  output_schema: {type: object, properties: {verdict: {type: string}}, required: [verdict]}
"""
TOOLS = {"clerk": ["add"], "careful": ["pay"], "asker": ["ask_user"], "slow": ["hold"], "mixed": ["add"]}
PLAIN = ("echo", "rememberer", "cut", "broken", "stutterer", "first", "second", "forecaster", "planner", "reader")
AGENTS = (*PLAIN, *TOOLS)

# Function tools of the manifests above. `hold` returns when the test that uses it says so.
MODULE = """\
import asyncio

def add(one: int, other: int) -> int:
    return one + other

def pay(amount: int) -> str:
    return f"paid {amount}"

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
def tools_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    (tmp_path / "openai_tools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("openai_tools", None)
    yield
    sys.modules.pop("openai_tools", None)


async def declare(runtime: Runtime, text: str, namespace: str = "default") -> None:
    bundle = parse_text(text, "world.yaml", namespace=namespace)
    bundle.raise_for_errors()
    from foliot.catalog.apply import apply_documents

    await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])


def agent(name: str) -> str:
    tools = ", ".join(TOOLS.get(name, []))
    return f"---\nkind: Agent\nmetadata: {{name: {name}}}\nspec: {{model_ref: talker, tools: [{tools}]}}\n"


@pytest.fixture
async def runtime(settings: Settings, tools_module: None) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        await declare(runtime, WORLD + "".join(map(agent, AGENTS)))
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
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=110) as client:
        yield client


@pytest.fixture
async def worker(runtime: Runtime) -> AsyncIterator[None]:
    """Somebody who does the runs of tasks."""
    working = runtime.inside.tasking.worker(Offer("test", runtime.inside.runs.worker, capacity=4), grace=5)
    task = asyncio.create_task(working.run())
    yield
    working.drain()
    await task
