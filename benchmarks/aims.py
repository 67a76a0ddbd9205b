"""The aims for speed in one table: old, new, their ratio, what bounds it, and whether it is met. All in one run.

    git worktree add ../before COMMIT && make -C ../before setup
    python benchmarks/aims.py [--base ../before] [--short] [part …]

`part` is the beginning of a group of rows: steps, http, runs, chunks, memory, purge. Without `--base` there is no old
version. Each group is measured by a benchmark of its own (`bench_…`, `compare_steps`), whose rounds take turns between
the versions and what they are held against: the bare loop with a group-committed journal, a bare FastAPI endpoint, a
bare socket, the SDK of a provider. Medians of rounds, and the ratio of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import bench_http_tasks as http
import bench_postgres as tasks
import bench_purge as purge
import bench_runs as runs
import compare_steps as steps
from verdict import Verdict

from foliot.dev.postgres import Postgres
from foliot.dev.session import ServiceSession

VERDICT = Verdict()

HERE: Final = Path(__file__).resolve().parent
LEVEL: Final = 100
OLD, NEW = "old", "new"


class Row(NamedTuple):
    """One line. `floor` says what the new figure is held against; `met` is None where there is no aim."""

    what: str
    old: float | None
    new: float
    unit: str
    aim: str = ""
    met: bool | None = None
    floor: str = ""

    def told(self) -> str:
        old = "" if self.old is None else _figure(self.old)
        ratio = "" if not self.old else f"{self.new / self.old:.2f}"
        verdict = "" if self.met is None else "met" if self.met else "MISSED"
        return (
            f"{self.what:<44}{old:>9}{_figure(self.new):>9} {self.unit:<5}{ratio:>7}  {self.floor:<34}"
            f"{self.aim:<14}{verdict}"
        )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


Roots = Mapping[str, Path]
Group = Callable[[Roots, int], Iterator[Row]]


@contextmanager
def _databases(names: list[str]) -> Iterator[dict[str, str]]:
    """The addresses of new databases on one durable server."""
    session = ServiceSession.begin()
    try:
        server = Postgres(session.folder / "durable", owner=session.owner).start()
        asyncio.run(tasks.create_databases(server.url, names))
        yield {name: server.database_url(name) for name in names}
    finally:
        session.end()


# --- groups of rows --------------------------------------------------------------------------------------------------


def of_steps(roots: Roots, rounds: int) -> Iterator[Row]:
    """A durable step at a hundred runs, beside the bare loop."""
    with ExitStack() as stack:
        urls = stack.enter_context(_databases([f"steps_{name}" for name in roots]))
        sqlite = {name: steps.Side(root, "") for name, root in roots.items()}
        postgres = {name: steps.Side(root, urls[f"steps_{name}"]) for name, root in roots.items()}
        floor = steps.Side(roots[NEW], "", floor=True)
        for side in (*sqlite.values(), *postgres.values(), floor):
            stack.callback(side.close)
        for number in range(rounds):
            for sides in ((*sqlite.values(), floor), tuple(postgres.values())):
                for side in sides if number % 2 else sides[::-1]:
                    side.rounds.append(side.ask("time", LEVEL))

        def median(side: steps.Side | None, figure: str) -> float | None:
            return None if side is None else statistics.median(each[figure] for each in side.rounds)

        least = median(floor, "wall")
        new = median(sqlite[NEW], "wall")
        assert least is not None
        assert new is not None
        told = f"bare loop {least:.0f} µs: {new / least:.1f} ×"
        what = f"durable step, {LEVEL} runs, SQLite"
        yield Row(what, median(sqlite.get(OLD), "wall"), new, "µs", "≤ 2.5 × loop", new / least <= 2.5, told)
        cpu, bare = median(sqlite[NEW], "cpu"), median(floor, "cpu")
        assert cpu is not None
        assert bare is not None
        told = f"bare loop {bare:.0f} µs: {cpu / bare:.1f} ×"
        yield Row("… its CPU", median(sqlite.get(OLD), "cpu"), cpu, "µs", "≤ 2.5 × loop", cpu / bare <= 2.5, told)
        new = median(postgres[NEW], "wall")
        assert new is not None
        yield Row("… PostgreSQL", median(postgres.get(OLD), "wall"), new, "µs", "≤ 250 µs", new <= 250)


def of_http(roots: Roots, rounds: int) -> Iterator[Row]:
    """Tasks and reads over HTTP."""
    with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder:
        sides: dict[str, http.Checkout] = {}
        for name, root in roots.items():
            (home := Path(folder) / name).mkdir()
            sides[name] = http.Checkout(root, home, None)
            sides[name].prepare()
        fastapi: list[http.Seen] = []
        for number in range(max(1, rounds // 3)):
            for name in sorted(sides, reverse=number % 2 == 1):
                sides[name].round(tasks=400, connections=16)
            if http.FASTAPI.exists():
                fastapi.append(http.bare(16))

    def median(name: str, what: str, figure: str) -> float | None:
        side = sides.get(name)
        return None if side is None else statistics.median(getattr(each, figure) for each in side.seen[what])

    for what, title, aim in (
        ("accept", "POST /v1/tasks, 16 connections", 1500),
        ("end to end", "three-agent tasks over HTTP, foliot up", 400),
    ):
        rate, cpu = median(NEW, what, "rate"), median(NEW, what, "cpu")
        assert rate is not None
        assert cpu is not None
        yield Row(title, median(OLD, what, "rate"), rate, "/s", f"≥ {aim:,}/s", rate >= aim)
        before = median(OLD, what, "cpu")
        yield Row("… CPU of each", before and before * 1e3, cpu * 1e3, "ms")
    rate = median(NEW, "read", "rate")
    assert rate is not None
    peer = statistics.median(each.rate for each in fastapi) if fastapi else None
    told = "not measured: make bench-peers" if peer is None else f"FastAPI {peer:,.0f}/s: {rate / peer:.2f} ×"
    met = None if peer is None else rate >= peer
    yield Row("read by name", median(OLD, "read", "rate"), rate, "/s", "≥ 1 × FastAPI", met, told)


def of_runs(roots: Roots, rounds: int) -> Iterator[Row]:
    """A run besides its steps, and a task on PostgreSQL beside one on SQLite."""
    with ExitStack() as stack:
        urls = stack.enter_context(_databases([f"runs_{name}" for name in roots]))
        found: dict[str, dict[str, list[runs.Pair]]] = {}
        task: dict[str, dict[str, float]] = {}
        for kind in ("SQLite", "PostgreSQL"):
            sides = {
                name: tasks.Side(root, "" if kind == "SQLite" else urls[f"runs_{name}"], 64)
                for name, root in roots.items()
            }
            for side in sides.values():
                stack.callback(side.close)
            found[kind] = runs.measured(sides, 100, rounds)
            task[kind] = {}
            for name, side in sides.items():
                side.ask("line", 20)
                task[kind][name] = min(side.ask("line", 200)["task"] for _ in range(max(3, rounds // 3)))

    for kind, aim in (("SQLite", 0.25), ("PostgreSQL", 0.5)):
        rest = {name: statistics.median(each.rest for each in pairs) for name, pairs in found[kind].items()}
        yield Row(
            f"run besides its steps, CPU, {kind}", rest.get(OLD), rest[NEW], "ms", f"≤ {aim} ms", rest[NEW] <= aim
        )
    ratio = {name: task["PostgreSQL"][name] / task["SQLite"][name] for name in roots}
    told = f"SQLite {task['SQLite'][NEW]:.2f} ms"
    yield Row(
        "task on PostgreSQL / on SQLite, CPU", ratio.get(OLD), ratio[NEW], "×", "≤ 1.5 ×", ratio[NEW] <= 1.5, told
    )


def of_chunks(roots: Roots, rounds: int) -> Iterator[Row]:
    """A streamed answer, beside the SDK of a provider and a bare socket."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for number in range(max(1, rounds // 5)):
        for name in sorted(roots, reverse=number % 2 == 1):
            environ = {**os.environ, "PYTHONPATH": f"{roots[name] / 'src'}:{roots[name]}"}
            command = [sys.executable, str(HERE / "bench_gateway.py"), "--json"]
            done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout)["100 chunks, 2 ms apart"])

    def median(name: str, who: str) -> float | None:
        return statistics.median(each[who] for each in found[name]) if name in found else None

    ours, sdk, bare = (median(NEW, who) for who in ("foliot", "openai SDK", "bare"))
    assert ours is not None
    assert sdk is not None
    told = f"SDK {sdk:.1f} ms: 1/{sdk / ours:.1f}; socket {bare:.1f}"
    yield Row("100 chunks 2 ms apart, CPU", median(OLD, "foliot"), ours, "ms", "≤ 1/8 of SDK", sdk / ours >= 8, told)


def of_memory(roots: Roots, rounds: int) -> Iterator[Row]:
    """Python objects of a live run at the highest point of a hundred."""
    found: dict[str, float] = {}
    for name, root in roots.items():
        environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks' / 'peers'}", "BENCH_STORE": ""}
        command = [sys.executable, str(root / "benchmarks" / "peers" / "with_foliot.py"), "--levels", "100"]
        done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout)["kib_per_run"]
    yield Row("memory of a live run", found.get(OLD), found[NEW], "KiB", "≤ 15 KiB", found[NEW] <= 15)


def of_purge(roots: Roots, rounds: int) -> Iterator[Row]:
    """Forgetting 10,000 old tasks."""
    for kind in ("SQLite", "PostgreSQL"):
        rate = {name: purge.measured(root, 10_000, kind == "PostgreSQL")["per_second"] for name, root in roots.items()}
        aim = "≥ 5,000/s"
        yield Row(f"purge of 10,000 tasks, {kind}", rate.get(OLD), rate[NEW], "/s", aim, rate[NEW] >= 5000)


GROUPS: Final[dict[str, Group]] = {
    "steps": of_steps,
    "http": of_http,
    "runs": of_runs,
    "chunks": of_chunks,
    "memory": of_memory,
    "purge": of_purge,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(GROUPS)}; all when none is given")
    parser.add_argument("--base", type=Path, help="the root of another checkout with its own .venv: the old version")
    parser.add_argument("--short", action="store_true", help="a few rounds of each: to see that it works")
    given = parser.parse_args()
    wanted = [name for name in GROUPS if not given.parts or any(name.startswith(part) for part in given.parts)]
    if not wanted:
        parser.error(f"there is no such part; there are {', '.join(GROUPS)}")
    if given.base is not None and not (given.base / "src" / "foliot").is_dir():
        parser.error(f"{given.base} is no checkout of Foliot")
    for name in [each for each in os.environ if each.startswith("FOLIOT_")]:
        del os.environ[name]
    roots = {**({OLD: given.base.resolve()} if given.base else {}), NEW: HERE.parent}
    print(f"{'':<44}{OLD if OLD in roots else '':>9}{NEW:>9} {'':<5}{'ratio':>7}  {'floor or peer':<34}{'aim':<14}")
    for name in wanted:
        for row in GROUPS[name](roots, 3 if given.short else 15):
            print(row.told().rstrip(), flush=True)
            if row.met is not None:
                VERDICT.hold(f"{row.what} (aim {row.aim})", float(row.met), least=1)
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f}.")
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
