"""Many open event streams, and every event to all of them: `python benchmarks/bench_streams.py [--streams 1000]`.

Three processes: a server, the clients with all their connections, and this one, which writes resources into the store
that the server watches. Every stream watches everything, so a thousand streams with a thousand events a second are a
million deliveries a second. The same is then asked of what people write first: Starlette with sse-starlette and a queue
for each client, which makes its events itself and has no store to read them from.

The delay is that of the oldest event in each piece that a client receives. Lost events are counted at the end, when
the writer has stopped and the streams are quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from verdict import Verdict

VERDICT = Verdict()

SECONDS = 6.0
WARM_UP = 2.0
TICK = 0.02
PATIENCE = 120.0
# A piece of a stream ends anywhere: an event is counted where its mark is complete.
MARK = b"\ndata: "
AT = b'"at":'
MEMORY_AIM = 150.0
SHARE_AIM = 0.95


class Seen(NamedTuple):
    """What a measurement showed. Delays are in milliseconds, `memory` in MiB, `cpu` in cores."""

    deliveries: float
    p50: float
    p99: float
    cpu: float
    memory: float
    written: float
    client_cpu: float


# --- the clients ---------------------------------------------------------------------------------------------------


class Reader(asyncio.Protocol):
    """One stream, counted and not read."""

    delays: list[float] = []  # noqa: RUF012  # of all readers together

    def __init__(self, request: bytes, ready: Any) -> None:
        self.events = 0
        self._request = request
        self._ready = ready
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._ready is not None:
            assert data.startswith(b"HTTP/1.1 200"), data
            self._ready()
            self._ready = None
        found = (self._rest + data[: len(MARK)]).count(MARK) + data.count(MARK) - data[: len(MARK)].count(MARK)
        self._rest = data[-len(MARK) + 1 :]
        if not found:
            return
        self.events += found
        place = data.find(AT)
        if 0 <= place < len(data) - 40:
            self.delays.append(time.time() - float(data[place + len(AT) : place + 40].split(b'"')[1]))


async def connect(loop: asyncio.AbstractEventLoop, reader: Reader, host: str, port: int) -> None:
    """With a small buffer: a thousand of the kernel's own choice are more than it has memory for."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    end.setblocking(False)
    await loop.sock_connect(end, (host, port))
    await loop.create_connection(lambda: reader, sock=end)


async def read_streams(host: str, port: int, path: str, count: int) -> None:
    """The process of the clients. A line on standard input asks how far they are."""
    loop = asyncio.get_running_loop()
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode()
    readers: list[Reader] = []
    on = asyncio.Semaphore(0)
    for begun in range(0, count, 50):
        some = [Reader(request, on.release) for _ in range(begun, min(begun + 50, count))]
        await asyncio.gather(*(connect(loop, each, host, port) for each in some))
        for _ in some:
            await on.acquire()
        readers += some
    print("ready", flush=True)
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while await asked.readline():
        delays = sorted(Reader.delays)
        Reader.delays.clear()
        events = [each.events for each in readers]
        answer = {
            "events": sum(events),
            "fewest": min(events),
            "most": max(events),
            "p50": delays[len(delays) // 2] * 1000 if delays else 0.0,
            "p99": delays[int(len(delays) * 0.99)] * 1000 if delays else 0.0,
        }
        print(json.dumps(answer), flush=True)


# --- the servers ---------------------------------------------------------------------------------------------------


async def serve_foliot(home: str) -> None:
    from foliot.runtime.runtime import Runtime
    from foliot.server.app import create_app
    from foliot.server.auth.authentication import Anonymous
    from foliot.server.http.serve import HttpServer, Listen
    from foliot.settings.settings import load_settings

    settings = load_settings({"home": home, "max_streams": "0"}, {})
    async with Runtime(settings=settings) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
            print(server.url.rpartition(":")[2], flush=True)
            await server.ended()


def serve_naive(rate: int, streams: int) -> None:
    """A queue for each client, a generator for each stream, an event at a time, as soon as all streams are open."""
    import uvicorn
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    queues: set[asyncio.Queue[dict[str, Any]]] = set()
    all_on = asyncio.Event()

    async def publish() -> None:
        await all_on.wait()
        begun, sent = time.monotonic(), 0
        while True:
            await asyncio.sleep(TICK)
            due = int((time.monotonic() - begun) * rate)
            for number in range(sent, due):
                event = document(number)
                for queue in queues:
                    if queue.full():
                        queue.get_nowait()  # a slow reader is bounded here too: it loses the oldest
                    queue.put_nowait(event)
            sent = due

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        publishing = asyncio.create_task(publish())
        yield
        publishing.cancel()

    async def events(_: Request) -> EventSourceResponse:
        async def told() -> AsyncGenerator[dict[str, Any]]:
            queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1000)
            queues.add(queue)
            if len(queues) == streams:
                all_on.set()
            try:
                yield {"comment": "on"}
                while True:
                    event = await queue.get()
                    yield {"id": event["metadata"]["name"], "event": "resource", "data": json.dumps(event)}
            finally:
                queues.discard(queue)

        return EventSourceResponse(told())

    app = Starlette(routes=[Route("/events", events)], lifespan=lifespan)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False)
    asyncio.run(uvicorn.Server(config).serve([listener]))


def document(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": f"endpoint-{number % 500}", "namespace": "default"},
        "spec": {"provider": "mock", "default_model": "m", "options": {"at": f"{time.time():.6f}"}},
    }


# --- measuring -----------------------------------------------------------------------------------------------------


class Other:
    """Another process of this file, told what to be."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *words: str) -> Other:
        pipe = asyncio.subprocess.PIPE
        quiet = asyncio.subprocess.DEVNULL if "--naive" in words else None  # it complains of every client that leaves
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, __file__, *words, stdin=pipe, stdout=pipe, stderr=quiet
            )
        )

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            said = (await self.process.stdout.readline()).decode().strip()
        assert said, "the other process ended"
        return said

    async def ask(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"?\n")
        return json.loads(await self.line())

    def cpu(self) -> float:
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Writer:
    """Writes so many resources a second into the store, each one an event."""

    def __init__(self, runtime: Any, rate: int) -> None:
        self.written = 0
        self._runtime = runtime
        self._rate = rate
        self._enough = False
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        from foliot.store.base import Put

        begun = time.monotonic()
        while not self._enough:
            await asyncio.sleep(TICK)
            due = int((time.monotonic() - begun) * self._rate)
            if due > self.written:
                await self._runtime.inside.resources.write([Put(document(each)) for each in range(self.written, due)])
                self.written = due

    async def stop(self) -> None:
        """What is being written is written."""
        self._enough = True
        await self._task


async def measure(server: Other, clients: Other, writer: Writer | None) -> Seen:
    await asyncio.sleep(WARM_UP)
    before, cpu, begun = await clients.ask(), server.cpu(), time.monotonic()
    client_cpu = clients.cpu()
    wrote = writer.written if writer else 0
    highest = 0.0
    for _ in range(int(SECONDS / 0.5)):
        await asyncio.sleep(0.5)
        highest = max(highest, server.memory())
    after, took = await clients.ask(), time.monotonic() - begun
    return Seen(
        (after["events"] - before["events"]) / took,
        after["p50"],
        after["p99"],
        (server.cpu() - cpu) / took,
        highest,
        (writer.written - wrote) / took if writer else 0.0,
        (clients.cpu() - client_cpu) / took,
    )


async def lost(clients: Other, first: dict[str, float], written: int) -> int:
    """Events that some stream has not got when all are quiet."""
    last = -1.0
    while (now := await clients.ask())["events"] != last:
        last = now["events"]
        await asyncio.sleep(1.0)
    return int(written - (now["fewest"] - first["fewest"]))


async def foliot(streams: int, rate: int) -> tuple[Seen, int, float]:
    from foliot.runtime.runtime import Runtime
    from foliot.settings.settings import load_settings

    with tempfile.TemporaryDirectory() as home:
        server = await Other.start("--serve", home)
        port = await server.line()
        clients = await Other.start("--read", port, "/v1/resources/watch", str(streams))
        try:
            await clients.line()
            idle = server.memory()
            async with Runtime(settings=load_settings({"home": home}, {})) as runtime:
                first = await clients.ask()
                while first["fewest"] < 1:  # the bookmark of every stream
                    first = await clients.ask()
                writer = Writer(runtime, rate)
                seen = await measure(server, clients, writer)
                await writer.stop()
                return seen, await lost(clients, first, await runtime.inside.resources.revision()), idle
        finally:
            await clients.end()
            await server.end()


async def naive(streams: int, rate: int) -> Seen:
    server = await Other.start("--naive", str(rate), str(streams))
    port = await server.line()
    clients = await Other.start("--read", port, "/events", str(streams))
    try:
        await clients.line()
        return await measure(server, clients, None)
    finally:
        await clients.end()
        await server.end()


def unread_piece() -> float:
    """Nanoseconds that a piece of an answer costs when nobody reads that run, and a thousand others are read."""
    from timeit import repeat

    from foliot.engine.live.hub import RunHub
    from foliot.engine.live.relay import Relay
    from foliot.kernel.messages import TextDelta

    async def never() -> Any:
        raise AssertionError("nothing is sent")

    hub, delta, times = RunHub(), TextDelta("word "), 100_000
    hub.carry_to(Relay(hub, never), {f"run-{number}" for number in range(1000)})
    return min(repeat(lambda: hub.streamed("unread", 1, delta), number=times, repeat=5)) / times * 1e9


def show(what: str, seen: Seen) -> None:
    delays = f"{seen.p50:>9,.0f} {seen.p99:>9,.0f}"
    print(f"{what:<24} {seen.deliveries:>12,.0f} {delays} {seen.cpu:>7.2f} {seen.memory:>9.0f}", flush=True)


async def compare(streams: int, rate: int) -> int:
    print(
        f"{streams:,} streams, {rate:,} events a second to each: {streams * rate:,} deliveries a second are asked for"
    )
    print(f"{'':<24} {'delivered/s':>12} {'p50 ms':>9} {'p99 ms':>9} {'cores':>7} {'MiB':>9}")
    ours, missing, idle = await foliot(streams, rate)
    show("foliot", ours)
    theirs = await naive(streams, rate)
    show("starlette + sse-starlette", theirs)
    share = ours.deliveries / (streams * max(1.0, ours.written))
    print(
        f"the store took {ours.written:,.0f} events a second; {share:.0%} of them reached every stream in the same time"
    )
    print(
        f"lost: {missing}; memory with all streams open and quiet: {idle:.0f} MiB; clients: {ours.client_cpu:.2f} cores"
    )
    print(f"{ours.deliveries / max(1.0, theirs.deliveries):.1f} times the deliveries of the naive server")
    print(f"a piece of an answer that nobody reads costs {unread_piece():.0f} ns")
    VERDICT.hold("lost events", missing, most=0)
    VERDICT.hold("events that reached every stream in time", share, "of all", least=SHARE_AIM)
    VERDICT.hold("memory", ours.memory, "MiB", most=MEMORY_AIM)
    VERDICT.hold("deliveries beside the naive server", ours.deliveries / max(1.0, theirs.deliveries), "times", least=1)
    return VERDICT.end()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--serve")
    parser.add_argument("--naive", type=int, nargs=2)
    parser.add_argument("--read", nargs=3)
    chosen = parser.parse_args()
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    if chosen.serve:
        asyncio.run(serve_foliot(chosen.serve))
    elif chosen.naive:
        serve_naive(*chosen.naive)
    elif chosen.read:
        port, path, count = chosen.read
        asyncio.run(read_streams("127.0.0.1", int(port), path, int(count)))
    else:
        return asyncio.run(compare(chosen.streams, chosen.rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
