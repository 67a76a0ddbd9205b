"""Token counts as providers send them, made into numbers that can be added up.

Budgets are kept by these counts, so a count below zero must not give anything back, and one beyond all bounds must
still fit into the journal.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Count: TypeAlias = int | float | None
"""What stands in an answer: some proxies write whole numbers as 12.0."""
_MOST: Final = 2**53 - 1
TICKS: Final = 10_000_000_000
"""How many of the parts in which x.ai states a price make a dollar."""
_USUAL: Final = frozenset({"", "auto", "default", "standard", "on_demand", "scale"})


def count(value: Count) -> int:
    """The count as a whole number from 0 on; 0 when there is none."""
    return 0 if not value or value < 0 else int(min(value, _MOST))


def dollars(value: Count) -> float | None:
    """A price as the provider gives it; None when there is none, or none that can be one."""
    return None if value is None or not 0 <= value < _MOST else float(value)


def tier_of(said: str | None) -> str:
    """The tier that an answer was served at, as price tables name it; "" for the usual one."""
    tier = (said or "").lower().removeprefix("service_tier_").removeprefix("on_demand_")
    return "" if tier in _USUAL else "priority" if tier == "fast" else tier
