"""A web page as text that a model can read: what is visible, one line for each block, links with their addresses."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

_HIDDEN: Final = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
_BLOCKS: Final = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tr",
        "ul",
    ]
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title = ""
        self._hidden: list[str] = []
        self._in_title = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag == "title":
            self._in_title = True
        elif tag in _BLOCKS:
            self.pieces.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:  # what was left open inside ends with it
                pass
        elif tag == "title":
            self._in_title = False
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address.startswith(("http://", "https://", "/")) and not self._hidden:
                self.pieces.append(f" ({address})")

    def handle_data(self, data: str) -> None:
        if self._in_title and not self.title:
            self.title = " ".join(data.split())
        elif not self._hidden and not self._in_title:
            self.pieces.append(re.sub(r"\s+", " ", data))


def page_text(html: str) -> str:
    """The visible text. Broken markup gives what can be made of it."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = [" ".join(line.split()) for line in "".join(reader.pieces).split("\n")]
    body = "\n".join(line for line in lines if line and line != "-")
    return f"{reader.title}\n\n{body}" if reader.title else body
