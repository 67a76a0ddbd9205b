"""What others send cannot make an expression hold the process: it is refused before it is evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.resources.event_filters import EventFilter, FilterFailed
from foliot.tools.governance.cel import Compiled, ConditionFailed

LONG = "a" * 4_000_000
MANY = ["x"] * 20_000


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.l.exists(x, args.s + args.s == 'b')", {"l": MANY, "s": LONG}),
        ("args.l.all(x, args.s.matches('(a|b)*c'))", {"l": MANY, "s": "a" * 100_000}),
        ("args.l.exists(x, args.l.exists(y, args.s.contains(x + y)))", {"l": ["x"] * 200, "s": LONG}),
        ("(" + " + ".join(["args.s"] * 20) + ").size() > 3", {"s": LONG}),
    ],
)
def test_what_would_take_long_is_not_evaluated(text: str, args: dict[str, Any]) -> None:
    with pytest.raises(ConditionFailed, match="too much"):
        Compiled(text, (("args", "record"),), "").holds({"args": args}, str)
    with pytest.raises(FilterFailed, match="too much"):
        EventFilter(text.replace("args.", "body.")).wants({"body": args})


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.s.contains('b') || args.s.size() > 3", {"s": LONG}),
        ("args.l.exists(x, x == 'x')", {"l": MANY[:9000]}),
        ("args.items.all(i, i.price < 100.0)", {"items": [{"price": 1.0, "name": "n" * 100}] * 500}),
    ],
)
def test_large_values_are_judged_where_that_is_cheap(text: str, args: dict[str, Any]) -> None:
    assert Compiled(text, (("args", "record"),), "").holds({"args": args}, str) is True
