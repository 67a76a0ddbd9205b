"""What one agent step costs: Foliot beside its peers, and beside a bare loop, in one run.

    python benchmarks/bench_steps.py [--only TEXT] [--levels 1,10,100,1000] [--rounds 3] [--all]

Ten answers that each call one async tool, then a final answer; the model is a function in the process. Each row runs in
a process of its own, one after the other, by the same code (`peers/harness.py`); peers have their own environments,
made by `make bench-peers`. A step of a durable row is on the disk (fsync) before its effect is allowed to happen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verdict import Verdict

VERDICT = Verdict()

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".bench"
OURS = "Foliot (SQLite, fsync)"
GROUPED = "bare loop + group commit"
COMPARED_AT = "100"
LIMIT_US = 100.0
GIVE_UP_SECONDS = 600


@dataclass(frozen=True)
class Row:
    """One line of the table: a script of `peers/`, and the environment that it runs in."""

    name: str
    script: str
    words: tuple[str, ...] = ()
    environment: str | None = None
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.environment is None else ENVIRONMENTS / self.environment / "bin" / "python"


FLOOR = [Row("bare asyncio loop", "bare.py"), Row(GROUPED, "bare.py", ("durable",))]
FOLIOT = [
    Row(OURS, "with_foliot.py"),
    Row("Foliot (in memory)", "with_foliot.py", variables={"BENCH_STORE": "memory:"}),
]
PEERS = [
    Row("Agno", "with_agno.py", environment="agno"),
    Row("LangGraph StateGraph", "with_langgraph.py", ("graph",), "langgraph"),
    Row("LangGraph create_agent", "with_langgraph.py", ("agent",), "langgraph"),
    Row("Pydantic AI", "with_pydantic_ai.py", environment="pydantic-ai"),
    Row("OpenAI Agents SDK", "with_openai_agents.py", environment="openai-agents"),
    Row("DBOS + SQLite", "with_dbos.py", environment="dbos"),
    Row("LangGraph create_agent + SQLite", "with_langgraph.py", ("sqlite",), "langgraph"),
]


@contextlib.contextmanager
def private_postgres() -> Generator[str | None]:
    """The URL of a server of our own, with fsync; None where none can be started."""
    from foliot.dev.postgres import Postgres
    from foliot.dev.service import ServiceError

    folder = Path(tempfile.mkdtemp(prefix="foliot-bench-"))
    folder.chmod(0o711)  # the user whom PostgreSQL runs as must get through
    server = Postgres(folder / "postgres")
    try:
        yield server.start().url
    except ServiceError as error:
        print(f"without PostgreSQL: {error}", file=sys.stderr)
        yield None
    finally:
        server.purge()
        folder.rmdir()


def measure(row: Row, options: list[str]) -> dict[str, Any] | str:
    """What the row's process printed, or why there is nothing."""
    if not row.python.exists():
        return "not installed: make bench-peers"
    command = [str(row.python), str(HERE / "peers" / row.script), *row.words, *options]
    # Nothing of this may reach for the network, not even when somebody's shell says so.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LANG"))}
    environ = {**inherited, **row.variables, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=GIVE_UP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"gave up after {GIVE_UP_SECONDS} s"
    if done.returncode != 0:
        return f"failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def header(levels: list[str]) -> str:
    over = f"{'':<33}{'µs per step, concurrent runs':^{8 * len(levels)}}{'CPU µs':>9}{'KiB':>6}{'× Foliot':>9}"
    under = f"{'':<33}{''.join(f'{int(level):>8,}' for level in levels)}{'at 100':>9}{'/run':>6}{'at 100':>9}"
    return f"{over}\n{under}  durable, versions"


def line(found: dict[str, Any], levels: list[str], ours: float | None) -> str:
    wall, cpu = found["wall_us"], found["cpu_us"]
    cells = "".join(f"{wall[level]:>8,.0f}" if level in wall else f"{'–':>8}" for level in levels)
    used = f"{cpu[COMPARED_AT]:>9,.0f}" if COMPARED_AT in cpu else f"{'–':>9}"
    ratio = f"{wall[COMPARED_AT] / ours:>9.1f}" if ours and COMPARED_AT in wall else f"{'–':>9}"
    what = "; ".join(each for each in (found["versions"], found["note"]) if each)
    durable = "yes" if found["durable"] else "no "
    return f"{found['name']:<33}{cells}{used}{found['kib_per_run']:>6,.0f}{ratio}  {durable} {what}"


def judge(found: dict[str, dict[str, Any]]) -> None:
    """Holds the figures against the aims: at most 100 µs per durable step, and below everyone else."""
    ours = found.get(OURS, {}).get("wall_us", {}).get(COMPARED_AT)
    if ours is None:
        return
    peers = {row.name for row in PEERS}
    best = min((each["wall_us"][COMPARED_AT] for name, each in found.items() if name in peers), default=None)
    VERDICT.hold(f"{OURS}, a step at 100 runs", ours, "µs", most=LIMIT_US)
    floor = found.get(GROUPED, {}).get("wall_us", {}).get(COMPARED_AT)
    if floor is not None:
        print(f"That is {ours / floor:.1f} times the bare loop with a journal; the aim was set where that took 42 µs.")
    if best is not None:
        print(f"The fastest peer takes {best:,.0f} µs, durable or not: {best / ours:.1f} times as long.")
        VERDICT.hold("the fastest peer beside Foliot", best / ours, "times", least=1)


def main() -> int:
    parser = argparse.ArgumentParser(description="What one agent step costs, beside peers.")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--levels", default="1,10,100,1000", help="concurrent runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="also what takes long: 1,000 runs of slow peers")
    given = parser.parse_args()
    levels: list[str] = given.levels.split(",")
    options = ["--levels", given.levels, "--rounds", str(given.rounds), *(["--all"] if given.all else [])]
    begun = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        rows = [*FLOOR, *FOLIOT]
        if given.only.lower() in "foliot (postgresql, fsync)":
            url = stack.enter_context(private_postgres())
            if url is not None:
                rows.append(Row("Foliot (PostgreSQL, fsync)", "with_foliot.py", variables={"BENCH_STORE": url}))
        print(header(levels), flush=True)
        for row in [*rows, *PEERS]:
            if given.only.lower() not in row.name.lower():
                continue
            outcome = measure(row, options)
            if isinstance(outcome, str):
                print(f"{row.name:<33}{outcome}", flush=True)
                continue
            found[row.name] = outcome
            ours = found.get(OURS, {}).get("wall_us", {}).get(COMPARED_AT)
            print(line(outcome, levels, ours), flush=True)
    judge(found)
    print(f"Load of the machine at the end: {os.getloadavg()[0]:.1f}. It took {time.monotonic() - begun:.0f} s.")
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
