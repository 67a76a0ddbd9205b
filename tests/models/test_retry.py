from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.models.base import (
    ModelAuthError,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimeout,
)
from foliot.models.retry import Attempt, RetryPolicy, with_retry


class Trial:
    """A call that fails with the given errors in turn, then answers; time is simulated."""

    def __init__(self, *errors: ModelError, seconds: float = 0.0) -> None:
        self.errors = list(errors)
        self.seconds = seconds
        self.now = 0.0
        self.waits: list[float] = []
        self.calls = 0
        self.attempts: list[Attempt] = []

    async def __call__(self) -> str:
        self.calls += 1
        self.now += self.seconds
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def run(self, policy: RetryPolicy, seed: int = 1) -> str:
        return await with_retry(
            self,
            policy,
            on_attempt=self.attempts.append,
            clock=lambda: self.now,
            sleep=self.sleep,
            random=Random(seed),
        )


async def test_it_tries_again_until_it_succeeds_and_reports_every_attempt():
    trial = Trial(ModelOverloaded("1"), ModelTimeout("2"), seconds=3)

    assert await trial.run(RetryPolicy()) == "answer"

    assert [(a.number, a.error and a.error.message) for a in trial.attempts] == [(1, "1"), (2, "2"), (3, None)]
    assert [a.seconds for a in trial.attempts] == pytest.approx([3, 3, 3])
    assert [a.wait for a in trial.attempts] == [*trial.waits, None]


@pytest.mark.parametrize("error", [ModelAuthError("x"), ModelRequestError("x"), ModelOverloaded("x", retryable=False)])
async def test_an_error_that_will_not_pass_is_raised_at_once(error: ModelError):
    trial = Trial(error)
    with pytest.raises(ModelError) as caught:
        await trial.run(RetryPolicy())
    assert caught.value is error
    assert trial.calls == 1
    assert trial.attempts[0].wait is None


async def test_the_last_error_is_raised_when_the_attempts_are_used_up():
    trial = Trial(*(ModelOverloaded(str(n)) for n in range(9)))
    with pytest.raises(ModelOverloaded, match="2"):
        await trial.run(RetryPolicy(attempts=3))
    assert trial.calls == 3
    assert len(trial.waits) == 2


async def test_retry_after_is_never_undercut():
    trial = Trial(ModelRateLimited("x", retry_after=12))
    await trial.run(RetryPolicy(base=0.5))
    assert 12 <= trial.waits[0] <= 12.5


async def test_a_retry_after_beyond_the_patience_ends_the_trying():
    trial = Trial(ModelRateLimited("x", retry_after=61))
    with pytest.raises(ModelRateLimited):
        await trial.run(RetryPolicy(patience=60))
    assert trial.waits == []


async def test_a_wait_that_would_cross_the_deadline_is_not_begun():
    trial = Trial(ModelRateLimited("x", retry_after=8), seconds=3)
    with pytest.raises(ModelRateLimited):
        await trial.run(RetryPolicy(deadline=10))
    assert trial.waits == []


async def test_a_call_that_hangs_past_the_deadline_is_a_timeout():
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    with pytest.raises(ModelTimeout, match="deadline"):
        await with_retry(hang, RetryPolicy(deadline=0.01))


async def test_cancelling_goes_through_the_deadline_untouched():
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(with_retry(hang, RetryPolicy(deadline=60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_exceptions_pass_through():
    async def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await with_retry(broken, RetryPolicy())


@given(
    attempts=st.integers(1, 8),
    base=st.floats(0, 5),
    longest=st.floats(0, 60),
    deadline=st.none() | st.floats(0.1, 200),
    seconds=st.floats(0, 20),
    retry_after=st.lists(st.none() | st.floats(0, 100), max_size=12),
    seed=st.integers(0, 1000),
)
def test_waits_stay_within_their_bounds(
    attempts: int,
    base: float,
    longest: float,
    deadline: float | None,
    seconds: float,
    retry_after: list[float | None],
    seed: int,
):
    policy = RetryPolicy(attempts=attempts, base=base, longest=longest, deadline=deadline)
    trial = Trial(*(ModelRateLimited("x", retry_after=after) for after in retry_after), seconds=seconds)
    if deadline is not None:
        trial.seconds = min(seconds, deadline / 2)  # calls that outlast it are cut by the event loop's clock, not ours

    try:
        asyncio.run(trial.run(policy, seed))
    except ModelRateLimited:
        pass
    else:
        assert trial.calls == len(retry_after) + 1

    assert trial.calls <= attempts
    assert len(trial.attempts) == trial.calls
    for n, wait in enumerate(trial.waits):
        asked = retry_after[n]
        ceiling = min(longest, base * 2**n)
        assert (asked or 0) <= wait <= (ceiling if asked is None else asked + base) + 1e-9
        assert asked is None or asked <= policy.patience
    if deadline is not None:
        assert sum(trial.waits) + trial.seconds * len(trial.waits) <= deadline + 1e-6


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base": -1}, {"longest": float("nan")}, {"deadline": 0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]):
    with pytest.raises(InvalidInput):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
