"""The official client, unmodified, over streamable HTTP: the current revision, and the one before."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.identity import Caller, granted
from foliot.settings.settings import Settings

Serve = Callable[[Starlette], AbstractAsyncContextManager[str]]
BOTH = pytest.mark.parametrize("mode", ["auto", "legacy"])
ON_BOTH = pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


def answering(**content: Any) -> Callable[..., Any]:
    """A user who fills in every form like this."""

    async def fill(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=content)

    return fill


@BOTH
async def test_agents_systems_and_governed_tools_are_listed(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert {"agent-clerk", "agent-judge", "system-line", "add", "pay"} <= found.keys()
    assert "forbidden" not in found
    assert "ask_user" not in found
    assert found["agent-clerk"].description is not None
    assert found["agent-clerk"].description.startswith("Does sums.")
    assert found["agent-clerk"].input_schema["required"] == ["message"]
    assert found["agent-judge"].output_schema is not None
    assert found["add"].annotations is not None
    assert found["add"].annotations.read_only_hint is True
    assert found["add"].input_schema["required"] == ["one", "other"]


@BOTH
async def test_an_agent_answers_and_its_text_comes_as_progress(url: str, mode: Any) -> None:
    told: list[tuple[float, str]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append((done, message or ""))

    async with Client(url, mode=mode) as client:
        result = await client.call_tool("agent-clerk", {"message": "add"}, progress_callback=progress)

    assert text_of(result) == "It is 5."
    assert not result.is_error
    said = "".join(message for _, message in told)
    assert "Let me look." in said
    assert '[add is called with {"one":2,"other":3}]' in said
    assert said.endswith("It is 5.")
    assert [done for done, _ in told] == sorted({done for done, _ in told})


async def test_a_shape_comes_as_structured_content(url: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool("agent-judge", {"message": "?"})

    assert result.structured_content == {"verdict": "fine"}


@BOTH
async def test_a_governed_tool_is_called_through_the_pipeline(url: str, runtime: Runtime, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        good = await client.call_tool("add", {"one": 2, "other": 40})
        wrong = await client.call_tool("add", {"one": "two"})
        failed = await client.call_tool("fail", {})
        refused = await client.call_tool("forbidden", {})
        parked = await client.call_tool("pay", {"amount": 5})

    assert (text_of(good), good.is_error) == ("42", False)
    assert wrong.is_error
    assert "it does not work" in text_of(failed)
    assert refused.is_error
    assert parked.is_error
    assert "An operator can grant such calls in advance" in text_of(parked)
    assert await runtime.inside.runs.journal.list() == []


@BOTH
async def test_an_approval_is_given_by_the_user_of_the_client(url: str, mode: Any) -> None:
    yes, no = answering(decision="approve"), answering(decision="deny", comment="too much")
    async with Client(url, mode=mode, elicitation_callback=yes) as client:
        paid = await client.call_tool("agent-careful", {"message": "pay"})
    async with Client(url, mode=mode, elicitation_callback=no) as client:
        kept = await client.call_tool("agent-careful", {"message": "pay"})

    assert text_of(paid) == "Done: paid 5"
    assert "too much" in text_of(kept)


@BOTH
async def test_a_question_is_answered_by_the_user_of_the_client(url: str, mode: Any) -> None:
    async with Client(url, mode=mode, elicitation_callback=answering(answer="blue")) as client:
        result = await client.call_tool("agent-asker", {"message": "paint"})

    assert text_of(result) == "It is blue."


@BOTH
async def test_a_client_that_shows_no_forms_is_told_what_is_waited_for(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        result = await client.call_tool("agent-careful", {"message": "pay"})

    assert result.is_error
    assert text_of(result) == "This waits until somebody has approved pay."
    assert result.meta is not None
    (waits,) = result.meta["foliot.dev/waiting"]["for"]
    assert (waits["kind"], waits["command"]) == ("approval", f"foliot approvals approve {waits['id']}")


@ON_BOTH
async def test_a_user_who_dismisses_the_form_leaves_the_run_waiting(url: str, runtime: Runtime) -> None:
    async def dismiss(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="cancel")

    async with Client(url, mode="legacy", elicitation_callback=dismiss) as client:
        result = await client.call_tool("agent-careful", {"message": "pay"})

    assert result.is_error
    (info,) = await runtime.inside.runs.journal.list()
    assert info.phase == "waiting"


@ON_BOTH
@pytest.mark.usefixtures("worker")
async def test_a_system_works_and_asks_too(url: str) -> None:
    async with Client(url, elicitation_callback=answering(decision="approve")) as client:
        result = await client.call_tool("system-line", {"message": "clocks"})
        (task,) = [each for each in (await client.list_resources()).resources if "tasks" in str(each.uri)]
        read = await client.read_resource(str(task.uri))

    assert text_of(result) == "Finished."
    content = read.contents[0]
    assert isinstance(content, types.TextResourceContents)
    assert json.loads(content.text)["output"] == "Finished."


async def test_a_state_of_somebody_else_s_call_is_not_believed(url: str, runtime: Runtime) -> None:
    await runtime.run("careful", "pay", run_id="theirs")
    state = '{"id":"theirs"}'
    async with Client(url) as client:
        for given in (state, "{", '{"id":"nothing"}'):
            result = await client.session.call_tool("agent-careful", {"message": "x"}, request_state=given)
            assert isinstance(result, types.CallToolResult)
            assert result.is_error

    assert (await runtime.inside.runs.journal.get("theirs")).phase == "waiting"


@BOTH
async def test_the_trace_of_a_run_can_be_read(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        result = await client.call_tool("agent-clerk", {"message": "add"})
        assert result.meta is not None
        run_id = result.meta["foliot.dev/run"]
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        read = await client.read_resource(f"foliot://runs/{run_id}")
        with pytest.raises(MCPError, match="no resource"):
            await client.read_resource("foliot://runs/nobody")
        assert len((await client.list_resource_templates()).resource_templates) == 2

    assert f"foliot://runs/{run_id}" in listed
    content = read.contents[0]
    assert isinstance(content, types.TextResourceContents)
    told = json.loads(content.text)
    assert (told["phase"], told["output"], told["trace"]["run_id"]) == ("succeeded", "It is 5.", run_id)


@BOTH
async def test_a_call_that_is_cancelled_cancels_its_run(url: str, runtime: Runtime, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        call = asyncio.create_task(client.call_tool("agent-slow", {"message": "hold"}))
        async with asyncio.timeout(60):
            while "mcp_tools" not in sys.modules:
                await asyncio.sleep(0.01)
            tools: Any = sys.modules["mcp_tools"]
            await tools.holding.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(60):
            while (await runtime.inside.runs.journal.list(agent="slow"))[0].phase != "cancelled":
                await asyncio.sleep(0.01)
    tools.release.set()


@ON_BOTH
async def test_a_key_begins_nothing_twice(url: str, runtime: Runtime) -> None:
    order = {"message": "hello", "idempotency_key": "k"}
    async with Client(url) as client:
        one, other = [await client.call_tool("agent-echo", order) for _ in range(2)]
        wrong = await client.call_tool("agent-echo", {**order, "message": "goodbye"})

    assert text_of(one) == text_of(other) == "You said hello."
    assert wrong.is_error
    assert len(await runtime.inside.runs.journal.list()) == 1


@BOTH
@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("agent-nobody", {"message": "x"}, "no tool 'agent-nobody'"),
        ("nothing", {}, "no tool 'nothing'"),
        ("ask_user", {}, "belongs to runs"),
        ("agent-echo", {}, "cannot be used"),
        ("agent-echo", {"message": 5}, "cannot be used"),
        ("agent-echo", {"message": "x", "other": 1}, "cannot be used"),
    ],
)
async def test_a_call_that_cannot_be_made_is_refused(
    url: str, runtime: Runtime, mode: Any, name: str, arguments: dict[str, Any], match: str
) -> None:
    async with Client(url, mode=mode) as client:
        with pytest.raises(MCPError, match=match):
            await client.call_tool(name, arguments)

    assert await runtime.inside.runs.journal.list() == []


@BOTH
async def test_a_failed_run_is_an_error_of_the_tool(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        result = await client.call_tool("agent-broken", {"message": "x"})

    assert result.is_error
    assert text_of(result)


class Known:
    """Everybody is who the header says, with these roles in `default` alone."""

    def __init__(self, *roles: Any) -> None:
        self._roles = roles

    async def identify(self, scope: Any) -> Caller:
        name = dict(scope["headers"]).get(b"x-name", b"ann").decode()
        return Caller(name, "token", granted(["default"], self._roles))

    async def describe(self) -> str:
        return "by name"


async def test_who_may_only_read_is_offered_no_tools(runtime: Runtime, settings: Settings, serve: Serve) -> None:
    app = create_app(runtime, settings=settings, auth=Known("reader"))
    async with serve(app) as url, Client(f"{url}/mcp") as client:
        assert (await client.list_tools()).tools == []
        assert (await client.list_resources()).resources == []
        with pytest.raises(MCPError, match="may call"):
            await client.call_tool("add", {"one": 1, "other": 2})


async def test_who_may_not_approve_is_told_who_can(runtime: Runtime, settings: Settings, serve: Serve) -> None:
    app = create_app(runtime, settings=settings, auth=Known("operator"))
    async with serve(app) as url, Client(f"{url}/mcp", elicitation_callback=answering(decision="approve")) as client:
        result = await client.call_tool("agent-careful", {"message": "pay"})

    assert result.is_error
    assert "somebody has approved" in text_of(result)


async def test_other_namespaces_are_closed(runtime: Runtime, settings: Settings, serve: Serve) -> None:
    import httpx2 as httpx

    app = create_app(runtime, settings=settings, auth=Known("admin"))
    async with serve(app) as url, httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/mcp?namespace=other", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})

    assert answer.status_code == 404


async def test_a_session_is_not_found_by_somebody_else(runtime: Runtime, settings: Settings, serve: Serve) -> None:
    import httpx2 as httpx

    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    accept = {"Accept": "application/json, text/event-stream"}
    app = create_app(runtime, settings=settings, auth=Known("admin"))
    async with serve(app) as url, httpx.AsyncClient(headers=accept) as http:
        opened = await http.post(f"{url}/mcp", json=hello, headers={"X-Name": "ann"})
        session = opened.headers["mcp-session-id"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-06-18"}
        hers = await http.post(f"{url}/mcp", json=ping, headers={**headers, "X-Name": "ann"})
        his = await http.post(f"{url}/mcp", json=ping, headers={**headers, "X-Name": "bob"})

    assert (hers.status_code, his.status_code) == (200, 404)
