"""Patterns of paths: `*`, `?`, `[a-z]`, `{ts,tsx}`, and `**` for any number of folders.

Models write patterns, so none may take long: every match costs at most pattern times path, whatever they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from foliot.tools.base import ToolArgumentsInvalid

MOST_ALTERNATIVES: Final = 64
LONGEST: Final = 1024

# One character to match: `*` and `?`, itself, or a set of ranges (negated or not).
Token: TypeAlias = str | frozenset[str] | tuple[bool, list[tuple[str, str]]]

_MANY: Final = "*"
_ONE: Final = "?"


class PathPattern:
    """Raises `ToolArgumentsInvalid` for a pattern that is absolute, too long or has too many alternatives."""

    def __init__(self, text: str) -> None:
        if not text.strip() or len(text) > LONGEST:
            raise ToolArgumentsInvalid(f"pattern is required, with at most {LONGEST} characters", field="pattern")
        if text.startswith("/") or ".." in text.split("/"):
            raise ToolArgumentsInvalid(
                "pattern must stay inside the workspace: no leading / and no ..", field="pattern"
            )
        self._alternatives = [
            [part if part == "**" else _tokens(part) for part in each.split("/") if part not in ("", ".")]
            for each in _expanded(text)
        ]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(_matches(parts, names) for parts in self._alternatives)


def _expanded(text: str) -> list[str]:
    """The pattern for each choice of its braces, one pair after another."""
    done: list[str] = []
    waiting = [text]
    while waiting:
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise ToolArgumentsInvalid(f"pattern has more than {MOST_ALTERNATIVES} alternatives", field="pattern")
        each = waiting.pop()
        close = each.find("}")
        start = each.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(each)
            continue
        choices = each[start + 1 : close].split(",")
        waiting.extend(each[:start] + choice + each[close + 1 :] for choice in choices[: MOST_ALTERNATIVES + 1])
    return done


def _tokens(part: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(part):
        sign = part[at]
        end = part.find("]", at + 2) if sign == "[" else -1
        if sign == "[" and end > 0:
            found.append(_set(part[at + 1 : end]))
            at = end
        elif sign in (_MANY, _ONE):
            found.append(sign)
        else:
            found.append(frozenset(sign))
        at += 1
    return found


def _set(text: str) -> tuple[bool, list[tuple[str, str]]]:
    negated = text[0] in "!^" and len(text) > 1
    text = text[1:] if negated else text
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        if at + 2 < len(text) and text[at + 1] == "-":
            ranges.append((text[at], text[at + 2]))
            at += 3
        else:
            ranges.append((text[at], text[at]))
            at += 1
    return negated, ranges


def _is(token: Token, letter: str) -> bool:
    if isinstance(token, tuple):
        negated, ranges = token
        return any(low <= letter <= high for low, high in ranges) != negated
    return token == _ONE or (isinstance(token, frozenset) and letter in token)


def _name_matches(tokens: Sequence[Token], name: str) -> bool:
    """Forward only, with one place to go back to: the last star. So it cannot blow up."""
    at = token = 0
    star, marked = -1, 0
    while at < len(name):
        if token < len(tokens) and tokens[token] == _MANY:
            star, marked = token, at
            token += 1
        elif token < len(tokens) and _is(tokens[token], name[at]):
            at += 1
            token += 1
        elif star >= 0:
            marked += 1
            at, token = marked, star + 1
        else:
            return False
    return all(each == _MANY for each in tokens[token:])


def _matches(parts: Sequence[str | Sequence[Token]], names: Sequence[str]) -> bool:
    """Which beginnings of `names` the parts so far can match, part by part."""
    reached = {0}
    for part in parts:
        if isinstance(part, str):  # **
            reached = set(range(min(reached), len(names) + 1)) if reached else reached
        else:
            reached = {at + 1 for at in reached if at < len(names) and _name_matches(part, names[at])}
    return len(names) in reached
