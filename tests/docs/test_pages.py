"""Every page begins with its purpose and an example, the index leads to all of them, and quoted messages exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from foliot.resources.kinds import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# Tables that programs write: their cells are the example.
WRITTEN = {"clients.md", "providers.md"}
# An example stands within what a window shows.
SCREEN = 32


@pytest.mark.parametrize("page", [pytest.param(each, id=each.name) for each in PAGES])
def test_a_page_begins_with_its_purpose_and_an_example(page: Path) -> None:
    title, blank, first, *_ = lines = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert blank == ""
    assert re.match(r"[A-Z`\[]", first), "a page begins with a sentence that says what it is for"
    shown = [number for number, line in enumerate(lines) if re.match(r"```\w|    \S", line)]
    assert page.name in WRITTEN or (shown and shown[0] < SCREEN), "an example stands on the first screen"


def test_the_index_leads_to_every_page_and_decision() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    pages = {str(each.relative_to(DOCS)) for each in DOCS.rglob("*.md")} - {"README.md"}
    assert pages - linked == set()


def test_messages_that_are_explained_are_messages_of_foliot() -> None:
    texts = " ".join(
        node.value
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r'^\| "([^"]+)" \|', page, re.MULTILINE)
    assert len(quoted) > 15
    pieces = [piece.strip() for message in quoted for piece in message.split("…") if piece.strip()]
    assert [piece for piece in pieces if piece not in texts] == []


def test_the_kinds_are_all_shown_and_counted() -> None:
    words = {20: "twenty", 21: "twenty-one", 22: "twenty-two", 23: "twenty-three", 24: "twenty-four"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"an example of each of the {words[len(KINDS)]} kinds" in readme
    examples = (DOCS / "kinds.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\w+)$", examples, re.MULTILINE)) == set(KINDS)
    section = (DOCS / "manifests.md").read_text(encoding="utf-8").split("## The kinds")[1].split("\n## ")[0]
    listed = re.findall(r"^\| ([A-Z][\w, ]+) \|", section, re.MULTILINE)
    assert {name for row in listed for name in row.split(", ")} == set(KINDS)


def test_the_extras_are_explained() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"^([a-z-]+) = \[", section, re.MULTILINE) if f"| `{name}` |" not in page] == []
