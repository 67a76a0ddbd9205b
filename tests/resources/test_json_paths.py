from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.resources.paths import look_up, parse_path

BODY: Any = {
    "a": {"b-c": [10, {"d": None}, {"d": "x"}]},
    "odd name": {"it's": 1},
    "list": [{"n": 1}, {"m": 2}, {"n": 3}],
    "zero": 0,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", BODY),
        ("$.a.b-c[0]", 10),
        ("$.a.b-c[-1].d", "x"),
        ("$['odd name'][\"it's\"]", 1),
        ("$.list[*].n", [1, 3]),
        ("$.list[*]", BODY["list"]),
        ("$.zero", 0),
        ("$.a.b-c[1].d", None),
        ("$.a.b-c[9]", None),
        ("$.a[0]", None),
        ("$.list.n", None),
        ("$.zero.x", None),
        ("$.nothing.at.all", None),
    ],
)
def test_what_is_at_a_path(path: str, value: Any) -> None:
    assert look_up(BODY, path) == value


@pytest.mark.parametrize(
    "path", ["a.b", "", "$.", "$..a", "$[", "$[?(@.x)]", "$.a[1:2]", "$ .a", "$.a b", "$" + ".a" * 200]
)
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_path(path)


@settings(deadline=None)
@given(path=st.text(alphabet="$.[]'\"*ab0-9 ", max_size=20), value=st.recursive(st.none() | st.integers(), st.lists))
def test_a_path_that_can_be_read_never_fails(path: str, value: Any) -> None:
    try:
        parse_path(path)
    except ValueError:
        return
    look_up(value, path)
