from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.amounts import MOST_MICROS, dollars, micros_of_cost, micros_of_text


@given(st.integers(min_value=0, max_value=MOST_MICROS))
def test_an_amount_that_is_written_and_read_again_is_the_same(micros: int) -> None:
    assert micros_of_text(dollars(micros)) == micros


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0.00"), (25_000_000, "25.00"), (1, "0.000001"), (100_500, "0.1005"), (-1_500_000, "-1.50")],
)
def test_amounts_have_two_places_or_as_many_as_they_need(micros: int, text: str) -> None:
    assert dollars(micros) == text


@given(st.floats(min_value=0, max_value=1e6))
def test_a_cost_is_never_rounded_down_by_more_than_floating_point_can_tell(cost: float) -> None:
    assert Decimal(micros_of_cost(cost)) >= Decimal(cost) * 1_000_000 - Decimal("1e-6")
    assert Decimal(micros_of_cost(cost)) < Decimal(cost) * 1_000_000 + 1


@pytest.mark.parametrize(
    ("cost", "micros"), [(0.1 + 0.2, 300_000), (0.0000001, 1), (0.0, 0), (-1.0, 0), (1e300, MOST_MICROS)]
)
def test_what_floating_point_added_is_taken_off_and_a_fraction_is_never_free(cost: float, micros: int) -> None:
    assert micros_of_cost(cost) == micros
