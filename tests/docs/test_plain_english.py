"""Plain English, held by counts: docstrings begin with their subject, and texts use the industry's words.

The reader is a good engineer whose first language may be none of ours, and who searches for *resume*, *in progress*,
*release*, *caller*. A ceiling may be lowered and never raised.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "foliot"
# Beginnings that leave the subject or the verb to be guessed: "What is kept of …", "As `other`, but …", "Until then."
RIDDLE = re.compile(
    r"(What|Who|Whoever|Whatever|Whose|As|Those|See|Where|Until|Nobody|Somebody|Something|Anything|Nothing|None|It|If"
    r"|Neither|Not|Both|Before|Behind|For|Of|With|Without|In|To|On|By|While|When|These|Its)\b"
)

# Docstrings whose first line begins so.
RIDDLING_DOCSTRINGS = 0

# Word: its plain counterpart, and how often messages, help texts and pages may still use it.
WORDS = {
    r"whoever": ("the caller, the owner, anyone who", 75),
    r"gone on with|go(?:es|ing)? on with": ("resumed, continued", 30),
    r"let(?:s|ting)? go": ("released", 2),
    r"under way": ("in progress", 28),
    r"nobody": ("no one; better: name what is missing", 132),
    r"told": ("notified, reported; or: given", 70),
    r"is not there|are not there": ("does not exist", 22),
    r"taken up": ("resumed, claimed", 6),
}


def _documented(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                text = ast.get_docstring(node)
                if text:
                    yield first.value, text


def _texts(tree: ast.Module) -> Iterator[str]:
    """Yields the texts of a module that people may see: string constants that are no docstrings."""
    docstrings = {id(constant) for constant, _ in _documented(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_docstrings_begin_with_their_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{constant.lineno}: {text.splitlines()[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for constant, text in _documented(ast.parse(path.read_text()))
        if RIDDLE.match(text)
    ]
    assert len(found) <= RIDDLING_DOCSTRINGS, "\n".join(found)


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """All that people read, by file: the texts of the program, and the pages."""
    texts = {
        str(path.relative_to(ROOT)): list(_texts(ast.parse(path.read_text()))) for path in sorted(SOURCE.rglob("*.py"))
    }
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return texts | {str(path.relative_to(ROOT)): [path.read_text()] for path in pages}


@pytest.mark.parametrize("word", WORDS)
def test_texts_use_the_industrys_words(word: str, shown: dict[str, list[str]]) -> None:
    instead, ceiling = WORDS[word]
    pattern = re.compile(rf"\b(?:{word})\b", re.IGNORECASE)
    found = Counter({file: sum(len(pattern.findall(text)) for text in texts) for file, texts in shown.items()})
    worst = ", ".join(f"{file} {count}" for file, count in found.most_common(12) if count)
    assert found.total() <= ceiling, f"{found.total()} times {word!r}; write: {instead}. Most are in {worst}"
