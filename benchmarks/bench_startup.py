"""How long `foliot --help` and `foliot get agents` take to start, against Python itself.

    python benchmarks/bench_startup.py

The limit is 4 times `python -c pass` plus 100 ms. The best of many starts is compared: noise only ever adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

ROUNDS = 15
FACTOR, ALLOWANCE = 4.0, 0.100


def best(command: list[str], environ: dict[str, str]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "FOLIOT_HOME": home}
        foliot = [sys.executable, "-m", "foliot.cli"]
        subprocess.run([*foliot, "get", "agents"], env=environ, check=True, capture_output=True)  # makes the store
        python = best([sys.executable, "-c", "pass"], environ)
        limit = FACTOR * python + ALLOWANCE
        print(f"{'command':<20} {'best ms':>8} {'× python':>9} {'limit ms':>9}  verdict")
        print(f"{'python -c pass':<20} {python * 1000:>8.1f} {1:>9.1f}")
        failed = False
        for words in (["--help"], ["get", "agents"]):
            taken = best([*foliot, *words], environ)
            failed |= taken > limit
            verdict = "ok" if taken <= limit else "TOO SLOW"
            name = " ".join(["foliot", *words])
            print(f"{name:<20} {taken * 1000:>8.1f} {taken / python:>9.1f} {limit * 1000:>9.1f}  {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
