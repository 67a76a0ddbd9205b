from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.durations import canonical, nanoseconds
from foliot.common.times import iso, iso_seconds

UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
PARTS = st.lists(
    st.tuples(st.decimals(0, 9999, places=3).map(str), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4
)


@given(st.floats(0, 4e9))
def test_a_moment_is_written_as_the_library_of_dates_writes_it(at: float) -> None:
    moment = datetime.fromtimestamp(at, UTC)
    assert iso(at) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert iso_seconds(at) == moment.isoformat(timespec="seconds").replace("+00:00", "Z")


@given(PARTS)
def test_a_length_of_time_is_the_exact_sum_of_its_parts(parts: list[tuple[str, str]]) -> None:
    text = "".join(f"{amount}{unit}" for amount, unit in parts)
    assert nanoseconds(text) == int(sum(Decimal(amount) * UNITS[unit] for amount, unit in parts))


@given(st.integers(0, 2**53))
def test_the_canonical_text_means_the_same_and_is_its_own(length: int) -> None:
    text = canonical(f"{length}ns")
    assert nanoseconds(text) == length
    assert canonical(text) == text


@pytest.mark.parametrize("text", ["", "1", "1.5", "-1s", "1h-5m", "1x", "s", "1 s", "9" * 70 + "s", "300000000d"])
def test_what_is_no_length_of_time_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|292 years"):
        nanoseconds(text)
