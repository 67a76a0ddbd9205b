"""What a call has started ends with it, wherever it went."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import pytest

from foliot.common.call_processes import outlives_call
from foliot.tools.function import tool
from foliot.tools.mcp.process import Launch
from foliot.tools.mcp.stdio import UnfencedProcess, start_unfenced
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.running import going_on
from tests.tools.governed import call

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sees processes through /proc"),
    # The tools here are careless with what they start: nobody waits for it.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A folder in which a process leaves its number as a file; what lives at the end is killed."""
    yield tmp_path
    for file in tmp_path.iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.name), 9)


def of(folder: Path, count: int = 1) -> list[int]:
    found = [int(file.name) for file in folder.iterdir()]
    assert len(found) == count
    return found


def sleeper(pids: Path) -> str:
    return f"touch {pids}/$$; exec sleep 600"


def plain(pids: Path) -> None:
    subprocess.Popen(["sh", "-c", sleeper(pids)])


def deaf(pids: Path) -> None:
    subprocess.Popen(["sh", "-c", f"trap '' TERM; touch {pids}/$$; while :; do sleep 0.05; done"])


def left_by_a_shell(pids: Path) -> None:
    subprocess.run(f"sh -c '{sleeper(pids)}' &", shell=True, check=True)


def daemon(pids: Path) -> None:
    subprocess.run(["setsid", "--fork", "sh", "-c", sleeper(pids)], check=True, start_new_session=True)


def with_an_environment(pids: Path) -> None:
    subprocess.run(f"sh -c '{sleeper(pids)}' &", shell=True, check=True, env={"PATH": os.environ["PATH"]})


def forked(pids: Path) -> None:
    if os.fork() == 0:
        os.execvp("sh", ["sh", "-c", sleeper(pids)])


def spawned(pids: Path) -> None:
    os.posix_spawn("/bin/sh", ["sh", "-c", sleeper(pids)], os.environ)


def by_system(pids: Path) -> None:
    assert os.system(f"sh -c '{sleeper(pids)}' & exit 3") == 3 << 8


WAYS = [plain, deaf, left_by_a_shell, daemon, with_an_environment, forked, spawned, by_system]


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_function_started_ends_with_its_call(way: Any, pids: Path, monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.processes.GRACE", 0.2)

    @tool(effect="read")
    def starts() -> str:
        way(pids)
        while not list(pids.iterdir()):
            os.sched_yield()
        return "started"

    result = await Pipeline([starts]).call(call("starts"))

    assert result.error is None, result.error
    assert not any(map(lives, of(pids)))


async def test_what_a_coroutine_started_ends_with_its_call_and_others_go_on() -> None:
    both, release = asyncio.Event(), asyncio.Event()
    started: dict[str, int] = {}

    async def begin() -> int:
        process = await asyncio.create_subprocess_exec("sleep", "600")
        return process.pid

    @tool(effect="read")
    async def short() -> None:
        started["short"] = await begin()
        await both.wait()

    @tool(effect="read")
    async def long() -> None:
        started["long"] = await begin()
        both.set()
        await release.wait()

    box = Pipeline([short, long])
    waits = asyncio.create_task(box.call(call("long")))
    await box.call(call("short"))

    assert not lives(started["short"])
    assert lives(started["long"])
    release.set()
    await waits
    assert not lives(started["long"])


async def test_a_function_that_waits_for_a_process_ends_at_its_bound_together_with_it(pids: Path) -> None:
    @tool(effect="read", timeout=0.5)
    def waits() -> None:
        subprocess.run(["sh", "-c", sleeper(pids)], check=False)

    result = await Pipeline([waits]).call(call("waits"))

    assert result.error is not None
    assert result.error.kind == "timeout"
    while going_on():  # on a busy machine it may take longer than it is waited for
        await asyncio.sleep(0.001)
    assert not any(map(lives, [int(file.name) for file in pids.iterdir()]))


async def test_a_cancelled_call_leaves_no_process(pids: Path) -> None:
    started = threading.Event()

    @tool(effect="read")
    async def waits() -> None:
        process = await asyncio.create_subprocess_exec("sh", "-c", f"touch {pids}/$$; sleep 600; true")
        started.set()
        await process.wait()

    task = asyncio.create_task(Pipeline([waits]).call(call("waits")))
    while not list(pids.iterdir()):
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not any(map(lives, of(pids)))


async def test_what_is_to_outlive_its_call_does() -> None:
    kept: list[subprocess.Popen[bytes]] = []

    @tool(effect="read")
    def browse() -> None:
        with outlives_call():
            kept.append(subprocess.Popen(["sleep", "600"]))

    await Pipeline([browse]).call(call("browse"))

    assert kept[0].poll() is None
    kept[0].kill()
    kept[0].wait()


async def test_the_resource_tracker_of_the_process_is_nobodys() -> None:
    """Killed with the first call that needed it, it was started again by the next, and what it knew was lost."""
    tracker: Any = resource_tracker._resource_tracker  # pyright: ignore
    tracker._stop()
    found: list[int] = []

    @tool(effect="read")
    def shares() -> None:
        memory = shared_memory.SharedMemory(create=True, size=64)
        memory.close()
        memory.unlink()
        found.append(tracker._pid)

    box = Pipeline([shares])
    for _ in range(2):
        assert (await box.call(call("shares"))).error is None

    assert lives(found[0])
    assert found[0] == found[1]


async def test_processes_outside_calls_are_nobodys() -> None:
    @tool(effect="read")
    def starts() -> None:
        subprocess.run(["true"], check=True)

    with subprocess.Popen(["sleep", "600"]) as mine:
        await Pipeline([starts]).call(call("starts"))
        assert mine.poll() is None
        mine.kill()


async def test_a_server_whose_connection_is_kept_outlives_the_call_that_needed_it_first() -> None:
    started: list[UnfencedProcess] = []

    @tool(effect="read")
    async def first() -> None:
        started.append(await start_unfenced(Launch(("sleep", "600"), {"PATH": os.environ["PATH"]})))

    await Pipeline([first]).call(call("first"))
    try:
        assert lives(started[0].pid)
    finally:
        await started[0].end()
    assert not lives(started[0].pid)
