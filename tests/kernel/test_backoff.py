from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.backoff import Jitter, RetryPolicy, backoff, share_of
from foliot.kernel.graph.plan import Plan, decode_plan, encode_plan
from foliot.kernel.run.spec import Repairs, RunSpec, decode_spec, encode_spec

TIMES = st.floats(0, 1e6)
SHARES = st.floats(0, 1)
JITTERS = st.sampled_from(["none", "full", "equal"])


@pytest.mark.parametrize(
    ("jitter", "waits"),
    [("none", [1, 2, 4, 8, 10, 10]), ("full", [0.5, 1, 2, 4, 5, 5]), ("equal", [0.75, 1.5, 3, 6, 7.5, 7.5])],
)
def test_a_wait_doubles_up_to_its_bound_and_is_spread(jitter: Jitter, waits: list[float]) -> None:
    policy = RetryPolicy(9, 1.0, 10.0, jitter)
    assert [policy.wait(attempt, 0.5) for attempt in range(1, 7)] == waits


@given(st.integers(-3, 10**9), TIMES, TIMES, JITTERS, SHARES)
def test_a_wait_is_never_longer_than_its_bound_however_often_it_failed(
    failures: int, first: float, longest: float, jitter: Jitter, share: float
) -> None:
    wait = backoff(failures, first, longest, jitter=jitter, share=share)
    assert 0 <= wait <= longest
    if jitter == "equal":
        assert wait >= backoff(failures, first, longest) / 2
    assert wait <= backoff(failures + 1, first, longest, jitter=jitter, share=share)


@given(st.text())
def test_the_share_of_a_key_is_always_the_same(key: str) -> None:
    assert 0 <= share_of(key) < 1
    assert share_of(key) == share_of(str(key))


def test_keys_that_differ_in_one_letter_spread() -> None:
    assert share_of("a") == 0xAF63DC4C8601EC8C % 1_000_000 / 1_000_000  # the published FNV-1a of this letter
    assert len({share_of(f"run-{number}") for number in range(1000)}) > 990


def test_what_was_stored_under_the_older_names_is_read_and_written_alike() -> None:
    stored = b'{"agent":"a","model":"m","repairs":{"model":1,"model_delay":0.5,"model_delay_max":7.0}}'
    spec = msgspec.json.decode(stored, type=RunSpec)
    assert spec.repairs == Repairs(model=1, model_backoff=0.5, model_max_backoff=7.0)
    assert spec.repairs.model_policy == RetryPolicy(2, 0.5, 7.0, "none")
    assert b'"model_delay":0.5' in encode_spec(spec)
    assert decode_spec(encode_spec(spec)) == spec

    plan = Plan("default/t", {}, (), retry=RetryPolicy(3, 2.0, 9.0, "equal", ("no such",)))
    kept = encode_plan(plan)
    assert b'"max_attempts":3' in kept
    assert b"on_kinds" not in kept
    assert decode_plan(kept) == plan
