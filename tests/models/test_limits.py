from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.models.base import ModelRateLimited
from foliot.models.limits import LimiterPool, Limits, Permit, RateLimiter

T = TypeVar("T")


class VirtualTime:
    """A clock that moves only when everybody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self.now + max(0.0, seconds), self._count, timer))
        await timer

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def run(self, work: Awaitable[T], limit: float = 1e6) -> T:
        """Wait for `work`, moving the clock to the next timer whenever nothing else can happen."""
        task = asyncio.ensure_future(work)
        while True:
            await self.settle()
            if task.done():
                return await task
            assert self._timers, "everybody waits and nobody has a timer"
            at, _, timer = heapq.heappop(self._timers)
            assert at <= limit, "took too long"
            self.now = max(self.now, at)
            if not timer.done():
                timer.set_result(None)


def make(time: VirtualTime, **limits: float) -> RateLimiter:
    return RateLimiter(Limits(**limits), clock=time.clock, sleep=time.sleep)  # type: ignore[arg-type]


async def test_without_limits_everybody_passes_at_once():
    time = VirtualTime()
    limiter = make(time)
    permits = [await limiter.acquire(10**9) for _ in range(1000)]
    assert limiter.active == 1000
    for permit in permits:
        permit.release()
        permit.release()
    assert limiter.active == 0


async def test_requests_beyond_the_burst_wait_for_the_refill():
    time = VirtualTime()
    limiter = make(time, requests_per_minute=60)  # one a second, ten at once
    passed: list[float] = []

    async def one() -> None:
        (await limiter.acquire()).release()
        passed.append(time.now)

    await time.run(asyncio.gather(*(one() for _ in range(13))))

    assert passed[:10] == [0.0] * 10
    assert passed[10:] == pytest.approx([1.0, 2.0, 3.0])


async def test_a_burst_of_its_own_replaces_the_ten_seconds():
    time = VirtualTime()
    limiter = make(time, requests_per_minute=60, burst=3)
    await time.run(asyncio.gather(*(limiter.acquire() for _ in range(5))))
    assert time.now == pytest.approx(2.0)


async def test_the_line_is_first_come_first_served_even_when_a_small_request_stands_behind_a_big_one():
    time = VirtualTime()
    limiter = make(time, tokens_per_minute=600)  # ten a second, a hundred at once
    order: list[str] = []

    async def one(name: str, tokens: int) -> None:
        (await limiter.acquire(tokens)).release()
        order.append(name)

    await time.run(asyncio.gather(one("first", 100), one("big", 90), one("small", 1)))

    assert order == ["first", "big", "small"]
    assert time.now == pytest.approx(9.1)


async def test_a_request_larger_than_the_bucket_passes_and_leaves_a_debt():
    time = VirtualTime()
    limiter = make(time, tokens_per_minute=600)

    (await limiter.acquire(1000)).release()
    await time.run(limiter.acquire(1))

    assert time.now == pytest.approx(90.1)


async def test_what_was_really_used_replaces_the_estimate():
    time = VirtualTime()
    limiter = make(time, tokens_per_minute=600)

    (await limiter.acquire(100)).release(used_tokens=10)
    await limiter.acquire(90)

    assert time.now == 0.0


async def test_no_more_calls_at_once_than_the_concurrency():
    time = VirtualTime()
    limiter = make(time, concurrency=3)
    most = 0

    async def one() -> None:
        nonlocal most
        permit = await limiter.acquire()
        most = max(most, limiter.active)
        await time.sleep(1)
        permit.release()

    await time.run(asyncio.gather(*(one() for _ in range(10))))

    assert most == 3
    assert time.now == pytest.approx(4.0)
    assert (limiter.active, limiter.waiting) == (0, 0)


async def test_a_pause_holds_the_whole_line():
    time = VirtualTime()
    limiter = make(time)
    limiter.pause(7)
    limiter.pause(2)  # the longer one stays

    await time.run(asyncio.gather(limiter.acquire(), limiter.acquire()))

    assert time.now == 7.0


async def test_waiting_longer_than_wanted_is_refused_at_once_with_the_time_to_come_back():
    time = VirtualTime()
    limiter = make(time)
    limiter.pause(100)

    with pytest.raises(ModelRateLimited) as caught:
        await limiter.acquire(max_wait=60)

    assert caught.value.retry_after == pytest.approx(100)
    assert limiter.waiting == 0


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_whoever_is_cancelled_leaves_the_line_and_the_others_go_on(who: int):
    time = VirtualTime()
    limiter = make(time, concurrency=1)
    held = await limiter.acquire()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await time.settle()

    tasks[who].cancel()
    await time.settle()
    held.release()
    rest = [task for n, task in enumerate(tasks) if n != who]
    (await time.run(rest[0])).release()
    (await time.run(rest[1])).release()

    assert tasks[who].cancelled()
    assert (limiter.active, limiter.waiting) == (0, 0)


async def test_a_waiter_cancelled_in_the_moment_its_turn_came_passes_the_turn_on():
    time = VirtualTime()
    limiter = make(time, concurrency=1)
    held = await limiter.acquire()
    first, second, third = (asyncio.create_task(limiter.acquire()) for _ in range(3))
    await time.settle()

    held.release()
    first.cancel()
    second.cancel()

    (await time.run(third)).release()
    assert (limiter.active, limiter.waiting) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(
    rpm=st.integers(1, 600),
    tpm=st.integers(10, 6000),
    concurrency=st.integers(1, 5),
    jobs=st.lists(st.tuples(st.integers(0, 300), st.floats(0, 5), st.booleans()), min_size=1, max_size=25),
)
def test_no_window_of_time_lets_more_through_than_bucket_and_rate(
    rpm: int, tpm: int, concurrency: int, jobs: list[tuple[int, float, bool]]
):
    passed: list[tuple[float, int]] = []

    async def scenario() -> RateLimiter:
        time = VirtualTime()
        limiter = make(time, requests_per_minute=rpm, tokens_per_minute=tpm, concurrency=concurrency)

        async def one(tokens: int, seconds: float) -> None:
            permit = await limiter.acquire(tokens)
            assert limiter.active <= concurrency
            passed.append((time.now, tokens))
            try:
                await time.sleep(seconds)
            finally:
                permit.release()

        tasks = [asyncio.create_task(one(tokens, seconds)) for tokens, seconds, _ in jobs]
        await time.settle()
        for task, (_, _, cancelled) in zip(tasks, jobs, strict=True):
            if cancelled:
                task.cancel()
        await time.run(asyncio.gather(*tasks, return_exceptions=True))
        return limiter

    limiter = asyncio.run(scenario())

    assert (limiter.active, limiter.waiting) == (0, 0)
    burst_requests, burst_tokens = max(1.0, rpm / 6), max(1.0, tpm / 6)
    biggest = max(tokens for tokens, _, _ in jobs)
    for i, (start, _) in enumerate(passed):
        for j in range(i, len(passed)):
            window = passed[j][0] - start
            inside = passed[i : j + 1]
            assert len(inside) <= burst_requests + window * rpm / 60 + 1e-6
            assert sum(tokens for _, tokens in inside) <= burst_tokens + biggest + window * tpm / 60 + 1e-6


async def test_endpoints_with_one_key_share_one_line_and_its_strictest_limits():
    time = VirtualTime()
    pool = LimiterPool(clock=time.clock, sleep=time.sleep)
    loose = pool.limiter("key", "a", Limits(concurrency=5))
    strict = pool.limiter("key", "b", Limits(concurrency=1))
    assert loose is strict
    assert pool.limiter("other", "a", Limits()) is not strict

    held = await strict.acquire()
    waiter = asyncio.create_task(loose.acquire())
    await time.settle()
    assert strict.waiting == 1

    pool.limiter("key", "b", Limits(concurrency=2))  # the definition was changed: there is room now
    permit: Permit = await time.run(waiter)
    permit.release()
    held.release()

    pool.forget("key", "a")
    pool.forget("key", "b")
    assert pool.limiter("key", "a", Limits()) is not strict


@pytest.mark.parametrize("limits", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"concurrency": 0}])
def test_a_limit_that_lets_nothing_pass_is_refused(limits: dict[str, int]):
    with pytest.raises(InvalidInput, match="above 0"):
        Limits(**limits)
