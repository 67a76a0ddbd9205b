"""CPU per model call: Foliot's OpenAI gateway beside the official `openai` SDK, in one run.

Both ask the same wire-level server, which runs in a process of its own so that its work is not counted. What is
measured is `time.process_time` of this process per call: what a worker pays, however long the model thinks.

    python benchmarks/bench_gateway.py [--calls 300] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolResult, ToolSpec, Usage
from foliot.models.config import GatewayConfig
from foliot.models.gateways.openai import OpenAIChatGateway
from foliot.models.wire.openai_chat import OpenAIChatWire

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated provider is not part of the package

from verdict import Verdict

from simulators.provider import Play, WireRequest, WireServer

VERDICT = Verdict()

# The stream is measured twice: its chunks in one rush, of which a client may read many at once, and 2 ms apart, as a
# model writes them. There a chunk that wakes the process up costs more by that than by being read: the column "bare"
# shows what an asyncio protocol pays that reads each as it comes. Only who lets some gather can be near it, or below.
TARGETS = {"plain": 8, "100 chunks, in a rush": 12, "100 chunks, 2 ms apart": 8}
CLIENTS = ("bare", "foliot", "openai SDK")
WORDS = " ".join(f"word{n}" for n in range(100))
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def conversation() -> ModelRequest:
    """Twelve messages and one tool: an agent in the middle of its work."""
    messages = [Message("user", (Text("Find out why the sky is blue, and explain it to a child."),))]
    for n in range(5):
        messages.append(Message("assistant", (ToolCall(f"call_{n}", "search", '{"query": "sky blue"}'),)))
        messages.append(Message("tool", (ToolResult(f"call_{n}", "search", (Text("Rayleigh scattering. " * 20),)),)))
    messages.append(Message("user", (Text("Now write the answer."),)))
    return ModelRequest("gpt-test", tuple(messages), system="You are helpful.", tools=(ToolSpec("search", "", SCHEMA),))


def serve(pipe: Connection) -> None:
    answer = ModelResponse(Message("assistant", (Text(WORDS),)), Usage(900, 120), model="gpt-test", id="chatcmpl-1")

    def play(request: WireRequest) -> Play:
        return Play(answer, pieces=100, pause=0.002 if request.path.startswith("/slow") else 0.0)

    async def run() -> None:
        async with WireServer(play) as server:
            server.requests = _Forgetful()
            pipe.send(server.url)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(run())


class _Forgetful(list[Any]):
    """The server keeps every request for tests to look at; a benchmark must not grow."""

    def append(self, item: Any) -> None:
        pass


class Bare(asyncio.Protocol):
    """Sends one prepared request after the other and looks for nothing but the end of each answer."""

    def __init__(self, path: str, body: bytes) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._end = b"0\r\n\r\n" if b'"stream":true' in body else b"}"
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._done is not None and not self._done.done() and data.endswith(self._end):
            self._done.set_result(None)

    async def ask(self) -> None:
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def cpu_per_call(ask: Callable[[], Awaitable[Any]], calls: int) -> float:
    """Milliseconds of this process's CPU, one call after the other."""
    gc.collect()
    begun = time.process_time()
    for _ in range(calls):
        await ask()
    return (time.process_time() - begun) / calls * 1000


async def measure(url: str, calls: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    import openai  # 1 s to import, and not needed by the server's process

    request = conversation()
    wire = OpenAIChatWire()
    body = wire.build_body(request, wire.names(request), stream=False)
    found: dict[str, dict[str, list[float]]] = {}
    for kind, base, count in (
        ("plain", "/v1", calls),
        ("100 chunks, in a rush", "/v1", max(10, calls // 4)),
        ("100 chunks, 2 ms apart", "/slow/v1", max(8, calls // 20)),
    ):
        gateway = OpenAIChatGateway(GatewayConfig("openai", base_url=url + base, api_key="k"))
        sdk = openai.AsyncOpenAI(base_url=url + base, api_key="k", max_retries=0)

        async def ours_plain(gateway: OpenAIChatGateway = gateway) -> None:
            assert (await gateway.respond(request)).message.text == WORDS

        async def theirs_plain(sdk: Any = sdk) -> None:
            assert (await sdk.chat.completions.create(**body)).choices[0].message.content == WORDS

        async def ours_streamed(gateway: OpenAIChatGateway = gateway) -> None:
            pieces: list[Any] = []
            got = await gateway.respond(request, on_delta=pieces.append)
            assert got.message.text == WORDS
            assert len(pieces) == 100

        async def theirs_streamed(sdk: Any = sdk) -> None:
            pieces: list[str] = []
            chunks = await sdk.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
            async for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    pieces.append(chunk.choices[0].delta.content)
            assert "".join(pieces) == WORDS

        ours, theirs = (ours_plain, theirs_plain) if kind == "plain" else (ours_streamed, theirs_streamed)
        question = wire.build_body(request, wire.names(request), stream=kind != "plain")
        bare = Bare(f"{base}/chat/completions", msgspec.json.encode(question))
        await asyncio.get_running_loop().create_connection(
            lambda bare=bare: bare, "127.0.0.1", int(url.rsplit(":")[-1])
        )
        clients = dict(zip(CLIENTS, ((bare.ask, count), (ours, count), (theirs, max(5, count // 4))), strict=True))
        found[kind] = {name: [] for name in CLIENTS}
        try:
            for ask, _ in clients.values():
                await cpu_per_call(ask, 4)
            for _ in range(rounds):  # in turn, so that a noisy moment hits them all
                for name, (ask, number) in clients.items():
                    found[kind][name].append(await cpu_per_call(ask, number))
        finally:
            bare.close()
            await gateway.close()
            await sdk.close()
    return found


def report(found: dict[str, dict[str, list[float]]]) -> None:
    import aiohttp
    import openai

    print(
        f"CPU per call, milliseconds, median of rounds (openai {openai.__version__}, aiohttp {aiohttp.__version__})\n"
    )
    print(f"{'answer':<24}{'bare':>9}{'foliot':>9}{'openai SDK':>12}{'ratio':>9}{'target':>8}")
    for kind, times in found.items():
        bare, ours, theirs = (statistics.median(times[name]) for name in CLIENTS)
        row = f"{kind:<24}{bare:>9.3f}{ours:>9.3f}{theirs:>12.3f}{f'1/{theirs / ours:.1f}':>9}"
        if (target := TARGETS.get(kind)) is not None:
            reached = VERDICT.hold(f"{kind}: the SDK beside Foliot", theirs / ours, "times", least=target)
            row += f"{f'1/{target}':>8}  {'met' if reached else 'MISSED'}"
        print(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the medians as JSON, for aims.py")
    given = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        found = asyncio.run(measure(ours.recv(), given.calls, given.rounds))
    finally:
        ours.send("stop")
        server.join(5)
    if given.json:
        medians = {
            kind: {name: statistics.median(each) for name, each in times.items()} for kind, times in found.items()
        }
        print(json.dumps(medians))
        return 0
    report(found)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
