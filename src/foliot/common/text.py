r"""Text that others wrote, made safe for people to read: on a terminal, in a log, in a form.

Models, tools and tenants write names, arguments, results and errors. A person who reads them must see what is there and
nothing else, so what is invisible, what moves a cursor and what reorders a line is shown as its JSON escape
(`\u202e`). Escapes of JSON, because the same function then also makes JSON safe without changing its meaning.

Used by:    every line that the command line prints (cli/terminal.py), text logs (cli/logs.py), forms for MCP users
            (server/runs/waits.py), stories of runs and tasks (engine/story, work/story).
Kept raw:   line breaks and tabs by `visible` (whoever prints several lines indents them); joiners and variation
            selectors behind a letter or sign outside of ASCII, which Persian, Hindi and emoji need.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

MOST_MARKS: Final = 4
"""Marks above and below one letter. Vietnamese and Hebrew need up to four; fifty reach over the lines around them."""

MOST_SPACES: Final = 40
"""More spaces in a row than this are escaped in JSON: half a screen of them hides what follows, or begins a line."""

# Invisible, steering or reordering: controls, format characters, separators of lines and paragraphs, fillers that look
# like nothing, blank signs, interlinear notes, tags, half characters and what Unicode says is no character.
_UNSAFE_CLASS: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    r"\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufdd0-\ufdef"
    r"\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_MARKS: Final = (
    r"\u0300-\u034e\u0350-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u0610-\u061a\u064b-\u065f"
    r"\u06d6-\u06dc\u06df-\u06e4\u08d3-\u08e1\u08e3-\u08ff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff"
    r"\u20d0-\u20ff\u302a-\u302f\u3099\u309a\ua670-\ua672\ua8e0-\ua8f1\ufe20-\ufe2f"
)
UNSAFE: Final = re.compile(
    rf"[{_UNSAFE_CLASS}]"
    # Joiners and selectors that are hidden in or before plain text.
    r"|(?<![^\x00-\xa8\u200c\u200d\ufe00-\ufe0e])[\u200c\u200d\ufe00-\ufe0f]|(?<=\ufe0f)[\ufe00-\ufe0f]"
    rf"|(?<=[{_MARKS}]{{{MOST_MARKS}}})[{_MARKS}]"
)
_ASCII_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SPACE: Final = re.compile(r"\s+")
WIDE_GAP: Final = re.compile(rf"(?<=\S)[ \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]{{{MOST_SPACES},}}")


def visible(text: str) -> str:
    """Return the text with what cannot be seen, or steers what shows it, as escapes. Breaks and tabs stay."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    return (_ASCII_UNSAFE if text.isascii() else UNSAFE).sub(_escaped, text)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, safe. Only a line break begins a line; whoever prints them sets them in."""
    return visible(text).split("\n")


def one_line(text: str, longest: int | None = None) -> str:
    """Return the text as one line, white space of any kind as single spaces, cut with `…` to `longest` characters."""
    if longest is not None and len(text) > 4 * longest + 1000:
        text = text[: 4 * longest + 1000] + "…"  # what is cut anyway is not looked through
    line = visible(_SPACE.sub(" ", text).strip())
    if longest is None or len(line) <= longest:
        return line
    return line[: max(1, longest - 1)].rstrip() + "…"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 step`, `2 steps`, `1,204 tokens`; with a `plural`, `1 run waits` or `2 runs wait`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def safe_json(value: Any, *, indent: int | None = 2, sort_keys: bool = False) -> str:
    """Return JSON that any reader reads back unchanged, and that can be printed on a terminal."""
    separators = None if indent is not None else (",", ":")
    return visible_json(
        json.dumps(value, indent=indent, ensure_ascii=False, sort_keys=sort_keys, separators=separators)
    )


def visible_json(text: str) -> str:
    """Return JSON text with unsafe characters and wide gaps, which only stand in its strings, as escapes."""
    return WIDE_GAP.sub(_escaped, visible(text))


def _escaped(found: re.Match[str]) -> str:
    r"""The escapes of JSON: four digits each, and two of them for a character beyond U+FFFF."""
    return "".join(
        f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
        for code in map(ord, found.group())
    )
