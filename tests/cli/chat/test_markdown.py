"""Answers in Markdown as rows of a terminal: they read well, nothing of them is lost, and none steers the terminal."""

from __future__ import annotations

import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foliot.cli.chat import screen
from foliot.cli.chat.commands import help_lines
from foliot.cli.chat.line_editor import LineEditor
from foliot.cli.chat.markdown import LONGEST_BLOCK, blocks, markdown_rows
from foliot.cli.terminal import wrap
from foliot.common.text import UNSAFE

ANSWER = """\
# The refund

Order **4711** is `paid`, see [the page](https://shop.example/4711).
It goes out today.

1. look it up

2. pay it back

   in two parts

| part | amount |
|---|---|
| one | 80 |

```python
total = 2 * 80

print(total)
```
"""
SEEN = """\
The refund

Order 4711 is paid, see the page (https://shop.example/4711).
It goes out today.

 1 look it up

 2 pay it back
   in two parts

 part  amount
 ────────────
 one   80

  python
  total = 2 * 80

  print(total)
"""
WORDS = ["alpha", "beta", " ", "\n", "\n\n", "    ", "\t", "日本", "&#8238;", "&#27;[2J", "\x1b[2J", "\u202e", "\\"]
MARKS = ["**", "*", "_", "`", "```", "~~~", "~~", "#", "# ", "- ", "1. ", "> ", "| ", "|-|", "---"]
LINKS = ["[", "]", "(", ")", "![", "<b>", "<!--", "-->", ": http://gamma "]
PARTS = st.sampled_from(WORDS + MARKS + LINKS)
TEXTS = st.lists(PARTS, max_size=40).map("".join)


def plain(rows: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", click.unstyle(row)).rstrip() for row in rows]


def shown(text: str, width: int = 66) -> str:
    return "\n\n".join("\n".join(plain(markdown_rows(block, width))) for block in blocks(text)) + "\n"


def test_an_answer_reads_as_text() -> None:
    assert shown(ANSWER) == SEEN


def test_weights_and_colours_stand_for_the_marks() -> None:
    (row,) = markdown_rows("**bold** and `code`", 60)
    assert re.sub(r"\x1b\[[0-9]{5,};", "\x1b[", row) == "\x1b[1mbold\x1b[0m and \x1b[36mcode\x1b[0m"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a <b>tag</b> and List<str>", "a <b>tag</b> and List<str>"),
        ("<https://x.example>", "https://x.example"),
        ("[https://good.example](https://evil.example)", "https://good.example (https://evil.example)"),
        ("![a cat](https://x.example/cat.png)", "a cat (https://x.example/cat.png)"),
        ("[a](https://x.example 'a title')", "a (https://x.example) a title"),
        ("[it]: https://x.example", "[it]: https://x.example"),
        ("~~gone~~ 2**3 foo_bar_baz", "~~gone~~ 2**3 foo_bar_baz"),
    ],
)
def test_what_markdown_would_hide_is_seen(text: str, seen: str) -> None:
    assert plain(markdown_rows(text, 60)) == [seen]


@given(TEXTS, st.integers(20, 80))
def test_no_word_is_lost_and_no_row_steers_or_leaves_its_place(text: str, width: int) -> None:
    rows = [row for block in blocks(text) for row in plain(markdown_rows(block, width))]
    assert [row for row in rows if cell_len(row) > width or UNSAFE.search(row)] == []
    seen = re.sub(r"[^a-z]", "", "".join(rows))
    for word in ("alpha", "beta"):
        # An address is a word with what stands around it, and a language of code is no part of the code.
        lines = [line for line in text.split("\n") if "```" not in line and "~~~" not in line]
        assert seen.count(word) >= sum(line.count(word) for line in lines), (text, rows)


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_pieces_give_the_blocks_of_the_whole(text: str, cuts: list[int]) -> None:
    assert "".join(blocks(text)) == text
    whole, last, at = list[str](), "", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        *ended, last = blocks(last + text[at:cut])
        whole, at = whole + ended, cut
    assert [*whole, last] == blocks(text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 | 3 |", ["| a | b |", "|---|---|", "| 1 | 2 | 3 |"]),
        ("```python title=pay.py\nx = 1\n```", ["  python title=pay.py", "  x = 1"]),
    ],
)
def test_what_has_no_place_in_a_table_or_in_code_is_seen(text: str, seen: list[str]) -> None:
    assert plain(markdown_rows(text, 60)) == seen


async def test_a_long_block_is_set_anew_now_and_then_and_not_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sets = 0.0, 0

    def setting(text: str, width: int) -> list[str]:
        nonlocal now, sets
        now, sets = now + 0.01, sets + 1
        return [text[-width:]]

    monkeypatch.setattr(screen, "markdown_rows", setting)
    monkeypatch.setattr(screen.time, "monotonic", lambda: now)
    terminal = screen.Screen(LineEditor([]), color=None)
    for _ in range(1000):
        terminal.write("piece ")
        now += 0.001
    terminal.settle()
    assert 10 <= sets <= 20, "a tenth of the time of the pieces"


def test_a_block_without_end_is_not_set() -> None:
    assert blocks("x" * LONGEST_BLOCK * 2) == ["x" * LONGEST_BLOCK * 2]


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
