"""What every limiter and every source of circuits must do. Subclass and give a `limiter` or `circuits` fixture.

Both get the `time` fixture: a clock that moves when somebody sleeps.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left

import pytest

from foliot.tools.base import RateLimit, ToolCircuitOpen, ToolRateLimited, ToolUnreachable
from foliot.tools.pipeline.breaker import Breaker, CircuitSource
from foliot.tools.pipeline.limiter import Limiter, RateGate, RateStage
from foliot.tools.pipeline.running import CallProgress
from tests.tools.governed import FakeTime, call, definition, rules

TWO_A_MINUTE = RateLimit(requests=2, per=60.0)


class LimiterConformance:
    @pytest.fixture
    def time(self) -> FakeTime:
        return FakeTime()

    async def test_a_burst_passes_at_once_and_then_the_rate_holds(self, limiter: Limiter, time: FakeTime) -> None:
        limit = RateLimit(requests=6, per=60.0, burst=3)
        for _ in range(5):
            await limiter.enter("default/f", limit, within=60.0)
        assert time.now == pytest.approx(1020.0, abs=0.1)

    async def test_a_high_rate_holds_too(self, limiter: Limiter, time: FakeTime) -> None:
        limit = RateLimit(requests=100, per=1.0, burst=20)
        for _ in range(220):
            await limiter.enter("default/f", limit, within=60.0)
        assert time.now == pytest.approx(1002.0, abs=0.1)

    @pytest.mark.parametrize("seed", range(8))
    async def test_in_no_span_of_its_length_begin_more_than_the_limit_says(
        self, limiter: Limiter, time: FakeTime, seed: int
    ) -> None:
        """Also across the edge of two windows, after a rest that has filled the bucket."""
        chance = random.Random(seed)
        requests, per = chance.choice([1, 3, 10, 40]), chance.choice([0.5, 1.0, 60.0])
        limit = RateLimit(requests=requests, per=per, burst=chance.choice([None, None, max(1, requests // 2)]))
        began: list[float] = []
        rested = 0.0
        for _ in range(6 * requests + 20):
            await limiter.enter("default/f", limit, within=10 * per)
            began.append(time.now)
            if chance.random() < 0.2:
                rest = per * chance.choice([0.01, 0.4, 0.9, 1.0, 3.0])
                time.now, rested = time.now + rest, rested + rest
        for first, at in enumerate(began):
            inside = bisect_left(began, at + per - 1e-9) - first
            assert inside <= requests, f"{inside} of {requests} in {per} s from {at}"
        assert began[-1] - began[0] - rested <= per * (1.1 * len(began) / requests + 1), "and it is no standstill"

    async def test_who_would_wait_too_long_is_told_how_long(self, limiter: Limiter) -> None:
        gate = RateGate(definition("f", timeout=5.0), TWO_A_MINUTE, limiter)
        for _ in range(2):
            await gate(call("f"), rules(), ())
            await limiter.enter("default/f", TWO_A_MINUTE, within=5.0)
        with pytest.raises(ToolRateLimited, match='tool "f" rate limit exceeded') as caught:
            await gate(call("f"), rules(), ())
        assert caught.value.retry_after == pytest.approx(60.0, abs=0.1)
        with pytest.raises(ToolRateLimited) as caught:
            await limiter.enter("default/f", TWO_A_MINUTE, within=5.0)
        assert caught.value.retry_after == pytest.approx(60.0, abs=0.1)
        assert caught.value.before_effect

    async def test_looking_takes_nothing(self, limiter: Limiter) -> None:
        gate = RateGate(definition("f", timeout=5.0), RateLimit(requests=1, per=60.0), limiter)
        for _ in range(10):
            await gate(call("f"), rules(), ())
        await limiter.enter("default/f", RateLimit(requests=1, per=60.0), within=0.0)

    async def test_tools_and_namespaces_do_not_share_their_limits(self, limiter: Limiter) -> None:
        once = RateLimit(requests=1, per=60.0)
        for key in ("default/f", "default/g", "other/f"):
            await limiter.enter(key, once, within=0.0)
        with pytest.raises(ToolRateLimited):
            await limiter.enter("default/f", once, within=0.0)

    async def test_calls_at_a_time_are_bounded_and_served_in_order(self, limiter: Limiter) -> None:
        stage = RateStage(definition("f"), RateLimit(concurrency=2), limiter)
        inside: list[str] = []
        served: list[str] = []
        most = 0

        async def backend(asked, running):
            nonlocal most
            inside.append(asked.call_id)
            served.append(asked.call_id)
            most = max(most, len(inside))
            await asyncio.sleep(0.001)
            inside.remove(asked.call_id)

        calls = [asyncio.create_task(stage(call("f", call_id=f"c{n}"), CallProgress(), backend)) for n in range(8)]
        await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert most == 2
        assert served == [f"c{n}" for n in range(8)]

    async def test_a_place_is_given_back_when_the_call_fails_or_is_stopped(self, limiter: Limiter) -> None:
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
        await asyncio.wait_for(started.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(limiter.enter("default/f", limit, within=5.0), 60)

    async def test_rate_and_places_hold_together(self, limiter: Limiter, time: FakeTime) -> None:
        limit = RateLimit(requests=2, per=60.0, concurrency=1)
        await limiter.enter("default/f", limit, within=0.0)
        await limiter.leave("default/f", limit)
        await limiter.enter("default/f", limit, within=5.0)
        await limiter.leave("default/f", limit)
        with pytest.raises(ToolRateLimited):
            await limiter.enter("default/f", limit, within=1.0)
        time.now += 60.1
        await limiter.enter("default/f", limit, within=1.0)


class CircuitConformance:
    """`circuits` open after 3 failures for 30 seconds."""

    @pytest.fixture
    def time(self) -> FakeTime:
        return FakeTime()

    @pytest.fixture
    def breaker(self, circuits: CircuitSource, time: FakeTime) -> Breaker:
        return Breaker(definition("f"), circuits, time)

    async def test_it_opens_after_failures_in_a_row_and_says_how_long(self, breaker: Breaker, time: FakeTime) -> None:
        await fail(breaker, 3)
        time.now += 10
        with pytest.raises(ToolCircuitOpen, match="left alone for 20 s") as caught:
            await breaker(call("f"), CallProgress(), works)
        assert (caught.value.retry_after, caught.value.before_effect) == (20.0, True)

    async def test_a_success_in_between_starts_the_count_anew(self, breaker: Breaker) -> None:
        await fail(breaker, 2)
        await breaker(call("f"), CallProgress(), works)
        await fail(breaker, 2)
        assert await breaker(call("f"), CallProgress(), works) == "done"

    async def test_one_call_tries_and_the_others_are_refused_meanwhile(self, breaker: Breaker, time: FakeTime) -> None:
        await fail(breaker, 3)
        time.now += 31
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(asked, running):
            begun.set()
            await go_on.wait()
            return "done"

        probe = asyncio.create_task(breaker(call("f"), CallProgress(), slow))
        await asyncio.wait_for(begun.wait(), 60)
        with pytest.raises(ToolCircuitOpen):
            await breaker(call("f"), CallProgress(), works)
        go_on.set()
        assert await probe == "done"
        assert await breaker(call("f"), CallProgress(), works) == "done"

    async def test_a_try_that_fails_leaves_it_alone_again(self, breaker: Breaker, time: FakeTime) -> None:
        await fail(breaker, 3)
        time.now += 31
        await fail(breaker, 1)
        time.now += 29
        with pytest.raises(ToolCircuitOpen):
            await breaker(call("f"), CallProgress(), works)
        time.now += 2
        assert await breaker(call("f"), CallProgress(), works) == "done"

    async def test_a_try_that_is_stopped_lets_the_next_one_try(self, breaker: Breaker, time: FakeTime) -> None:
        await fail(breaker, 3)
        time.now += 31
        begun = asyncio.Event()

        async def hangs(asked, running):
            begun.set()
            await asyncio.Event().wait()

        probe = asyncio.create_task(breaker(call("f"), CallProgress(), hangs))
        await asyncio.wait_for(begun.wait(), 60)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        for _ in range(200):
            try:
                assert await breaker(call("f"), CallProgress(), works) == "done"
                return
            except ToolCircuitOpen:
                await asyncio.sleep(0.01)
        pytest.fail("the next call never got to try")


async def works(asked, running):
    return "done"


async def fails(asked, running):
    raise ToolUnreachable("down")


async def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ToolUnreachable, match="down"):
            await breaker(call("f"), CallProgress(), fails)
