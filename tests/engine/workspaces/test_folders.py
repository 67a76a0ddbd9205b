"""Each run has a folder of its own, which is what its journal says before every call."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.workspaces import workspaces as module
from foliot.engine.workspaces.trees import WorkspaceTree
from foliot.engine.workspaces.workspaces import RunWorkspaces, place_of
from foliot.errors import InvalidInput
from foliot.store.journal.base import Journal
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.memory import MemoryJournal
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.workspaces import CallFiles, WorkspaceFull, WorkspaceLost, WorkspaceReadOnly, call_files
from tests.engine.workspaces.kit import Played, created, owner, tree_of, writes


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        made: Journal = MemoryJournal()
        await created(made)
        yield made
        return
    if request.param == "sqlite":
        database: Any = await SqliteDatabase.open(tmp_path / "foliot.db")
    else:
        database = await PostgresDatabase.open(request.getfixturevalue("postgres_url"))
    made = SqlJournal(database)
    await created(made)
    yield made
    await database.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspaces"


@pytest.fixture
async def folders(journal: Journal, root: Path) -> AsyncIterator[RunWorkspaces]:
    made = RunWorkspaces(journal, root)
    yield made
    await made.close()


async def test_a_run_begins_with_an_empty_folder_that_nobody_else_may_enter(folders: RunWorkspaces, root: Path) -> None:
    assert await Played(folders).seen() == {}
    assert place_of(root, "default", "r1").stat().st_mode & 0o777 == 0o700


async def test_another_machine_finds_what_the_calls_before_left(
    folders: RunWorkspaces, journal: Journal, tmp_path: Path
) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1", "deep/er/b.txt": "2", "gone.txt": "3"}))
    await run.call(writes({"a.txt": "one", "gone.txt": None}))
    before = await run.seen()
    run.workspaces, run.epoch = RunWorkspaces(journal, tmp_path / "elsewhere"), 2

    assert await run.seen() == before
    assert before["a.txt"] == (0o644, b"one")
    assert sorted(before) == ["a.txt", "deep", "deep/er", "deep/er/b.txt"]


async def test_a_folder_that_was_deleted_comes_back(folders: RunWorkspaces, root: Path) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    before = await run.seen()
    shutil.rmtree(root)

    assert await run.seen() == before


async def test_a_call_that_changes_nothing_records_nothing(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))

    assert (await run.call()).kept is None
    assert (await run.call(lambda folder: os.utime(folder / "a.txt"))).kept is None


async def test_what_a_call_left_that_was_cut_off_is_undone(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1", "b.txt": "2"}))
    before = await run.seen()
    began = asyncio.Event()

    async def cut_off() -> None:
        by, _ = run.begin()
        folder = await folders.folder(by)
        assert folder is not None
        writes({"a.txt": "spoilt", "b.txt": None, "new/c.txt": "3"})(folder)
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await folders.changed(by)

    task = asyncio.create_task(cut_off())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])

    assert await run.seen() == before


async def test_a_call_that_never_says_that_it_is_over_is_undone_when_its_task_ends(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    before = await run.seen()

    async def careless() -> None:
        by, _ = run.begin()
        folder = await folders.folder(by)
        assert folder is not None
        writes({"a.txt": "spoilt"})(folder)

    await asyncio.create_task(careless())

    assert await run.seen() == before


async def test_a_snapshot_that_was_not_recorded_is_forgotten(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    before, at = await run.seen(), run.at

    files = await run.call(writes({"a.txt": "2"}))
    files.drop()
    run.at = at

    assert await run.seen() == before


async def test_a_process_that_had_the_run_before_is_corrected_by_the_journal(
    folders: RunWorkspaces, journal: Journal, tmp_path: Path
) -> None:
    run, other = Played(folders), Played(RunWorkspaces(journal, tmp_path / "elsewhere"))
    await run.call(writes({"a.txt": "1"}))
    other.at, other.epoch = run.at, 2
    await other.call(writes({"a.txt": "2", "b.txt": "new"}))
    run.at, run.epoch = other.at, 3

    assert await run.seen() == await other.seen()


async def test_what_a_job_writes_between_two_calls_stays_also_after_the_run_was_given_back(
    folders: RunWorkspaces, root: Path
) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    writes({"job.txt": "2"})(place_of(root, "default", "r1") / "files")
    run.epoch = 2  # it waited for a person meanwhile

    assert "job.txt" in await run.seen()
    assert (await run.call()).kept is not None


async def test_what_another_process_left_unfinished_in_the_same_folder_is_undone(
    folders: RunWorkspaces, journal: Journal, root: Path
) -> None:
    run, other = Played(folders), Played(RunWorkspaces(journal, root))
    await run.call(writes({"a.txt": "1"}))
    before = await run.seen()
    other.at, other.epoch = run.at, 2

    async def cut_off() -> None:
        by, _ = other.begin()
        folder = await other.workspaces.folder(by)
        assert folder is not None
        writes({"a.txt": "spoilt"})(folder)

    await asyncio.create_task(cut_off())
    run.epoch = 3

    assert await run.seen() == before


async def test_a_snapshot_on_its_way_into_the_journal_is_not_undone(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    at = run.at
    await run.call(writes({"a.txt": "2"}))
    after = await run.seen()
    run.at = at  # what the driver knew when it started a call beside the other

    assert await run.seen() == after


async def test_whoever_still_writes_keeps_the_old_folder_and_the_run_gets_a_new_one(
    folders: RunWorkspaces, journal: Journal, root: Path
) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    by, _ = run.begin()
    old = await folders.folder(by)  # and its process stands still from here on
    assert old is not None
    stale = os.open(old, os.O_RDONLY)
    taker = Played(RunWorkspaces(journal, root))
    taker.at, taker.epoch = run.at, 2

    before = await taker.seen()
    os.close(os.open("zombie.txt", os.O_WRONLY | os.O_CREAT, dir_fd=stale))
    os.close(stale)

    assert before == await taker.seen() == {"a.txt": (0o644, b"1")}


@pytest.mark.parametrize("bad", ["../x", "a/b", "..", ".hidden", "a" * 200, "x\0y"])
async def test_ids_that_are_no_names_get_no_folder(folders: RunWorkspaces, root: Path, bad: str) -> None:
    for by in (owner(bad), owner("r1", namespace=bad)):
        call_files.set(CallFiles(by.run_id, 1, None, {}))
        with pytest.raises(InvalidInput):
            await folders.folder(by)
    assert not root.exists()


async def test_runs_of_two_namespaces_never_share_a_folder(folders: RunWorkspaces) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    run.begin()
    call_files.get().at = None  # type: ignore[union-attr]

    other = await folders.folder(owner("r1", namespace="acme"), writes=False)

    assert other is not None
    assert tree_of(other) == {}


async def test_the_shared_folder_is_for_its_namespace_and_nothing_of_it_is_kept(
    journal: Journal, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    folders = RunWorkspaces(journal, tmp_path / "w", shared=shared, namespace="default")
    run = Played(folders)

    assert (await run.call(writes({"a.txt": "1"}))).kept is None
    assert (shared / "a.txt").read_text() == "1"
    assert await folders.folder(owner("", "")) == shared
    assert await folders.folder(owner("", "", "acme")) is None
    assert await Played(folders, mode="run").seen() == {}
    await folders.close()


async def test_an_agent_that_needs_a_shared_folder_does_not_get_another(folders: RunWorkspaces) -> None:
    with pytest.raises(WorkspaceLost, match="there is none"):
        await Played(folders, mode="shared").seen()


async def test_more_than_the_quota_fails_the_call_and_undoes_it(folders: RunWorkspaces) -> None:
    run = Played(folders, quota=1000, max_files=10)
    await run.call(writes({"a.txt": "1"}))
    before = await run.seen()

    with pytest.raises(WorkspaceFull, match="1,000 bytes"):
        await run.call(writes({"a.txt": "2", "big.txt": "x" * 1001}))
    assert await run.seen() == before
    with pytest.raises(WorkspaceFull, match="10 files"):
        await run.call(writes({f"{n}.txt": "" for n in range(10)}))
    assert await run.seen() == before


async def test_a_hole_of_a_terabyte_is_over_the_quota_at_once(folders: RunWorkspaces) -> None:
    def hole(folder: Path) -> None:
        with open(folder / "hole", "wb") as file:
            file.truncate(1 << 40)

    with pytest.raises(WorkspaceFull):
        await Played(folders).call(hole)


async def test_folders_without_end_are_refused_and_removed(folders: RunWorkspaces) -> None:
    run = Played(folders)

    def dig(folder: Path) -> None:
        here = os.open(folder, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)

    with pytest.raises(WorkspaceFull, match="deep"):
        await run.call(dig)
    assert await run.seen() == {}


async def test_who_may_only_read_cannot_ask_to_write(folders: RunWorkspaces) -> None:
    run = Played(folders, access="read_only")

    assert await run.seen() == {}
    by, _ = run.begin()
    assert await folders.access(by) == "read_only"
    with pytest.raises(WorkspaceReadOnly):
        await folders.folder(by)


async def test_who_may_not_see_files_has_no_folder(folders: RunWorkspaces, root: Path) -> None:
    by, _ = Played(folders, access="none").begin()

    assert await folders.folder(by) is None
    assert not root.exists()


async def test_what_is_no_file_is_not_kept_and_the_result_says_so(folders: RunWorkspaces) -> None:
    run = Played(folders)

    def strange(folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        here = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
        (folder / "a.txt").write_text("1")

    files = await run.call(strange)

    assert "pipe (a named pipe)" in files.note
    assert "s (a socket)" in files.note
    folders._known.clear()  # pyright: ignore[reportPrivateUsage]
    assert await run.seen() == {"a.txt": (0o644, b"1")}


async def test_a_hard_link_to_a_file_outside_is_not_kept_but_one_inside_is(
    folders: RunWorkspaces, journal: Journal, tmp_path: Path
) -> None:
    outside = tmp_path / "secret"
    outside.write_text("secret")
    run = Played(folders)

    def link(folder: Path) -> None:
        os.link(outside, folder / "stolen")
        (folder / "one").write_text("1")
        os.link(folder / "one", folder / "two")

    files = await run.call(link)

    assert files.left_out == ("stolen (a hard link to a file outside)",)
    assert files.kept is not None
    tree = await WorkspaceTree.load(journal.get_blob, files.kept.digest)
    assert sorted(path for path, _ in tree.walk()) == ["one", "two"]


async def test_a_run_may_begin_with_a_copy_of_a_folder(
    folders: RunWorkspaces, journal: Journal, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    writes({"src/main.py": "print(1)"})(source)
    run = Played(folders, source=str(source), trusted=True)
    by, files = run.begin()
    folder = await folders.folder(by, writes=False)
    run.at = files.kept
    writes({"src/main.py": "changed since"})(source)

    assert folder is not None
    assert (folder / "src/main.py").read_text() == "print(1)"
    run.workspaces, run.epoch = RunWorkspaces(journal, tmp_path / "elsewhere"), 2
    assert (await run.seen())["src/main.py"] == (0o644, b"print(1)")


async def test_a_folder_that_is_not_granted_is_not_copied_also_through_a_link(journal: Journal, tmp_path: Path) -> None:
    granted, outside = tmp_path / "granted", tmp_path / "outside"
    writes({"secret": "1"})(outside)
    writes({"in/a": "1"})(granted)
    (granted / "out").symlink_to(outside)
    folders = RunWorkspaces(journal, tmp_path / "w", sources=[str(granted)])

    assert "a" in await Played(folders, source=str(granted / "in")).seen()
    for source in (outside, granted / "out"):
        with pytest.raises(WorkspaceLost, match="granted"):
            await Played(folders, "r2", source=str(source)).seen()
    await folders.close()


async def test_idle_folders_are_swept_and_come_back(folders: RunWorkspaces, root: Path) -> None:
    run = Played(folders)
    await run.call(writes({"a.txt": "1"}))
    before = await run.seen()

    assert await folders.sweep(idle_for=3600) == 0
    assert await folders.sweep(idle_for=-1) == 1
    assert not place_of(root, "default", "r1").exists()
    assert await run.seen() == before


async def test_a_folder_in_use_is_not_swept(folders: RunWorkspaces) -> None:
    by, _ = Played(folders).begin()
    folder = await folders.folder(by)

    assert await folders.sweep(idle_for=-1) == 0
    assert folder is not None
    assert folder.exists()


async def test_a_runtime_in_memory_leaves_no_folder_behind() -> None:
    journal = MemoryJournal()
    await created(journal)
    folders = RunWorkspaces(journal, None)
    by, _ = Played(folders).begin()
    folder = await folders.folder(by)
    await folders.changed(by)
    await folders.close()

    assert folder is not None
    assert not folder.parents[2].exists()


async def test_idle_trees_are_not_remembered_for_ever(folders: RunWorkspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    for number in range(6):
        await Played(folders, f"run{number}").call()

    assert len(folders._known) == 3  # pyright: ignore[reportPrivateUsage]
