"""Several processes on one queue, some of them killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from foliot.store.open import open_database
from foliot.store.queue.claims import LOOKED_AT
from foliot.store.queue.workers import list_workers
from tests.conformance.claims import add

PROCESS = Path(__file__).with_name("worker_process.py")
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
RUNS = 500


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/foliot.db"
    return request.getfixturevalue("postgres_url")


@contextmanager
def process(
    role: str, url: str, file: Path, *words: str, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*within, sys.executable, str(PROCESS), role, url, str(file), *words], stderr=subprocess.PIPE
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(condition: Callable[[], bool], *children: subprocess.Popen[bytes], seconds: float = 50) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        for child in children:
            if child.poll() not in (None, 0):
                assert child.stderr is not None
                pytest.fail(f"a process failed:\n{child.stderr.read().decode()}")
        assert time.monotonic() < deadline, "the processes do not get on"
        time.sleep(0.005)


def queue_up(url: str, count: int) -> None:
    """Runs in as many namespaces and lines as to make the processes choose differently."""

    async def queue() -> None:
        database = await open_database(url)
        await asyncio.gather(
            *(add(database, f"r{n}", namespace=f"ns{n % 3}", agent=f"a{n % 7}", due_at=0.0) for n in range(count))
        )
        await database.close()

    asyncio.run(queue())


@pytest.mark.slow
@pytest.mark.parametrize("url", DATABASES, indirect=True)
def test_of_many_processes_that_claim_at_once_each_run_goes_to_one(url: str, tmp_path: Path) -> None:
    assert LOOKED_AT > 21
    file = tmp_path / "log"
    queue_up(url, RUNS)
    with ExitStack() as stack:
        children = [stack.enter_context(process("storm", url, file, f"w{n}")) for n in range(8)]
        wait_until(lambda: sum(word == "done" for word, *_ in lines(file)) == 8, *children)
    claimed = Counter(run_id for word, run_id, *_ in lines(file) if word == "claimed")
    assert len(claimed) == RUNS
    assert set(claimed.values()) == {1}
    assert {epoch for word, _, *rest in lines(file) if word == "claimed" for epoch in rest} == {"1"}


@pytest.mark.slow
@pytest.mark.parametrize("url", DATABASES, indirect=True)
@pytest.mark.parametrize("successor", ["same-name", "neighbour"])
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_what_a_killed_worker_held_is_taken_over_at_once_although_its_leases_live(
    url: str, successor: str, reaped: bool, tmp_path: Path
) -> None:
    file = tmp_path / "log"
    queue_up(url, 5)
    with ExitStack() as stack:
        first = stack.enter_context(process("work", url, file, "same-name", "hold"))
        wait_until(lambda: sum(word == "holds" for word, *_ in lines(file)) == 5, first)
        if successor == "neighbour":  # it is there already, and notices
            second = stack.enter_context(process("work", url, file, successor, "finish"))
        first.kill()
        if reaped:
            first.wait()
        else:  # it is dead, and its number is taken as long as its parent does not ask for it
            os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        if successor == "same-name":
            second = stack.enter_context(process("work", url, file, successor, "finish"))
        wait_until(lambda: sum(word == "finished" for word, *_ in lines(file)) == 5, second)
    assert {tuple(rest) for word, *rest in lines(file) if word == "finished"} == {(f"r{n}", "2") for n in range(5)}


@pytest.mark.slow
@pytest.mark.parametrize("url", DATABASES, indirect=True)
def test_workers_in_two_pid_namespaces_with_one_host_name_steal_nothing(url: str, tmp_path: Path) -> None:
    """Each has the number 1 where it is, and that of the other means nothing there."""
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), "-pf", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a PID namespace")
    file = tmp_path / "log"
    queue_up(url, 5)
    with ExitStack() as stack:
        first = stack.enter_context(process("work", url, file, "first", "hold", within=unshare))
        wait_until(lambda: sum(word == "holds" for word, *_ in lines(file)) == 5, first)
        second = stack.enter_context(process("work", url, file, "second", "finish", within=unshare))
        third = stack.enter_context(process("work", url, file, "third", "finish"))
        for name in ("second", "third"):
            for _ in range(3):  # with each sign of life it has looked who is dead
                before = last_sign(url, name)
                wait_until(lambda name=name, before=before: last_sign(url, name) > before, first, second, third)
    assert not [line for line in lines(file) if line[0] == "finished"]


def last_sign(url: str, name: str) -> float:
    async def look() -> float:
        database = await open_database(url)
        try:
            return max((each.heartbeat_at for each in await list_workers(database) if each.name == name), default=0.0)
        finally:
            await database.close()

    return asyncio.run(look())
