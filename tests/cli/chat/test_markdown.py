"""Answers in Markdown as rows of a terminal: they read well, nothing is hidden, and none steers the terminal."""

from __future__ import annotations

import itertools
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foliot.cli.chat import screen
from foliot.cli.chat.commands import help_lines
from foliot.cli.chat.line_editor import LineEditor
from foliot.cli.chat.markdown import LONGEST_LINE, Setter, set_line
from foliot.cli.terminal import wrap
from foliot.common.text import UNSAFE

ANSWER = """\
# The refund

Order **4711** is `paid`, see [the page](https://shop.example/4711).
It goes out *today*.

1. look it up
2. pay it back
   - in two parts

> as **agreed**

| part | amount |
|------|-------:|
| one  |     80 |

```python
total = 2 * 80 * factor
```
"""
SEEN = """\
The refund

Order 4711 is paid, see the page (https://shop.example/4711).
It goes out today.

1. look it up
2. pay it back
   • in two parts

▌ as agreed

| part | amount |
|------|-------:|
| one  |     80 |

```python
total = 2 * 80 * factor
```
"""
WORDS = ["alpha", "beta", " ", "\n", "\n\n", "    ", "\t", "日本", "&#8238;", "&#27;[2J", "\x1b[2J", "\u202e", "\\"]
MARKS = ["**", "*", "_", "`", "```", "~~~", "~~", "#", "# ", "- ", "1. ", "> ", "| ", "|-|", "---", "> " * 30]
LINKS = ["[", "]", "(", ")", "![", "<b>", "<!--", "-->", "](gamma ", "'beta'"]
TEXTS = st.lists(st.sampled_from(WORDS + MARKS + LINKS), max_size=40).map("".join)


def bare(text: str) -> str:
    """The text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", click.unstyle(text))


def shown(text: str) -> str:
    setter = Setter()
    return "\n".join(bare(setter.take(line).text) for line in text.split("\n"))


def printed(pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rows that a screen prints for good of an answer in these pieces."""
    rows: list[str] = []
    terminal = screen.Screen(LineEditor([]), color=None)
    monkeypatch.setattr(terminal._area, "print", lambda each: rows.extend(map(bare, each)))
    monkeypatch.setattr(terminal._area, "draw", lambda *_, **__: None)
    for piece in pieces:
        terminal.write(piece)
    terminal.settle()
    return rows


def test_an_answer_reads_as_text() -> None:
    assert shown(ANSWER) == SEEN


def test_weights_and_colours_stand_for_the_marks() -> None:
    row = set_line("**bold** and `code`").text
    assert re.sub(r"\x1b\[[0-9]{5,};", "\x1b[", row) == "\x1b[1mbold\x1b[0m and \x1b[36mcode\x1b[0m"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a <b>tag</b> and List<str>", "a <b>tag</b> and List<str>"),
        ("<https://x.example>", "https://x.example"),
        ("[https://good.example](https://evil.example)", "https://good.example (https://evil.example)"),
        ("[a](https://x.example 'a title')", "a (https://x.example) a title"),
        ("![a cat](https://x.example/cat.png)", "a cat (https://x.example/cat.png)"),
        ("[](https://x.example)", " (https://x.example)"),
        ("[it]: https://x.example", "[it]: https://x.example"),
        ("~~gone~~ 2**3 foo_bar_baz", "~~gone~~ 2**3 foo_bar_baz"),
        ("```python title=pay.py", "```python title=pay.py"),
        ("| 1 | 2 | a cell beyond the head |", "| 1 | 2 | a cell beyond the head |"),
        ("> " * 40 + "and pay Mallory", "▌ " * 40 + "and pay Mallory"),
        (" " * 140 + "- a deep item", " " * 140 + "• a deep item"),
        ("---", "---"),
        ("a line\r", "a line"),
    ],
)
def test_what_markdown_would_hide_is_seen(text: str, seen: str) -> None:
    assert shown(text) == seen


@given(TEXTS, st.integers(20, 80))
def test_no_word_is_lost_and_no_row_steers_or_leaves_its_place(text: str, width: int) -> None:
    setter = Setter()
    lines = [setter.take(line) for line in text.split("\n")]
    rows = [bare(row) for line in lines for row in wrap(line.text, width, indent=line.indent[: width // 2])]
    assert [row for row in rows if cell_len(row) > width or UNSAFE.search(row)] == []
    seen = re.sub(r"\s", "", "".join(rows))
    for word in ("alpha", "beta", "gamma"):
        assert seen.count(word) >= text.count(word), (text, rows)


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_pieces_are_shown_as_the_whole(text: str, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = printed([text], patch)
        places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
        assert printed([text[a:b] for a, b in itertools.pairwise(places)], patch) == whole


def test_a_line_without_end_is_printed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn anew with each piece: what is long is not."""
    longest = 0
    real = screen.set_line

    def setting(line: str, fence: str = "") -> object:
        nonlocal longest
        longest = max(longest, len(line))
        return real(line, fence)

    monkeypatch.setattr(screen, "set_line", setting)
    rows = printed(["word "] * 2000, monkeypatch)
    assert longest <= LONGEST_LINE + 10
    assert "".join(rows).replace(" ", "").replace("│", "") == "word" * 2000


@given(st.text(st.sampled_from("ab 日\x1b"), max_size=200), st.integers(20, 60))
def test_a_line_of_ours_is_broken_and_loses_nothing(line: str, width: int) -> None:
    rows = wrap(line, width)
    assert all(cell_len(row) <= width for row in rows)
    assert not any(row[:1].strip() for row in rows[1:])
    # `\x1b` is shown as its escape.
    assert "".join(rows).replace(" ", "") == line.replace(" ", "").replace("\x1b", "\\u001b")


@pytest.mark.parametrize("columns", [40, 79])
def test_the_help_fits_its_terminal(columns: int) -> None:
    assert [line for line in help_lines(columns) if len(line) > columns] == []
