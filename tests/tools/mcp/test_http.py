"""Sessions over HTTP on loopback: a real server of the SDK, and small ones that refuse, forget or flood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from foliot.dev.service import free_port
from foliot.tools.base import (
    AuthSpec,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolDenied,
    ToolError,
    ToolRateLimited,
    ToolUnreachable,
)
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.results import parts_of
from tests.tools.mcp.conftest import eventually, spec_of


def words(result: object) -> str:
    (part,) = parts_of(result)  # type: ignore[arg-type]
    return part.text  # type: ignore[union-attr]


class Legacy:
    """A server of the revision with sessions. `before` may answer a request in its stead."""

    def __init__(self) -> None:
        self.sessions = 0
        self.known: set[str] = set()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.before: Callable[[dict[str, Any]], web.Response | None] = lambda message: None

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.text())
        method = message.get("method", "")
        self.seen.append((method, {name.title(): value for name, value in request.headers.items()}))
        if (answer := self.before(message)) is not None:
            return answer
        if method == "initialize":
            self.sessions += 1
            session = f"session-{self.sessions}"
            self.known.add(session)
            info = {"name": "legacy", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            return self._answer(message, result, headers={"Mcp-Session-Id": session})
        if request.headers.get("Mcp-Session-Id") not in self.known:
            return web.Response(status=404 if "Mcp-Session-Id" in request.headers else 400)
        if "id" not in message:
            return web.Response(status=202)
        if method == "tools/list":
            return self._answer(message, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        text = json.dumps(message["params"].get("arguments"))
        return self._answer(message, {"content": [{"type": "text", "text": text}]})

    @staticmethod
    def _answer(message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


@pytest.fixture
async def legacy() -> AsyncIterator[tuple[Legacy, str]]:
    server = Legacy()
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield server, f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    await runner.cleanup()


def calls_only(status: int, **headers: str) -> Callable[[dict[str, Any]], web.Response | None]:
    return lambda message: web.Response(status=status, headers=headers) if message["method"] == "tools/call" else None


class TestCurrentRevision:
    async def test_calls_need_no_session(self, connections, sample_url):
        server = spec_of("sample", endpoint=sample_url)
        answers = await asyncio.gather(*(connections.call(server, "add", {"a": n, "b": 1}) for n in range(20)))
        assert [words(answer) for answer in answers] == [str(n + 1) for n in range(20)]
        assert connections.health()[0].protocol == "2026-07-28"

    async def test_progress_and_logs_reach_their_own_call_even_among_others(self, connections, sample_url):
        server, one, two = spec_of("sample", endpoint=sample_url), [], []
        await asyncio.gather(
            connections.call(server, "count", {"to": 2}, on_output=one.append),
            connections.call(server, "talk", {}, on_output=two.append),
        )
        await eventually(lambda: len(one) == 2 and len(two) == 1)
        assert (one, two) == (["step 1\n", "step 2\n"], ["a word in between\n"])

    async def test_a_cancelled_call_is_cancelled_on_the_server(self, connections, sample_url):
        server, heard = spec_of("sample", endpoint=sample_url), asyncio.Event()
        await connections.tools(server)
        call = asyncio.create_task(connections.call(server, "slow", {"name": "web"}))
        await eventually(lambda: connections.health()[0].in_flight == 1)
        with pytest.raises(ToolError):
            await connections.call(server, "slow", {"name": "other"}, timeout=1.0)
        call.cancel()
        await asyncio.wait({call})
        async with asyncio.timeout(60):
            while not heard.is_set():
                if {"web", "other"} <= set(
                    (await connections.call(server, "was_cancelled", {})).structured_content["result"]
                ):
                    heard.set()

    async def test_a_changed_list_is_heard(self, sample_url):
        heard = asyncio.Event()

        async def changed(server: object) -> None:
            heard.set()

        async with McpConnections(on_tools_changed=changed) as connections:
            server = spec_of("sample", endpoint=sample_url)
            for number in range(100):
                await connections.call(server, "learn", {"name": f"new{number}", "description": "new"})
                await asyncio.sleep(0.05)
                if heard.is_set():
                    break
            async with asyncio.timeout(60):
                await heard.wait()
            assert "new0" in await connections.tools(server)


class TestSessions:
    async def test_an_older_server_gets_its_handshake_and_its_session(self, connections, legacy):
        server, url = legacy
        assert words(await connections.call(spec_of("old", endpoint=url), "echo", {"a": 1})) == '{"a": 1}'
        assert connections.health()[0].protocol == "2025-06-18"
        assert server.seen[-1][1]["Mcp-Session-Id"] == "session-1"

    async def test_a_session_that_the_server_forgot_is_made_anew_and_the_call_repeated_once(self, connections, legacy):
        server, url = legacy
        spec = spec_of("old", endpoint=url)
        await connections.call(spec, "echo", {})
        server.known.clear()
        assert words(await connections.call(spec, "echo", {"b": 2})) == '{"b": 2}'
        assert server.sessions == 2

    async def test_a_listing_on_a_forgotten_session_is_repeated_too(self, connections, legacy):
        server, url = legacy
        spec = spec_of("old", endpoint=url)
        await connections.tools(spec)
        server.known.clear()
        assert list(await connections.tools(spec, refresh=True)) == ["echo"]
        assert server.sessions == 2

    async def test_a_session_that_is_forgotten_at_every_call_is_not_made_for_ever(self, connections, legacy):
        server, url = legacy
        server.before = calls_only(404)
        with pytest.raises(ToolError):
            await connections.call(spec_of("old", endpoint=url), "echo", {})
        assert server.sessions == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "error", "before_effect"),
        [
            (401, ToolAuthInvalid, True),
            (403, ToolAuthForbidden, True),
            (429, ToolRateLimited, True),
            (500, ToolError, False),
        ],
    )
    async def test_a_status_says_what_is_wrong(self, connections, legacy, status, error, before_effect):
        server, url = legacy
        server.before = calls_only(status, **{"Retry-After": "7"})
        with pytest.raises(error, match=f"HTTP {status}") as caught:
            await connections.call(spec_of("old", endpoint=url), "echo", {})
        assert caught.value.retry_after == 7.0
        assert caught.value.before_effect is before_effect

    async def test_a_refused_call_does_not_disturb_the_session(self, connections, legacy):
        server, url = legacy
        spec = spec_of("old", endpoint=url)
        server.before = calls_only(500)
        with pytest.raises(ToolError):
            await connections.call(spec, "echo", {})
        server.before = lambda message: None
        assert words(await connections.call(spec, "echo", {})) == "{}"
        assert server.sessions == 1

    async def test_nobody_at_the_address_is_said_before_anything_happened(self, connections):
        with pytest.raises(ToolUnreachable, match="cannot be reached") as caught:
            await connections.call(spec_of("gone", endpoint=f"http://127.0.0.1:{free_port()}/mcp"), "echo", {})
        assert caught.value.before_effect

    async def test_an_answer_of_more_than_the_limit_is_not_read(self, legacy):
        server, url = legacy
        server.before = lambda message: (
            web.Response(body=b"x" * 3_000_000, content_type="application/json")
            if message["method"] == "tools/call"
            else None
        )
        async with McpConnections(max_message=1_000_000) as connections:
            spec = spec_of("old", endpoint=url)
            with pytest.raises(ToolError, match="more than 1000000 bytes"):
                await connections.call(spec, "echo", {})
            server.before = lambda message: None
            assert words(await connections.call(spec, "echo", {})) == "{}"

    async def test_an_event_of_more_than_the_limit_fails_its_own_call_only(self, legacy):
        server, url = legacy
        event = b"event: message\ndata: " + b"x" * 3_000_000 + b"\n\n"
        server.before = lambda message: (
            web.Response(body=event, content_type="text/event-stream")
            if message["method"] == "tools/call" and message["params"]["arguments"].get("much")
            else None
        )
        async with McpConnections(max_message=1_000_000) as connections:
            spec = spec_of("old", endpoint=url)
            large, small = await asyncio.gather(
                connections.call(spec, "echo", {"much": True}, timeout=60),
                connections.call(spec, "echo", {"a": 1}, timeout=60),
                return_exceptions=True,
            )
            assert isinstance(large, ToolError)
            assert words(small) == '{"a": 1}'
            assert server.sessions == 1

    async def test_all_pages_of_a_listing_are_read(self, connections, legacy):
        server, url = legacy

        def paged(message: dict[str, Any]) -> web.Response | None:
            if message["method"] != "tools/list":
                return None
            start = int((message.get("params") or {}).get("cursor") or 0)
            tools = [{"name": f"t{start + n}", "inputSchema": {"type": "object"}} for n in range(10)]
            more = {"nextCursor": str(start + 10)} if start < 40 else {}
            return Legacy._answer(message, {"tools": tools, **more})

        server.before = paged
        assert list(await connections.tools(spec_of("old", endpoint=url))) == [f"t{n}" for n in range(50)]

    async def test_a_listing_that_does_not_end_is_cut_off(self, connections, legacy, monkeypatch):
        server, url = legacy
        monkeypatch.setattr("foliot.tools.mcp.session.MOST_PAGES", 5)
        server.before = lambda message: (
            Legacy._answer(message, {"tools": [], "nextCursor": "again"}) if message["method"] == "tools/list" else None
        )
        assert await connections.tools(spec_of("old", endpoint=url)) == {}

    async def test_a_server_that_wants_to_ask_the_user_is_refused_and_not_waited_for(self, connections, sample_url):
        server = spec_of("sample", endpoint=sample_url)
        with pytest.raises(ToolError, match="elicitation") as caught:
            await connections.call(server, "ask", {}, timeout=60)
        assert not caught.value.retryable
        assert not caught.value.before_effect
        assert words(await connections.call(server, "add", {"a": 1, "b": 2})) == "3"

    async def test_an_answer_of_another_kind_is_refused(self, connections, legacy):
        server, url = legacy
        server.before = lambda message: web.Response(text="<html>") if message["method"] == "tools/call" else None
        with pytest.raises(ToolError, match="content type"):
            await connections.call(spec_of("old", endpoint=url), "echo", {})


AUTH = {"profile": "bearer", "secretRef": "token"}


class TestWhoCallsAndWhere:
    async def test_the_headers_are_shown_with_every_request(self, legacy):
        server, url = legacy

        async def authorize(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> dict[str, str]:
            assert (auth.profile, auth.secret_ref, namespace) == ("bearer", "token", "default")
            return {"Authorization": "Bearer sesame"}

        async with McpConnections(authorize=authorize) as connections:
            await connections.call(spec_of("old", endpoint=url, auth=AUTH), "echo", {})
        assert {headers.get("Authorization") for method, headers in server.seen if method} == {"Bearer sesame"}

    async def test_a_token_that_was_refused_is_replaced_once(self, legacy):
        server, url = legacy
        asked: list[bool] = []

        async def authorize(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> dict[str, str]:
            asked.append(rejected)
            return {"Authorization": f"Bearer {'fresh' if any(asked) else 'stale'}"}

        def refuse_stale(message: dict[str, Any]) -> web.Response | None:
            stale = server.seen[-1][1].get("Authorization") == "Bearer stale"
            return web.Response(status=401) if stale else None

        server.before = refuse_stale
        async with McpConnections(authorize=authorize) as connections:
            await connections.call(spec_of("old", endpoint=url, auth=AUTH), "echo", {})
        assert asked.count(True) == 1

    async def test_credentials_that_nobody_can_make_keep_the_request_from_being_sent(self, connections, legacy):
        server, url = legacy
        with pytest.raises(ToolError, match="nobody here can make credentials"):
            await connections.call(spec_of("old", endpoint=url, auth=AUTH), "echo", {})
        assert server.seen == []

    async def test_the_guard_decides_which_address_a_name_means(self, legacy):
        server, url = legacy
        port = int(url.split(":")[2].split("/")[0])
        asked: list[tuple[str, int]] = []

        async def guard(host: str, to: int) -> list[str]:
            asked.append((host, to))
            return ["127.0.0.1"]

        async with McpConnections(guard=guard) as connections:
            spec = spec_of("old", endpoint=f"http://tools.example.com:{port}/mcp")
            assert words(await connections.call(spec, "echo", {})) == "{}"
        assert set(asked) == {("tools.example.com", port)}
        assert server.seen[-1][1]["Host"] == f"tools.example.com:{port}"

    async def test_an_address_that_the_guard_refuses_is_not_connected_to(self, legacy):
        server, url = legacy

        async def guard(host: str, port: int) -> list[str]:
            raise ToolDenied(f"{host} is inside", layer="outbound")

        async with McpConnections(guard=guard) as connections:
            with pytest.raises(ToolDenied, match="is inside"):
                await connections.call(spec_of("old", endpoint=url), "echo", {})
        assert server.seen == []
