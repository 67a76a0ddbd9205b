"""How long `foliot --help` and `foliot get agents` take, against Python itself, and until a server is ready.

    python benchmarks/bench_startup.py

Commands: the limit is 4 times `python -c pass` plus 100 ms. Servers: from the start of the process until `/readyz`
answers 200, at most one second; and at most 150 MiB resident when nobody asks anything, before and after they have
answered for a while. The best of many starts is compared: noise only ever adds. Of a server the processor time is
shown as well; it is what is judged where more programs want to run than there are processors.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from processes import cpu_seconds, resident
from verdict import Verdict

VERDICT = Verdict()

ROUNDS = 15
STARTS = 7
FACTOR, ALLOWANCE = 4.0, 0.100
READY_WITHIN, LARGEST = 1.0, 150.0
FOLIOT = [sys.executable, "-m", "foliot.cli"]
READ = ("/v1/agents", "/v1/tasks", "/v1/runs", "/v1/capabilities", "/openapi.json")


class Start(NamedTuple):
    """One start of a server: seconds until it was ready, of processor time, and MiB resident then and later."""

    wall: float
    cpu: float
    idle: float
    used: float


def best(command: list[str], environ: dict[str, str]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


def started(word: str, environ: dict[str, str], token: str) -> Start:
    """Start a server, and stop it again."""
    begin = time.perf_counter()
    process = subprocess.Popen([*FOLIOT, word, "--port", "0"], env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while (found := re.search(r"http://([\d.]+):(\d+)", line := process.stderr.readline())) is None:
            assert line, f"foliot {word} ended before it was ready"
        connection = http.client.HTTPConnection(found[1], int(found[2]))
        while get(connection, "/readyz", token) != 200:
            pass
        wall = time.perf_counter() - begin
        cpu, idle = cpu_seconds(process.pid), resident(process.pid)
        for path in READ * 20:
            assert get(connection, path, token) == 200, path
        connection.close()
        return Start(wall, cpu, idle, resident(process.pid))
    finally:
        process.terminate()
        process.communicate()


def get(connection: http.client.HTTPConnection, path: str, token: str) -> int:
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    response.read()
    return response.status


def commands(environ: dict[str, str]) -> None:
    subprocess.run([*FOLIOT, "get", "agents"], env=environ, check=True, capture_output=True)  # makes the store
    python = best([sys.executable, "-c", "pass"], environ)
    limit = FACTOR * python + ALLOWANCE
    print(f"{'command':<20} {'best ms':>8} {'× python':>9} {'limit ms':>9}  verdict")
    print(f"{'python -c pass':<20} {python * 1000:>8.1f} {1:>9.1f}")
    for words in (["--help"], ["get", "agents"]):
        taken = best([*FOLIOT, *words], environ)
        name = " ".join(["foliot", *words])
        verdict = "ok" if VERDICT.hold(name, taken, "s", most=limit) else "TOO SLOW"
        print(f"{name:<20} {taken * 1000:>8.1f} {taken / python:>9.1f} {limit * 1000:>9.1f}  {verdict}")


def busy() -> bool:
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def servers(environ: dict[str, str]) -> None:
    print(f"\n{'server':<20} {'ready ms':>8} {'cpu ms':>8} {'idle MiB':>9} {'used MiB':>9}  verdict")
    made = [*FOLIOT, "tokens", "create", "bench", "--admin", "-o", "json"]
    token = json.loads(subprocess.run(made, env=environ, check=True, capture_output=True, text=True).stdout)["token"]
    for word in ("server", "up"):
        started(word, environ, token)  # which compiles what was never loaded
        starts = [started(word, environ, token) for _ in range(STARTS)]
        wall, cpu, idle, used = (min(each) for each in zip(*starts, strict=True))
        soon = VERDICT.hold(f"foliot {word} is ready", cpu if busy() else wall, "s", most=READY_WITHIN)
        # Where memory cannot be read it is not judged.
        small = math.isnan(used) or VERDICT.hold(f"foliot {word} in memory", used, "MiB", most=LARGEST)
        verdict = "ok" if soon and small else "TOO SLOW" if small else "TOO LARGE"
        name = f"foliot {word}"
        print(f"{name:<20} {wall * 1000:>8.0f} {cpu * 1000:>8.0f} {idle:>9.0f} {used:>9.0f}  {verdict}")
    judged = " of processor time, because the machine is busy," if busy() else ""
    print(f"limits: {READY_WITHIN:g} s{judged} until /readyz answers 200, {LARGEST:g} MiB")


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        # Modules are compiled once, as they are in every installation, whatever this shell is set to.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ = {
            **kept,
            "PYTHONPYCACHEPREFIX": f"{home}/bytecode",
            "FOLIOT_HOME": home,
            "FOLIOT_LOG_LEVEL": "warning",
        }
        commands(environ)
        servers(environ)
    return VERDICT.end()


if __name__ == "__main__":
    sys.exit(main())
