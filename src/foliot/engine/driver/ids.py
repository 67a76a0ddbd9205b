"""Names for runs: short enough to type, ordered by the time they were made, unique without asking anyone."""

from __future__ import annotations

import re
from typing import Final

from foliot.common.chance import eight_bytes
from foliot.errors import InvalidInput

# What can be typed again, stands in a path, and cannot be taken for an option.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?")
# Ids that follow from names: turns of conversations, requests with a key, children of runs.
_MADE: Final = re.compile(r"s-[0-9a-f]{26}-[0-9]+|i-[0-9a-f]{26}|sub-[0-9a-f]{24}")
# Lower case without i, l, o, u: nothing to mistake when read aloud or typed from a screen.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)


def new_run_id(now: float) -> str:
    """Ten characters of time (milliseconds) and ten of chance: sorts by age, 50 random bits within a millisecond."""
    return id_from(now, int.from_bytes(eight_bytes()))


def check_run_id(run_id: str) -> None:
    """Raises `InvalidInput` for what cannot be the id of a run."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput(
            f"{run_id[:80]!r} cannot be the id of a run",
            hint="use up to 128 letters, digits, dots, dashes, underscores and colons, such as `order-17`",
        )


def check_chosen_id(run_id: str) -> None:
    """Raises `InvalidInput` for an id that a caller cannot choose: one that another part of Foliot makes from names.

    Whoever knows the names would know the id, and could be there before: a turn of a conversation, a child of a run.
    """
    check_run_id(run_id)
    if is_made(run_id):
        raise InvalidInput(
            f"{run_id[:80]!r} cannot be chosen as the id of a run",
            hint="ids of this form are made by the server; choose another one",
        )


def is_made(name: str) -> bool:
    """Whether the name of a run or task has the form of those that the server makes from other names."""
    return _MADE.fullmatch(name) is not None


def id_from(now: float, chance: int) -> str:
    """The id for this time and this number, of which 50 bits are used."""
    return _text(int(now * 1000)) + _text(chance)


def _text(number: int) -> str:
    """The last 50 bits of a number as ten characters."""
    two = _PAIRS
    return (
        f"{two[number >> 40 & 1023]}{two[number >> 30 & 1023]}{two[number >> 20 & 1023]}"
        f"{two[number >> 10 & 1023]}{two[number & 1023]}"
    )
