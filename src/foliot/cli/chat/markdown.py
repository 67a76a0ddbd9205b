"""Answers, which models write in Markdown, as lines of a terminal. Pure.

Each line is set by itself, so an answer costs what it is long, however it is cut into pieces. Nothing that was written
is hidden: only the marks of headings, items, quotes, weights and code are drawn in place of being shown; tables and
HTML stay as they are, and links stand with their addresses. Whole documents were set by a library once, which left out
what did not fit: cells, deep lists, titles.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from foliot.cli.terminal import paint
from foliot.common.text import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# A longer line is shown as it stands: it is no text for people.
LONGEST_LINE: Final = 2000
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_RULE: Final = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
_QUOTE: Final = re.compile(r"(?: {0,3}> ?)+")
_HEADING: Final = re.compile(r" {0,3}#{1,6} +(?=\S)")
_ITEM: Final = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)")


class SetLine(NamedTuple):
    """A line as it is drawn, and how the rows behind its first one are indented."""

    text: str
    indent: str = ""


class Setter:
    """Sets the lines of one answer. `fence` is how the code began that the next line is in; blank for none."""

    def __init__(self) -> None:
        self.fence = ""

    def take(self, line: str) -> SetLine:
        """Sets a line that has ended, and remembers whether code begins or ends with it."""
        found = set_line(line, self.fence)
        if (mark := _FENCE.match(line)) is not None:
            if not self.fence:
                self.fence = mark[1]
            elif mark[1].startswith(self.fence) and not line.strip(" \t`~"):
                self.fence = ""
        return found


def set_line(line: str, fence: str = "") -> SetLine:
    """Sets a line, which may go on; `fence` is as in `Setter`."""
    line = visible(line.removesuffix("\r")).expandtabs(4)
    if _FENCE.match(line) or (not fence and _RULE.match(line)):
        return SetLine(paint(line, dim=True))
    if fence:
        return SetLine(paint(line, fg="cyan"))
    prefix = ""
    if (quote := _QUOTE.match(line)) is not None:
        prefix, line = "▌ " * quote[0].count(">"), line[quote.end() :]
    heading = _HEADING.match(line)
    if heading is not None:
        line = line[heading.end() :]
    elif (item := _ITEM.match(line)) is not None:
        prefix += f"{item[1]}{'•' if item[2] in '-*+' else item[2]} "
        line = line[item.end() :]
    return SetLine(
        f"{paint(prefix, dim=True) if prefix else ''}{_inline(line, bold=heading is not None)}", " " * len(prefix)
    )


def _inline(line: str, *, bold: bool) -> str:
    """Sets weights, code and links within a line. What leads and trails is kept: columns stay columns."""
    text = line.strip()
    if not text or len(line) > LONGEST_LINE:
        return line
    before, after = line[: len(line) - len(line.lstrip())], line[len(line.rstrip()) :]
    drawn: list[str] = []
    strong, words, address, title, given = int(bold), "", "", "", False
    for part in _parser().parseInline(text)[0].children or []:
        content = visible(part.content)  # once more: `&#8238;` is a character only now
        match part.type:
            case "strong_open" | "em_open":
                strong += 1
            case "strong_close" | "em_close":
                strong -= 1
            case "link_open":
                words, address, title, given = "", *_address(part, "href"), part.markup == "autolink"
            case "link_close":
                drawn.append(_drawn("" if given and words == address else f" ({address}){title}", bold=strong > 0))
            case "image":
                address, title = _address(part, "src")
                drawn.append(_drawn(f"{content} ({address}){title}", bold=strong > 0))
            case "code_inline":
                drawn.append(paint(content, fg="cyan"))
            case _:
                drawn.append(_drawn(content, bold=strong > 0))
        words += content
    return f"{before}{''.join(drawn)}{after}"


def _address(part: Token, name: str) -> tuple[str, str]:
    title = visible(str(part.attrs.get("title", "")))
    return visible(str(part.attrs[name])), f" {title}" if title else ""


def _drawn(text: str, *, bold: bool) -> str:
    return paint(text, bold=True) if bold and text else text


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False})
