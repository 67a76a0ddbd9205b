"""Moments as people write them."""

from __future__ import annotations

import pytest

from foliot.common.times import iso, read_moment

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0.0),
        ("1700000000.25", 1_700_000_000.25),
        ("1.7e9", 1.7e9),
        ("2h", NOW - 7200),
        ("1h30m", NOW - 5400),
        ("7d", NOW - 7 * 86400),
        ("1970-01-02", 86400.0),
        ("1970-01-02T00:00:00", 86400.0),
        (" 1970-01-02T00:00:00Z ", 86400.0),
        ("1970-01-02 01:00", 90000.0),
        ("1970-01-02T01:00:00+01:00", 86400.0),
        ("1970-01-02T01:00:00 01:00", 86400.0),  # as an address has it where the + was not encoded
    ],
)
def test_times_dates_ages_and_numbers_are_read(text: str, moment: float) -> None:
    assert read_moment(text, now=NOW) == moment


def test_what_foliot_writes_it_reads() -> None:
    assert read_moment(iso(1_700_000_000.125), now=NOW) == 1_700_000_000.125


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "nan", "inf", "-inf", "1e999", "soon", "2026-02-30", "2 weeks", "-2h", "9" * 70),
        *("2026", "90", "1.5", "+90", "1e3", "-1", "1700000000000"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time: 2026-11-16, 2026-11-16T09:30:00Z, seconds since 1970"):
        read_moment(text, now=NOW)
