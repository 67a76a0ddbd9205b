"""Tasks over HTTP: what accepting one costs, what doing one costs, and a read by name, for one checkout or several.

    python benchmarks/bench_http_tasks.py [CHECKOUT …] [--rounds 3] [--tasks 400] [--connections 16] [--postgres]

Without a checkout it measures this one. Of several, each with its own environment in `.venv`, the rounds take turns,
so that whatever else the machine does meets all of them. For each round there are

    accept       POST /v1/tasks to `foliot server`, where nobody works: requests a second, CPU of the server for each
    end to end   the same to `foliot up` until every task has ended: three agents in a line, whose model answers at once
    waiting      the same with a model that takes 100 ms: how many are under way at a time is what bounds it
    read         GET of a resource by name, with a token, against a bare FastAPI endpoint that returns a dict

On a busy machine the CPU time for each is the figure that can be compared. FastAPI comes from
`benchmarks/peers/install.py`; without it there is no row for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from http_load import Order, put_load, put_requests
from processes import cpu_seconds
from verdict import Verdict

from foliot.dev.postgres import Postgres
from foliot.dev.session import ServiceSession

VERDICT = Verdict()

HERE = Path(__file__).resolve().parent
FASTAPI = HERE.parent / ".bench" / "fastapi" / "bin" / "python"
MANY = "10000000"  # requests a second: counted as ever, and never too many
AGENTS = ("plan", "find", "write")
AIMS = {"accept": 1500.0, "end to end": 400.0}
ENDED_WITHIN = 120.0
READ_SECONDS = 2.0


class Seen(NamedTuple):
    """Of one load: how many a second, seconds of the server's CPU for each, seconds until half were answered."""

    rate: float
    cpu: float
    p50: float


def documents() -> list[dict[str, Any]]:
    """One line of three agents for a model that answers at once, and one for a model that takes a while."""
    made: list[dict[str, Any]] = []
    for line, delay in (("quick", "0s"), ("slow", "100ms")):
        script = {"turns": [{"say": "{agent} has done it"}], "loop": True, "after": delay}
        endpoint = {"provider": "scripted", "default_model": "scripted", "script": script}
        agents = [f"{line}-{name}" for name in AGENTS]
        made += [
            _document("ModelEndpoint", line, endpoint),
            *(_document("Agent", name, {"model_ref": line, "prompt": "You do it."}) for name in agents),
            _document("AgentSystem", line, {"agents": agents}),
        ]
    return made


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    labels = {"team": "desk"}
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


class Checkout:
    """One checkout, with a store of its own, that serves while the block runs."""

    def __init__(self, root: Path, home: Path, store: str | None) -> None:
        self.root = root
        self.name = root.name
        if not (root / "src" / "foliot").is_dir():
            raise SystemExit(f"{root} is no checkout of Foliot")
        python = root / ".venv" / "bin" / "python"
        self._python = str(python if python.exists() else sys.executable)
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")},
            "FOLIOT_HOME": str(home),
            "FOLIOT_LOG_LEVEL": "warning",
            "FOLIOT_REQUEST_RATE": MANY,
            "PYTHONPATH": str(root / "src"),
            **({"FOLIOT_STORE": store} if store else {}),
        }
        self.seen: dict[str, list[Seen]] = {}
        self._begun = 0

    def prepare(self) -> None:
        words = ["tokens", "create", "bench", "--admin", "-o", "json"]
        self.token: str = json.loads(self._foliot(*words))["token"]
        with self.serving("server") as server:
            server.send("POST", "/v1/apply", {"kind": "List", "items": documents()})

    def _foliot(self, *words: str) -> str:
        command = [self._python, "-m", "foliot.cli", *words]
        return subprocess.run(command, env=self._environ, check=True, capture_output=True, text=True).stdout

    @contextlib.contextmanager
    def serving(self, *words: str) -> Generator[Server]:
        with running([self._python, "-m", "foliot.cli", *words, "--port", "0"], self._environ) as (url, pid):
            yield Server(url, pid, self.token)

    def note(self, what: str, seen: Seen) -> None:
        self.seen.setdefault(what, []).append(seen)

    def round(self, tasks: int, connections: int) -> None:
        """Measure everything once."""
        self._begun += 1
        with self.serving("server") as server:
            self._accept(server, tasks, connections)
        with self.serving("up") as server:
            server.wait_until_ended()  # what only was accepted: it must not be in the way
            self._play(server, "end to end", "quick", tasks, connections)
            self._play(server, "waiting", "slow", tasks, connections)
            self._read(server, connections)

    def _accept(self, server: Server, tasks: int, connections: int) -> None:
        put_requests(self._task(server, "warm-a", "quick"), connections=connections, requests=connections * 2)
        before = cpu_seconds(server.pid)
        load = put_requests(self._task(server, "a", "quick"), connections=connections, requests=tasks)
        assert not load.refused, f"{load.refused} of {tasks} tasks were refused"
        self.note("accept", Seen(load.rate, (cpu_seconds(server.pid) - before) / tasks, load.p50))

    def _play(self, server: Server, what: str, line: str, tasks: int, connections: int) -> None:
        put_requests(self._task(server, f"warm-{line}", line), connections=connections, requests=connections)
        server.wait_until_ended()
        before, begun = cpu_seconds(server.pid), time.perf_counter()
        load = put_requests(self._task(server, f"e-{line}", line), connections=connections, requests=tasks)
        assert not load.refused, f"{load.refused} of {tasks} tasks were refused"
        server.wait_until_ended()
        rate = tasks / (time.perf_counter() - begun)
        self.note(what, Seen(rate, (cpu_seconds(server.pid) - before) / tasks, load.p50))

    def _read(self, server: Server, connections: int) -> None:
        self.note("read", read(Order(f"{server.url}{READ}", headers=server.headers), server.pid, connections))

    def _task(self, server: Server, name: str, system: str) -> Order:
        task = {
            "metadata": {"name": f"{name}-{self._begun}-@"},
            "spec": {"system": system, "input": {"topic": "a number"}},
        }
        typed = {**server.headers, "Content-Type": "application/json"}
        return Order(f"{server.url}/v1/tasks", "POST", typed, json.dumps(task))


READ = "/v1/model-endpoints/quick"


class Server(NamedTuple):
    url: str
    pid: int
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def send(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def wait_until_ended(self) -> None:
        """Wait until no task is under way; raises when one has failed."""
        until = time.monotonic() + ENDED_WITHIN
        while self._some("queued,running,waiting"):
            assert time.monotonic() < until, f"tasks were still under way after {ENDED_WITHIN:g} seconds"
            time.sleep(0.05)
        assert not self._some("failed,cancelled"), "not every task has succeeded: nothing was measured"

    def _some(self, phases: str) -> bool:
        return bool(self.send("GET", f"/v1/tasks?limit=1&phase={phases}")["items"])


def read(order: Order, pid: int, connections: int) -> Seen:
    put_load(order, connections=connections, seconds=0.5)
    before = cpu_seconds(pid)
    load = put_load(order, connections=connections, seconds=READ_SECONDS)
    return Seen(load.rate, (cpu_seconds(pid) - before) / load.requests, load.p50)


@contextlib.contextmanager
def running(words: list[str], environ: dict[str, str]) -> Generator[tuple[str, int]]:
    """The address and the process id of a server, while the block runs."""
    with tempfile.TemporaryFile("w+") as said:  # not a pipe: nobody reads what it says later
        process = subprocess.Popen(words, env=environ, stderr=said, stdout=subprocess.DEVNULL, text=True)
        try:
            while (found := re.search(r"http://[\d.]+:\d+", _text(said))) is None:
                assert process.poll() is None, f"{words} ended before it listened: {_text(said)}"
                time.sleep(0.02)
            yield found[0], process.pid
        finally:
            process.terminate()
            process.wait()


def _text(said: Any) -> str:
    said.seek(0)
    return said.read()


def bare(connections: int) -> Seen:
    """A read of FastAPI."""
    document = next(each for each in documents() if each["metadata"]["name"] == "quick")
    words = [str(FASTAPI), str(HERE / "peers" / "bare_fastapi.py"), json.dumps(document)]
    with running(words, {**os.environ}) as (url, pid):
        time.sleep(0.5)
        return read(Order(f"{url}{READ}"), pid, connections)


def show(checkouts: list[Checkout], fastapi: list[Seen]) -> None:
    """Print the table, and hold the last checkout against the aims."""
    print(f"{'':<12}{'checkout':<14}{'per second':>11}{'p50 ms':>9}{'cpu ms':>9}{'cpu ratio':>11}")
    for what in checkouts[0].seen:
        first = 0.0
        for checkout in checkouts:
            each = Seen(*map(median, zip(*checkout.seen[what], strict=True)))
            first = first or each.cpu
            ratio = each.cpu / first
            print(
                f"{what:<12}{checkout.name[:13]:<14}{each.rate:>11,.0f}{each.p50 * 1e3:>9.2f}{each.cpu * 1e3:>9.3f}"
                f"{ratio:>11.2f}"
            )
            if checkout is checkouts[-1] and what in AIMS:
                VERDICT.hold(what, each.rate, "a second", least=AIMS[what])
    if fastapi:
        each = Seen(*map(median, zip(*fastapi, strict=True)))
        ours = Seen(*map(median, zip(*checkouts[-1].seen["read"], strict=True)))
        print(f"{'read':<12}{'bare FastAPI':<14}{each.rate:>11,.0f}{each.p50 * 1e3:>9.2f}{each.cpu * 1e3:>9.3f}")
        print(
            f"a read by name is {ours.rate / each.rate:.2f} × bare FastAPI, {each.cpu / ours.cpu:.2f} × by CPU (aim 1)"
        )
        VERDICT.hold("a read by name beside bare FastAPI, by CPU", each.cpu / ours.cpu, "times", least=1)
    print(f"load {os.getloadavg()[0]:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE.parent])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--postgres", action="store_true", help="On PostgreSQL instead of SQLite.")
    options = parser.parse_args()
    fastapi: list[Seen] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foliot-bench-")))
        session: ServiceSession | None = None
        if options.postgres:
            session = ServiceSession.begin()
            stack.callback(session.end)
        checkouts: list[Checkout] = []
        for number, root in enumerate(options.checkouts):
            home = folder / str(number)
            home.mkdir()
            store = None
            if session is not None:
                store = Postgres(session.folder / f"store-{number}", owner=session.owner).start().url
            checkouts.append(Checkout(root.resolve(), home, store))
        for checkout in checkouts:
            checkout.prepare()
        for _ in range(options.rounds):
            for checkout in checkouts:
                checkout.round(options.tasks, options.connections)
            if FASTAPI.exists():
                fastapi.append(bare(options.connections))
    show(checkouts, fastapi)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
