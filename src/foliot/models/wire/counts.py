"""Token counts as providers send them, made into numbers that can be added up.

Budgets are kept by these counts, so a count below zero must not give anything back, and one beyond all bounds must
still fit into the journal.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Count: TypeAlias = int | float | None
"""What stands in an answer: some proxies write whole numbers as 12.0."""
_MOST: Final = 2**53 - 1


def count(value: Count) -> int:
    """The count as a whole number from 0 on; 0 when there is none."""
    return 0 if not value or value < 0 else int(min(value, _MOST))
