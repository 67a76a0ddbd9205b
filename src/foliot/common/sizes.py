"""Sizes as people write them: `512Mi`, `1.5G`, `4MiB`, `65536`. One canonical text for each size.

`Ki`, `Mi`, `Gi` and `Ti` are powers of 1024, `k`, `M`, `G` and `T` of 1000; a `B` behind says nothing more. A number
alone is bytes.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN: Final = r"[0-9]{1,18}(\.[0-9]{1,9})? ?([Kk]i?B?|[MGT]i?B?|B)?"
_SIZE: Final = re.compile(PATTERN)
_BINARY: Final = {"Ti": 1024**4, "Gi": 1024**3, "Mi": 1024**2, "Ki": 1024}
_FACTORS: Final = {
    **{name.lower(): factor for name, factor in _BINARY.items()},
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
}
MOST: Final = 2**53 - 1


def bytes_of(text: str) -> int:
    """Returns the number of bytes; what is less than one is cut off. Raises `ValueError` with a sentence for people."""
    body = text.strip()
    if not _SIZE.fullmatch(body):
        raise ValueError("not a size; expected a number of bytes, or one with Ki, Mi, Gi, Ti, k, M, G or T behind it")
    number = body.rstrip("KkMGTiB ")
    unit = body[len(number) :].strip().removesuffix("B").lower()
    factor = _FACTORS[unit]
    whole, _, fraction = number.partition(".")
    size = int(f"{whole}{fraction}") * factor // 10 ** len(fraction)
    if size > MOST:
        raise ValueError("larger than anything can be")
    return size


def canonical(size: int) -> str:
    """The shortest text of whole binary units: `512Mi`, `1Gi`, `1000`."""
    for unit, factor in _BINARY.items():
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
