"""Conditions are compiled once, evaluated in bounds, and never mistaken for false when they cannot be evaluated."""

from __future__ import annotations

import pytest

from foliot.errors import InvalidInput
from foliot.tools.base import Caller
from foliot.tools.governance.cel import LONGEST, ConditionFailed, Expression
from tests.tools.governed import call


@pytest.mark.parametrize(
    ("text", "arguments", "holds"),
    [
        ("args.amount > 500.0", {"amount": 501}, True),
        ("args.amount > 500.0", {"amount": 499.5}, False),
        ("args.amount > 500", {"amount": 500.5}, True),
        ("has(args.amount) && args.amount > 500.0", {}, False),
        ("args.items.exists(i, i.price > 3.0)", {"items": [{"price": 1}, {"price": 5}]}, True),
        ("args.path.startsWith('/data/') && !args.path.contains('..')", {"path": "/data/../etc"}, False),
        ("args.note == null", {"note": None}, True),
        ("tool == 'refund' && agent == 'desk' && caller.namespace == 'default'", {}, True),
        ("caller.user == 'ana' && 'clerk' in caller.roles", {}, True),
        ("args.name.matches('^(a+)+$')", {"name": "a" * 200 + "b"}, False),
    ],
)
def test_an_expression_sees_arguments_and_caller(text: str, arguments: dict, holds: bool) -> None:
    caller = Caller(agent="desk", user="ana", roles=("clerk",))

    assert Expression(text).holds(call("refund", arguments, caller=caller)) is holds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("args.amount >", "column 14"),
        ("amount > 5", "undeclared reference to 'amount'"),
        ("tool > 3", "no matching overload"),
        ("args.amount + 1", "gives INT"),
        ("namespace == 'x'", "reserved identifier: namespace"),
        ("'text'", "gives STRING"),
        ("(" * 3000 + "true" + ")" * 3000, "at most"),
        ("(" * 200 + "true" + ")" * 200, "recursion"),
        ("", "it ends too early"),
    ],
)
def test_what_is_no_condition_is_refused_when_it_is_read(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        ("args.amount > 5.0", {}, r"no 'amount' .*has\(args.amount\)"),
        ("args.amount > 5.0", {"amount": "ten"}, "overload"),
        ("args.flag", {"flag": 1}, "gives INT"),
        ("args.flag", {"flag": "secret"}, "^it gives STRING, and a condition gives true or false$"),
        ("args.amount > 5.0", {"amount": 2**80}, "64 bits"),
        ("args.name == 'x'", {"name": "\ud800"}, "surrogate"),
        ("args.l.all(a, args.l.all(b, args.l.all(c, a + b + c > 0)))", {"l": list(range(1, 200))}, "budget"),
    ],
)
def test_what_cannot_be_evaluated_fails_and_is_not_false(text: str, arguments: dict, why: str) -> None:
    with pytest.raises(ConditionFailed, match=why):
        Expression(text).holds(call("refund", arguments))


def test_the_longest_expression_is_bounded() -> None:
    with pytest.raises(InvalidInput, match=str(LONGEST)):
        Expression("true " * LONGEST)
