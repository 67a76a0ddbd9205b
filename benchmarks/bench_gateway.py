"""CPU per model call: Foliot's OpenAI gateway beside the official `openai` SDK, in one run.

Both ask the same wire-level server, which runs in a process of its own so that its work is not counted. What is
measured is `time.process_time` of this process per call: what a worker pays, however long the model thinks.

    python benchmarks/bench_gateway.py [--calls 300] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolResult, ToolSpec, Usage
from foliot.models.config import GatewayConfig
from foliot.models.openai_chat import OpenAIChatGateway
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.testing.wire import Play, WireServer

TARGETS = {"plain": 8, "streamed in 100 chunks": 12}
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

    async def run() -> None:
        async with WireServer([Play(answer, pieces=100)]) as server:
            server.requests = _Forgetful()
            pipe.send(server.url)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(run())


class _Forgetful(list[Any]):
    """The server keeps every request for tests to look at; a benchmark must not grow."""

    def append(self, item: Any) -> None:
        pass


async def cpu_per_call(ask: Callable[[], Awaitable[Any]], calls: int) -> float:
    """Milliseconds of this process's CPU, one call after the other."""
    gc.collect()
    begun = time.process_time()
    for _ in range(calls):
        await ask()
    return (time.process_time() - begun) / calls * 1000


async def measure(url: str, calls: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    import openai

    request = conversation()
    gateway = OpenAIChatGateway(GatewayConfig("openai", base_url=f"{url}/v1", api_key="k"))
    sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    wire = OpenAIChatWire()
    body = wire.build_body(request, wire.names(request), stream=False)
    body["tool_choice"] = "auto"

    async def ours_plain() -> None:
        assert (await gateway.respond(request)).message.text == WORDS

    async def theirs_plain() -> None:
        assert (await sdk.chat.completions.create(**body)).choices[0].message.content == WORDS

    async def ours_streamed() -> None:
        pieces: list[Any] = []
        got = await gateway.respond(request, on_delta=pieces.append)
        assert got.message.text == WORDS
        assert len(pieces) == 100

    async def theirs_streamed() -> None:
        pieces: list[str] = []
        chunks = await sdk.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        async for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
        assert "".join(pieces) == WORDS

    found: dict[str, dict[str, list[float]]] = {}
    try:
        for kind, ours, theirs, count in (
            ("plain", ours_plain, theirs_plain, calls),
            ("streamed in 100 chunks", ours_streamed, theirs_streamed, max(10, calls // 4)),
        ):
            found[kind] = {"foliot": [], "openai SDK": []}
            await cpu_per_call(ours, 20)
            await cpu_per_call(theirs, 5)
            for _ in range(rounds):  # in turn, so that a noisy moment hits both
                found[kind]["foliot"].append(await cpu_per_call(ours, count))
                found[kind]["openai SDK"].append(await cpu_per_call(theirs, max(10, count // 4)))
    finally:
        await gateway.close()
        await sdk.close()
    return found


def report(found: dict[str, dict[str, list[float]]]) -> bool:
    import aiohttp
    import openai

    print(
        f"CPU per call, milliseconds, median of rounds (openai {openai.__version__}, aiohttp {aiohttp.__version__})\n"
    )
    print(f"{'answer':<24}{'foliot':>10}{'openai SDK':>13}{'ratio':>9}{'target':>9}")
    met = True
    for kind, times in found.items():
        ours, theirs = (statistics.median(times[name]) for name in ("foliot", "openai SDK"))
        ratio, target = theirs / ours, TARGETS[kind]
        met = met and ratio >= target
        verdict = "met" if ratio >= target else "MISSED"
        print(f"{kind:<24}{ours:>10.3f}{theirs:>13.3f}{f'1/{ratio:.1f}':>9}{f'1/{target}':>9}  {verdict}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        met = report(asyncio.run(measure(ours.recv(), given.calls, given.rounds)))
    finally:
        ours.send("stop")
        server.join(5)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
