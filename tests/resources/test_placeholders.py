from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.resources.paths import fill, names_in


def test_holes_are_found_and_filled_once() -> None:
    text = "{{ a }}-{{b}} {{ $.x['y'] }} { {c}} {{}} {{ a }}"
    assert names_in(text) == ["a", "b", "$.x['y']", "a"]
    assert fill(text, lambda name: f"<{name}>") == "<a>-<b> <$.x['y']> { {c}} {{}} <a>"


def test_what_fills_a_hole_is_not_looked_at_again() -> None:
    assert fill("{{ a }}", lambda name: "{{ b }}") == "{{ b }}"
    assert fill("{{ a }}", lambda name: r"\1 \g<0>") == r"\1 \g<0>"


@settings(deadline=None)
@given(st.text())
def test_a_text_without_holes_stays_as_it_is(text: str) -> None:
    if not names_in(text):
        assert fill(text, lambda name: "never") == text
