"""Amounts of money: decimal text for people, whole micro-dollars for sums.

A micro-dollar is a millionth of a US dollar. Sums of whole numbers are exact in every language and database; sums of
binary fractions are not, and a limit that is compared with one would be passed, or reached too early, by a hair.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Final

MICRO: Final = 1_000_000
# More than any budget, and far from the end of a 64-bit integer even after a million such amounts were added up.
MOST_MICROS: Final = 1_000_000_000 * MICRO
_EXACT: Final = Context(prec=60)
_PLACES: Final = Decimal("1e-12")


def micros_of_text(text: str) -> int:
    """The amount that a decimal text names. Raises `ValueError` saying what is wrong with it."""
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError("it is not a decimal number") from None
    if not amount.is_finite():
        raise ValueError("it is not a decimal number")
    if amount < 0:
        raise ValueError("it is below 0")
    if amount > MOST_MICROS // MICRO:
        raise ValueError("it is more than a billion dollars")
    micros = _EXACT.multiply(amount, Decimal(MICRO))
    if micros != micros.to_integral_value():
        raise ValueError("it has more than six decimal places")
    return int(micros)


def micros_of_cost(cost: float) -> int:
    """Converts a price in binary floating point to micro-dollars, rounded up: a fraction of one is never free.

    What floating point itself added in the thirteenth place is taken off before.
    """
    if cost <= 0:
        return 0
    if not cost < MOST_MICROS // MICRO:  # infinity and "not a number" too
        return MOST_MICROS
    amount = Decimal(cost).quantize(_PLACES, ROUND_HALF_EVEN, context=_EXACT)
    return int(_EXACT.multiply(amount, Decimal(MICRO)).to_integral_value(ROUND_CEILING))


def dollars(micros: int) -> str:
    """The amount as decimal text, with two places or as many more as it needs: `25.00`, `0.000125`, `-1.50`."""
    sign = "-" if micros < 0 else ""
    whole, rest = divmod(abs(micros), MICRO)
    places = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{places}"
