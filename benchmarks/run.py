"""All benchmarks, one after the other, each in a process of its own: `python benchmarks/run.py [name …]`.

A name is a part of a file's name: `steps`, `waiting`, `store` … The exit code says how many missed their aim. Numbers
of a busy machine mean little; the load is printed before each table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ORDER = [
    "startup",
    "manifests",
    "store",
    "gateway",
    "waiting",
    "queue",
    "tasks",
    "workers",
    "server",
    "streams",
    "steps",
]


def chosen(words: list[str]) -> list[Path]:
    """The benchmarks that are there and wanted: the known ones in their order, then the others by name."""
    known = [path for name in ORDER if (path := HERE / f"bench_{name}.py").exists()]
    found = [*known, *(path for path in sorted(HERE.glob("bench_*.py")) if path not in known)]
    return [path for path in found if not words or any(word in path.stem for word in words)]


def main() -> int:
    benchmarks = chosen(sys.argv[1:])
    if not benchmarks:
        there = ", ".join(path.stem.removeprefix("bench_") for path in chosen([]))
        print(f"no benchmark has such a name; there are: {there}", file=sys.stderr)
        return 2
    missed: list[str] = []
    for path in benchmarks:
        print(f"=== {path.stem.removeprefix('bench_')}  (load {os.getloadavg()[0]:.1f})", flush=True)
        begun = time.monotonic()
        if subprocess.run([sys.executable, str(path)]).returncode != 0:
            missed.append(path.stem.removeprefix("bench_"))
        print(f"    {time.monotonic() - begun:.0f} s\n", flush=True)
    print(f"Missed their aim: {', '.join(missed)}" if missed else "Every aim is met.")
    return len(missed)


if __name__ == "__main__":
    raise SystemExit(main())
