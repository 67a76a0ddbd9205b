"""A snapshot of any tree gives an equal tree back, and no trick of the tree makes it read or write outside."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.engine.workspaces.history import archived
from foliot.engine.workspaces.restore import remove, restore
from foliot.engine.workspaces.scan import FRESH, Bounds, KnownFolder, Seen, look
from foliot.engine.workspaces.trees import EMPTY, PIECE, SNAPSHOT_EVENTS, WorkspaceTree, differences, newest_after
from foliot.errors import InvalidInput
from foliot.kernel.run.events import Event, WorkspaceSnapshot
from foliot.kernel.run.spec import digest
from tests.engine.workspaces.kit import tree_of

BOUNDS = Bounds(1 << 40, 1 << 20)
NAMES = st.sampled_from([b"a", b"b", b"c d", b"\xff\xfe", "é".encode(), b"-n", b"x" * 200, b".git", b"new\nline"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS, st.binary(max_size=40)),
        st.tuples(st.just("mode"), PATHS, st.sampled_from([0o600, 0o755, 0o444, 0o000, 0o711])),
        st.tuples(st.just("link"), PATHS, st.sampled_from([b"../../etc/passwd", b"a", b"/etc", b"\xff", b"b/c d"])),
        st.tuples(st.just("folder"), PATHS, st.none()),
        st.tuples(st.just("delete"), PATHS, st.none()),
    ),
    max_size=12,
)


def edited(folder: Path, edits: list[tuple[str, bytes, Any]]) -> None:
    """Apply edits; what makes no sense is passed over."""
    for what, path, value in edits:
        place = os.path.join(os.fsencode(folder), path)
        try:
            if what != "delete":
                os.makedirs(os.path.dirname(place), exist_ok=True)
            if what == "write":
                if not os.path.islink(place):
                    Path(os.fsdecode(place)).write_bytes(value)
            elif what == "mode":
                if not os.path.islink(place):
                    os.chmod(place, value)
            elif what == "link":
                os.symlink(value, place)
            elif what == "folder":
                os.mkdir(place)
            elif os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)
        except OSError:
            continue


class Store(dict[str, bytes]):
    """Content by digest."""

    def put(self, contents: Any) -> None:
        self.update((digest(data), data) for data in contents)

    def get_many(self, digests: Any) -> dict[str, bytes]:
        return {each: self[each] for each in digests}

    async def fetch(self, name: str) -> bytes:
        return self[name]

    def tree(self, root: str) -> WorkspaceTree:
        return asyncio.run(WorkspaceTree.load(self.fetch, root))


def seen(folder: Path, store: Store | None = None, known: KnownFolder | None = None) -> Seen:
    root = os.open(folder, os.O_RDONLY)
    try:
        return look(root, known, BOUNDS, store.put if store is not None else None)
    finally:
        os.close(root)


def put_back(folder: Path, store: Store, snapshot: str) -> None:
    root = os.open(folder, os.O_RDONLY)
    try:
        restore(root, seen(folder).root, store.tree(snapshot), store.get_many)
    finally:
        os.close(root)


@given(EDITS, EDITS, EDITS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_comes_back_into_any_other_tree(first: Any, second: Any, other: Any) -> None:
    with tempfile.TemporaryDirectory() as made:
        one, two, store = Path(made, "one"), Path(made, "two"), Store({EMPTY: b""})
        one.mkdir()
        two.mkdir()
        edited(one, first)
        before = seen(one, store)
        wanted = tree_of(one)
        edited(one, second)
        after = seen(one, store, before.root)  # what is known is only a short cut
        assert after.digest == seen(one).digest
        edited(two, other)

        put_back(two, store, before.digest)
        put_back(one, store, before.digest)

        assert tree_of(two) == tree_of(one) == wanted
        assert seen(two).digest == before.digest
        changed = {each.path for each in differences(store.tree(before.digest), store.tree(after.digest))}
        assert bool(changed) == (before.digest != after.digest)


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    store, file = Store(), tmp_path / "a"
    file.write_bytes(b"one")
    old = os.stat(file)
    before = seen(tmp_path, store)
    file.write_bytes(b"two")
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))

    assert seen(tmp_path, store, before.root).digest != before.digest


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text(str(number))
    monkeypatch.setattr("foliot.engine.workspaces.scan.FRESH", -FRESH * 10**6)
    before = seen(tmp_path)
    (tmp_path / "3").write_text("three")
    opened: list[str] = []
    real = os.open

    def counted(path: Any, *rest: Any, **named: Any) -> int:
        opened.append(str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", counted)
    store = Store()
    seen(tmp_path, store, before.root)

    assert [path for path in opened if path.isdigit()] == ["3"]
    assert b"three" in store.values()


def test_a_large_file_is_stored_in_pieces_and_comes_back(tmp_path: Path) -> None:
    one, two, store = tmp_path / "one", tmp_path / "two", Store()
    one.mkdir()
    two.mkdir()
    (one / "big").write_bytes(os.urandom(2 * PIECE + 17))

    put_back(two, store, seen(one, store).digest)

    assert (two / "big").read_bytes() == (one / "big").read_bytes()
    assert max(map(len, store.values())) == PIECE


def test_ten_thousand_files_come_back(tmp_path: Path) -> None:
    one, two, store = tmp_path / "one", tmp_path / "two", Store()
    for number in range(100):
        (one / str(number)).mkdir(parents=True)
    for number in range(10_000):
        (one / str(number % 100) / str(number)).write_bytes(b"%d" % (number % 7))
    two.mkdir()
    found = seen(one, store)

    put_back(two, store, found.digest)

    assert found.files == 10_100
    assert seen(two).digest == found.digest


@pytest.mark.parametrize("trick", ["folder", "file"])
def test_a_name_that_becomes_a_link_while_it_is_walked_leads_nowhere(tmp_path: Path, trick: str) -> None:
    """One thread exchanges a name for a link to the outside all the time; the outside is never part of a snapshot."""
    outside, inside, store = tmp_path / "outside", tmp_path / "inside", Store()
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_text("secret of the host")
    target = outside if trick == "folder" else outside / "secret"
    stop = threading.Event()

    def swap() -> None:
        place = inside / "x"
        while not stop.is_set():
            if trick == "folder":
                place.mkdir()
                (place / "secret").write_text("mine")
                shutil.rmtree(place)
            else:
                place.write_text("mine")
                place.unlink()
            place.symlink_to(target)
            place.unlink()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        known = None
        for _ in range(300):
            known = seen(inside, store, known).root
    finally:
        stop.set()
        thread.join()

    assert not any(b"secret of the host" in data for data in store.values())


def test_a_restore_never_follows_a_link_that_stands_in_its_way(tmp_path: Path) -> None:
    one, two, outside, store = tmp_path / "one", tmp_path / "two", tmp_path / "outside", Store()
    (one / "d").mkdir(parents=True)
    (one / "d" / "f").write_text("restored")
    (one / "g").write_text("restored")
    found = seen(one, store)
    two.mkdir()
    outside.mkdir()
    (outside / "f").write_text("untouched")
    (two / "d").symlink_to(outside)
    (two / "g").symlink_to(outside / "f")

    put_back(two, store, found.digest)

    assert (outside / "f").read_text() == "untouched"
    assert tree_of(two) == tree_of(one)


def test_removing_a_tree_leaves_what_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "a").write_text("1")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "l").symlink_to(tmp_path / "keep")
    root = os.open(tmp_path, os.O_RDONLY)
    remove(root, root, "x")
    os.close(root)

    assert os.listdir(tmp_path) == ["keep"]
    assert os.listdir(tmp_path / "keep") == ["a"]


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "\\u0000Li4="])
def test_a_stored_folder_with_a_name_that_leads_out_is_refused(name: str) -> None:
    data = b'{"type":"folder@1","entries":[["%s","file",420,0,"sha256:00"]]}' % name.encode()
    store = Store({digest(data): data})

    with pytest.raises(InvalidInput, match="leads out"):
        store.tree(digest(data))


def test_a_folder_that_became_a_file_differs_in_all_that_was_below(tmp_path: Path) -> None:
    store = Store()
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_text("1")
    before = seen(tmp_path, store)
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "d").write_text("file")
    after = seen(tmp_path, store)

    found = differences(store.tree(before.digest), store.tree(after.digest))

    assert [(each.path, each.change) for each in found] == [
        ("d", "changed"),
        ("d/e", "deleted"),
        ("d/e/f", "deleted"),
    ]


def play_closed(made: Path) -> None:
    """Folders and files that their owner may not read are part of a snapshot, come back, and can be removed."""
    one, two, store = made / "one", made / "two", Store()
    (one / "closed").mkdir(parents=True)
    (one / "closed" / "f").write_text("1")
    (one / "secret").write_text("2")
    two.mkdir()
    os.chmod(one / "secret", 0)
    os.chmod(one / "closed", 0)
    found = seen(one, store)
    assert (found.files, found.left_out) == (3, ())
    put_back(two, store, found.digest)
    assert os.stat(two / "closed").st_mode & 0o777 == 0
    os.chmod(two / "closed", 0o700)
    (two / "closed" / "new").write_text("3")
    os.chmod(two / "closed", 0o500)
    put_back(two, store, found.digest)
    assert seen(two).digest == found.digest
    root = os.open(made, os.O_RDONLY)
    remove(root, root, "one")
    remove(root, root, "two")
    assert os.listdir(made) == []


def test_what_its_owner_may_not_read_is_kept_for_an_ordinary_user_too() -> None:
    program = (
        "import os, pathlib, sys; from tests.engine.workspaces.test_trees import play_closed\n"
        "if os.geteuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "play_closed(pathlib.Path(sys.argv[1]))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o777)
        environ = {**os.environ, "PYTHONPATH": "."}
        subprocess.run([sys.executable, "-c", program, made], check=True, timeout=60, env=environ)


def test_every_event_that_can_have_a_snapshot_is_looked_at_for_the_newest() -> None:
    kinds = [each for each in get_args(Event) if get_type_hints(each).get("workspace") == WorkspaceSnapshot | None]
    assert {str(each.__struct_config__.tag) for each in kinds} == SNAPSHOT_EVENTS
    newer, older = WorkspaceSnapshot("b", 2, 1, 1), WorkspaceSnapshot("a", 1, 1, 1)
    for kind in kinds:
        others: dict[str, Any] = dict.fromkeys(kind.__struct_fields__)
        for known, left, found in ((None, older, older), (older, newer, newer), (newer, older, newer)):
            assert newest_after(kind(**{**others, "workspace": left}), known) == found


@pytest.mark.parametrize(
    ("links", "out"),
    [
        ({"a/b/c": "../..", "x": "a/b/c/../../OUTSIDE"}, {"x"}),
        ({"a/b/c": "../..", "x": "a/b/c/a/b/d"}, set()),
        ({"a/up": "..", "x": "a/up/a/up/.."}, {"x"}),
        ({"a/b/c": "../..", "y": "a/b/c", "x": "y/../OUTSIDE"}, {"x"}),
        ({"l": "/etc", "x": "l/passwd"}, {"l", "x"}),
        ({"x": "y", "y": "x", "z": "x/.."}, {"x", "y", "z"}),
        ({"d/e/f": "../../g", "x": "d/e/f/h"}, set()),
        ({f"l{n}": f"l{n + 1}" for n in range(60)}, {f"l{n}" for n in range(19)}),
    ],
)
def test_links_that_lead_out_over_others_are_left_out_of_archives(
    tmp_path: Path, links: dict[str, str], out: set[str]
) -> None:
    store = Store()
    for path, target in links.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(target)
    left: list[str] = []

    async def data() -> bytes:
        return b"".join([piece async for piece in archived(store.fetch, tree, left)])

    tree = store.tree(seen(tmp_path, store).digest)
    found = asyncio.run(data())
    assert set(left) == out
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        assert {member.name for member in archive if member.issym()} == links.keys() - out
