"""Answers, which models write in Markdown, as rows of a terminal. Pure.

An answer comes in pieces. It is cut into blocks (a paragraph, a list, a piece of code), and a block is set when it is
whole. Nothing that was written is left out: tags of HTML are shown as they stand, a link with its address.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foliot.cli.terminal import paint, rows_of
from foliot.common.text import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.segment import Segment
    from rich.style import Style

# A longer block is no text for people, and to set it would hold the keys back.
LONGEST_BLOCK: Final = 20_000
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_LOOKS: Final = {
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.block_quote": "dim",
    "markdown.item.bullet": "none",
    "markdown.item.number": "none",
    "markdown.link": "none",
    "markdown.link_url": "dim",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
    "markdown.hr": "dim",
    **{f"markdown.h{level}": "bold" for level in range(1, 7)},
}


def blocks(text: str) -> list[str]:
    """Cuts an answer into its blocks. The last one may go on with the next piece, all others are whole."""
    found, lines, fence = [""], text.split("\n"), ""
    for number, line in enumerate(lines):
        after_blank = number > 0 and not lines[number - 1].strip()
        # What is indented belongs to what stands above it, such as the second paragraph of an item.
        if not fence and after_blank and found[-1].strip() and line[:1].strip():
            found.append("")
        found[-1] += line if number == len(lines) - 1 else f"{line}\n"
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
    return found


@lru_cache(maxsize=16)
def markdown_rows(text: str, width: int) -> list[str]:
    """Returns the rows of a block, painted. None is wider than `width`."""
    rows = [_trimmed(row) for row in rows_of(_document(visible(text)), width, _LOOKS)]
    seen = [number for number, row in enumerate(rows) if row]
    return ["".join(map(_painted, row)) for row in rows[seen[0] : seen[-1] + 1]] if seen else []


def _trimmed(row: list[Segment]) -> list[Segment]:
    while row and not row[-1].text.strip():
        row.pop()
    return [*row[:-1], row[-1]._replace(text=row[-1].text.rstrip())] if row else []


def _document(text: str) -> Any:
    from markdown_it import MarkdownIt
    from rich import markdown
    from rich.text import Text

    class Heading(markdown.Heading):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            yield self.text

    class Code(markdown.CodeBlock):
        @classmethod
        def create(cls, markdown: Any, token: Any) -> Any:
            return cls(token.info, "")

        def __rich_console__(self, console: Any, options: Any) -> Any:
            if self.lexer_name:
                yield Text(f"  {self.lexer_name}", style="dim", overflow="fold")
            for line in str(self.text).rstrip("\n").split("\n"):
                yield Text(f"  {line}", style=self.style_name, overflow="fold")

    class Document(markdown.Markdown):
        elements: ClassVar = {**markdown.Markdown.elements, "heading_open": Heading, "fence": Code, "code_block": Code}

    document = Document("")
    # What this leaves out would not be seen: addresses that are defined elsewhere, and what is struck out.
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference")
    document.parsed = parser.parse(text)
    if any(_has_more_cells(text, *token.map) for token in document.parsed if token.type == "table_open" and token.map):
        document.parsed = parser.disable("table").parse(text)
    for token in document.parsed:
        token.children = _plain(token.children or [])
    return document


def _has_more_cells(text: str, first: int, last: int) -> bool:
    """Whether a row of a table may have more cells than its head: they would not be seen."""
    head, *rows = text.split("\n")[first:last]
    return any(row.strip(" |").count("|") > head.strip(" |").count("|") for row in rows)


def _plain(parts: list[Token]) -> list[Token]:
    """Returns the parts of a line as a terminal shows them: lines stay lines, links have their addresses."""
    kept: list[Token] = []
    words = address = title = ""  # of the link, since it began
    for part in parts:
        part.content = visible(part.content)  # once more: `&#8238;` is a character only now
        match part.type:
            case "softbreak":
                part.type = "hardbreak"
            case "image":
                title = str(part.attrs.get("title", ""))
                part.type, part.content = "text", f"{part.content} ({part.attrs['src']}) {title}".strip()
            case "link_open":
                words, address, title = "", str(part.attrs["href"]), str(part.attrs.get("title", ""))
                continue
            case "link_close":
                part.type, part.content = "text", "" if words == address else f" ({address})"
                part.content += f" {title}" if title else ""
            case _:
                pass
        words += part.content
        kept.append(part)
    return kept


def _painted(segment: Segment) -> str:
    style: Style | None = segment.style
    if style is None or not (style.bold or style.dim or style.color):
        return segment.text
    return paint(
        segment.text, fg=style.color.name if style.color else None, bold=style.bold or None, dim=style.dim or None
    )
