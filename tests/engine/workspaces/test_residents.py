"""A folder is held by calls, and by programs that go on between them; nothing is restored under either."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.workspaces import scan
from foliot.engine.workspaces import workspaces as module
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.store.journal.base import Journal
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.workspaces import WorkspaceFull, WorkspaceLost
from tests.engine.workspaces.kit import Played, created, owner, writes

KINDS = pytest.mark.parametrize("firm", [False, True], ids=["server", "job"])


class Program:
    """A program that lives on the folder of a run until it is ended, as a job or a server does."""

    def __init__(self, run: Played, *, firm: bool = False, stays: bool = False) -> None:
        self._run = run
        self._firm = firm
        self._stays = stays
        self.runs = True
        self.mount = -1

    async def start(self) -> Program:
        """Start it in a task of its own that is over before it is, by an owner without a call."""
        await asyncio.create_task(self._begin())
        return self

    async def _begin(self) -> None:
        self._run.begin()
        by = owner(self._run.run_id, "")
        folder = await self._run.workspaces.folder(by)
        assert folder is not None
        self.mount = os.open(folder, os.O_RDONLY)
        self._gone = self._run.workspaces.resides(by, self.end, firm=self._firm)

    def write(self, name: str, text: str) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=self.mount)
        os.write(descriptor, text.encode())
        os.close(descriptor)

    async def end(self) -> None:
        if self._stays:
            await asyncio.Event().wait()
        self.runs = False
        self._gone()


@pytest.fixture
async def journal() -> Journal:
    made = MemoryJournal()
    await created(made)
    await created(made, "child")
    return made


@pytest.fixture
async def run(journal: Journal, tmp_path: Path) -> AsyncIterator[Played]:
    folders = RunWorkspaces(journal, tmp_path / "here")
    yield Played(folders)
    await folders.close()


async def recorded(run: Played, journal: Journal, tmp_path: Path) -> dict[str, Any]:
    """The files by the newest snapshot, as another machine restores them."""
    elsewhere = Played(RunWorkspaces(journal, tmp_path / "recorded"), run.run_id)
    elsewhere.at, elsewhere.epoch = run.at, run.epoch + 2
    return await elsewhere.seen()


async def cut_off(run: Played, do: Any) -> None:
    """A call that changes files and is cancelled."""
    began = asyncio.Event()

    async def call() -> None:
        by, _ = run.begin()
        folder = await run.workspaces.folder(by)
        assert folder is not None
        do(folder)
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])


async def elsewhere(run: Played, journal: Journal, tmp_path: Path, do: Any) -> None:
    """The run goes to another machine, which changes files, and comes back."""
    other = Played(RunWorkspaces(journal, tmp_path / "there"), run.run_id)
    other.at, other.epoch = run.at, run.epoch + 2
    await other.call(do)
    run.at, run.epoch = other.at, other.epoch + 2


@KINDS
async def test_a_run_that_comes_back_has_the_files_of_its_journal_and_old_programs_are_ended(
    run: Played, journal: Journal, tmp_path: Path, firm: bool
) -> None:
    await run.call(writes({"a": "one"}))
    program = await Program(run, firm=firm).start()
    await elsewhere(run, journal, tmp_path, writes({"a": "two", "b": "new"}))

    assert {name: data for name, (_, data) in (await run.seen()).items()} == {"a": b"two", "b": b"new"}
    assert not program.runs
    await run.call(writes({"c": "x"}))
    assert sorted(await recorded(run, journal, tmp_path)) == ["a", "b", "c"]


async def test_a_program_that_cannot_be_ended_keeps_the_old_folder_and_the_run_gets_a_new_one(
    run: Played, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOPS_WITHIN", 0.01)
    await run.call(writes({"a": "one"}))
    program = await Program(run, stays=True).start()
    await elsewhere(run, journal, tmp_path, writes({"a": "two"}))

    before = await run.seen()
    program.write("zombie", "1")

    assert before == await run.seen() == {"a": (0o644, b"two")}


async def test_what_a_call_left_that_was_cut_off_is_undone_and_the_server_beside_it_ended(run: Played) -> None:
    await run.call(writes({"a": "one"}))
    before = await run.seen()
    program = await Program(run).start()
    await cut_off(run, writes({"a": "spoilt", "half": "1"}))

    assert await run.seen() == before
    assert not program.runs


async def test_nothing_is_undone_while_a_job_runs_and_the_next_call_is_told_once(
    run: Played, journal: Journal, tmp_path: Path
) -> None:
    await run.call(writes({"a": "one"}))
    job = await Program(run, firm=True).start()
    await cut_off(run, writes({"half": "1"}))
    job.write("result", "done")
    await job.end()

    files = await run.call()

    assert "not undone" in files.note
    assert sorted(await recorded(run, journal, tmp_path)) == ["a", "half", "result"]
    assert (await run.call()).note == ""


async def test_too_much_beside_a_server_is_undone_and_the_server_ended(run: Played) -> None:
    run.rules = {"quota": 1000}
    await run.call(writes({"a": "one"}))
    before = await run.seen()
    program = await Program(run).start()

    with pytest.raises(WorkspaceFull, match="was undone, and programs that worked on it were ended"):
        await run.call(writes({"big": "x" * 2000}))

    assert not program.runs
    assert await run.seen() == before
    await run.call(writes({"small": "1"}))


async def test_too_much_beside_a_job_is_not_undone_and_can_be_deleted(
    run: Played, journal: Journal, tmp_path: Path
) -> None:
    run.rules = {"quota": 1000}
    job = await Program(run, firm=True).start()
    job.write("result", "1")

    with pytest.raises(WorkspaceFull, match="not undone, because a job is running"):
        await run.call(writes({"big": "x" * 2000}))
    assert job.runs
    await job.end()
    await run.call(writes({"big": None}))

    assert sorted(await recorded(run, journal, tmp_path)) == ["result"]


@KINDS
async def test_files_that_a_program_brings_back_come_in_beside_whoever_is_at_work(
    run: Played, journal: Journal, tmp_path: Path, firm: bool
) -> None:
    await run.call(writes({"a": "1", "gone/x": "1", "kept/y": "1", "same": "1"}))
    resident = await Program(run, firm=firm).start()
    resident.write("begun", "1")
    await brought(
        run, writes({"a": "2", "gone/x": None, "kept/y": None, "new/deep/z": "3"}), lambda at: (at / "gone").rmdir()
    )
    resident.write("kept-by-resident", "1")

    seen = await run.seen()
    resident.write("result", "done")

    assert resident.runs
    assert seen["a"] == (0o644, b"2")
    assert {"begun", "new/deep/z", "same", "kept"} <= seen.keys()
    assert not {"gone", "gone/x", "kept/y"} & seen.keys()
    await run.call()
    assert {"result", "begun", "a", "new/deep/z"} <= (await recorded(run, journal, tmp_path)).keys()


async def brought(run: Played, *steps: Any) -> None:
    """A program of the run changes files in a run of its own, and they are recorded as those of the run."""
    child = Played(run.workspaces, "child")
    child.at = run.at
    for step in steps:
        await child.call(step)
    run.at = child.at


async def test_what_is_brought_back_never_leads_out_of_the_folder(run: Played, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("mine")
    await run.call(writes({"d/x": "1", "e/x": "1"}))
    job = await Program(run, firm=True).start()
    await brought(run, writes({"d/x": "2", "e/x": None, "d/new": "3"}))
    for name in ("d", "e"):  # hostile: links in place of the folders
        os.rename(name, f"{name}-away", src_dir_fd=job.mount, dst_dir_fd=job.mount)
        os.symlink(outside, name, dir_fd=job.mount)

    seen = await run.seen()

    assert {each.name: each.read_text() for each in outside.iterdir()} == {"x": "mine"}
    assert seen["d/x"] == (0o644, b"2")


async def test_files_and_folders_that_take_each_others_place_are_brought_back(run: Played) -> None:
    await run.call(writes({"a": "1", "b/c": "1"}))
    await Program(run, firm=True).start()

    def swap(folder: Path) -> None:
        (folder / "a").unlink()
        (folder / "b" / "c").unlink()
        (folder / "b").rmdir()
        writes({"a/inner": "2", "b": "2"})(folder)
        (folder / "link").symlink_to("b")
        (folder / "a").chmod(0o500)

    await brought(run, swap)

    seen = await run.seen()
    assert seen == {"a": 0o500, "a/inner": (0o644, b"2"), "b": (0o644, b"2"), "link": b"b"}


@KINDS
async def test_the_folder_is_held_for_a_program_between_calls(
    run: Played, journal: Journal, tmp_path: Path, firm: bool
) -> None:
    await run.call(writes({"a": "1"}))
    program = await Program(run, firm=firm).start()
    assert await run.workspaces.sweep(idle_for=-1) == 0
    taker = Played(RunWorkspaces(journal, tmp_path / "here"))
    taker.at, taker.epoch = run.at, 3

    await taker.seen()
    program.write("zombie", "1")

    assert await taker.seen() == {"a": (0o644, b"1")}
    run.epoch = 5  # whose folder was moved away meanwhile
    assert await run.seen() == {"a": (0o644, b"1")}
    assert not program.runs


async def test_the_folder_is_free_once_the_program_has_ended(run: Played) -> None:
    program = await Program(run).start()
    await program.end()

    assert await run.workspaces.sweep(idle_for=-1) == 1


@pytest.mark.parametrize("tells", [True, False])
async def test_what_a_living_program_writes_through_a_mapping_is_kept(
    journal: Journal, tmp_path: Path, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(device: int) -> bool:
        return tells

    monkeypatch.setattr(scan, "_tells_of_mapped_writes", known)
    run = Played(RunWorkspaces(journal, tmp_path / "here"))
    program = await Program(run).start()
    program.write("m", "-" * 4096)
    descriptor = os.open("m", os.O_RDWR, dir_fd=program.mount)
    with mmap.mmap(descriptor, 4096) as mapped:
        mapped[0:5] = b"AAAAA"
        await asyncio.to_thread(_old, descriptor)
        await run.call(writes({"other": "1"}))
        mapped[0:5] = b"BBBBB"
        await program.end()
        await run.call(writes({"other": "2"}))
    os.close(descriptor)

    assert (await recorded(run, journal, tmp_path))["m"][1][:5] == b"BBBBB"
    await run.workspaces.close()


def _old(descriptor: int) -> None:
    """Return when the file is no longer one that was changed a moment ago, which is read again in any case."""
    while time.time_ns() - os.fstat(descriptor).st_ctime_ns <= 2 * scan.FRESH:
        time.sleep(0.005)


async def test_files_that_nobody_could_have_changed_are_not_read_again(
    run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = scan._Look._file  # pyright: ignore[reportPrivateUsage]

    def noted(self: Any, fd: int, name: str, *rest: Any) -> Any:
        read.append(name)
        return whole(self, fd, name, *rest)

    await run.call(writes({"old": "1"}))
    folder = run.workspaces._known["default/r1"].files  # pyright: ignore[reportPrivateUsage]
    descriptor = os.open(folder / "old", os.O_RDONLY)
    await asyncio.to_thread(_old, descriptor)
    os.close(descriptor)
    await run.call()
    monkeypatch.setattr(scan._Look, "_file", noted)  # pyright: ignore[reportPrivateUsage]

    await run.call(writes({"new": "1"}))

    assert read == ["new"]


async def test_a_run_is_not_forgotten_whose_next_call_has_just_got_its_turn(
    run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 1)
    await run.call(writes({"a": "one"}))
    folders = run.workspaces
    held = folders._known["default/r1"]  # pyright: ignore[reportPrivateUsage]
    await held.turn.acquire()
    waiting = asyncio.create_task(run.call(writes({"b": "two"})))
    while not held.coming:
        await asyncio.sleep(0)
    held.turn.release()
    for number in range(4):
        folders._run_folder_of("default", f"other{number}")  # pyright: ignore[reportPrivateUsage]

    assert (await waiting).kept is not None


async def test_a_call_that_gives_up_while_another_gets_the_folder_ready_does_not_free_it(
    run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run.call(writes({"a": "one"}))
    held = run.workspaces._known["default/r1"]  # pyright: ignore[reportPrivateUsage]
    ready = module.RunWorkspaces._make_ready  # pyright: ignore[reportPrivateUsage]

    async def meanwhile(self: RunWorkspaces, *given: Any) -> None:
        await ready(self, *given)
        module._rest_soon(held)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(module.RunWorkspaces, "_make_ready", meanwhile)

    assert (await run.call(writes({"b": "2"}))).kept is not None


async def test_a_call_that_does_not_stop_keeps_its_folder_and_programs_on_it_are_ended(
    run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOPS_WITHIN", 0.01)
    await run.call(writes({"a": "one"}))
    job = await Program(run, firm=True).start()
    began, stop = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        by, _ = run.begin()
        await run.workspaces.folder(by)
        began.set()
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    await began.wait()
    task.cancel()

    assert await run.seen() == {"a": (0o644, b"one")}
    assert not job.runs
    stop.set()
    await task


async def test_a_call_whose_folder_was_left_under_it_is_told_that_its_changes_are_lost(
    run: Played, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOPS_WITHIN", 0.01)
    await run.call(writes({"a": "one"}))
    by, _ = run.begin()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def of_an_earlier_claim() -> None:
        folder = await run.workspaces.folder(by)
        assert folder is not None
        began.set()
        await go_on.wait()
        await run.workspaces.changed(by)

    task = asyncio.create_task(of_an_earlier_claim())
    await began.wait()
    await elsewhere(run, journal, tmp_path, writes({"b": "two"}))
    assert sorted(await run.seen()) == ["a", "b"]
    go_on.set()

    with pytest.raises(WorkspaceLost, match="lost"):
        await task
