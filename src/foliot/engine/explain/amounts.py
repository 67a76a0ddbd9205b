"""Times, tokens, money and texts as people read them in one line."""

from __future__ import annotations

import json
from typing import Any, cast

from foliot.common.text import one_line


def duration(seconds: float | None) -> str:
    """12ms, 0.4s, 3.2s, 1m05s, 2h10m, 3d4h; "-" when it is not known."""
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def money(usd: float | None) -> str:
    """Three digits that mean something: $0.000420, $0.0312, $1.25. An unknown price is "$?", never nothing."""
    if usd is None:
        return "$?"
    if usd == 0:
        return "$0"
    if usd >= 1:
        return f"${usd:,.2f}"
    places = 4
    while places < 9 and usd < 10 ** (2 - places):
        places += 1
    return f"${usd:.{places}f}"


def tokens(count: int) -> str:
    return counted(count, "token")


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,204 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def arguments(text: str, longest: int) -> str:
    """The arguments of a call as `city="Oslo" days=3`; as the model wrote them, when they are not a JSON object."""
    try:
        given: Any = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return one_line(text, longest)
    pairs = cast("dict[str, Any]", given)
    return one_line(" ".join(f"{name}={_value(value)}" for name, value in pairs.items()), longest)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
