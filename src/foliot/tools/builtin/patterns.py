"""Patterns of paths: `*`, `?`, `[a-z]`, `{ts,tsx}`, and `**` for any number of folders.

Models write patterns, so none may take long: every match costs at most pattern times path, whatever they say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from foliot.tools.base import ToolArgumentsInvalid

MOST_ALTERNATIVES: Final = 64
LONGEST: Final = 1024

# One name of a path: `**`, a name without any wildcard, or what it must look like.
Part: TypeAlias = str | re.Pattern[str]
# Where in which alternative one is, having gone into some folders.
States: TypeAlias = frozenset[tuple[int, int]]

ANY_FOLDERS: Final = "**"


class PathPattern:
    """A pattern that is followed folder by folder, so that nobody looks where nothing can fit.

    Raises `ToolArgumentsInvalid` for a pattern that is absolute, too long or has too many alternatives.
    """

    def __init__(self, text: str) -> None:
        if not text.strip() or len(text) > LONGEST:
            raise ToolArgumentsInvalid(f"pattern is required, with at most {LONGEST} characters", field="pattern")
        if text.startswith("/") or ".." in text.split("/"):
            raise ToolArgumentsInvalid(
                "pattern must stay inside the workspace: no leading / and no ..", field="pattern"
            )
        self._alternatives = [parts_of(each) for each in _expanded(text)]
        self.start: States = self._closed({(which, 0) for which in range(len(self._alternatives))})

    def enter(self, states: States, name: str) -> States:
        """Return the states in the folder of this name; none when nothing below it can fit."""
        reached: set[tuple[int, int]] = set()
        for which, at in states:
            parts = self._alternatives[which]
            if at == len(parts):
                continue
            if parts[at] == ANY_FOLDERS:
                reached.add((which, at))
            elif _fits(parts[at], name):
                reached.add((which, at + 1))
        return self._closed(reached)

    def accepts(self, states: States, name: str) -> bool:
        """Whether a file of this name fits here."""
        return any(at == len(self._alternatives[which]) for which, at in self.enter(states, name))

    def names(self, states: States) -> frozenset[str] | None:
        """The only names that can fit here; None when any might."""
        found: set[str] = set()
        for which, at in states:
            parts = self._alternatives[which]
            if at < len(parts):
                part = parts[at]
                if part == ANY_FOLDERS or not isinstance(part, str):
                    return None
                found.add(part)
        return frozenset(found)

    def matches(self, path: str) -> bool:
        *folders, name = path.split("/")
        states = self.start
        for folder in folders:
            states = self.enter(states, folder)
        return self.accepts(states, name)

    def _closed(self, states: set[tuple[int, int]]) -> States:
        """Adds the places behind each `**`, which may stand for no folder at all."""
        waiting = list(states)
        while waiting:
            which, at = waiting.pop()
            parts = self._alternatives[which]
            if at < len(parts) and parts[at] == ANY_FOLDERS and (which, at + 1) not in states:
                states.add((which, at + 1))
                waiting.append((which, at + 1))
        return frozenset(states)


def parts_of(text: str, *, escapes: bool = False) -> list[Part]:
    """A pattern without braces, name by name. With `escapes` a backslash takes a character as it is."""
    found: list[Part] = []
    for part in text.split("/"):
        if part not in ("", ".") and not (part == ANY_FOLDERS and found and found[-1] == ANY_FOLDERS):
            found.append(part if part == ANY_FOLDERS else _part(part, escapes=escapes))
    return found


def path_fits(parts: Sequence[Part], names: Sequence[str]) -> bool:
    """Whether a whole path fits: which beginnings of it the parts so far can match, part by part."""
    reached = {0}
    for part in parts:
        if part == ANY_FOLDERS:
            reached = set(range(min(reached), len(names) + 1)) if reached else reached
        else:
            reached = {at + 1 for at in reached if at < len(names) and _fits(part, names[at])}
    return len(names) in reached


def _fits(part: Part, name: str) -> bool:
    return part == name if isinstance(part, str) else part.fullmatch(name) is not None


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


def _part(text: str, *, escapes: bool) -> Part:
    """One name. Between two stars stands the first match that is found, for good: there is nothing to go back to."""
    pieces: list[str] = [""]  # as expressions, between the stars
    plain = ""
    at = 0
    while at < len(text):
        sign = text[at]
        end = text.find("]", at + (3 if text[at + 1 : at + 2] in ("!", "^") else 2)) if sign == "[" else -1
        if sign == "[" and end > 0:
            pieces[-1] += _set(text[at + 1 : end])
            at = end
        elif sign == "*":
            pieces.append("")
        elif sign == "?":
            pieces[-1] += "."
        else:
            if escapes and sign == "\\" and at + 1 < len(text):
                at += 1
                sign = text[at]
            pieces[-1] += re.escape(sign)
            plain += sign
            at += 1
            continue
        plain = "\0"  # in no name
        at += 1
    if "\0" not in plain:
        return plain
    first, *rest = pieces
    if not rest:
        return re.compile(first, re.DOTALL)
    *between, last = rest
    return re.compile(first + "".join(f"(?>.*?{each})" for each in between if each) + ".*" + last, re.DOTALL)


def _set(text: str) -> str:
    negated = text[0] in "!^" and len(text) > 1
    text = text[1:] if negated else text
    inside = ""
    at = 0
    while at < len(text):
        if at + 2 < len(text) and text[at + 1] == "-":
            if text[at] <= text[at + 2]:
                inside += f"{re.escape(text[at])}-{re.escape(text[at + 2])}"
            at += 3
        else:
            inside += re.escape(text[at])
            at += 1
    if not inside:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{inside}]"


# --- gitignore -------------------------------------------------------------------------------------------------------

# The rules of `.gitignore` files, folder by folder: the last rule that fits decides, the deepest file first.
#
# Whoever wrote the files chose the rules, so each costs at most its length times that of a path (`path_fits`). Only
# files of this name inside the workspace count; those of a person's own settings do not.

NAME: Final = ".gitignore"
LARGEST: Final = 256 * 1024
MOST_RULES: Final = 5000
_LONGEST_RULE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Rule:
    parts: list[Part]
    keeps: bool
    """Begins with `!`: what an earlier rule left out is there again."""
    folders_only: bool
    anywhere: bool
    """Names no folder on the way, so it is about a name wherever it stands below."""

    def fits(self, names: Sequence[str], is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return path_fits(self.parts, names[-1:] if self.anywhere else names)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules that hold in one folder: of its own file, and of those above it. `depth` is how deep it stands."""

    rules: tuple[_Rule, ...] = ()
    depth: int = 0
    above: Ignored | None = None

    def below(self, text: str, depth: int) -> Ignored:
        """Adds the ignore file of a folder that stands `depth` names below the workspace."""
        rules = tuple(rule for line in text.splitlines()[:MOST_RULES] if (rule := _rule(line)) is not None)
        return Ignored(rules[::-1], depth, self) if rules else self

    def leaves_out(self, path: Sequence[str], *, is_folder: bool) -> bool:
        """Whether a path is left out whose folders are not."""
        here: Ignored | None = self
        while here is not None:
            for rule in here.rules:
                if rule.fits(path[here.depth :], is_folder):
                    return not rule.keeps
            here = here.above
        return False


def _rule(line: str) -> _Rule | None:
    bare = line.rstrip(" ")
    line = f"{bare} " if bare.endswith("\\") and bare != line else bare  # a blank that is escaped counts
    if not line or line.startswith("#") or len(line) > _LONGEST_RULE:
        return None
    keeps = line.startswith("!")
    line = line[1:] if keeps else line
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    anywhere = "/" not in line
    parts = parts_of(line, escapes=True)
    if not parts:
        return None
    if parts[-1] == ANY_FOLDERS:  # what is in a folder, not the folder itself
        parts = [*parts, *parts_of("*")]
        anywhere = False
    return _Rule(parts, keeps, folders_only, anywhere)
