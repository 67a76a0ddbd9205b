"""Reading, writing, editing and finding files."""

from __future__ import annotations

import itertools
import os
import re
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.tools.base import ToolArgumentsInvalid, ToolTimeout
from foliot.tools.builtin import find
from foliot.tools.builtin.files import MOST_BYTES, MOST_LINES, EditFile, ReadFile, WriteFile
from foliot.tools.builtin.find import Glob, Grep, PathPattern
from foliot.tools.builtin.workspace import Workspace
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.builtin.kit import call, invocation


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


async def read_all(workspace: Workspace, path: str) -> tuple[str, int]:
    """A file as a model reads it that follows the offsets it is told; and in how many pages."""
    text, offset, pages = "", 1, 0
    while True:
        page = (await call(ReadFile(workspace), {"path": path, "offset": offset})).text
        pages += 1
        body, mark, note = page.rpartition("[Use offset=")
        if not mark:
            return text + page, pages
        text, following = text + body, int(note.split("]")[0].split(" ")[0])
        assert following > offset, "a page that leads nowhere"
        offset = following


async def test_a_file_is_read_page_by_page_without_a_gap(workspace: Workspace, tmp_path: Path) -> None:
    whole = "".join(f"line {n} é\n" for n in range(1, MOST_LINES * 2 + 11))
    (tmp_path / "long.txt").write_text(whole)

    assert await read_all(workspace, "long.txt") == (whole, 3)


async def test_lines_that_are_too_many_bytes_make_smaller_pages(workspace: Workspace, tmp_path: Path) -> None:
    whole = "".join("x" * (MOST_BYTES // 3) + f"{n}\n" for n in range(7))
    (tmp_path / "wide.txt").write_text(whole)

    assert (await read_all(workspace, "wide.txt"))[0] == whole


async def test_a_line_that_fits_no_page_is_shown_cut_and_not_skipped(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text("a\n" + "x" * (MOST_BYTES + 500) + "\nend\n")

    second = (await call(ReadFile(workspace), {"path": "wide.txt", "offset": 2})).text

    assert second.startswith("x" * MOST_BYTES)
    assert f"[Line 2 is {MOST_BYTES + 501} bytes long; the first {MOST_BYTES} are shown]" in second
    assert second.endswith("[Use offset=3 to continue reading]")
    assert (await call(ReadFile(workspace), {"path": "wide.txt", "offset": 3})).text == "end\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"offset": 2, "limit": 1}, "two\n[Use offset=3 to continue reading]"),
        ({"offset": 3}, "three"),
        ({"offset": 9}, ""),
        ({"offset": 0, "limit": None}, "one\ntwo\nthree"),
        ({"offset": 1.0, "limit": 99999999}, "one\ntwo\nthree"),
    ],
)
async def test_a_part_of_a_file(workspace: Workspace, tmp_path: Path, arguments: dict, shown: str) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")

    assert (await call(ReadFile(workspace), {"path": "a.txt", **arguments})).text == shown


async def test_binary_files_are_refused_and_odd_text_is_shown(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "nul").write_bytes(b"text\0more")
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)) * 10)
    (tmp_path / "latin").write_bytes("mostly plain text, one caf\xe9".encode("latin-1"))
    (tmp_path / "empty").write_bytes(b"")

    for name in ("nul", "noise"):
        refused = await call(ReadFile(workspace), {"path": name})
        assert refused.error is not None
        assert "looks binary" in refused.text
    assert "one caf\N{REPLACEMENT CHARACTER}" in (await call(ReadFile(workspace), {"path": "latin"})).text
    assert (await call(ReadFile(workspace), {"path": "empty"})).text == ""


async def test_writing_makes_folders_replaces_and_keeps_the_mode(workspace: Workspace, tmp_path: Path) -> None:
    written = await call(WriteFile(workspace), {"path": "new/deep/a.sh", "content": "é\n"})
    os.chmod(tmp_path / "new/deep/a.sh", 0o750)
    await call(WriteFile(workspace), {"path": "new/deep/a.sh", "content": "again"})

    assert written.text == "Wrote new/deep/a.sh (3 bytes)"
    assert (tmp_path / "new/deep/a.sh").read_text() == "again"
    assert (tmp_path / "new/deep/a.sh").stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path / "new/deep") == ["a.sh"]


async def test_a_file_is_there_whole_or_not_at_all(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = await call(WriteFile(workspace), {"path": "a.txt", "content": "new"})

    assert result.error is not None
    assert "No space left on device" in result.text
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("arguments", "text", "after"),
    [
        ({"old_string": "b", "new_string": "x"}, "Edited f", "a x a"),
        ({"old_string": "a", "new_string": "x"}, "edit: old_string matches 2 times in f (must be unique)", "a b a"),
        ({"old_string": "a", "new_string": "x", "replace_all": True}, "Edited f (2 places)", "x b x"),
        ({"old_string": "c", "new_string": "x"}, "edit: old_string not found in f", "a b a"),
        ({"old_string": "b", "new_string": "b"}, "edit: old_string and new_string are the same", "a b a"),
        ({"old_string": "b", "new_string": ""}, "Edited f", "a  a"),
    ],
)
async def test_an_edit_matches_exactly_once(workspace: Workspace, tmp_path: Path, arguments, text, after) -> None:
    (tmp_path / "f").write_text("a b a")

    result = await call(EditFile(workspace), {"path": "f", **arguments})

    assert text in result.text
    assert (tmp_path / "f").read_text() == after


async def test_an_edit_leaves_other_bytes_alone(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe old \r\n\xff")

    await call(EditFile(workspace), {"path": "f", "old_string": "old", "new_string": "é"})

    assert (tmp_path / "f").read_bytes() == b"\xff\xfe \xc3\xa9 \r\n\xff"


async def test_what_is_missing_is_said_in_plain_words(workspace: Workspace) -> None:
    assert (await call(ReadFile(workspace), {"path": "no/such"})).error.kind == "not_found"
    for tool, words in [
        (ReadFile(workspace), "read: path is required"),
        (WriteFile(workspace), "write: path is required"),
        (EditFile(workspace), "edit: path is required"),
    ]:
        with pytest.raises(ToolArgumentsInvalid, match=words):
            await tool.invoke(invocation(tool, {}))
    with pytest.raises(ToolArgumentsInvalid, match="edit: old_string is required"):
        await EditFile(workspace).invoke(invocation(EditFile(workspace), {"path": "a"}))
    assert (await call(ReadFile(workspace), {"path": "nul\0"})).error.code == "invalid_input"


@pytest.mark.parametrize(("text", "old", "count"), [("aaa", "aa", 2), ("abababa", "aba", 3), ("x" * 500, "x", 100)])
async def test_matches_that_overlap_are_not_one(workspace: Workspace, tmp_path: Path, text, old, count) -> None:
    (tmp_path / "f").write_text(text)

    refused = await call(EditFile(workspace), {"path": "f", "old_string": old, "new_string": "!"})
    edited = await call(EditFile(workspace), {"path": "f", "old_string": old, "new_string": "!", "replace_all": True})

    assert f"matches {count} times" in refused.text
    assert edited.error is None
    assert ("overlap" in edited.text) is (old != "x")
    assert (tmp_path / "f").read_text() == text.replace(old, "!")


# --- finding -----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    for path in ("src/app.py", "src/ui/view.ts", "src/ui/view.tsx", "README.md", ".git/config", ".hidden/x.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"# {path}\nTODO: write {path}\n")
    return Workspace(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"pattern": "**/*.py"}, [".hidden/x.py", "src/app.py"]),
        ({"pattern": "*.md"}, ["README.md"]),
        ({"pattern": "src/**/*.{ts,tsx}"}, ["src/ui/view.ts", "src/ui/view.tsx"]),
        ({"pattern": "*.py", "path": "src"}, ["src/app.py"]),
        ({"pattern": "**/view.t?"}, ["src/ui/view.ts"]),
        ({"pattern": "[A-Z]*"}, ["README.md"]),
        ({"pattern": "[!A-Z]*/*.py"}, [".hidden/x.py", "src/app.py"]),
        ({"pattern": "**/config"}, []),
    ],
)
async def test_files_are_found_by_pattern(project: Workspace, arguments, files) -> None:
    found = msgspec.json.decode((await call(Glob(project), arguments)).text)

    assert (found["files"], found["has_more"]) == (files, False)


async def test_a_list_that_was_cut_says_so(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert msgspec.json.decode((await call(Glob(project), {"pattern": "**", "limit": 2})).text)["has_more"] is True
    monkeypatch.setattr(find, "Walk", partial(find.Walk, clock=count().__next__, seconds=2))
    found = msgspec.json.decode((await call(Glob(project), {"pattern": "**/zzz"})).text)

    assert (found["files"], found["count"], found["has_more"]) == ([], 0, True)
    assert found["note"].startswith("not every folder was looked at, because it took longer than 2 s")
    assert "not every folder" in (await call(Grep(project), {"pattern": "nowhere"})).text


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../b", "{a,b}" * 8, " "])
async def test_patterns_that_lead_out_or_blow_up_are_refused(project: Workspace, pattern: str) -> None:
    assert (await call(Glob(project), {"pattern": pattern})).error.code == "invalid_input"


@given(st.text(alphabet="ab*?[]!-{},/", max_size=20), st.text(alphabet="ab/", max_size=12))
def test_every_pattern_is_either_refused_or_gives_an_answer(pattern: str, path: str) -> None:
    try:
        made = PathPattern(pattern)
    except ToolArgumentsInvalid:
        return
    assert made.matches(path) in (True, False)


@given(st.lists(st.text(alphabet="ab.", min_size=1, max_size=5).filter(lambda name: name.strip(".")), min_size=1))
def test_a_path_matches_itself_and_the_pattern_of_everything(names: list[str]) -> None:
    path = "/".join(names)
    assert PathPattern(path).matches(path)
    assert PathPattern("**").matches(path)
    assert PathPattern("/".join("*" for _ in names)).matches(path)
    assert PathPattern("**/" + names[-1]).matches(path)


async def test_what_is_near_is_found_although_a_neighbour_is_full(tmp_path: Path) -> None:
    """It used to end after 50,000 entries, all of them in the first folder of the alphabet."""
    for n in range(300):
        (tmp_path / "a" / f"{n:03}" / "deep").mkdir(parents=True)
        (tmp_path / "a" / f"{n:03}" / "deep" / "x.py").touch()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.py").write_text("here\n")
    (tmp_path / "z.py").touch()
    workspace, walk = Workspace(tmp_path), find.Walk()

    found = [path for path, _, _ in find.files_below(workspace, "", walk, names=PathPattern("**/*.py"))]

    assert found[:3] == ["z.py", "b/x.py", "a/000/deep/x.py"]
    assert (len(found), walk.note()) == (302, "")


@pytest.mark.parametrize(
    ("pattern", "visited"), [("b/c/x.py", 3), ("b/*/x.py", 5), ("{b,no}/c/x.py", 4), ("*/c/x.py", 9), ("b/**", 5)]
)
async def test_only_folders_that_can_hold_a_match_are_looked_into(tmp_path: Path, pattern: str, visited: int) -> None:
    for path in ("a/1/x.py", "a/2/x.py", "b/c/x.py", "b/d/x.py", "c/x.py", "d", "e"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    walk = find.Walk()

    found = [path for path, _, _ in find.files_below(Workspace(tmp_path), "", walk, names=PathPattern(pattern))]

    assert "b/c/x.py" in found
    assert walk.visited == visited


def test_the_clock_is_looked_at_within_a_folder_too(tmp_path: Path) -> None:
    for n in range(50):
        (tmp_path / f"{n:02}.py").touch()
    ticks = itertools.count()
    walk = find.Walk(seconds=10, clock=lambda: float(next(ticks)))

    found = [path for path, _, _ in find.files_below(Workspace(tmp_path), "", walk)]

    assert 0 < len(found) < 20
    assert "longer than 10 s" in walk.note()


async def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    (tmp_path / "large").write_bytes(b"needle\n" * (find.LARGEST_SEARCHED // 7 + 10))
    workspace = Workspace(tmp_path)

    assert "1 files or folders cannot be read" in (await call(Glob(workspace), {"pattern": "**"})).text
    assert "1 files over 16 MiB were not looked into" in (await call(Grep(workspace), {"pattern": "needle"})).text


async def test_lines_are_found_by_expression(project: Workspace) -> None:
    found = await call(Grep(project), {"pattern": r"^todo: \w+ src", "ignore_case": True, "glob": "**/*.ts"})

    assert found.text == "src/ui/view.ts:2: TODO: write src/ui/view.ts"
    assert "may be more" in (await call(Grep(project), {"pattern": "TODO", "limit": 2})).text
    assert (await call(Grep(project), {"pattern": "nowhere"})).text == "No matches."
    assert (await call(Grep(project), {"pattern": "TODO", "path": "src/ui"})).text.count("\n") == 1


@pytest.mark.parametrize(
    "pattern",
    ["needle", "nee?dle", "n(ee)dle", "(?i)NEEDLE", "needle|pin", "x*needle$", "^needle", "ne.dle", "[n]eedle", ".*"],
)
async def test_a_line_that_fits_is_found_whatever_the_expression_holds(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "hay").write_text("hay\nhay\nneedle\nhay needle\nneedle\n")

    found = (await call(Grep(Workspace(tmp_path)), {"pattern": pattern})).text

    lines = (tmp_path / "hay").read_text().splitlines()
    assert found.splitlines() == [f"hay:{n}: {line}" for n, line in enumerate(lines, 1) if re.search(pattern, line)]


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "*"])
async def test_an_expression_that_is_none_is_said_to_be(project: Workspace, pattern: str) -> None:
    result = await call(Grep(project), {"pattern": pattern})

    assert result.error.code == "invalid_input"
    assert "cannot be used" in result.text


async def test_an_expression_that_takes_for_ever_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bait").write_text("a" * 60 + "!")
    monkeypatch.setattr(find, "SECONDS", 0.5)
    grep = Grep(Workspace(tmp_path))

    with pytest.raises(ToolTimeout, match="takes too long"):
        await grep.invoke(invocation(grep, {"pattern": "(a+)+$"}))


async def test_files_that_cannot_be_searched_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / "large").write_bytes(b"needle\n" * (find.LARGEST_SEARCHED // 7 + 10))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("x" * 5000 + "needle" + "y" * 5000)

    found = (await call(Grep(Workspace(tmp_path)), {"pattern": "needle"})).text

    assert found.startswith("text:1: ")
    assert "needle" in found
    assert len(found) < 400


async def test_many_failures_in_a_row_close_the_tool_to_nobody(workspace: Workspace, tmp_path: Path) -> None:
    """What one run looks for in vain says nothing about the next file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("alpha")
    read = ReadFile(workspace)
    pipeline = Pipeline([read])

    failed = [await pipeline.call(invocation(read, {"path": "folder"})) for _ in range(10)]

    assert {result.error.kind for result in failed if result.error} == {"precondition_failed"}
    assert (await pipeline.call(invocation(read, {"path": "a.txt"}))).text == "alpha"
