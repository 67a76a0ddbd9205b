"""Lengths of time as people write them: `1h30m`, `250ms`, `0s`, and with days `2d`.

One canonical text per length, so that `90m` and `1h30m` are the same definition with the same digest. It is read by
every parser of Go durations, because days are written as hours and nothing below a nanosecond is kept.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)")
_LONGEST: Final = 2**63 - 1
# What anybody may declare to wait: longer is a slip of the pen, and far from where numbers of seconds break timers.
LONGEST_SECONDS: Final = 10 * 366 * 86_400.0
_LONGEST_TEXT: Final = 64
_SECOND: Final = _UNITS["s"]


def nanoseconds(text: str) -> int:
    """Raises `ValueError` with a sentence for people when `text` is not a length of time."""
    body = text.strip().removeprefix("+")
    if body == "0":
        return 0
    if body.startswith("-"):
        raise ValueError("a duration cannot be negative")
    if body.replace(".", "", 1).isdecimal():
        raise ValueError("a duration needs a unit: ns, us, ms, s, m, h or d")
    if not body or len(body) > _LONGEST_TEXT:
        raise ValueError("not a duration")
    total, place = Decimal(0), 0
    while place < len(body):
        part = _PART.match(body, place)
        if part is None:
            raise ValueError("not a duration; the units are ns, us, ms, s, m, h and d")
        total += Decimal(part[1]) * _UNITS[part[2]]
        place = part.end()
    if total > _LONGEST:
        raise ValueError("longer than 292 years")
    return int(total)


def seconds(text: str) -> float:
    """The length in seconds, for timers. Raises `ValueError` as `nanoseconds` does."""
    return nanoseconds(text) / _SECOND


@lru_cache(maxsize=1024)
def canonical(text: str) -> str:
    """The one text of this length: `90m` -> `1h30m`, `1500ms` -> `1.5s`, `2d` -> `48h`. Raises `ValueError`."""
    total = nanoseconds(text)
    if total == 0:
        return "0s"
    for unit in ("ns", "us", "ms"):
        if total < _UNITS[unit] * 1_000:
            return f"{_decimal(total, _UNITS[unit])}{unit}"
    hours, rest = divmod(total, _UNITS["h"])
    minutes, rest = divmod(rest, _UNITS["m"])
    parts = (
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{_decimal(rest, _SECOND)}s" if rest else "",
    )
    return "".join(parts)


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")


# --- money -----------------------------------------------------------------------------------------------------------

# Amounts of money: decimal text for people, whole micro-dollars for sums.
#
# A micro-dollar is a millionth of a US dollar. Sums of whole numbers are exact in every language and database; sums of
# binary fractions are not, and a limit that is compared with one would be passed, or reached too early, by a hair.

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
