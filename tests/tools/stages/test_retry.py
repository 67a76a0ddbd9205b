"""A call is tried again when that can help and cannot harm, and never past its time."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.kernel.backoff import RetryPolicy
from foliot.tools.base import (
    ToolArgumentsInvalid,
    ToolCircuitOpen,
    ToolDenied,
    ToolError,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
)
from foliot.tools.pipeline.retry import Retries
from foliot.tools.pipeline.running import CallProgress
from tests.tools.governed import FakeTime, call, definition


def refused() -> ToolUnreachable:
    error = ToolUnreachable("connection refused")
    error.before_effect = True
    return error


def limited(seconds: float) -> ToolRateLimited:
    error = ToolRateLimited("slow down")
    error.retry_after = seconds
    return error


class Backend:
    """Raises what it is given, one after another, and then answers."""

    def __init__(self, *errors: ToolError) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self, asked: Any, running: CallProgress) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def stage(time: FakeTime, retry: RetryPolicy, chance: float = 0.0, **fields: Any) -> Retries:
    tool = definition("f", **{"effect": "read", "retry": retry, **fields})
    return Retries(tool, time, time.sleep, lambda: chance)


async def test_a_passing_failure_is_tried_again_until_it_succeeds() -> None:
    time, backend, running = FakeTime(), Backend(ToolError("503"), ToolTimeout("slow")), CallProgress()

    assert await stage(time, RetryPolicy(3, backoff=1.0, jitter="none"))(call("f"), running, backend) == "done"
    assert (backend.calls, running.attempts, time.slept) == (3, 3, [1.0, 2.0])
    assert [error.kind for error in running.failures] == ["external", "timeout"]


async def test_the_last_error_says_how_often_it_was_tried() -> None:
    backend = Backend(*[ToolError("503") for _ in range(5)])

    with pytest.raises(ToolError, match="failed after 3 attempts: 503") as caught:
        await stage(FakeTime(), RetryPolicy(3))(call("f"), CallProgress(), backend)
    assert caught.value.details["attempts"] == 3
    assert backend.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        ToolArgumentsInvalid("no"),
        ToolDenied("no", retryable=True),
        ToolCircuitOpen("open"),
        ToolError("final", retryable=False),
    ],
)
async def test_what_needs_attention_is_never_tried_again(error: ToolError) -> None:
    backend = Backend(error)

    with pytest.raises(type(error)):
        await stage(FakeTime(), RetryPolicy(5))(call("f"), CallProgress(), backend)
    assert backend.calls == 1


@pytest.mark.parametrize(
    ("fields", "error", "calls"),
    [
        ({"effect": "once"}, ToolError("503"), 1),
        ({"effect": "once"}, ToolTimeout("slow"), 1),
        ({"effect": "once"}, refused(), 2),
        ({"effect": "once"}, limited(0.0), 2),
        ({"effect": "once", "on_unknown": "retry"}, ToolError("503"), 2),
        ({"effect": "idempotent"}, ToolError("503"), 2),
    ],
)
async def test_a_once_tool_is_repeated_only_when_it_cannot_have_acted(fields, error: ToolError, calls: int) -> None:
    backend = Backend(error)
    retries = stage(FakeTime(), RetryPolicy(3), **fields)

    if calls == 1:
        with pytest.raises(ToolError):
            await retries(call("f"), CallProgress(), backend)
    else:
        assert await retries(call("f"), CallProgress(), backend) == "done"
    assert backend.calls == calls


@pytest.mark.parametrize(
    ("jitter", "chance", "slept"), [("none", 0.9, [4.0, 5.0]), ("full", 0.5, [2.0, 2.5]), ("equal", 0.5, [3.0, 3.75])]
)
async def test_waits_double_up_to_the_longest_and_jitter_only_shortens_them(jitter, chance, slept) -> None:
    time = FakeTime()
    retry = RetryPolicy(3, backoff=4.0, max_backoff=5.0, jitter=jitter)

    await stage(time, retry, chance)(call("f"), CallProgress(), Backend(ToolError("a"), ToolError("b")))

    assert time.slept == slept


async def test_retry_after_is_honoured_up_to_the_longest_wait() -> None:
    time = FakeTime()
    assert (
        await stage(time, RetryPolicy(2, backoff=1.0, max_backoff=10.0, jitter="none"))(
            call("f"), CallProgress(), Backend(limited(7.0))
        )
        == "done"
    )
    assert time.slept == [7.0]

    with pytest.raises(ToolRateLimited):
        await stage(FakeTime(), RetryPolicy(2, max_backoff=10.0))(call("f"), CallProgress(), Backend(limited(11.0)))


async def test_no_attempt_begins_that_the_deadline_would_cut_off() -> None:
    time = FakeTime(1000.0)
    backend = Backend(ToolError("503"), ToolError("503"))

    with pytest.raises(ToolError):
        await stage(time, RetryPolicy(5, backoff=4.0, jitter="none"), attempt_timeout=8.0)(
            call("f", deadline=1012.0), CallProgress(), backend
        )

    assert (backend.calls, time.slept) == (2, [4.0])
