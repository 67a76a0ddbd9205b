"""One engine for both ends: every blueprint gives the same result in one process on SQLite and with three worker
processes on PostgreSQL and NATS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from foliot.cli.commands.init import BLUEPRINTS, init

WORKERS = 3
PATIENCE = 250


class Place:
    """The command line on one store; each command is a process of its own."""

    def __init__(self, home: Path, **settings: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self._environment = {**clean, "FOLIOT_HOME": str(home), **settings}
        home.mkdir()
        self._home = home

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "foliot.cli", *words],
            env=self._environment,
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> str:
        return said(self.start(*words))


def said(process: subprocess.Popen[str]) -> str:
    """What a command prints until it ends, which it must do well."""
    with process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


@contextmanager
def workers(place: Place, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many, each ready; what still runs in the end is killed."""
    started = [place.start("worker", "--name", f"worker-{number}") for number in range(count)]
    try:
        for process in started:
            assert process.stderr is not None
            assert process.stderr.readline(), "the worker ended before it was ready"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_every_blueprint_gives_the_same_result_in_one_process_and_with_three_on_postgres_and_nats(
    tmp_path: Path, postgres_url: str, nats_url: str
) -> None:
    alone = Place(tmp_path / "alone")
    apart = Place(tmp_path / "apart", FOLIOT_STORE=postgres_url, FOLIOT_NATS=nats_url)
    results: dict[str, str] = {}
    for blueprint in BLUEPRINTS:
        made = CliRunner().invoke(init, [str(tmp_path / blueprint), "-b", blueprint], catch_exceptions=False)
        assert made.exit_code == 0
        results[blueprint] = alone.run("task", "run", str(tmp_path / blueprint), "-q", "-n", blueprint, "--here")
        assert results[blueprint].strip()

    with workers(apart, WORKERS):
        asked = {  # all at once: they wait for the same workers
            blueprint: apart.start("task", "run", str(tmp_path / blueprint), "-q", "-n", blueprint, "--no-here")
            for blueprint in BLUEPRINTS
        }
        elsewhere = {blueprint: said(process) for blueprint, process in asked.items()}

    assert elsewhere == results
