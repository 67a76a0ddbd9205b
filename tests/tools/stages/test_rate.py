"""Rate and concurrency: looked at before, taken when the call acts, given back whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from foliot.tools.base import RateLimit, ToolRateLimited
from foliot.tools.pipeline.limiter import LocalLimiter, RateGate, RateStage
from foliot.tools.pipeline.running import CallProgress
from tests.tools.governed import FakeTime, call, definition, rules

TWO_A_MINUTE = RateLimit(requests=2, per=60.0)


async def test_a_burst_passes_at_once_and_then_the_rate_holds() -> None:
    time = FakeTime()
    limiter = LocalLimiter(time, time.sleep)
    limit = RateLimit(requests=6, per=60.0, burst=3)

    for _ in range(5):
        await limiter.enter("default/f", limit, within=60.0)

    assert [round(slept) for slept in time.slept] == [10, 10]


async def test_who_would_wait_too_long_is_told_how_long() -> None:
    time = FakeTime()
    limiter = LocalLimiter(time, time.sleep)
    gate = RateGate(definition("f", timeout=5.0), TWO_A_MINUTE, limiter)
    for _ in range(2):
        await gate(call("f"), rules(), ())
        await limiter.enter("default/f", TWO_A_MINUTE, within=5.0)

    with pytest.raises(ToolRateLimited, match='tool "f" rate limit exceeded') as caught:
        await gate(call("f"), rules(), ())

    assert caught.value.retry_after == pytest.approx(60.0, abs=0.1)
    assert caught.value.before_effect
    with pytest.raises(ToolRateLimited):
        await limiter.enter("default/f", TWO_A_MINUTE, within=5.0)


async def test_looking_takes_nothing() -> None:
    time = FakeTime()
    limiter = LocalLimiter(time, time.sleep)
    gate = RateGate(definition("f", timeout=5.0), RateLimit(requests=1, per=60.0), limiter)

    for _ in range(10):
        await gate(call("f"), rules(), ())


async def test_concurrent_calls_are_bounded_and_served_in_order() -> None:
    limiter = LocalLimiter()
    stage = RateStage(definition("f"), RateLimit(concurrency=2), limiter)
    inside: list[int] = []
    most = 0
    served: list[str] = []
    release = asyncio.Event()

    async def backend(asked, running):
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        served.append(asked.call_id)
        await release.wait()
        inside.pop()

    tasks = []
    for n in range(5):
        tasks.append(asyncio.create_task(stage(call("f", call_id=f"c{n}"), CallProgress(), backend)))
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks)

    assert most == 2
    assert served == [f"c{n}" for n in range(5)]


async def test_a_place_is_given_back_when_the_call_fails_or_is_cancelled() -> None:
    limiter = LocalLimiter()
    limit = RateLimit(concurrency=1)
    stage = RateStage(definition("f"), limit, limiter)
    started = asyncio.Event()

    async def fails(asked, running):
        raise ValueError

    async def hangs(asked, running):
        started.set()
        await asyncio.Event().wait()

    with pytest.raises(ValueError):
        await stage(call("f"), CallProgress(), fails)
    task = asyncio.create_task(stage(call("f"), CallProgress(), hangs))
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await asyncio.wait_for(limiter.enter("default/f", limit, within=1.0), 60)


async def test_tools_and_namespaces_do_not_share_their_limits() -> None:
    time = FakeTime()
    limiter = LocalLimiter(time, time.sleep)
    once = RateLimit(requests=1, per=60.0)

    for key in ("default/f", "default/g", "other/f"):
        await limiter.enter(key, once, within=0.0)
    with pytest.raises(ToolRateLimited):
        await limiter.enter("default/f", once, within=0.0)
