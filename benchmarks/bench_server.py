"""Requests a second of `foliot server`, and how long they take, against a bare Starlette endpoint.

    python benchmarks/bench_server.py [--seconds 3] [--rounds 3] [--connections 16]

Both servers are processes of their own with the same settings of uvicorn. The bare one returns a dict that never
changes: no token, no database. Rounds take turns, and the medians are compared, so that a machine that is busy with
something else is busy for both. The aim: a read by name with a token at half the rate of the bare endpoint, and 99 of
100 answered within five times its time. The processor time that the server spent on each request says more on a busy
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

from http_load import Order, generator, put_load
from processes import cpu_seconds
from verdict import Verdict

from foliot.server.http.serve import HttpServer, Listen

VERDICT = Verdict()

ENDPOINTS = 100
MANY = "10000000"  # a second: counted as ever, and never too many
RATE_AIM, P99_AIM = 0.5, 5.0
SYSTEM = {
    "Agent": ("agents", {"metadata": {"name": "writer"}, "spec": {"model_ref": "e-0", "prompt": "You write."}}),
    "AgentSystem": ("agent-systems", {"metadata": {"name": "desk"}, "spec": {"agents": ["writer"]}}),
}
READ, BARE = "read by name", "bare Starlette, a dict"


def endpoint(name: str, weight: str = "1") -> dict[str, object]:
    labels = {"team": "desk", "weight": weight}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"provider": "mock", "default_model": "mock"}}


class Seen(NamedTuple):
    """Of one load: requests a second, seconds until answered, seconds of processor time for each, and refusals."""

    rate: float
    p50: float
    p99: float
    cpu: float
    refused: float


@contextmanager
def running(words: list[str], environ: dict[str, str]) -> Generator[tuple[str, int]]:
    """The address and the process id of a server, while the block runs."""
    process = subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while (found := re.search(r"http://[\d.]+:\d+", line := process.stderr.readline())) is None:
            assert line, f"{words} ended before it listened"
        yield found[0], process.pid
    finally:
        process.terminate()
        process.communicate()


def foliot(environ: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "foliot.cli", *words]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def send(url: str, token: str, path: str, document: object) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(document).encode(), headers, method="POST")
    urllib.request.urlopen(request).read()


def prepare(url: str, token: str) -> None:
    for number in range(ENDPOINTS):
        send(url, token, "/v1/model-endpoints", endpoint(f"e-{number}"))
    for path, document in SYSTEM.values():
        send(url, token, f"/v1/{path}", document)


def orders(bare: str, url: str, token: str) -> dict[str, Order]:
    """What is asked, by name."""
    known = {"Authorization": f"Bearer {token}"}
    typed = {**known, "Content-Type": "application/json"}
    task = {"metadata": {"name": "t-@"}, "spec": {"system": "desk", "input": {"topic": "a number"}}}
    changed = json.dumps(endpoint("changing", "@"))
    return {
        BARE: Order(f"{bare}/v1/model-endpoints/e-7", headers=known),
        READ: Order(f"{url}/v1/model-endpoints/e-7", headers=known),
        "list of 50": Order(f"{url}/v1/model-endpoints?limit=50", headers=known),
        "change of one": Order(f"{url}/v1/model-endpoints", "POST", typed, changed),
        "new task": Order(f"{url}/v1/tasks", "POST", typed, json.dumps(task)),
    }


def measure(
    asked: dict[str, Order], pids: dict[str, int], rounds: int, connections: int, seconds: float
) -> dict[str, list[Seen]]:
    """Some of each in turn; the first of each, for which everything is still to be loaded, does not count."""
    for order in asked.values():
        put_load(order, connections=connections, seconds=1)
    seen: dict[str, list[Seen]] = {name: [] for name in asked}
    for _ in range(rounds):
        for name, order in asked.items():
            pid = pids[order.url.rpartition("/v1/")[0]]
            before = cpu_seconds(pid)
            load = put_load(order, connections=connections, seconds=seconds)
            cpu = (cpu_seconds(pid) - before) / load.requests
            seen[name].append(Seen(load.rate, load.p50, load.p99, cpu, load.refused))
    return seen


def show(seen: dict[str, list[Seen]]) -> None:
    """Print the table, and hold it against the aims."""
    heads = ("per second", 10), ("× bare", 7), ("p50 ms", 8), ("p99 ms", 8), ("× bare", 7), ("cpu µs", 7), ("× bare", 7)
    print(" " * 22, *(f"{head:>{width}}" for head, width in heads))
    medians = {name: Seen(*map(median, zip(*rounds, strict=True))) for name, rounds in seen.items()}
    bare, read = medians[BARE], medians[READ]
    for name, each in medians.items():
        rate = f"{each.rate:>10,.0f} {each.rate / bare.rate:>7.2f}"
        times = f"{each.p50 * 1e3:>8.2f} {each.p99 * 1e3:>8.2f} {each.p99 / bare.p99:>7.1f}"
        remark = "  SOME REFUSED" if any(once.refused for once in seen[name]) else ""
        print(f"{name:<22} {rate} {times} {each.cpu * 1e6:>7.0f} {each.cpu / bare.cpu:>7.2f}{remark}")
    VERDICT.hold("read by name beside bare", read.rate / bare.rate, "times the rate", least=RATE_AIM)
    VERDICT.hold("p99 of a read by name beside bare", read.p99 / bare.p99, "times", most=P99_AIM)
    VERDICT.hold("refused requests", sum(once.refused for rounds in seen.values() for once in rounds), most=0)


async def serve_bare() -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    document = {"apiVersion": "foliot.dev/v1", "kind": "ModelEndpoint", **endpoint("e-7")}

    async def get_endpoint(request: Request) -> JSONResponse:
        return JSONResponse(document)

    app = Starlette(routes=[Route("/v1/model-endpoints/{name}", get_endpoint)])
    app.state.services = SimpleNamespace(closing=asyncio.Event())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with HttpServer(app, Listen("127.0.0.1", 0)) as http:
        print(http.url, file=sys.stderr, flush=True)
        await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        asyncio.run(serve_bare())
        return 0
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "FOLIOT_HOME": home, "FOLIOT_LOG_LEVEL": "warning", "FOLIOT_REQUEST_RATE": MANY}
        token = json.loads(foliot(environ, "tokens", "create", "bench", "--admin", "-o", "json"))["token"]
        with (
            running([sys.executable, __file__, "--bare"], environ) as (bare, bare_pid),
            running([sys.executable, "-m", "foliot.cli", "server", "--port", "0"], environ) as (url, pid),
        ):
            prepare(url, token)
            print(f"{options.connections} connections, load by {generator()}", flush=True)
            asked, pids = orders(bare, url, token), {bare: bare_pid, url: pid}
            seen = measure(asked, pids, options.rounds, options.connections, options.seconds)
    show(seen)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
