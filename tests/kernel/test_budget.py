"""Limits as arithmetic."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.messages import Usage
from foliot.kernel.run.budget import Limits, Spent, check_calls, check_step, check_time, narrow, remaining
from foliot.kernel.run.events import ModelFailed
from foliot.kernel.run.spec import Repairs
from tests.kernel.play import Play, asks, says, spec

limits = st.builds(
    Limits,
    max_steps=st.none() | st.integers(0, 20),
    max_tokens=st.none() | st.integers(0, 1000),
    max_cost_usd=st.none() | st.floats(0, 10),
    max_seconds=st.none() | st.floats(0, 100),
    max_tool_calls=st.none() | st.integers(0, 20),
    parallel_tools=st.integers(1, 10),
)
NUMBERS = ("max_steps", "max_tokens", "max_cost_usd", "max_seconds", "max_tool_calls")


def test_no_limit_stops_nothing():
    spent = Spent(steps=10**6, input_tokens=10**9, cost_usd=1e6, unpriced=3)
    assert check_step(Limits(max_steps=None), spent, now=1e12) is None
    assert check_calls(Limits(), spent, 10**6) is None


def test_each_limit_is_reached_at_its_value():
    assert check_step(Limits(max_steps=2), Spent(steps=1)) is None
    assert check_step(Limits(max_steps=2), Spent(steps=2)).limit == "steps"
    assert check_step(Limits(max_tokens=10), Spent(input_tokens=4, output_tokens=5)) is None
    assert check_step(Limits(max_tokens=10), Spent(input_tokens=5, output_tokens=5)).limit == "tokens"
    assert check_step(Limits(max_tokens=10), Spent(input_tokens=5), estimate=5).limit == "tokens"
    assert check_step(Limits(max_cost_usd=1.0), Spent(cost_usd=0.99)) is None
    assert check_step(Limits(max_cost_usd=1.0), Spent(cost_usd=1.0)).limit == "cost_usd"
    assert check_time(Limits(max_seconds=5), now=14.9, deadline=15.0) is None
    assert check_time(Limits(max_seconds=5), now=15.0, deadline=15.0).used == 5
    assert check_calls(Limits(max_tool_calls=3), Spent(tool_calls=1), 2) is None
    assert check_calls(Limits(max_tool_calls=3), Spent(tool_calls=1), 3).limit == "tool_calls"


def test_a_price_that_is_not_known_is_not_a_price_of_zero():
    spent = Spent()
    spent.add(Usage(1, 1, cost_usd=0.5))
    assert spent.usage().cost_usd == 0.5
    spent.add(Usage(1, 1))
    assert spent.usage().cost_usd is None
    assert check_step(Limits(max_cost_usd=100.0), spent).limit == "cost_usd"
    assert remaining(Limits(max_cost_usd=100.0), spent).max_cost_usd == 0.0


def test_an_estimate_anywhere_makes_the_sum_an_estimate():
    spent = Spent()
    spent.add(Usage(1, 1))
    spent.add(Usage(1, 1, source="estimated"))
    assert spent.usage().source == "estimated"


@given(limits, limits)
def test_narrowing_never_widens(outer: Limits, inner: Limits):
    both = narrow(outer, inner)
    for name in NUMBERS:
        given_limits = [getattr(one, name) for one in (outer, inner) if getattr(one, name) is not None]
        assert getattr(both, name) == (min(given_limits) if given_limits else None)
    assert both.parallel_tools == min(outer.parallel_tools, inner.parallel_tools)
    assert narrow(both, outer) == both


@given(limits, st.integers(0, 30), st.integers(0, 2000), st.floats(0, 20), st.integers(0, 30))
def test_what_is_left_allows_exactly_what_the_limits_allow(
    own: Limits, steps: int, tokens: int, cost: float, calls: int
):
    spent = Spent(steps=steps, input_tokens=tokens, cost_usd=cost, tool_calls=calls)
    left = remaining(own, spent)
    assert (check_step(own, spent) is None) == (check_step(left, Spent()) is None)
    assert (check_calls(own, spent, 1) is None) == (check_calls(left, Spent(), 1) is None)


def test_what_is_left_of_the_time_ends_at_the_deadline():
    assert remaining(Limits(max_seconds=10), Spent(), now=12.0, deadline=15.0).max_seconds == 3.0
    assert remaining(Limits(max_seconds=10), Spent(), now=16.0, deadline=15.0).max_seconds == 0.0


def test_a_model_that_wants_to_know_is_told_where_it_stands_and_the_past_stays_as_it_was():
    run = Play(
        spec(budget_notes=True, limits=Limits(max_steps=4)), [asks("look"), asks("look"), asks("look"), says("done")]
    )
    run.run()
    told = [asked.request.messages[-1].text for asked in run.asked]
    assert [text.partition(")")[0] for text in told] == [
        "[Iteration Budget] Iteration 1 of 4 (25% used",
        "[Iteration Budget] Iteration 2 of 4 (50% used",
        "[Iteration Budget] Iteration 3 of 4 (75% used",
        "[Iteration Budget] Iteration 4 of 4 (100% used",
    ]
    assert told[1].endswith("used).")
    assert "end" in told[2]
    assert "final answer now" in told[3]
    for before, after in pairwise(asked.request.messages for asked in run.asked):
        assert after[: len(before)] == before


def test_a_step_that_is_asked_again_is_not_told_twice():
    busy = ModelFailed(1, "overloaded", "busy", retryable=True)
    run = Play(spec(budget_notes=True, repairs=Repairs(model_backoff=0)), [busy, says("done")])
    run.run()
    assert len(run.asked) == 2
    assert run.asked[0].request.messages == run.asked[1].request.messages


def test_nobody_is_told_who_did_not_ask_for_it():
    run = Play(spec(), [says("done")])
    run.run()
    assert [message.text for message in run.asked[0].request.messages] == ["go"]
