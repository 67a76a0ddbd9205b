"""Hooks behind an address: real requests to a real server, through the guard, with secrets that go where they may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, ManifestError, Runtime, ScriptedModel, load_settings, tool
from foliot.engine.hooks.base import HookBlock, HookChange
from foliot.engine.hooks.chain import HookFailed
from foliot.engine.hooks.http import read
from foliot.kernel.run.events import HookDecided

CALL = {"call": {"look": {"place": "Rome"}}}


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


class HookServer:
    """Answers every request with `answer`, and keeps what it was asked."""

    def __init__(self, answer: bytes, head: str = "200 OK", extra: str = "") -> None:
        self.answer, self.head, self.extra = answer, head, extra
        self.asked: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self.at_work: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_work.add(asyncio.current_task())
        try:
            with suppress(ConnectionError, EOFError):  # who has read enough hangs up
                await self._answer(reader, writer)
        finally:
            writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length"))
        self.asked.append(msgspec.json.decode(await reader.readexactly(size)))
        self.heads.append(head)
        length = f"Content-Length: {len(self.answer)}\r\nConnection: close\r\n{self.extra}\r\n"
        writer.write(f"HTTP/1.1 {self.head}\r\nContent-Type: application/json\r\n{length}".encode() + self.answer)
        await writer.drain()


@asynccontextmanager
async def serving(server: HookServer) -> AsyncGenerator[HookServer]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/hook"
    async with listening:
        yield server
    await asyncio.gather(*(task for task in server.at_work if task is not None), return_exceptions=True)


@asynccontextmanager
async def opened(tmp_path: Path, *, allow: str = "127.0.0.1") -> AsyncGenerator[Runtime]:
    given = {"store": str(tmp_path / "foliot.db"), "home": str(tmp_path), "outbound_allow": allow}
    async with Runtime(settings=load_settings(given, {})) as runtime:
        yield runtime


def hooked(server: HookServer, point: str = "before_tool", **spec: Any) -> Agent:
    declared = {"name": "review", "points": [point], "http": {"url": server.url}, **spec}
    return Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[declared])


async def test_a_server_is_asked_about_a_call_and_changes_it(tmp_path: Path) -> None:
    oslo = HookServer(b'{"change": {"arguments": {"place": "Oslo"}}}')
    async with serving(oslo) as server, opened(tmp_path) as runtime:
        result = await runtime.run(hooked(server), "Go.", user="ann")
    assert result.output == "seen Oslo"
    asked = server.asked[0]
    assert (asked["point"], asked["tool"], asked["arguments"]) == ("before_tool", "look", {"place": "Rome"})
    assert (asked["run"], asked["agent"], asked["user"], asked["step"]) == (result.run_id, "a", "ann", 1)


async def test_a_server_refuses_a_call_and_the_model_is_told(tmp_path: Path) -> None:
    async with serving(HookServer(b'{"block": "not on a Friday"}')) as server, opened(tmp_path) as runtime:
        result = await runtime.run(hooked(server), "Go.")
    assert "not on a Friday" in result.output


@pytest.mark.parametrize(
    ("answer", "head", "says"),
    [
        (b"{}", "500 Broken", "status 500"),
        (b"{}", "302 Found", "redirects to somewhere else"),
        (b"<html>", "200 OK", "not JSON"),
        (b'{"allow": true}', "200 OK", "its answer is not"),
        (b'{"change": {"tool": "drop"}}', "200 OK", "its change is not"),
        (b'{"change": {"text": "x"}}', "200 OK", "cannot change 'text' at before_tool"),
        (b'{"change": {"arguments": [1]}}', "200 OK", "its arguments are not an object"),
        (b'{"block": "' + b"x" * (3 * 1024 * 1024) + b'"}', "200 OK", "more than"),
    ],
)
async def test_any_other_answer_is_a_failure_and_blocks_where_a_failure_does(
    tmp_path: Path, answer: bytes, head: str, says: str
) -> None:
    extra = "Location: http://127.0.0.1:1/\r\n" if head.startswith("302") else ""
    async with serving(HookServer(answer, head, extra)) as server, opened(tmp_path) as runtime:
        result = await runtime.run(hooked(server, on_failure="block"), "Go.")
        events = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    assert "without it this is not done" in result.output
    decided = next(each for each in events if isinstance(each, HookDecided))
    assert says in decided.failed["review"]


async def test_an_address_inside_is_not_asked_unless_the_operator_allows_it(tmp_path: Path) -> None:
    async with serving(HookServer(b"{}")) as server, opened(tmp_path, allow="elsewhere.example") as runtime:
        result = await runtime.run(hooked(server, on_failure="block"), "Go.")
    assert "without it this is not done" in result.output
    assert server.asked == []


async def test_a_server_that_hangs_is_late(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        left.set()

    server = HookServer(b"")
    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with opened(tmp_path) as runtime:
        result = await runtime.run(hooked(server, on_failure="block", timeout="100ms"), "Go.")
    await asyncio.wait_for(left.wait(), 60)
    listening.close()
    assert "without it this is not done" in result.output


async def test_its_secret_is_sent_as_a_token_and_is_in_no_record(tmp_path: Path) -> None:
    async with serving(HookServer(b'{"block": "the key is s3cret-value"}')) as server, opened(tmp_path) as runtime:
        secret = {"kind": "Secret", "metadata": {"name": "key"}, "spec": {"stringData": {"value": "s3cret-value"}}}
        await runtime.resources.apply([secret])
        result = await runtime.run(hooked(server, http={"url": server.url, "secretRef": "key"}), "Go.")
        entries = await runtime.inside.runs.journal.read(result.run_id)
    assert "Authorization: Bearer s3cret-value" in server.heads[0]
    assert not [entry for entry in entries if b"s3cret-value" in entry.data]


async def test_a_secret_that_is_bound_elsewhere_is_not_sent_where_an_author_says(tmp_path: Path) -> None:
    async with serving(HookServer(b"{}")) as server, opened(tmp_path) as runtime:
        spec = {"stringData": {"value": "s3cret-value"}, "hosts": ["api.example"]}
        await runtime.resources.apply([{"kind": "Secret", "metadata": {"name": "key"}, "spec": spec}])
        agent = hooked(server, on_failure="block", http={"url": server.url, "secretRef": "key"})
        agent.document["metadata"]["declaredBy"] = {"name": "mallory", "operator": False}
        result = await runtime.run(agent, "Go.")
    assert "without it this is not done" in result.output
    assert server.asked == []


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"name": "h"}, "or http is required, and not both"),
        ({"name": "h", "plugin": "p", "http": {"url": "https://a.example"}}, "or http is required, and not both"),
        ({"name": "h", "http": {"url": "https://a.example"}}, "points is required"),
        ({"name": "h", "plugin": "p", "timeout": "1h"}, "must be at most 5m"),
        ({"name": "h", "plugin": "p", "points": ["before_lunch"]}, "before_lunch"),
        ({"plugin": "p"}, "name is required"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        Agent("a", model="mock:x", hooks=[declared])


async def test_a_hook_that_is_declared_and_not_here_fails_by_its_policy(tmp_path: Path) -> None:
    async with opened(tmp_path) as runtime:
        agent = hooked(HookServer(b""), http=None, plugin="gone", on_failure="block")
        result = await runtime.run(agent, "Go.")
    assert "without it this is not done" in result.output


@given(st.binary(max_size=200) | st.sampled_from([b"[]", b"7", b"null", b'{"block": 1}', b'{"change": null}']))
def test_any_bytes_are_an_answer_or_a_failure(body: bytes) -> None:
    with suppress(HookFailed):
        assert isinstance(read(body), HookBlock | HookChange | None)
