"""Labels and conditions: where an answer goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.graph.plan import Edge, Node
from foliot.work.tasks.settlement import condition_failure, judge_edges, route_labels


@pytest.mark.parametrize(
    ("output", "labels"),
    [
        ("", {}),
        ("It is a crash.", {}),
        ("It is a crash.\nroute: bug", {"route": "bug"}),
        ("It is a crash.\n\nroute=bug\nseverity = high\n\n", {"route": "bug", "severity": "high"}),
        ("route: bug\nIt is a crash.", {}),
        ("route: bug", {"route": "bug"}),
        ('route: "bug"', {"route": "bug"}),
        ("route: **bug**", {"route": "bug"}),
        ("route: two words", {"route": "two words"}),
        ("route: old\nroute: new", {"route": "new"}),
        ("route:", {}),
        ("= x", {}),
        ("route: " + "x" * 300, {}),
    ],
)
def test_the_last_lines_of_a_text_are_its_labels(output: str, labels: dict[str, str]):
    assert route_labels(output, None) == labels


def test_the_scalar_fields_of_a_structured_answer_are_its_labels():
    value = {"route": "bug", "score": 3, "share": 0.5, "whole": 2.0, "sure": True, "none": None, "list": [1], "map": {}}
    assert route_labels("route: feature", value) == {
        "route": "bug",
        "score": "3",
        "share": "0.5",
        "whole": "2",
        "sure": "true",
    }


def test_a_structured_answer_that_is_no_object_leaves_the_labels_to_the_text():
    assert route_labels("route: bug", [1, 2]) == {"route": "bug"}


@given(st.text(), st.none() | st.lists(st.integers()) | st.dictionaries(st.text(), st.floats() | st.text() | st.none()))
def test_any_answer_gives_labels_that_are_texts(output: str, value: Any):
    labels = route_labels(output, value)
    assert all(isinstance(name, str) and isinstance(text, str) for name, text in labels.items())


def node(*conditions: Any) -> Node:
    return Node(tuple(Edge(f"to{place}", when) for place, when in enumerate(conditions)))


def test_expressions_see_what_was_said_given_and_labelled():
    edges = node(
        None,
        "output.contains('crash')",
        "value.score > 3.0",
        "value.score > 9",
        {"route": "bug"},
        "otherwise",
        "route.kind == 'bug' && input.topic == 'desk'",
        "'tag' in value.tags",
    )
    verdict = judge_edges(edges, "a crash", {"score": 5, "tags": ["tag"]}, {"kind": "bug"}, {"topic": "desk"})
    assert verdict.held == (1, 2, 6, 7)
    assert not condition_failure("triage", edges, verdict)


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("value.missing > 3.0", "there is no 'missing'"),
        ("value.text > 3.0", "overload"),
        ("value.text", "it gives STRING"),
        ("output >", "not a CEL expression"),
        ("nobody > 3", "undeclared"),
    ],
)
def test_what_cannot_be_evaluated_is_neither_yes_nor_no_and_is_named(when: str, why: str):
    edges = node("true", when)

    verdict = judge_edges(edges, "hidden words", {"text": "hidden words"}, {}, {})

    assert [place for place, _ in verdict.problems] == [1]
    told = condition_failure("triage", edges, verdict)
    assert f"the condition {when!r} of the edge triage -> to1 cannot be evaluated" in told
    assert why in told
    assert "hidden words" not in told


def test_an_answer_without_structure_has_a_value_of_null():
    assert judge_edges(node("value == null", "has(input.topic)"), "x", None, {}, {}).held == (0,)


def test_half_a_surrogate_pair_is_a_problem_and_no_crash():
    verdict = judge_edges(node("size(output) > 2"), "abc\ud800", None, {}, {})
    assert (verdict.held, len(verdict.problems)) == ((), 1)
