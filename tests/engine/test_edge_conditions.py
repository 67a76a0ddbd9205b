"""Conditions of edges are compiled once, see four things, and are not mistaken for false when they cannot be asked."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.engine.definition.edge_conditions import EdgeCondition, edge_condition
from foliot.errors import InvalidInput
from foliot.tools.governance.cel import ConditionFailed


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("value.score > 3.0", {"score": 4}, True),
        ("value.score > 3", {"score": 2.5}, False),
        ("has(value.score) && value.score > 3.0", {}, False),
        ("value == null", None, True),
        ("value.size() == 2 && value[0] == 'a'", ["a", "b"], True),
        ("output == 'said' && route.kind == 'bug' && input.topic == 'desk'", None, True),
        ("!('missing' in route)", None, True),
    ],
)
def test_a_condition_sees_output_value_route_and_input(text: str, value: Any, holds: bool):
    assert EdgeCondition(text).holds("said", value, {"kind": "bug"}, {"topic": "desk"}) is holds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("output.score > 3", "string"),
        ("args.amount > 3", "undeclared reference to 'args"),
        ("size(output)", "gives INT"),
        ("", "it ends too early"),
        ("x" * 5000, "at most 4096"),
    ],
)
def test_what_is_no_condition_is_refused_when_it_is_read(text: str, complaint: str):
    with pytest.raises(InvalidInput, match=complaint):
        EdgeCondition(text)


def test_what_is_missing_is_named_with_the_way_to_ask_for_it():
    with pytest.raises(ConditionFailed, match=r"no 'score' .*has\(value\.score\)"):
        EdgeCondition("value.score > 3.0").holds("", {}, {}, {})


def test_the_same_text_is_compiled_once():
    assert edge_condition("value == null") is edge_condition("value == null")
