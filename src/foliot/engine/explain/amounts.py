"""Tokens, money and arguments as people read them in one line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from foliot.common.text import counted, one_line


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


def failure(kinds: Iterable[str], often: str = "") -> str:
    """`the model failed twice (overloaded)`, or `the program failed` where a program is in its place."""
    named = ", ".join(dict.fromkeys(kind for kind in kinds if not kind.startswith("program")))
    return " ".join(filter(None, (f"the {'model' if named else 'program'} failed", often, f"({named})" * bool(named))))


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


def argument_change(tool: str, by: str, now: str, before: str, longest: int) -> str:
    """Says who changed the arguments of a call: `ann changed refund to amount=80, from amount=500`."""
    to, of = arguments(now, longest) or "{}", arguments(before, longest) or "{}"
    return f"{one_line(by, 64)} changed {one_line(tool, 64)} to {to}, from {of}"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
