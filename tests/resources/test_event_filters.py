from __future__ import annotations

from typing import Any

import pytest

from foliot.resources.event_filters import EventFilter, FilterFailed


def delivery(**changed: Any) -> dict[str, Any]:
    given = {"body": {"ref": "main", "n": 3, "labels": ["bug"]}, "text": "", "headers": {"x-a": "1"}}
    return {**given, "event": "push", "event_id": "e1", **changed}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('event == "push"', True),
        ('event == "push" && body.ref.startsWith("rel")', False),
        ('headers["x-a"] == "1"', True),
        ('"bug" in body.labels', True),
        ("body.n > 2", True),
        ("has(body.missing) && body.missing == 1", False),
        ('event_id.matches("^e[0-9]+$")', True),
        ("true", True),
    ],
)
def test_a_filter_says_whether_a_delivery_is_wanted(text: str, wanted: bool) -> None:
    assert EventFilter(text).wants(delivery()) is wanted


@pytest.mark.parametrize("body", [None, [], "text", {"other": 1}])
def test_what_cannot_be_evaluated_is_told_apart_from_false(body: Any) -> None:
    with pytest.raises(FilterFailed):
        EventFilter('body.ref == "main"').wants(delivery(body=body))


@pytest.mark.parametrize("text", ["body.ref ==", "nobody == 1", "1 + 1", "event = 'x'", "x" * 5000])
def test_what_is_no_filter_is_refused_where_it_is_declared(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        EventFilter(text)


def test_the_complaint_names_the_column() -> None:
    with pytest.raises(ValueError, match="column"):
        EventFilter("event == nobody")
