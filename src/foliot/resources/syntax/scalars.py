"""Unquoted YAML words: the core schema of YAML 1.2, and nothing more.

`yes`, `no`, `on` and `off` are text, `1:30` is text, `2024-01-01` is text, `0777` is the number 777. JSON cannot carry
infinity or not-a-number, and resources are stored as JSON, so those are refused rather than lost.
"""

from __future__ import annotations

import math
import re
from typing import Final

WORDS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
# A word that is not above and begins otherwise is text: one look at a character settles nearly every scalar of a
# manifest. The `<` is that of the merge key.
MAYBE_SPECIAL: Final = frozenset("0123456789+-.<")

_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BASED = re.compile(r"0o([0-7]+)|0x([0-9a-fA-F]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
# Python refuses to print integers of more than 4,300 digits; stop long before that.
_MAX_DIGITS = 1_000


class BadScalar(ValueError):
    """A word that looks like a value which cannot be kept. `hint` is the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def resolve_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar. Raises `BadScalar`."""
    if text in WORDS:
        return WORDS[text]
    if _FLOAT.fullmatch(text):
        return parse_number(text, is_int=_INT.fullmatch(text) is not None)
    if based := _BASED.fullmatch(text):
        _check_length(text)
        octal, hexadecimal = based.groups()
        return int(octal, 8) if octal else int(hexadecimal, 16)
    if _NOT_FINITE.fullmatch(text):
        raise BadScalar(f"{text} is not a number that can be stored", f'if it is meant as text, quote it: "{text}"')
    return text


def is_rewritten(value: object, text: str) -> bool:
    """Whether `text` says more than the number or boolean it was read as: 0042, 1.10, 12e4, 0x1F, TRUE."""
    return value is not None and str(value).lower() != text


def parse_number(text: str, *, is_int: bool) -> int | float:
    """The number that `text`, known to look like one, stands for. Raises `BadScalar` when it is out of bounds."""
    _check_length(text)
    if is_int:
        return int(text)
    number = float(text)
    if math.isinf(number):
        raise BadScalar("this number is too large", "if it is meant as text, quote it")
    return number


def check_text(text: str) -> None:
    """Refuse what an escape can put into a text but no store can keep. Raises `BadScalar`."""
    if "\0" in text:
        raise BadScalar("the text holds a NUL character, which cannot be stored", "remove the escape for it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadScalar(
            "the text holds half of a surrogate pair, which is not a character", "write both halves, or the character"
        ) from None


def _check_length(text: str) -> None:
    if len(text) > _MAX_DIGITS:
        raise BadScalar(f"the number has {len(text):,} digits; at most {_MAX_DIGITS:,} are read", "quote it as text")
