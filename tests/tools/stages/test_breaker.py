"""A tool that keeps failing is left alone, and tried again by one call at a time."""

from __future__ import annotations

import asyncio

import pytest

from foliot.tools.base import ToolArgumentsInvalid, ToolCircuitOpen, ToolError, ToolTimeout, ToolUnreachable
from foliot.tools.pipeline.breaker import Breaker, Circuits
from foliot.tools.pipeline.running import CallProgress
from tests.tools.governed import FakeTime, call, definition


async def fails(asked, running):
    raise ToolUnreachable("down")


async def works(asked, running):
    return "done"


async def until_open(breaker: Breaker, times: int = 3) -> None:
    for _ in range(times):
        with pytest.raises(ToolUnreachable, match="down"):
            await breaker(call("f"), CallProgress(), fails)


def breaker_of(time: FakeTime, circuits: Circuits | None = None) -> Breaker:
    return Breaker(definition("f"), circuits or Circuits(failures=3, seconds=30.0), time)


async def test_it_opens_after_failures_in_a_row_and_says_how_long() -> None:
    time = FakeTime()
    breaker = breaker_of(time)
    await until_open(breaker)
    time.now += 10

    with pytest.raises(ToolCircuitOpen, match="left alone for 20 s") as caught:
        await breaker(call("f"), CallProgress(), works)

    assert (caught.value.retry_after, caught.value.before_effect) == (20.0, True)


async def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = breaker_of(FakeTime())
    await until_open(breaker, 2)
    await breaker(call("f"), CallProgress(), works)
    await until_open(breaker, 2)

    assert await breaker(call("f"), CallProgress(), works) == "done"


@pytest.mark.parametrize("error", [ToolArgumentsInvalid("no"), ToolError("mine", retryable=False)])
async def test_an_answer_that_is_no_sign_of_illness_does_not_count(error: ToolError) -> None:
    async def answers(asked, running):
        raise error

    error.kind = "internal" if type(error) is ToolError else error.kind  # type: ignore[misc]
    breaker = breaker_of(FakeTime())
    for _ in range(5):
        with pytest.raises(type(error)):
            await breaker(call("f"), CallProgress(), answers)

    assert await breaker(call("f"), CallProgress(), works) == "done"


async def test_a_tool_that_hangs_counts_as_one_that_fails() -> None:
    async def hangs(asked, running):
        raise ToolTimeout("slow")

    breaker = breaker_of(FakeTime())
    for _ in range(3):
        with pytest.raises(ToolTimeout):
            await breaker(call("f"), CallProgress(), hangs)

    with pytest.raises(ToolCircuitOpen):
        await breaker(call("f"), CallProgress(), works)


async def test_after_the_wait_one_call_tries_and_the_others_are_refused_meanwhile() -> None:
    time = FakeTime()
    breaker = breaker_of(time)
    await until_open(breaker)
    time.now += 31
    trying, answer = asyncio.Event(), asyncio.Event()

    async def slow(asked, running):
        trying.set()
        await answer.wait()
        return "done"

    probe = asyncio.create_task(breaker(call("f"), CallProgress(), slow))
    await trying.wait()
    with pytest.raises(ToolCircuitOpen):
        await breaker(call("f"), CallProgress(), works)
    answer.set()

    assert await probe == "done"
    assert await breaker(call("f"), CallProgress(), works) == "done"


async def test_a_failed_try_opens_it_again() -> None:
    time = FakeTime()
    breaker = breaker_of(time)
    await until_open(breaker)
    time.now += 31
    await until_open(breaker, 1)

    with pytest.raises(ToolCircuitOpen):
        await breaker(call("f"), CallProgress(), works)


async def test_pipelines_of_one_process_share_the_health_of_a_tool() -> None:
    time, circuits = FakeTime(), Circuits(failures=3, seconds=30.0)
    await until_open(breaker_of(time, circuits))

    with pytest.raises(ToolCircuitOpen):
        await breaker_of(time, circuits)(call("f"), CallProgress(), works)
