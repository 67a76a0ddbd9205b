"""A Secret that changes between two turns of a session: whatever is warm, the second turn acts with the new value."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.catalog.mcp import opened_connections, sync_server
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text
from foliot.settings.settings import load_settings
from foliot.store.base import Filter, Key
from simulators.provider import Play, WireServer
from tests.sessions.kit import place, quiet
from tests.tools.mcp.conftest import SERVERS, eventually, is_running, real_fences
from tests.tools.web_service import serving

ANN = Identity("ann")


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    given = {"store": str(tmp_path / "foliot.db"), "home": str(tmp_path), "outbound_allow": "127.0.0.1"}
    async with Runtime(settings=load_settings(given, {"FOLIOT_MCP_COMMANDS": sys.executable})) as opened:
        yield opened


async def declare(rt: Runtime, kind: str, name: str, **spec: Any) -> None:
    await rt.resources.apply([{"kind": kind, "metadata": {"name": name}, "spec": spec}], allow_missing=True)


async def key(rt: Runtime, value: str) -> None:
    await declare(rt, "Secret", "key", stringData={"value": value})


def helper(tools: list[Any], arguments: dict[str, Any] | None = None, **spec: Any) -> Agent[Any]:
    """An agent that calls its tool in each turn, and says that it did."""

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return [{"tool": request.tools[0].name, "args": arguments or {}}] if last.role == "user" else "done"

    return Agent("helper", model=ScriptedModel(answer), tools=tools, **spec)


async def two_turns(rt: Runtime) -> None:
    """Has a session answer twice, each time with another value of the Secret."""
    sessions = rt.inside.sessions
    await key(rt, "first-key")
    session = await sessions.create(place(), identity=ANN)
    for number in (1, 2):
        if number == 2:
            await key(rt, "second-key")
        assert not (await sessions.say(session.id, f"turn {number}", identity=ANN)).problem
        await quiet(rt, session.id)
        turn = (await sessions.history(session.id, identity=ANN))[-1]
        assert turn.phase == "succeeded", turn.messages


async def welcome(request: web.Request) -> web.Response:
    return web.json_response({})


async def test_the_credentials_of_an_http_tool(rt: Runtime) -> None:
    async with serving(welcome) as service:
        auth = {"profile": "bearer", "secretRef": "key"}
        await declare(rt, "Tool", "probe", type="http", endpoint=service.url, auth=auth, effect="read")
        rt.inside.know(helper(["probe"]))
        await two_turns(rt)
    assert [each.headers["Authorization"] for each in service.requests] == ["Bearer first-key", "Bearer second-key"]


async def test_the_credentials_of_a_hook_behind_an_address(rt: Runtime) -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    async with serving(welcome) as service:
        hook = {"name": "gate", "points": ["before_tool"], "http": {"url": service.url, "secretRef": "key"}}
        rt.inside.know(helper([look], hooks=[{**hook, "on_failure": "abort"}]))
        await two_turns(rt)
    assert [each.headers["Authorization"] for each in service.requests] == ["Bearer first-key", "Bearer second-key"]


async def test_the_key_of_a_model(rt: Runtime) -> None:
    said = Play(ModelResponse(Message("assistant", (Text("ok"),))))
    async with WireServer([said]) as server:
        endpoint = {"provider": "openai-compatible", "base_url": f"{server.url}/v1", "default_model": "m"}
        await declare(rt, "ModelEndpoint", "main", **endpoint, auth={"secretRef": "key"})
        await declare(rt, "Agent", "helper", model_ref="main")
        await two_turns(rt)
    shown = [{name.lower(): value for name, value in each.headers.items()} for each in server.requests]
    assert [each["authorization"] for each in shown] == ["Bearer first-key", "Bearer second-key"]


async def synced(rt: Runtime, name: str, tool_name: str) -> str:
    """Makes the Tools of an MCP server, as `foliot mcp sync` does; returns the name of one."""
    store = rt.inside.resources
    document = await store.get(Key("McpServer", "default", name))
    environ = {"PATH": os.environ["PATH"]}
    async with (
        real_fences() as fences,
        opened_connections(store, rt.inside.settings, environ=environ, fences=fences) as connections,
    ):
        await sync_server(store, document, connections)
    tools = (await store.list(Filter("Tool", "default"))).items
    return next(each["metadata"]["name"] for each in tools if each["spec"]["mcp_tool_name"] == tool_name)


async def test_the_environment_of_an_mcp_program(rt: Runtime, tmp_path: Path) -> None:
    await key(rt, "zero-key")
    env = [{"name": "TOKEN", "secretRef": "key"}]
    command = {"command": sys.executable, "args": [str(SERVERS / "hostile.py")]}
    await declare(rt, "McpServer", "program", transport="stdio", **command, env=env, isolation="none")
    # The value itself never reaches the conversation: the program leaves it in a file.
    code = f"import os; open({str(tmp_path / 'tokens')!r}, 'a').write(os.environ['TOKEN'] + ' ')"
    rt.inside.know(helper([await synced(rt, "program", "run")], arguments={"code": code}))
    await two_turns(rt)
    assert (tmp_path / "tokens").read_text().split() == ["first-key", "second-key"]


async def test_an_invalidated_user_has_the_next_turn_built_anew_and_no_turn_at_work_is_touched(
    rt: Runtime, tmp_path: Path
) -> None:
    command = {"command": sys.executable, "args": [str(SERVERS / "hostile.py")]}
    await declare(rt, "McpServer", "program", transport="stdio", **command, isolation="none")
    reached, leave, pids = tmp_path / "reached", tmp_path / "leave", tmp_path / "pids"
    code = (
        f"import os, pathlib, time\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        f"pathlib.Path({str(reached)!r}).touch()\n"
        f"while not os.path.exists({str(leave)!r}): time.sleep(0.01)\n"
    )
    rt.inside.know(helper([await synced(rt, "program", "run")], arguments={"code": code}))
    sessions = rt.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    leave.touch()

    async def turn() -> str:
        await sessions.say(session.id, "go", identity=ANN)
        await quiet(rt, session.id)
        return pids.read_text().split()[-1]

    first = await turn()
    assert await turn() == first
    async with Runtime(settings=rt.inside.settings) as other:  # any process may say so
        await other.sessions.invalidate(user="bob")
        assert await turn() == first
        leave.unlink()
        reached.unlink()
        await sessions.say(session.id, "go", identity=ANN)
        await eventually(reached.exists)
        await other.sessions.invalidate(user="ann")
    leave.touch()
    await quiet(rt, session.id)
    assert pids.read_text().split()[-1] == first
    assert (await sessions.history(session.id, identity=ANN))[-1].phase == "succeeded"
    second = await turn()
    assert second != first
    await eventually(lambda: not is_running(int(first)))
    assert await turn() == second


async def test_an_invalidated_user_has_conversations_read_and_keys_looked_up_again(rt: Runtime) -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    rt.inside.know(helper([look]))
    session = await rt.inside.sessions.create(place(), identity=ANN)
    await rt.inside.sessions.say(session.id, "go", identity=ANN)
    head = (await quiet(rt, session.id)).head
    conversations = rt.inside.runs.conversations
    known = await conversations.read(head)
    assert await conversations.read(head) is known
    await rt.sessions.invalidate(user="ann")
    await rt.inside.warm.freshen(session.place)
    again = await conversations.read(head)
    assert again is not known
    assert again.messages == known.messages
    await rt.inside.warm.freshen(session.place)
    assert await conversations.read(head) is again


async def test_the_credentials_of_an_mcp_server_behind_an_address(rt: Runtime) -> None:
    calls: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        message = json.loads(await request.read())
        if "id" not in message:
            return web.Response(status=202)
        match message["method"]:
            case "initialize":
                info = {"name": "remote", "version": "0"}
                result: dict[str, Any] = {
                    "protocolVersion": "2025-03-26",
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
                }
            case "tools/list":
                result = {"tools": [{"name": "probe", "description": "probes", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                calls.append(request.headers["Authorization"])
                result = {"content": [{"type": "text", "text": "probed"}]}
            case _:
                result = {}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    await key(rt, "zero-key")
    async with serving(answer) as service:
        auth = {"profile": "bearer", "secretRef": "key"}
        await declare(rt, "McpServer", "remote", transport="http", endpoint=f"{service.url}/mcp", auth=auth)
        rt.inside.know(helper([await synced(rt, "remote", "probe")]))
        await two_turns(rt)
    assert calls == ["Bearer first-key", "Bearer second-key"]
