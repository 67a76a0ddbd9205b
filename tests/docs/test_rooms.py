"""The map in docs/architecture.md, held against the tree: a newcomer finds by it where something is done."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "foliot"
MAP = (ROOT / "docs" / "architecture.md").read_text()
ANSWERS = re.findall(r"^\| (.+) \| `(\S+\.py)` \| `(\w+)` \|$", MAP, re.MULTILINE)


def test_the_map_answers_at_least_ten_questions() -> None:
    assert len(ANSWERS) >= 10


@pytest.mark.parametrize(("question", "file", "name"), ANSWERS, ids=[name for _, _, name in ANSWERS])
def test_each_question_is_answered_in_the_file_that_the_map_names(question: str, file: str, name: str) -> None:
    tree = ast.parse((SOURCE / file).read_text())
    defined = {
        each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for each in tree.body:
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert name in defined, question


def test_every_file_that_the_map_names_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", MAP))
    assert len(named) > 20
    assert not {path for path in named if not (SOURCE / path).is_file()}


def test_every_room_of_the_tree_is_on_the_map() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert not {room for room in rooms if f"      {room}/ " not in MAP}


def test_the_root_holds_only_what_is_public() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "errors.py", "version.py"}


FOREIGN = {"aiodns.py", "src/main.py"}  # a library's file, and an example in a sentence


def test_every_file_that_the_source_names_in_words_is_there() -> None:
    """A reference to a file that was moved leads nobody anywhere."""
    there = [
        f"/{path.relative_to(ROOT)}"
        for room in ("src", "simulators", "tests", "benchmarks", "examples")
        for path in (ROOT / room).rglob("*.py")
    ]
    lost = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCE.rglob("*.py")
        for word in re.findall(r"(?<![\w/.{-])((?:[a-z_]+/)*[a-z_]+\.py)\b", path.read_text())
        if word not in FOREIGN
        and not (path.parent / word).exists()
        and not any(each.endswith(f"/{word}") for each in there)
    ]
    assert lost == []
