"""What work costs on PostgreSQL beside SQLite, in this checkout and in another one, in turns, in one run.

    python benchmarks/bench_postgres.py [/another/checkout] [--rounds 4] [--tasks 200] [--places 64]

Tasks of three agents in a line are accepted, then done by one worker; tasks of one agent that gives one answer or
eleven (ten of them call a tool) tell what a run costs besides its steps: the intercept of the two. Models play scripts
and answer at once. Each figure is the smallest of all rounds, and of CPU time: that of the process, and of PostgreSQL's
processes beside it. Commits, statements (an execution of one, or of many at once) and bodies are counted in a round of
their own, so that counting costs nothing that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from verdict import Verdict

VERDICT = Verdict()

HERE: Final = Path(__file__).parent
CHILD: Final = "--child"
AGENTS: Final = ("plan", "find", "write")
STEPS: Final = 10
LOOK_EVERY: Final = 0.02
WAITS_AT_MOST: Final = 120.0


# --- one side: a checkout on a store ---------------------------------------------------------------------------------


class Side:
    """One checkout on one store: a process that does a round whenever it is told to."""

    def __init__(self, root: Path, store: str, places: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="foliot-bench-")
        environ = {
            **os.environ,
            "PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks' / 'peers'}",
            "BENCH_STORE": store,
            "BENCH_PLACES": str(places),
            "BENCH_HOME": self._folder.name,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), CHILD],
            env=environ,
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rounds: dict[str, list[dict[str, float]]] = {}

    def ask(self, what: str, count: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {count}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("one of the processes has ended; what it said is above")
        return json.loads(line)

    def least(self, what: str, name: str) -> float:
        return min(each[name] for each in self.rounds[what])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


# --- the child: rounds with the packages of one checkout -------------------------------------------------------------


def documents() -> list[dict[str, Any]]:
    """A line of three agents with one answer each, and one agent each with one answer and with eleven."""
    calls = [{"call": {"lookup": {"key": f"k{step}"}}} for step in range(STEPS)]
    script = [
        {"match": {"agent": "long"}, "turns": [*calls, {"say": "done"}]},
        {"turns": [{"say": "{agent} has done it"}]},
    ]
    endpoint = {"provider": "scripted", "default_model": "scripted", "script": script}
    lookup = {"type": "function", "function": "bench_postgres_tool:lookup", "effect": "read"}
    spec: dict[str, Any] = {"model_ref": "script", "prompt": "Answer in one line."}
    agents = dict.fromkeys((*AGENTS, "short"), spec)
    agents["long"] = {**spec, "tools": ["lookup"], "limits": {"max_steps": STEPS + 1}}
    systems = {"line": list(AGENTS), "short": ["short"], "long": ["long"]}
    return [
        {"kind": "ModelEndpoint", "metadata": {"name": "script"}, "spec": endpoint},
        {"kind": "Tool", "metadata": {"name": "lookup"}, "spec": lookup},
        *({"kind": "Agent", "metadata": {"name": name}, "spec": each} for name, each in agents.items()),
        *(
            {"kind": "AgentSystem", "metadata": {"name": name}, "spec": {"agents": each}}
            for name, each in systems.items()
        ),
    ]


class Round:
    """Tasks of one system: accepted all at once, then done by one worker."""

    def __init__(self, runtime: Any, places: int) -> None:
        self._runtime = runtime
        self._places = places
        self._number = 0

    async def accept(self, system: str, count: int) -> list[Any]:
        from foliot.work.tasks.base import Command

        self._number += 1
        service = self._runtime.inside.tasking.tasks
        commands = [Command("system", system, name=f"{system}-{self._number}-{n}", message="go") for n in range(count)]
        accepted = await asyncio.gather(*map(service.accept, commands))
        return [each.task for each in accepted]

    async def work(self, tasks: list[Any]) -> None:
        from foliot.store.queue.placement import Offer

        inside = self._runtime.inside
        worker = inside.tasking.worker(Offer("bench", inside.runs.worker, capacity=self._places))
        working = asyncio.create_task(worker.run())
        keys = json.dumps([str(each.key) for each in tasks])
        try:
            async with asyncio.timeout(WAITS_AT_MOST):
                while await inside.tasking.database.read("task_live", tasks=keys):  # noqa: ASYNC110  # as users look
                    await asyncio.sleep(LOOK_EVERY)
        finally:
            worker.drain()
            await working

    async def check(self, tasks: list[Any]) -> None:
        for each in tasks:
            info = await self._runtime.inside.tasking.tasks.get(each.namespace, each.name)
            if info.phase != "succeeded":
                raise SystemExit(f"task {each.name} is {info.phase}: nothing was measured")

    async def timed(self, system: str, count: int) -> dict[str, float]:
        gc.collect()
        marks = [time.process_time()]
        tasks = await self.accept(system, count)
        marks.append(time.process_time())
        await self.work(tasks)
        marks.append(time.process_time())
        await self.check(tasks)
        return {
            "accept": (marks[1] - marks[0]) / count * 1e3,
            "work": (marks[2] - marks[1]) / count * 1e3,
            "task": (marks[2] - marks[0]) / count * 1e3,
        }


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what goes to PostgreSQL: `statements`, and of them `commits`; with the text of each as its key too."""
    from asyncpg.protocol import Protocol

    found: Counter[str] = Counter()
    kept = {name: getattr(Protocol, name) for name in ("query", "bind_execute", "bind_execute_many")}

    def counting(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            said = kwargs["state"] if "state" in kwargs else args[0]
            text = said if isinstance(said, str) else said.query
            found["statements"] += 1
            found["commits"] += text == "COMMIT"
            found[f"text {text}"] += 1
            return kept[name](self, *args, **kwargs)

        return call

    for name in kept:
        setattr(Protocol, name, counting(name))
    try:
        yield found
    finally:
        for name, method in kept.items():
            setattr(Protocol, name, method)


@contextlib.contextmanager
def called() -> Iterator[Counter[str]]:
    """Counts the calls of functions on this thread, by what a profiler calls them: `call` is one in Python."""
    found: Counter[str] = Counter()

    def heard(frame: object, event: str, argument: object) -> None:
        found[event] += 1

    sys.setprofile(heard)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def child() -> None:
    """Do the rounds that are asked for on standard input."""
    home = Path(os.environ["BENCH_HOME"])
    (home / "bench_postgres_tool.py").write_text(
        "async def lookup(key: str) -> str:\n    return 'The value of the key is 42.'\n"
    )
    sys.path.insert(0, str(home))
    from harness import STEPS as STEPS_OF_A_RUN
    from with_foliot import opened

    from foliot.resources.validate import validate_document
    from foliot.runtime.runtime import Runtime
    from foliot.settings.settings import load_settings
    from foliot.store.base import Put

    store = os.environ["BENCH_STORE"] or str(home / "foliot.db")
    os.environ["BENCH_STORE"] = store
    settings = load_settings({"home": str(home), "store": store}, {})
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime(settings=settings))
        made = [validate_document(each)[0] for each in documents()]
        await runtime.inside.resources.write([Put(each) for each in made if each is not None])
        rounds = Round(runtime, int(os.environ["BENCH_PLACES"]))
        run = await stack.enter_async_context(opened())

        async def steps(level: int) -> dict[str, float]:
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            calls = await asyncio.gather(*(run() for _ in range(level)))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            assert calls == [STEPS_OF_A_RUN] * level, "a run did not make all of its calls: nothing was measured"
            each = level * STEPS_OF_A_RUN / 1e6
            return {"cpu": cpu / each, "wall": wall / each}

        while line := await asyncio.to_thread(sys.stdin.readline):
            what, count = line.split()[0], int(line.split()[1])
            if what == "steps":
                found: dict[str, Any] = await steps(count)
            elif what == "count":
                found = {}
                with counted() as seen:
                    tasks = await rounds.accept("line", count)
                    found["accept"] = {name: n / count for name, n in seen.items()}
                    seen.clear()
                    await rounds.work(tasks)
                    found["work"] = {name: n / count for name, n in seen.items()}
            elif what.startswith("calls:"):
                tasks = await rounds.accept(what.removeprefix("calls:"), count)
                with called() as seen:
                    await rounds.work(tasks)
                found = {"python": seen["call"] / count}
            else:
                found = await rounds.timed(what, count)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


# --- the parent ------------------------------------------------------------------------------------------------------


def server_seconds(postmaster: int) -> float:
    """The CPU time of PostgreSQL: of its postmaster, of children that have ended, and of those that live."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) == postmaster:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == postmaster:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def create_databases(url: str, names: list[str]) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    for name in names:
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()


def table(title: str, names: list[str], figures: dict[str, list[float]], aims: dict[str, float]) -> None:
    print(
        f"\n{title:<44}{''.join(f'{name:>12}' for name in names)}{'new / old' if len(names) > 1 else '':>12}{'aim':>8}"
    )
    for what, cells in figures.items():
        ratio = f"{cells[-1] / cells[0]:>12.2f}" if len(cells) > 1 and cells[0] else f"{'':>12}"
        aim = f"{aims[what]:>8g}" if what in aims else ""
        print(f"{what:<44}{''.join(f'{each:>12.2f}' for each in cells)}{ratio}{aim}")


def bench(roots: dict[str, Path], urls: dict[str, str], postmaster: int, given: argparse.Namespace) -> None:
    sides = {
        (name, kind): Side(root, urls[name] if kind == "postgres" else "", given.places)
        for name, root in roots.items()
        for kind in ("sqlite", "postgres")
    }
    plan = {"line": given.tasks, "short": given.tasks, "long": max(20, given.tasks // 3), "steps": given.level}
    try:
        for side in sides.values():
            for what in plan:
                side.ask(what, 20)  # imports, compiled schemas, prepared statements
        for number in range(given.rounds):
            for what, count in plan.items():
                for key in sorted(sides, reverse=number % 2 == 1):
                    before = server_seconds(postmaster)
                    found = sides[key].ask(what, count)
                    found["server"] = (server_seconds(postmaster) - before) / count * 1e3
                    sides[key].rounds.setdefault(what, []).append(found)
        counts = {name: sides[name, "postgres"].ask("count", given.tasks) for name in roots}
        report(list(roots), sides, counts, given)
    finally:
        for side in sides.values():
            side.close()


def report(
    names: list[str], sides: dict[tuple[str, str], Side], counts: dict[str, Any], given: argparse.Namespace
) -> None:
    def cells(kind: str, what: str, figure: str) -> list[float]:
        return [sides[name, kind].least(what, figure) for name in names]

    def step_and_run(kind: str, name: str) -> tuple[float, float]:
        side = sides[name, kind]
        short, long = side.least("short", "work"), side.least("long", "work")
        step = (long - short) / STEPS
        return step * 1e3, short - step

    figures: dict[str, list[float]] = {}
    for kind in ("sqlite", "postgres"):
        figures[f"{kind}: three-agent task, CPU ms"] = cells(kind, "line", "task")
        figures[f"{kind}:   accepting it"] = cells(kind, "line", "accept")
        figures[f"{kind}:   doing it"] = cells(kind, "line", "work")
        figures[f"{kind}: step of a task's run, CPU µs"] = [step_and_run(kind, name)[0] for name in names]
        figures[f"{kind}: run besides its steps, CPU ms"] = [step_and_run(kind, name)[1] for name in names]
        figures[f"{kind}: step at {given.level} runs, CPU µs"] = cells(kind, "steps", "cpu")
        figures[f"{kind}: step at {given.level} runs, wall µs"] = cells(kind, "steps", "wall")
    figures["postgres: three-agent task, server CPU ms"] = cells("postgres", "line", "server")
    for what in ("task", "accept", "work"):
        figures[f"postgres / sqlite, CPU of a task: {what}"] = [
            sides[name, "postgres"].least("line", what) / sides[name, "sqlite"].least("line", what) for name in names
        ]
    for part in ("accept", "work"):
        for what in ("commits", "statements"):
            figures[f"postgres: {what} of a task, {part}"] = [counts[name][part].get(what, 0.0) for name in names]
    aims = {
        f"postgres: step at {given.level} runs, wall µs": 250.0,
        "postgres: run besides its steps, CPU ms": 0.5,
        "sqlite: run besides its steps, CPU ms": 0.25,
        "postgres / sqlite, CPU of a task: task": 1.5,
    }
    table(f"{given.tasks} tasks, {given.places} places, {given.rounds} rounds", names, figures, aims)
    for what, aim in aims.items():
        VERDICT.hold(what, figures[what][-1], most=aim)
    if given.texts:
        for name in names:
            for part, seen in counts[name].items():
                print(f"\n{name}, {part}: executions a task")
                texts = [(n, text[5:]) for text, n in seen.items() if text.startswith("text ")]
                for n, text in sorted(texts, reverse=True):
                    print(f"{n:>8.2f}  {' '.join(text.split())[:110]}")
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f}.")


def main() -> int:
    parser = argparse.ArgumentParser(description="What work costs on PostgreSQL beside SQLite, here and in a checkout.")
    parser.add_argument("other", type=Path, nargs="?", help="the root of another checkout, to compare with")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--places", type=int, default=64, help="of the worker: `foliot up` has 8")
    parser.add_argument("--level", type=int, default=100, help="concurrent runs for the cost of a step")
    parser.add_argument("--texts", action="store_true", help="show how often each statement is executed")
    given = parser.parse_args()
    if given.other is not None and not (given.other / "src" / "foliot").is_dir():
        raise SystemExit(f"{given.other} is no checkout of Foliot: it has no src/foliot")
    roots = {"here": HERE.parent.resolve()}
    if given.other is not None:
        roots = {"other": given.other.resolve(), **roots}

    from foliot.dev.postgres import Postgres
    from foliot.dev.session import ServiceSession

    session = ServiceSession.begin()
    try:
        server = Postgres(session.folder / "durable", owner=session.owner).start()
        assert server.pid is not None  # it has just been started
        urls = {name: server.database_url(f"bench_{name}") for name in roots}
        asyncio.run(create_databases(server.url, [f"bench_{name}" for name in roots]))
        bench(roots, urls, server.pid, given)
    finally:
        session.end()
    return VERDICT.end()


if __name__ == "__main__":
    if CHILD in sys.argv:
        asyncio.run(child())
    else:
        raise SystemExit(main())
