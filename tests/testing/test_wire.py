"""The fake provider itself, asked by hand over a plain socket."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall
from simulators.provider import Fault, Play, WireRequest, WireServer
from simulators.provider_formats import cut


def said(text: str) -> ModelResponse:
    return ModelResponse(Message("assistant", (Text(text),)), model="m", id="i")


async def post(server: WireServer, path: str, body: bytes = b"{}") -> tuple[str, bytes]:
    """The status line and everything after the head."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode()
        if "chunked" in head:
            return head.split("\r\n")[0], await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60)
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        return head.split("\r\n")[0], await asyncio.wait_for(reader.readexactly(length), 60)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_answers_are_played_in_order_and_the_last_one_again() -> None:
    async with WireServer([said("one"), said("two")]) as server:
        texts: list[Any] = []
        for _ in range(3):
            _, body = await post(server, "/v1/chat/completions")
            texts.append(msgspec.json.decode(body)["choices"][0]["message"]["content"])
    assert texts == ["one", "two", "two"]
    assert len(server.requests) == server.connections == 3


async def test_a_function_may_choose_the_answer() -> None:
    def choose(request: WireRequest) -> ModelResponse:
        return said(request.json["model"])

    async with WireServer(choose) as server:
        _, body = await post(server, "/v1/messages", b'{"model": "asked"}')
    assert msgspec.json.decode(body)["content"] == [{"type": "text", "text": "asked"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"stream": true}'),
        ("/v1/responses", b'{"stream":true}'),
        ("/v1/messages", b'{"stream":true}'),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", b"{}"),
        ("/api/chat", b'{"stream":true}'),
    ],
)
async def test_a_stream_is_cut_into_the_pieces_that_were_asked_for(path: str, body: bytes) -> None:
    async with WireServer([Play(said("abcdefghij"), pieces=5)]) as server:
        _, sent = await post(server, path, body)
    assert all(b'"%b"' % piece in sent for piece in (b"ab", b"cd", b"ef", b"gh", b"ij"))


async def test_an_unknown_path_is_not_found_and_a_fault_is_played() -> None:
    async with WireServer([Play(fault=Fault("status", status=418, body=b"{}"))]) as server:
        assert "404" in (await post(server, "/nowhere"))[0]
        assert "418" in (await post(server, "/v1/messages"))[0]


async def test_a_client_that_leaves_while_it_waits_is_noticed() -> None:
    async with WireServer([Play(fault=Fault("hang"))]) as server:
        call = asyncio.create_task(post(server, "/v1/messages"))
        while not server.requests:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.wait_for(server.dropped.wait(), 60)


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_cutting_loses_nothing(pieces: int) -> None:
    assert "".join(cut("Grüezi mitenand", pieces)) == "Grüezi mitenand"
    assert all(cut("Grüezi mitenand", pieces))
    assert cut("", pieces) == []


async def test_names_are_sent_as_a_provider_would_send_them() -> None:
    call = ModelResponse(Message("assistant", (ToolCall("c", "memory.write", "{}"),)), stop="tool_calls")
    async with WireServer([call]) as server:
        _, body = await post(server, "/v1/messages")
    assert msgspec.json.decode(body)["content"][0]["name"] == "memory_write"
