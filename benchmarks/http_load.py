"""Load on an HTTP server: as many requests as its connections can carry, for some seconds; or so many requests.

`wrk` when it is installed, otherwise a simple loop of our own in a process of its own. The second is slower than what
it measures: good for comparing two servers, not for saying how fast one is.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Order:
    """A request that is sent again and again. In the body `@` becomes a number that no other request has."""

    url: str
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: str = ""


@dataclass(frozen=True)
class Load:
    """What came of it: requests, those a second, seconds until half and until 99 of 100 had an answer, refusals."""

    requests: int
    rate: float
    p50: float
    p99: float
    refused: int = 0


def put_load(order: Order, *, connections: int, seconds: float) -> Load:
    """Raises `RuntimeError` when nobody answers."""
    return _by_wrk(order, connections, seconds) if shutil.which("wrk") else _by_ourselves(order, connections, seconds)


def put_requests(order: Order, *, connections: int, requests: int) -> Load:
    """So many requests, and no more. Always by a loop of our own: wrk cannot count."""
    return _by_ourselves(order, connections, 0.0, requests)


def generator() -> str:
    return "wrk" if shutil.which("wrk") else "a loop in Python, because wrk is not installed"


def _by_wrk(order: Order, connections: int, seconds: float) -> Load:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_lua(order))
        script.flush()
        # A whole number of seconds: wrk takes no other.
        words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "-s", script.name]
        said = subprocess.run([*words, order.url], capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if rate is None or float(rate[1]) == 0:
        raise RuntimeError(f"{order.url} does not answer: {said}")
    requests = re.search(r"(\d+) requests in", said)
    assert requests is not None, said
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    p50, p99 = _time(said, "50%"), _time(said, "99%")
    return Load(int(requests[1]), float(rate[1]), p50, p99, int(refused[1]) if refused else 0)


def _time(said: str, share: str) -> float:
    found = re.search(rf"{share}\s+([\d.]+)(us|ms|s|m)", said)
    return float(found[1]) * _UNITS[found[2]] if found else float("nan")


def _lua(order: Order) -> str:
    lines = [f"wrk.method = {json.dumps(order.method)}", "local n = 0"]
    lines += [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in order.headers.items()]
    if order.body:
        before, _, behind = order.body.partition("@")
        number = 'string.format("%.0f", began + n)'  # after the time of day: a second round says something else
        text = f"[==[{before}]==] .. {number} .. [==[{behind}]==]"
        lines += [
            "local began = os.time() * 1000000",
            "function request()",
            "  n = n + 1",
            f"  return wrk.format(nil, nil, nil, {text})",
            "end",
        ]
    return "\n".join(lines) + "\n"


def _by_ourselves(order: Order, connections: int, seconds: float, requests: int = 0) -> Load:
    told = json.dumps(asdict(order))
    words = [sys.executable, str(Path(__file__)), told, str(connections), str(seconds), str(requests)]
    return Load(**json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))


class _Loop:
    """The load of this process."""

    def __init__(self, order: Order, requests: int) -> None:
        self._order = order
        self._left = requests or None  # any number, for some seconds
        self._host, self._port, self._path = _parts(order.url)
        self._number = time.time_ns()
        self.taken: list[float] = []
        self.refused = 0

    async def run(self, connections: int, seconds: float) -> Load:
        begun = time.perf_counter()
        await asyncio.gather(*(self._talk(begun + seconds) for _ in range(connections)))
        taken = sorted(self.taken)
        rate = len(taken) / (time.perf_counter() - begun)
        return Load(len(taken), rate, taken[len(taken) // 2], taken[len(taken) * 99 // 100], self.refused)

    async def _talk(self, until: float) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        while self._goes_on(until):
            begun = time.perf_counter()
            writer.write(self._request())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            self.taken.append(time.perf_counter() - begun)
            self.refused += head[9:10] not in (b"2", b"3")
        writer.close()
        await writer.wait_closed()

    def _goes_on(self, until: float) -> bool:
        if self._left is None:
            return time.perf_counter() < until
        self._left -= 1
        return self._left >= 0

    def _request(self) -> bytes:
        self._number += 1
        body = self._order.body.replace("@", str(self._number), 1).encode()
        headers = {"Host": f"{self._host}:{self._port}", **self._order.headers}
        if body:
            headers["Content-Length"] = str(len(body))
        lines = [f"{self._order.method} {self._path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


def _parts(url: str) -> tuple[str, int, str]:
    found = re.fullmatch(r"http://([^:/]+):(\d+)(/.*)", url)
    assert found is not None, url
    return found[1], int(found[2]), found[3]


if __name__ == "__main__":
    told, places, long, count = sys.argv[1:]
    loop = _Loop(Order(**json.loads(told)), int(count))
    print(json.dumps(asdict(asyncio.run(loop.run(int(places), float(long))))))
