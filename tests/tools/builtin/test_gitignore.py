"""What `.gitignore` files leave out, beside what git itself says."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from foliot.tools.builtin.find import Glob, Walk, files_below
from foliot.tools.builtin.workspace import Workspace
from tests.tools.builtin.kit import call

NAMES = ("a", "b", "ab", "a.c", "b.c", "x y")
RULES = (
    "a",
    "b/",
    "*.c",
    "/a",
    "!a",
    "!*.c",
    "a/b",
    "**/b",
    "a/**",
    "a/**/b",
    "?b",
    "[ab]",
    "[!a].c",
    "# a",
    "",
    "x\\ y",
    "/*",
)
RULES += ("!/b", "*", "**", "ab  ", "\\!a", "b/*.c", "!b/", "*b*", "a*/")
SEEDS = [random.randrange(10**9) for _ in range(50)] if os.environ.get("FOLIOT_CHAOS") else [1, 2, 3, 4, 5, 6, 7, 8]


def paths(workspace: Path, *, ignoring: bool = True) -> set[str]:
    found = files_below(Workspace(workspace), "", Walk(), ignoring=ignoring)
    return {path for path, _, _ in found}


def listed_by_git(folder: Path) -> set[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    told = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"],
        cwd=folder,
        env=clean,
        check=True,
        capture_output=True,
    )
    return {name for name in told.stdout.decode().split("\0") if name}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here to compare with")
@pytest.mark.parametrize(
    "seed", [random.randrange(10**9) for _ in range(50)] if os.environ.get("FOLIOT_CHAOS") else range(8)
)
def test_the_same_files_are_left_out_as_git_leaves_out(tmp_path: Path, seed: int) -> None:
    """A seed that fails is in the name of the test; put it into SEEDS to see it again."""
    chance = random.Random(seed)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env={"PATH": os.environ["PATH"]})
    for _ in range(40):
        path = tmp_path.joinpath(*chance.choices(NAMES, k=chance.randint(1, 4)))
        if not any(each.is_file() for each in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    folders = [tmp_path, *(each for each in tmp_path.rglob("*") if each.is_dir() and ".git" not in each.parts)]
    for folder in [tmp_path, *chance.sample(folders, min(3, len(folders)))]:
        (folder / ".gitignore").write_text("\n".join(chance.choices(RULES, k=chance.randint(1, 6))))

    assert paths(tmp_path) == listed_by_git(tmp_path)


async def test_files_are_left_out_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    for path in ("build/out.py", "src/a.py", "src/a.log", "src/keep.log"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    workspace = Workspace(tmp_path)

    all_of_them = (await call(Glob(workspace), {"pattern": "*/*"})).text
    those_left = (await call(Glob(workspace), {"pattern": "*/*", "gitignore": True})).text
    below = (await call(Glob(workspace), {"pattern": "*", "path": "src", "gitignore": True})).text

    assert "build/out.py" in all_of_them
    assert '"files":["src/a.py","src/keep.log"]' in those_left
    assert '"files":["src/a.py","src/keep.log"]' in below
