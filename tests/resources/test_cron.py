from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources import cron
from foliot.resources.cron import time_zone_problem


@pytest.mark.parametrize(
    ("expression", "canonical"),
    [
        ("* * * * *", "* * * * *"),
        ("*/5  9-17 * * MON-FRI", "*/5 9-17 * * mon-fri"),
        ("0 0 1,15 jan,jul *", "0 0 1,15 jan,jul *"),
        ("5/10 * * * 7", "5/10 * * * 7"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("0 0 31 2 mon", "0 0 31 2 mon"),
        ("@Daily", "@daily"),
    ],
)
def test_what_cron_understands_is_accepted(expression: str, canonical: str) -> None:
    assert cron.canonical(expression) == canonical


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("* * * *", "expected 5 fields, found 4"),
        ("0 * * * * *", "expected 5 fields, found 6"),
        ("60 * * * *", "the minute 60 is not within 0 to 59"),
        ("* 24 * * *", "the hour 24"),
        ("* * 0 * *", "the day of the month 0"),
        ("* * * 13 *", "the month 13"),
        ("* * * * 8", "the day of the week 8"),
        ("*/0 * * * *", "the step of"),
        ("9-5 * * * *", "ends before it begins"),
        ("a * * * *", "'a' is no minute"),
        ("*-5 * * * *", "is no minute"),
        ("1,,2 * * * *", "is no minute"),
        ("* * * mon *", "'mon' is no month"),
        ("٣ * * * *", "is no minute"),
        ("@never", "unknown word"),
        ("0 0 30 2 *", "never come"),
        ("0 0 31 apr,jun *", "never come"),
    ],
)
def test_what_can_never_be_is_refused_with_a_reason(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cron.canonical(expression)


@given(st.text(alphabet="0123456789*,-/ amonjfe@", max_size=30))
def test_any_text_is_either_accepted_for_good_or_refused(text: str) -> None:
    try:
        canonical = cron.canonical(text)
    except ValueError:
        return
    assert cron.canonical(canonical) == canonical


def test_time_zones_are_known_by_their_iana_names() -> None:
    assert time_zone_problem("UTC") is None
    assert time_zone_problem("Europe/Berlin") is None
    assert time_zone_problem("Europe/Berln") == "unknown time zone; did you mean Europe/Berlin?"
    assert time_zone_problem("../etc/passwd") is not None
    assert time_zone_problem("Europe") is not None
