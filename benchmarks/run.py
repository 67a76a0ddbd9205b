"""All benchmarks, one after the other, each in a process of its own: `python benchmarks/run.py [name …]`.

    git worktree add ../before v0.4 && make -C ../before setup
    python benchmarks/run.py --base ../before http_tasks postgres compare purge

A name is a part of a file's name: `steps`, `waiting`, `store` … With `--base`, those that can compare this checkout
with another one do so, in turns. The exit code says how many missed their aim. Numbers of a busy machine mean little;
the load is printed before each table.
"""

from __future__ import annotations

import argparse
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
    "sizes",
    "gateway",
    "waiting",
    "queue",
    "tasks",
    "workers",
    "runs",
    "server",
    "streams",
    "steps",
]


# Those that take another checkout, and how they are told of both.
COMPARE = HERE / "compare_steps.py"


def arguments_of(path: Path, base: Path) -> list[str]:
    """The arguments by which a benchmark compares this checkout with another one; none where it cannot."""
    known = {
        "bench_http_tasks": [str(base), str(HERE.parent)],
        "bench_postgres": [str(base)],
        "bench_purge": [str(base)],
        "bench_runs": [str(base)],
        "compare_steps": [str(base)],
    }
    return known.get(path.stem, [])


def chosen(words: list[str], base: Path | None = None) -> list[Path]:
    """The benchmarks that are there and wanted: the known ones in their order, then the others by name."""
    known = [path for name in ORDER if (path := HERE / f"bench_{name}.py").exists()]
    found = [*known, *(path for path in sorted(HERE.glob("bench_*.py")) if path not in known)]
    if base is not None:
        found.append(COMPARE)
    return [path for path in found if not words or any(word in path.stem for word in words)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs benchmarks, one after the other.")
    parser.add_argument("names", nargs="*", help="parts of names; all when none is given")
    parser.add_argument("--base", type=Path, help="the root of another checkout with its own .venv, to compare with")
    asked = parser.parse_args()
    base = None if asked.base is None else asked.base.resolve()
    if base is not None and not ((base / "src" / "foliot").is_dir() and (base / ".venv" / "bin" / "python").exists()):
        print(f"{base} is no checkout with an environment of its own: `make -C {base} setup` makes it", file=sys.stderr)
        return 2
    for name in [each for each in os.environ if each.startswith("FOLIOT_") and not each.startswith("FOLIOT_BENCH_")]:
        del os.environ[name]  # the store and the settings of the person who measures are none of theirs
    benchmarks = chosen(asked.names, base)
    if not benchmarks:
        there = ", ".join(path.stem.removeprefix("bench_") for path in chosen([]))
        print(f"no benchmark has such a name; there are: {there}", file=sys.stderr)
        return 2
    missed: list[str] = []
    for path in benchmarks:
        print(f"=== {path.stem.removeprefix('bench_')}  (load {os.getloadavg()[0]:.1f})", flush=True)
        begun = time.monotonic()
        given = [] if base is None else arguments_of(path, base)
        if subprocess.run([sys.executable, str(path), *given]).returncode != 0:
            missed.append(path.stem.removeprefix("bench_"))
        print(f"    {time.monotonic() - begun:.0f} s\n", flush=True)
    print(f"Missed their aim: {', '.join(missed)}" if missed else "Every aim is met.")
    return len(missed)


if __name__ == "__main__":
    raise SystemExit(main())
