"""Nothing that a model writes as a path touches anything outside of the workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.tools.base import ToolError
from foliot.tools.builtin.files import EditFile, ReadFile, WriteFile
from foliot.tools.builtin.find import Glob, Grep, Walk, files_below
from foliot.tools.builtin.workspace import OutsideWorkspace, Workspace
from tests.tools.builtin.kit import call

SECRET = "the secret outside"


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A folder with a secret, and the workspace in it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text(SECRET)
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "a.txt").write_text("alpha\n")
    return tmp_path


@pytest.fixture
def workspace(ground: Path) -> Workspace:
    return Workspace(ground / "desk")


def snapshot(root: Path) -> dict[str, str | None]:
    """Everything below a folder but for the workspace: links with their target, files with their content."""
    found: dict[str, str | None] = {}
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders.remove("desk")
        for name in [*folders, *files]:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = path.read_text() if path.is_file() else None
    return found


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "a/../../secret.txt",
        "./../secret.txt",
        "/etc/passwd",
        "//etc/passwd",
        "sub/../../desk/../secret.txt",
    ],
)
async def test_a_path_that_leads_out_is_refused_for_every_tool(workspace: Workspace, ground: Path, path: str) -> None:
    (ground / "desk" / "a").mkdir()
    (ground / "desk" / "sub").mkdir()
    before = snapshot(ground)

    for tool, more in [
        (ReadFile(workspace), {}),
        (WriteFile(workspace), {"content": "x"}),
        (EditFile(workspace), {"old_string": "secret", "new_string": "x"}),
    ]:
        result = await call(tool, {"path": path, **more})
        assert result.error is not None
        assert result.error.code == "permission_denied"
        assert SECRET not in result.text
    assert snapshot(ground) == before


@pytest.mark.parametrize("target", ["../secret.txt", "{ground}/secret.txt", "loop", "in/../../secret.txt"])
async def test_a_link_that_leads_out_is_refused(workspace: Workspace, ground: Path, target: str) -> None:
    (ground / "desk" / "in").mkdir()
    (ground / "desk" / "loop").symlink_to("loop")
    (ground / "desk" / "link").symlink_to(target.format(ground=ground))

    read = await call(ReadFile(workspace), {"path": "link"})
    written = await call(WriteFile(workspace), {"path": "link", "content": "gone"})

    assert read.error is not None
    assert written.error is not None
    assert SECRET not in read.text
    assert (ground / "secret.txt").read_text() == SECRET


async def test_a_linked_folder_outside_cannot_be_entered(workspace: Workspace, ground: Path) -> None:
    (ground / "desk" / "door").symlink_to("../private")

    for path in ("door/key", "door/new/file"):
        result = await call(WriteFile(workspace), {"path": path, "content": "x"})
        assert result.error is not None
        assert result.error.code == "permission_denied"
    assert (await call(Glob(workspace), {"pattern": "**"})).text == '{"files":["a.txt"],"count":1,"has_more":false}'
    assert (await call(Grep(workspace), {"pattern": "secret"})).text == "No matches."
    assert sorted(os.listdir(ground / "private")) == ["key"]


async def test_a_link_that_stays_inside_is_followed_and_kept(workspace: Workspace, ground: Path) -> None:
    (ground / "desk" / "sub").mkdir()
    (ground / "desk" / "sub" / "link").symlink_to("../a.txt")

    assert (await call(ReadFile(workspace), {"path": "sub/link"})).text == "alpha\n"
    await call(WriteFile(workspace), {"path": "sub/link", "content": "beta\n"})

    assert (ground / "desk" / "a.txt").read_text() == "beta\n"
    assert (ground / "desk" / "sub" / "link").is_symlink()


async def test_pipes_and_folders_are_not_read_and_not_replaced(workspace: Workspace, ground: Path) -> None:
    os.mkfifo(ground / "desk" / "pipe")
    (ground / "desk" / "folder").mkdir()

    for path in ("pipe", "folder", ".", "folder/.."):
        assert (await call(ReadFile(workspace), {"path": path})).error is not None
        assert (await call(WriteFile(workspace), {"path": path, "content": "x"})).error is not None
    assert sorted(os.listdir(ground / "desk")) == ["a.txt", "folder", "pipe"]


def test_a_workspace_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        Workspace(tmp_path / "nowhere")


def test_errors_do_not_tell_where_the_workspace_is(workspace: Workspace, ground: Path) -> None:
    with pytest.raises(ToolError) as caught, workspace.open_file("nothing/here"):
        pass
    assert str(ground) not in caught.value.message


async def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leads_nowhere(
    workspace: Workspace, ground: Path
) -> None:
    """Somebody swaps a folder for a link to the outside as fast as possible, while a tool reads and writes in it."""
    inside, aside = ground / "desk" / "dir", ground / "desk" / "aside"
    inside.mkdir()
    (inside / "key").write_text("inside")
    stop, swaps = threading.Event(), list[int]()

    def swap() -> None:
        while not stop.is_set():
            try:
                os.rename(inside, aside)
                inside.symlink_to("../private")
                inside.unlink()
                os.rename(aside, inside)
                swaps.append(1)
            except OSError:  # a writer has made the folder anew just then
                if inside.is_symlink():
                    inside.unlink()
                shutil.rmtree(inside, ignore_errors=True)
                with contextlib.suppress(OSError):  # and once more
                    os.rename(aside, inside)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(300):
            read = await call(ReadFile(workspace), {"path": "dir/key"})
            assert read.error is not None or read.text == "inside"
            await call(WriteFile(workspace), {"path": "dir/key", "content": "inside"})
    finally:
        stop.set()
        await asyncio.to_thread(swapping.join)
    assert swaps
    assert (ground / "private" / "key").read_text() == SECRET
    assert os.listdir(ground / "private") == ["key"]


# --- whatever the path, whatever the links -----------------------------------------------------------------------

names = st.sampled_from(["a", "b", "dir", "secret.txt", "desk", "private", "key", ".", "..", "", "é", "*", "~"])
anything = st.lists(names, max_size=7).map("/".join)
# Few places for links and paths that go through them, or the two would hardly ever meet.
places = st.sampled_from(["l1", "l2", "dir/l1", "dir/a/l2"])
ways = st.sampled_from(["", "key", "private/key", "secret.txt", "new", "new/er", "..", "l1", "l2", "../secret.txt"])
targets = st.sampled_from(
    [
        "..",
        "../..",
        "../private",
        "../../private",
        "../secret.txt",
        "../../secret.txt",
        "l1",
        "l2",
        "dir",
        "dir/..",
        "a",
    ]
)
paths = st.one_of(anything, st.tuples(places, ways).map("/".join))
# Any link: to a path from where it stands, or to an absolute one (of the ground, filled in when it is made).
links = st.lists(
    st.tuples(
        st.one_of(places, anything),
        st.one_of(targets, anything, targets.map(lambda path: "{ground}/desk/" + path)),
    ),
    max_size=5,
)


@pytest.fixture
def arena() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="foliot-arena-"))
    yield root
    shutil.rmtree(root)


def build(root: Path, tree: list[tuple[str, str]]) -> Path:
    ground = Path(tempfile.mkdtemp(dir=root))
    for folder in ("private", "desk/dir/a", "desk/b"):
        (ground / folder).mkdir(parents=True)
    (ground / "secret.txt").write_text(SECRET)
    (ground / "private" / "key").write_text(SECRET)
    (ground / "desk" / "dir" / "key").write_text("inside")
    for place, target in tree:
        inside = [part for part in place.split("/") if part not in ("", ".", "..")]
        path = ground.joinpath("desk", *inside)
        parent = path.parent
        if not inside or path.is_symlink() or path.exists() or not parent.is_dir():
            continue
        if parent.resolve().is_relative_to(ground / "desk") and target:
            path.symlink_to(target.format(ground=ground))
    return ground


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.one_of(paths, st.text(max_size=12)), tree=links)
def test_no_path_and_no_tree_of_links_touches_what_is_outside(
    arena: Path, path: str, tree: list[tuple[str, str]]
) -> None:
    ground = build(arena, tree)
    workspace = Workspace(ground / "desk")
    before = snapshot(ground)

    try:
        with workspace.open_file(path) as descriptor:
            assert SECRET.encode() not in os.read(descriptor, 100)
            real = (
                Path(os.readlink(f"/proc/self/fd/{descriptor}")) if os.path.isdir("/proc/self/fd") else workspace.root
            )
            assert real.is_relative_to(workspace.root)
    except ToolError:
        pass
    with suppress(ToolError):
        workspace.replace_file(path, b"written")
    try:
        found = [SECRET.encode() in _content(folder, name) for _, folder, name in files_below(workspace, path, Walk())]
        assert not any(found)
    except ToolError:
        pass

    assert snapshot(ground) == before


def _content(folder: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths, tree=links)
def test_no_descriptor_is_left_open(arena: Path, path: str, tree: list[tuple[str, str]]) -> None:
    workspace = Workspace(build(arena, tree) / "desk")
    lowest = os.dup(0)
    os.close(lowest)

    for act in (workspace.open_file, workspace.open_folder):
        try:
            with act(path):
                pass
        except ToolError:
            pass

    again = os.dup(0)
    os.close(again)
    assert again == lowest


def test_going_up_is_along_the_way_that_was_taken(workspace: Workspace, ground: Path) -> None:
    (ground / "desk" / "deep" / "er").mkdir(parents=True)
    (ground / "desk" / "short").symlink_to("deep/er")

    with workspace.open_file("short/../../a.txt") as descriptor:
        assert os.read(descriptor, 10) == b"alpha\n"
    with pytest.raises(OutsideWorkspace), workspace.open_file("short/../../../secret.txt"):
        pass
