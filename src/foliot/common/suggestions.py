"""Hints for a word that was misspelt: the known words that are most like it, in one wording everywhere.

Used where a person or a program names something that does not exist: commands, kinds, fields, parameters, settings,
resources, tools, providers, files, time zones. The hint is the same sentence on the command line, over HTTP and in
Python, so that people learn to look for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from foliot.errors import InvalidInput

ALIKE: Final = 0.6
"""How alike two words must be, from 0 to 1: the measure of `difflib`."""

VERY_ALIKE: Final = 0.75
"""The same for words that share parts with each other (fields, settings): a looser hint would name another one."""

W = TypeVar("W", bound=str)

_LONGEST: Final = 200
"""Longer words are no slip of the fingers, and comparing them costs time that a stranger would choose."""


def nearest(word: str, known: Iterable[str], *, most: int = 1, alike: float = ALIKE) -> list[str]:
    """Return the known words that are most like `word`, best first. Upper and lower case count as the same."""
    if len(word) > _LONGEST:
        return []
    # Loaded here: only a mistake needs it, and every command would start later.
    from difflib import get_close_matches

    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.lower(), each)
    return [by_folded[found] for found in get_close_matches(word.lower(), by_folded, most, alike)]


def did_you_mean(*words: str) -> str:
    """Return `did you mean a or b?`."""
    return f"did you mean {' or '.join(words)}?"


def suggestion(
    word: str, known: Iterable[str], otherwise: str | None = None, *, most: int = 1, alike: float = ALIKE
) -> str | None:
    """Return the hint for a misspelt word: what was probably meant, or `otherwise` when nothing is like it."""
    near = nearest(word, known, most=most, alike=alike)
    return did_you_mean(*near) if near else otherwise


def check_word(what: str, word: object, known: Iterable[str]) -> None:
    """Raise `InvalidInput` when `word` is none of the words that there are for `what`; the error names them."""
    words = tuple(known)
    if word not in words:
        raise no_such_word(what, word, words)


def no_such_word(what: str, word: object, known: Iterable[str]) -> InvalidInput:
    """Return the error for a word that is none of the known ones: the same text in Python and over HTTP."""
    words = sorted(known)
    near = suggestion(word, words) if isinstance(word, str) else None
    return InvalidInput(f"{what}: {word!r:.80} is not one of {', '.join(words)}", hint=near)


def read_phases(
    given: str | Sequence[object], known: Sequence[W], shown: Mapping[W, str] | None = None
) -> tuple[W, ...]:
    """Return the phases that a filter names, as they are stored; a text has commas between them.

    `shown` holds the words of documents where they differ from the stored ones. People filter by what they have read,
    so both are taken. Upper and lower case, `-` and `_` count as the same. Raises `InvalidInput`, naming all words.
    """
    shown = shown or {}
    stored = {_plain(word): word for word in known} | {_plain(word): phase for phase, word in shown.items()}
    words: Sequence[object] = (
        [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    )
    others = [word for word in shown.values() if word.lower() not in known]
    found: list[W] = []
    for word in words:
        phase = stored.get(_plain(word)) if isinstance(word, str) else None
        if phase is None:
            raise no_such_word("phase", word, [*known, *others])
        found.append(phase)
    return tuple(found)


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
