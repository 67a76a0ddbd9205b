from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.buckets import NamedBuckets, Rate, TokenBucket


def test_a_burst_passes_and_then_one_for_each_tick() -> None:
    buckets = NamedBuckets(Rate.per_second(10, 3))

    assert [buckets.take("a", 0.0) == 0 for _ in range(5)] == [True, True, True, False, False]
    assert buckets.take("a", 0.0) == pytest.approx(0.1)
    assert buckets.take("a", 0.1) == 0
    assert buckets.take("a", 0.1) > 0
    assert buckets.take("b", 0.1) == 0


def test_what_was_refused_is_not_counted() -> None:
    buckets = NamedBuckets(Rate.per_second(1, 1))
    assert buckets.take("a", 0.0) == 0

    for _ in range(100):
        assert buckets.take("a", 0.5) == pytest.approx(0.5)

    assert buckets.take("a", 1.0) == 0


def test_strangers_without_number_take_no_memory_without_end() -> None:
    buckets = NamedBuckets(Rate.per_second(1, 2), most=100)
    for _ in range(2):
        buckets.take("busy", 0.0)

    for number in range(10_000):
        buckets.take(f"n{number}", 0.0)

    assert len(buckets) <= 100
    assert buckets.take("busy", 0.0) > 0, "whoever has taken most is remembered longest"


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from("ab")), max_size=200),
    st.floats(0.5, 50),
    st.integers(1, 20),
)
def test_nobody_ever_gets_more_than_rate_and_burst_allow(
    steps: list[tuple[float, str]], rate: float, burst: int
) -> None:
    buckets, now = NamedBuckets(Rate.per_second(rate, burst)), 0.0
    taken: dict[str, int] = {"a": 0, "b": 0}
    for pause, name in steps:
        now += pause
        wait = buckets.take(name, now)
        if wait == 0:
            taken[name] += 1
        else:
            assert buckets.wait(name, now + wait) == pytest.approx(0, abs=1e-6)
        assert all(count <= burst + rate * now + 1e-3 for count in taken.values())


@given(st.floats(0, 1e6), st.floats(0.5, 50), st.integers(1, 20))
def test_a_clock_that_goes_back_gains_nobody_anything(back: float, rate: float, burst: int) -> None:
    bucket = TokenBucket(Rate.per_second(rate, burst))
    assert [bucket.take(0.0) for _ in range(burst)] == [0.0] * burst
    assert bucket.take(-back) > 0
    assert bucket.take(0.0) > 0
    assert bucket.take(1 / rate + 1e-6) == 0


@pytest.mark.parametrize(("ahead", "wait"), [(0, 0.0), (2, 0.0), (3, 0.5), (5, 1.5)])
def test_those_ahead_are_waited_for_also_after_a_long_pause(ahead: int, wait: float) -> None:
    assert Rate.per_second(2, burst=3).wait(-1000.0, 50.0, ahead=ahead) == pytest.approx(wait)


def test_a_rate_of_nothing_has_no_limit() -> None:
    bucket = TokenBucket(Rate.per_second(0, 0))
    assert [bucket.take(0.0) for _ in range(1000)] == [0.0] * 1000
