"""The cost of evaluating a CEL expression, bounded before it is evaluated.

CEL ends by itself: it loops only over what is there, 10,000 times at most. But each round may look at, or copy, a text
of megabytes that somebody else sent, and an evaluation cannot be interrupted: it would hold the whole process. So the
product of rounds, copies and the longest text has a bound, and beyond it the expression is not evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

MOST: Final = 16 * 1024 * 1024
"""Characters that one evaluation may have to look at: some tens of milliseconds."""
_ROUNDS: Final = 10_000
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter|transformList|transformMap)\s*\(")


class ExpressionCost:
    """The cost of an expression as its text shows it: its loops, and how often it joins texts."""

    __slots__ = ("_copies", "_loops")

    def __init__(self, text: str) -> None:
        self._loops = len(_LOOP.findall(text))
        self._copies = 1 + text.count("+")

    def problem_with(self, values: Iterable[Any]) -> str:
        """Say why these values are too large to be judged; empty if they are not."""
        longest_text, longest_list = _largest(values)
        if self._loops == 0:
            rounds = 1
        elif self._loops == 1:
            rounds = min(longest_list, _ROUNDS)
        else:
            rounds = _ROUNDS if longest_list > 1 else 1
        if longest_text * max(rounds, 1) * self._copies <= MOST:
            return ""
        times = f" in each of {rounds:,} rounds" if rounds > 1 else ""
        return f"the expression would look at a text of {longest_text:,} characters{times}, which is too much"


def _largest(values: Iterable[Any]) -> tuple[int, int]:
    text = items = 0
    left: list[Any] = list(values)
    while left:
        value = left.pop()
        if isinstance(value, str):
            text = max(text, len(value))
        elif isinstance(value, dict):
            found = cast("dict[str, Any]", value)
            items = max(items, len(found))
            left += found.keys()
            left += found.values()
        elif isinstance(value, list | tuple):
            listed = cast("list[Any]", value)
            items = max(items, len(listed))
            left += listed
    return text, items
