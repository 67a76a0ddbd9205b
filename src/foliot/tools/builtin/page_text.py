"""A web page as text that a model can read: what is visible, one line for each block, links with their addresses.

Whoever wrote the page chose its bytes, so reading goes forward only: each character is looked at a fixed number of
times, whatever is left open. The parser of the standard library begins anew at every tag that does not end, and takes
minutes for 100 kB of them.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import Final

_HIDDEN: Final = frozenset({"noscript", "template", "svg", "object"})
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


# What is inside is text up to their own end, whatever it looks like. Of two of them it is visible.
_RAW: Final = frozenset({"script", "style", "iframe", "noembed", "noframes", "xmp", "textarea", "title"})
_RAW_SHOWN: Final = frozenset({"xmp", "textarea"})
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>]|\Z)", re.IGNORECASE) for name in _RAW}
_NAME: Final = re.compile(r"[A-Za-z][^ \t\n\r\f/>]*+")
_BLANKS: Final = re.compile(r"\s+")
# One attribute, or the end of the tag. Possessive: what was read once is never given back and read again.
_ATTRIBUTE: Final = re.compile(
    r"[ \t\n\r\f/]*+(?:(?P<end>>)|(?P<name>[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+)(?:[ \t\n\r\f]*+=[ \t\n\r\f]*+"
    r"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<open>[\"'])|(?P<bare>[^ \t\n\r\f>]*+)))?+)"
)


class _Page:
    """The text that is found so far. Pure: tags and texts in, pieces out."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title = ""
        self._hidden: list[str] = []
        self._hiding: Counter[str] = Counter()
        self._links: list[str] = []

    def opened(self, tag: str, href: str) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
            self._hiding[tag] += 1
        elif tag in _BLOCKS:
            self.pieces.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        elif tag == "a":
            self._links.append(href)

    def closed(self, tag: str) -> None:
        if self._hiding[tag] > 0:
            while True:  # what was left open inside ends with it
                inner = self._hidden.pop()
                self._hiding[inner] -= 1
                if inner == tag:
                    return
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address.startswith(("http://", "https://", "/")) and not self._hidden:
                self.pieces.append(f" ({address})")

    def raw(self, tag: str, text: str) -> None:
        if tag == "title" and not self._hidden:
            self.title = self.title or " ".join(unescape(text).split())
        elif tag in _RAW_SHOWN:
            self.said(text)

    def said(self, text: str) -> None:
        if text and not self._hidden:
            self.pieces.append(_BLANKS.sub(" ", unescape(text)))


def page_text(html: str) -> str:
    """The visible text. Broken markup gives what can be made of it."""
    page = _Page()
    at = 0
    while at < len(html):
        start = html.find("<", at)
        if start < 0:
            page.said(html[at:])
            break
        page.said(html[at:start])
        at = _markup(html, start, page)
    lines = [" ".join(line.split()) for line in "".join(page.pieces).split("\n")]
    body = "\n".join(line for line in lines if line and line != "-")
    return f"{page.title}\n\n{body}" if page.title else body


def _markup(html: str, start: int, page: _Page) -> int:
    """Read what begins with `<`, and say where it ends. What has no end hides the rest of the page, as in a browser."""
    if html.startswith("<!--", start):
        return _behind(html, "-->", start + 4)
    closing = html.startswith("</", start)
    name = _NAME.match(html, start + (2 if closing else 1))
    if name is None:
        if closing or html.startswith(("<!", "<?"), start):
            return _behind(html, ">", start + 2)
        page.said("<")
        return start + 1
    tag = name[0].lower()
    href, alone, end = _attributes(html, name.end())
    if end < 0:
        return len(html)
    if closing:
        page.closed(tag)
        return end
    if tag in _RAW:
        stop = _RAW_ENDS[tag].search(html, end)
        page.raw(tag, html[end : stop.start() if stop else len(html)])
        return _behind(html, ">", stop.end()) if stop else len(html)
    page.opened(tag, href)
    if alone and tag in _HIDDEN:
        page.closed(tag)
    return end


def _attributes(html: str, at: int) -> tuple[str, bool, int]:
    """The address in a tag, whether the tag closes itself, and where it ends; -1 when it does not."""
    href: str | None = None
    while True:
        found = _ATTRIBUTE.match(html, at)
        if found is None or found["open"]:
            return "", False, -1
        at = found.end()
        if found["end"]:
            return href or "", html[at - 2] == "/", at
        if href is None and found["name"].lower() == "href":
            href = unescape(found["double"] or found["single"] or found["bare"] or "")


def _behind(html: str, mark: str, at: int) -> int:
    found = html.find(mark, at)
    return len(html) if found < 0 else found + len(mark)
