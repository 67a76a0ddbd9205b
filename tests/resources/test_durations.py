from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common import durations


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("30s", "30s"),
        ("90m", "1h30m"),
        ("1h30m0s", "1h30m"),
        ("24h", "24h"),
        ("2d", "48h"),
        ("1500ms", "1.5s"),
        ("250ms", "250ms"),
        ("1.5h", "1h30m"),
        ("0", "0s"),
        ("0ms", "0s"),
        ("+5s", "5s"),
        (" 10m ", "10m"),
        ("10us", "10us"),
        ("10µs", "10us"),
        ("1500ns", "1.5us"),
        (".5s", "500ms"),
        ("61.25s", "1m1.25s"),
    ],
)
def test_one_length_has_one_text(text: str, canonical: str) -> None:
    assert durations.canonical(text) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a duration"),
        ("soon", "the units are"),
        ("5", "needs a unit"),
        ("1.5", "needs a unit"),
        ("-5s", "cannot be negative"),
        ("5s5", "not a duration"),
        ("5 s", "not a duration"),
        ("1y", "not a duration"),
        ("٣s", "not a duration"),
        ("9999999999h", "longer than 292 years"),
        ("1" * 100 + "s", "not a duration"),
    ],
)
def test_what_is_no_length_of_time_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        durations.canonical(text)


@given(st.integers(0, 2**63 - 1))
def test_the_canonical_text_means_the_same_and_stays(length: int) -> None:
    text = durations.canonical(f"{length}ns")
    assert durations.nanoseconds(text) == length
    assert durations.canonical(text) == text


def test_seconds_are_for_timers() -> None:
    assert durations.seconds("1m1.5s") == 61.5
