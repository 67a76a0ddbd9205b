"""The rules of `.gitignore` files, folder by folder: the last rule that fits decides, the deepest file first.

Whoever wrote the files chose the rules, so each costs at most its length times that of a path (`wildcards.py`). Only
files of this name inside the workspace count; those of a person's own settings do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foliot.tools.builtin.wildcards import ANY_FOLDERS, Part, parts_of, path_fits

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
        """With the file of a folder that stands `depth` names below the workspace."""
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
