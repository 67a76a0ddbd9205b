"""What a run changed that began with the files of another is merged into those, and nothing of either is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.workspaces import CallFiles, WorkspaceFull
from tests.engine.workspaces.kit import Played, created
from tests.engine.workspaces.test_residents import Program


class Pair:
    """A run, and one that began with its files, as a program of its agent does."""

    def __init__(self, parent: Played, child: Played) -> None:
        self.parent = parent
        self.child = child

    async def begins(self, **files: str) -> None:
        await self.parent.call(lambda folder: put(folder, **files))
        self.begun = self.child.at = self.parent.at

    async def taken_over(self) -> CallFiles:
        by, files = self.parent.begin()
        assert self.child.at is not None
        await self.parent.workspaces.take_over(by, self.begun, self.child.at)
        self.parent.at = files.kept or self.parent.at
        return files

    async def texts(self) -> dict[str, str]:
        by, _ = self.parent.begin()
        folder = await self.parent.workspaces.folder(by, writes=False)
        assert folder is not None
        return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        place = folder / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    journal = MemoryJournal()
    await created(journal)
    await created(journal, "child")
    folders = RunWorkspaces(journal, tmp_path / "here")
    yield Pair(Played(folders), Played(folders, "child"))
    await folders.close()


async def test_changes_of_both_are_there(pair: Pair) -> None:
    await pair.begins(a="1", gone="1", d__e="1", d__f="1")
    await pair.child.call(lambda folder: (put(folder, b="2", d__e="2", new__g="2"), (folder / "gone").unlink()))
    await pair.parent.call(lambda folder: put(folder, c="3", d__f="3", new__h="3"))

    files = await pair.taken_over()

    kept = {"a": "1", "b": "2", "c": "3", "d/e": "2", "d/f": "3", "new/g": "2", "new/h": "3"}
    assert (await pair.texts(), files.left_out) == (kept, ())
    assert files.kept is not None
    assert files.kept.number == 3  # newer than what either run had, so that the journal believes it


async def test_what_both_changed_stays_as_it_is_here_and_is_named(pair: Pair) -> None:
    await pair.begins(a="1", same="1", d__e="1", f="1", x="1")

    def other(folder: Path) -> None:
        put(folder, a="child", same="both", f="child", new="child", fine="child")
        (folder / "x").unlink()
        (folder / "x").mkdir()
        put(folder, x__y="child", d__e="child")

    def here(folder: Path) -> None:
        put(folder, a="here", same="both", new="here", x="here")
        (folder / "f").unlink()
        shutil.rmtree(folder / "d")
        (folder / "d").symlink_to("/etc")

    await pair.child.call(other)
    await pair.parent.call(here)

    files = await pair.taken_over()

    assert await pair.texts() == {"a": "here", "same": "both", "new": "here", "x": "here", "fine": "child"}
    assert [each.partition(" ")[0] for each in files.left_out] == ["a", "d/e", "f", "new", "x", "x/y"]
    assert "[Not kept in the workspace: a (something else has changed it meanwhile), " in files.note


async def test_a_folder_that_went_stays_when_something_new_is_in_it(pair: Pair) -> None:
    await pair.begins(d__e="1")
    await pair.child.call(lambda folder: shutil.rmtree(folder / "d"))
    await pair.parent.call(lambda folder: put(folder, d__new="here"))

    assert (await pair.taken_over()).left_out == ()

    assert await pair.texts() == {"d/new": "here"}


async def test_links_and_permissions_are_brought_along(pair: Pair) -> None:
    await pair.begins(a="1", tool="1")

    def other(folder: Path) -> None:
        (folder / "link").symlink_to("a")
        os.chmod(folder / "tool", 0o700)

    await pair.child.call(other)
    await pair.taken_over()

    by, _ = pair.parent.begin()
    folder = await pair.parent.workspaces.folder(by, writes=False)
    assert folder is not None
    assert (os.readlink(folder / "link"), (folder / "tool").stat().st_mode & 0o777) == ("a", 0o700)


async def test_more_than_the_run_may_keep_is_refused_and_undone(pair: Pair) -> None:
    await pair.begins(a="1")
    pair.parent.rules = {"quota": 10}
    await pair.child.call(lambda folder: put(folder, large="x" * 100))

    with pytest.raises(WorkspaceFull):
        await pair.taken_over()

    assert await pair.texts() == {"a": "1"}


async def test_a_job_in_the_background_goes_on_and_keeps_what_it_writes(pair: Pair) -> None:
    await pair.begins(a="1")
    job = await Program(pair.parent, firm=True).start()
    job.write("log", "line")
    await pair.child.call(lambda folder: put(folder, b="2"))

    await pair.taken_over()

    job.write("more", "line")
    assert (job.runs, await pair.texts()) == (True, {"a": "1", "b": "2", "log": "line", "more": "line"})
    await job.end()
