"""Tools that are declared in manifests, called by an agent through everything in between, over real connections."""

from __future__ import annotations

import base64
import sys
import textwrap
from pathlib import Path

import pytest
from aiohttp import web

from foliot import Runtime
from foliot.catalog.apply import apply_documents
from foliot.catalog.mcp import sync_server
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Key
from foliot.tools.base import ToolIsolationMissing


@pytest.fixture
def settings(tmp_path):
    environ = {
        "FOLIOT_HOME": str(tmp_path / "home"),
        "FOLIOT_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOLIOT_MCP_COMMANDS": sys.executable,
        "FOLIOT_CONTAINER_CLI": str(tmp_path / "no-engine"),  # whatever this machine has
    }
    return load_settings({}, environ)


@pytest.fixture
async def runtime(settings):
    async with Runtime(settings=settings) as rt:
        yield rt


async def apply(runtime: Runtime, *raw: dict) -> None:
    documents = []
    for given in raw:
        document, problems = validate_document(given)
        assert document is not None, problems
        documents.append(document)
    await apply_documents(runtime.inside._assembly.resources, documents)


def declared(kind: str, name: str, **spec) -> dict:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


async def agent_with(runtime: Runtime, script: list, tools: list[str], **spec) -> None:
    await apply(
        runtime,
        declared("ModelEndpoint", "brain", provider="scripted", script=script),
        declared("Agent", "caller", model_ref="brain", tools=tools, **spec),
    )


@pytest.fixture
async def shop(aiohttp_server_url):
    """A shop over HTTP that wants a key; it remembers what it was asked."""
    asked: list[tuple[str, dict, str]] = []

    async def order(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer sk-shop":
            return web.json_response({"error": "who are you?"}, status=401)
        asked.append((request.path, await request.json(), request.headers["Idempotency-Key"]))
        return web.json_response({"status": "active", "total": 49.9, "echo": "sk-shop"})

    app = web.Application()
    app.router.add_post("/order", order)
    return await aiohttp_server_url(app), asked


@pytest.fixture
async def aiohttp_server_url():
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_an_http_tool_with_a_secret_is_called_and_the_secret_is_seen_nowhere(runtime, shop) -> None:
    url, asked = shop
    await apply(
        runtime,
        declared("Secret", "shop", data={"value": base64.b64encode(b"sk-shop").decode()}),
        declared("Tool", "order", type="http", endpoint=f"{url}/order", effect="read", auth={"secretRef": "shop"}),
    )
    await agent_with(runtime, [{"call": {"order": {"id": "A-17"}}}, {"say": "It says {last_result}"}], ["order"])

    result = await runtime.run("caller", "Where is my order?")

    assert result.succeeded
    assert '"total": 49.9' in result.output or '"total":49.9' in result.output
    ((path, body, key),) = asked
    assert (path, body) == ("/order", {"id": "A-17"})
    assert key.startswith(result.run_id)
    journal = b"".join(entry.data for entry in await runtime.inside.runs.journal.read(result.run_id))
    assert b"sk-shop" not in journal


async def test_a_private_address_is_refused_unless_it_is_allowed(tmp_path, shop) -> None:
    url, asked = shop
    closed = load_settings({}, {"FOLIOT_HOME": str(tmp_path / "closed")})
    async with Runtime(settings=closed) as rt:
        await apply(rt, declared("Tool", "order", type="http", endpoint=f"{url}/order", effect="read"))
        await agent_with(rt, [{"call": {"order": {}}}, {"say": "{last_result}"}], ["order"])
        result = await rt.run("caller", "go")
    assert asked == []
    assert "Error" in result.output


async def test_an_mcp_server_is_synced_and_its_tool_is_called(runtime, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        textwrap.dedent(
            """
            from mcp.server import MCPServer

            app = MCPServer("maths")

            @app.tool()
            def add(a: int, b: int) -> int:
                "Add two numbers."
                return a + b

            app.run()
            """
        )
    )
    await apply(
        runtime,
        declared(
            "McpServer",
            "maths",
            transport="stdio",
            command=sys.executable,
            args=["/data/server.py"],
            sandbox={"mounts": [{"source": str(tmp_path), "target": "/data"}]},
        ),
    )
    from foliot.catalog.mcp import opened_connections

    store = runtime.inside._assembly.resources
    async with opened_connections(store, runtime.inside.settings, fences=runtime.inside.fences) as connections:
        await sync_server(store, await store.get(Key("McpServer", "default", "maths")), connections)
    await agent_with(runtime, [{"call": {"maths--add": {"a": 2, "b": 40}}}, {"say": "{last_result}"}], ["maths--add"])

    result = await runtime.run("caller", "go")

    assert result.succeeded, result
    assert "42" in result.output


@pytest.mark.fence
async def test_a_function_of_high_risk_runs_in_a_sandbox(runtime) -> None:
    await apply(runtime, declared("Tool", "danger", type="function", function="os:getcwd", risk_level="high"))
    await agent_with(runtime, [{"call": "danger"}, {"say": "{last_result}"}], ["danger"])

    result = await runtime.run("caller", "go")

    assert (result.succeeded, result.output) == (True, "/tmp"), result


async def test_a_contained_tool_is_refused_before_anything_runs(runtime) -> None:
    await apply(
        runtime,
        declared("Tool", "danger", type="function", function="os:getcwd", runtime={"isolation_mode": "container"}),
    )
    await agent_with(runtime, [{"call": "danger"}, {"say": "{last_result}"}], ["danger"])

    with pytest.raises(ToolIsolationMissing, match="container"):
        await runtime.run("caller", "go")

    assert await runtime.inside.runs.journal.list() == []
