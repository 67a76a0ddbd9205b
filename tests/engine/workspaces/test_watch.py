"""What programs take of the disk is watched while they run, ended above the quota, and undone."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from foliot.engine.workspaces.scan import Bounds, OverBounds, look
from foliot.engine.workspaces.watch import FolderRoom
from foliot.engine.workspaces.workspaces import RUNS, RunWorkspaces, place_of, scratch_root
from foliot.store.journal.base import Lease
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.workspaces import WorkspaceFull
from tests.engine.workspaces.kit import Played, created, writes
from tests.engine.workspaces.test_living_programs import Tools

MIB = 1024**2
KEEP_SIZE = 1
BOUNDS = Bounds(MIB, 100)


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Tools]:
    journal = MemoryJournal()
    await created(journal)
    folders = RunWorkspaces(journal, tmp_path / "here")
    made = Tools(Played(folders, quota=MIB, max_files=100))
    yield made
    await made.close()
    await folders.close()


FILLING = {
    "one file": "head -c 50000000 /dev/zero > big; sleep 600",
    "in data": "mkdir -p data; head -c 50000000 /dev/zero > data/big; sleep 600",
    "many files": "i=0; while [ $i -lt 100000 ]; do : > f$i; i=$((i+1)); done; sleep 600",
    "without a name": "exec 3>big; rm big; head -c 50000000 /dev/zero >&3; sleep 600",
    "in the background of the job": "(head -c 50000000 /dev/zero > big; sleep 600) & sleep 600",
}


@pytest.mark.fence
@pytest.mark.parametrize("command", FILLING.values(), ids=FILLING)
async def test_a_job_above_the_quota_is_ended_told_why_and_undone_without_any_call(
    tools: Tools, tmp_path: Path, command: str
) -> None:
    await tools.call(tools.bash, command="echo kept > a")
    started = await tools.call(tools.bash, command=command, background=True)
    (job,) = tools.processes.jobs.of("r1")
    assert job.running is not None
    await asyncio.wait_for(asyncio.shield(job.running), 120)

    folder = place_of(tmp_path / "here", "default", "r1") / "files"
    async with asyncio.timeout(60):
        while not folder.is_dir() or os.listdir(folder) != ["a"]:
            await asyncio.sleep(0.01)
    shown = await tools.call(tools.job, action="output", id=started.split()[1].rstrip("."))
    assert "it wrote more than the workspace may hold" in shown
    assert (await tools.call(tools.bash, command="ls")).startswith("a\n[exit:0")


@pytest.mark.fence
async def test_a_call_that_fills_the_disk_is_ended_before_its_time(tools: Tools) -> None:
    with pytest.raises(WorkspaceFull, match="what it changed was undone"):
        await tools.call(tools.bash, command="head -c 5000000 /dev/zero > big; sleep 600")
    assert await tools.run.seen() == {}


@pytest.mark.fence
async def test_a_job_within_the_quota_goes_on(tools: Tools) -> None:
    command = "for i in 1 2 3 4 5 6; do head -c 900000 /dev/zero > big; rm big; sleep 0.2; done; echo fine > result"
    started = await tools.call(tools.bash, command=command, background=True)
    assert "exit:0" in await tools.call(tools.job, action="wait", id=started.split()[1].rstrip("."), seconds=120)
    assert (await tools.run.seen())["result"] == (0o644, b"fine\n")


# --- how often the tree is walked ------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(tmp_path: Path, clock: Clock) -> Iterator[FolderRoom]:
    made = FolderRoom(tmp_path, clock=clock)
    yield made
    made.close()


def test_a_walk_that_took_long_is_not_repeated_for_some_times_as_long(room: FolderRoom, clock: Clock) -> None:
    def slow() -> int:
        clock.now += 2.0
        return 0

    assert room.is_due(BOUNDS)
    room.check(BOUNDS, slow)
    tight = Bounds(-1, 100)  # nothing fits: the suspicion is there at once
    clock.now += 5.9
    assert not room.is_due(tight)
    clock.now += 0.2
    assert room.is_due(tight)
    assert not room.is_due(Bounds(1 << 60, 1 << 60))
    clock.now += 2.0 * 20
    assert room.is_due(Bounds(1 << 60, 1 << 60))


def test_space_that_is_gone_is_a_suspicion_at_once(room: FolderRoom, tmp_path: Path) -> None:
    room.check(BOUNDS, lambda: 0)
    with open(tmp_path / "big", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
    assert room.is_due(BOUNDS)
    with pytest.raises(OverBounds, match="1,048,576 bytes"):
        room.check(BOUNDS, lambda: 0)


def test_what_is_set_aside_counts_and_whole_blocks_of_small_files_do_not(room: FolderRoom, tmp_path: Path) -> None:
    for number in range(90):
        (tmp_path / f"f{number}").write_text("x")
    small = Bounds(100, 100)
    room.check(small, lambda: 0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert look(folder, None, small).size == 90
        with open(tmp_path / "f1", "ab") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.fallocate(file.fileno(), KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(64 * MIB)) == 0
        for bounds in (small, BOUNDS):
            with pytest.raises(OverBounds):
                room.check(bounds, lambda: 0)
            with pytest.raises(OverBounds):
                look(folder, None, bounds)
    finally:
        os.close(folder)


def test_what_cannot_be_walked_is_too_much_or_left_to_the_end_of_the_call(room: FolderRoom, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/usr")
    (tmp_path / "loop").symlink_to(".")
    room.check(BOUNDS, lambda: 0)
    deep = tmp_path
    for _ in range(110):
        deep /= "d"
    deep.mkdir(parents=True)
    with pytest.raises(OverBounds, match="deep"):
        room.check(Bounds(MIB, 1000), lambda: 0)


# --- what is left ----------------------------------------------------------------------------------------------------


async def test_the_folder_of_a_run_that_is_over_is_removed(tmp_path: Path) -> None:
    journal = MemoryJournal()
    await created(journal)
    folders = RunWorkspaces(journal, tmp_path / "here")
    run = Played(folders)
    await run.call(writes({"a": "1"}))
    folders.ended("default", "r1")
    await folders.close()
    assert os.listdir(tmp_path / "here" / RUNS) == []


async def test_a_sweep_removes_what_a_worker_left_of_runs_that_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.engine.workspaces.workspaces.LEFT_FOR", -1.0)
    journal = MemoryJournal()
    for run_id in ("r1", "r2"):
        await created(journal, run_id)
        dead = RunWorkspaces(journal, tmp_path / "here")
        await Played(dead, run_id).call(writes({"a": "1"}))
        await dead.close()
    (tmp_path / "here" / RUNS / "r3").mkdir()
    await journal.append(Lease("r1", 1, 1, "w", 9e9), [], phase="succeeded")

    folders = RunWorkspaces(journal, tmp_path / "here")
    assert await folders.sweep(idle_for=3600) == 1
    kept = place_of(tmp_path, "default", "r2").name
    assert sorted(os.listdir(tmp_path / "here" / RUNS)) == sorted((kept, "r3"))
    await folders.close()


def test_the_place_of_folders_is_nobodys_home_and_only_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.engine.workspaces.workspaces.SCRATCH", tmp_path / "scratch")
    home = tmp_path / "home"
    assert scratch_root(home) == home / "workspaces", "there is no such place"
    (tmp_path / "scratch").mkdir()
    root = scratch_root(home)
    assert root.parent == tmp_path / "scratch"
    assert root != scratch_root(tmp_path / "other")
    root.chmod(0o755)
    assert scratch_root(home) == home / "workspaces", "others may look into it"
    root.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    root.symlink_to(tmp_path / "theirs")
    assert scratch_root(home) == home / "workspaces", "it is a link of somebody"


async def test_folders_of_older_versions_are_swept_and_an_empty_place_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.engine.workspaces.workspaces.SCRATCH", tmp_path / "scratch")
    old = tmp_path / "home/workspaces/default/r9"
    (old / "files").mkdir(parents=True)
    (old / "lock").touch()
    (tmp_path / "scratch").mkdir()
    journal = MemoryJournal()
    await created(journal)
    folders = RunWorkspaces(journal, None, home=tmp_path / "home")
    assert await folders.sweep(idle_for=-1) == 1
    assert not old.exists()
    await Played(folders).call(writes({"a": "1"}))
    assert len(os.listdir(tmp_path / "scratch")) == 1
    folders.ended("default", "r1")
    await folders.close()
    assert os.listdir(tmp_path / "scratch") == []
