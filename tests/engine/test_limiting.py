"""Limits and circuits that several processes share: exact, cheap, and given back by the dead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.engine.limits.shared import PROBE_SECONDS, STALE_AFTER, SharedCircuits, SharedLimiter
from foliot.errors import Unavailable
from foliot.store.ledger.tool_limits import LeaseRequest, SqlLimits, ToolLease, Trouble
from foliot.store.open import open_database
from foliot.tools.base import RateLimit, ToolCircuitOpen, ToolRateLimited
from foliot.tools.function import tool
from foliot.tools.pipeline.breaker import Breaker
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.running import CallProgress
from tests.conformance.limits import fail, works
from tests.engine.limit_process import KEY, ONE, RATE
from tests.tools.governed import FakeTime, call, definition

PROCESS = Path(__file__).with_name("limit_process.py")
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/store/foliot.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def limits(url: str) -> AsyncIterator[SqlLimits]:
    database = await open_database(url)
    yield SqlLimits(database)
    await database.close()


class Counted:
    """The shared limits, counting how often they are asked."""

    def __init__(self, limits: SqlLimits) -> None:
        self._limits = limits
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._limits, name)


class Down:
    """Shared limits in a store that does not answer."""

    async def ask(self, *args: Any, **kwargs: Any) -> ToolLease:
        raise Unavailable("the store does not answer")

    troubles = failed = probe = well = ask


# --- rates -------------------------------------------------------------------------------------------------------

# Which of three processes tries to call, and how long after the one before.
tries = st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0.0, 0.0, 0.01, 0.3, 0.9, 1.1, 5.0))), max_size=60)


@settings(max_examples=25, deadline=None)
@given(tries, st.sampled_from((RateLimit(2, 1.0, 3), RateLimit(20, 1.0, 20), RateLimit(10, 10.0, 4))))
def test_over_any_span_of_time_no_more_calls_are_made_than_the_limit_says(
    script: list[tuple[int, float]], limit: RateLimit
) -> None:
    made = asyncio.run(_play(script, limit))
    assert limit.requests is not None
    rate, burst = limit.requests / limit.per, limit.burst or limit.requests
    for first, begin in enumerate(made):
        for last in range(first, len(made)):
            assert last - first + 1 <= burst + rate * (made[last] - begin) + 1e-6
            assert last - first < limit.requests or made[last] - begin >= limit.per - 1e-6


async def _play(script: list[tuple[int, float]], limit: RateLimit) -> list[float]:
    """The times at which calls were let through."""
    clock = FakeTime()
    made: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        database = await open_database(f"sqlite:///{folder}/foliot.db")
        limiters = [
            SharedLimiter(SqlLimits(database), clock=clock, sleep=clock.sleep, holder=f"p{n}") for n in range(3)
        ]
        for who, pause in script:
            clock.now += pause
            try:
                await limiters[who].enter(KEY, limit, within=0.0)
                made.append(clock.now)
            except ToolRateLimited:
                pass
        await database.close()
    return made


async def test_a_busy_process_rarely_asks_the_store(limits: SqlLimits) -> None:
    clock, counted = FakeTime(), Counted(limits)
    limiter = SharedLimiter(counted, clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    limit = RateLimit(requests=1000, per=1.0, burst=1000)
    for _ in range(1000):
        await limiter.enter(KEY, limit, within=1.0)
    assert counted.asked <= 15


async def test_what_was_leased_and_not_used_goes_back(limits: SqlLimits) -> None:
    clock = FakeTime()
    limit = RateLimit(requests=40, per=4000.0, burst=40)  # as good as no inflow
    one, other = (SharedLimiter(limits, clock=clock, sleep=clock.sleep, holder=name) for name in ("one", "other"))
    used = 0
    for limiter in (one, other, one, other):
        for _ in range(7):
            await limiter.enter(KEY, limit, within=0.0)
            used += 1
        clock.now += 1.5
    while used < 40:
        await one.enter(KEY, limit, within=0.0)
        used += 1
    with pytest.raises(ToolRateLimited):
        await other.enter(KEY, limit, within=0.0)


async def test_a_limit_that_cannot_be_checked_refuses_and_may_be_tried_again() -> None:
    limiter = SharedLimiter(Down())  # type: ignore[arg-type]
    for limit in (RATE, ONE):
        with pytest.raises(ToolRateLimited, match="cannot be checked: the store does not answer") as caught:
            await limiter.enter(KEY, limit, within=1.0)
        assert (caught.value.retryable, caught.value.before_effect, caught.value.retry_after) == (True, True, 1.0)


@pytest.mark.parametrize("url", DATABASES, indirect=True)
async def test_two_processes_together_keep_to_the_rate(url: str, tmp_path: Path) -> None:
    calls, files = 60, [tmp_path / "one", tmp_path / "other"]
    await (await open_database(url)).close()
    children = [subprocess.Popen([sys.executable, str(PROCESS), url, str(file), "rate", str(calls)]) for file in files]
    try:
        codes = [await asyncio.to_thread(child.wait, 50) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert codes == [0, 0]
    times = [[float(line) for line in file.read_text().split()] for file in files]
    begin, end = min(first for first, _ in times), max(last for _, last in times)
    assert RATE.burst is not None
    assert 2 * calls <= RATE.burst + 50 * (end - begin) + 1e-6


# --- places ------------------------------------------------------------------------------------------------------


async def test_processes_share_places_and_a_dead_ones_are_free_after_a_while(limits: SqlLimits) -> None:
    clock = FakeTime()
    dead = SharedLimiter(limits, clock=clock, holder="elsewhere/1/1", is_gone=lambda holder: False)
    here = SharedLimiter(limits, clock=clock, holder="here/2/2", is_gone=lambda holder: False)
    await dead.enter(KEY, ONE, within=1.0)
    with pytest.raises(ToolRateLimited):
        await here.enter(KEY, ONE, within=0.0)
    clock.now += 31
    await here.enter(KEY, ONE, within=0.0)
    await here.leave(KEY, ONE)
    for limiter in (here, dead):
        await limiter.close()


async def test_a_place_is_kept_for_the_next_call_of_a_process_and_soon_given_to_another(limits: SqlLimits) -> None:
    counted = Counted(limits)
    one = SharedLimiter(counted, holder="a/1/1", is_gone=lambda holder: False)  # type: ignore[arg-type]
    other = SharedLimiter(limits, holder="b/2/2", is_gone=lambda holder: False)
    for _ in range(20):
        await one.enter(KEY, ONE, within=1.0)
        await one.leave(KEY, ONE)
    assert counted.asked < 20
    await other.enter(KEY, ONE, within=20.0)
    for limiter in (one, other):
        await limiter.close()


async def test_a_place_is_kept_for_as_long_as_the_call_takes(limits: SqlLimits) -> None:
    clock, renewed = FakeTime(), asyncio.Event()

    class Watched(Counted):
        async def renew(self, *args: Any, **kwargs: Any) -> None:
            await limits.renew(*args, **kwargs)
            renewed.set()

    busy = SharedLimiter(
        Watched(limits),  # type: ignore[arg-type]
        clock=clock,
        holder="a/1/1",
        is_gone=lambda holder: False,
        place_seconds=0.05,
    )
    other = SharedLimiter(limits, clock=clock, holder="b/2/2", is_gone=lambda holder: False)
    await busy.enter(KEY, ONE, within=1.0)
    clock.now += 100
    for _ in range(2):  # the first one may have begun before the clock was moved
        renewed.clear()
        await asyncio.wait_for(renewed.wait(), 60)
    with pytest.raises(ToolRateLimited):
        await other.enter(KEY, ONE, within=0.0)
    for limiter in (busy, other):
        await limiter.close()


@pytest.mark.parametrize("url", DATABASES, indirect=True)
async def test_the_place_of_a_killed_process_is_free_at_once(url: str, limits: SqlLimits, tmp_path: Path) -> None:
    file = tmp_path / "said"
    limiter = SharedLimiter(limits)
    with subprocess.Popen([sys.executable, str(PROCESS), url, str(file), "hold", "0"]) as child:
        try:
            deadline = time.monotonic() + 60
            while not file.exists() or file.read_text() != "in\n":
                assert time.monotonic() < deadline, "the process does not get on"
                await asyncio.sleep(0.01)
            with pytest.raises(ToolRateLimited):
                await limiter.enter(KEY, ONE, within=0.1)
        finally:
            child.kill()
    await limiter.enter(KEY, ONE, within=5.0)
    await limiter.close()


# --- circuits ----------------------------------------------------------------------------------------------------


def two_breakers(limits: Any, clock: FakeTime) -> tuple[Breaker, Breaker]:
    pools = [SharedCircuits(limits, clock=clock, holder=name, failures=3, seconds=30.0) for name in ("a", "b")]
    return Breaker(definition("f"), pools[0], clock), Breaker(definition("f"), pools[1], clock)


async def test_what_one_process_finds_out_the_other_knows_soon(limits: SqlLimits) -> None:
    clock = FakeTime()
    one, other = two_breakers(limits, clock)
    assert await other(call("f"), CallProgress(), works) == "done"  # it has looked, and all was well
    await fail(one, 3)
    clock.now += STALE_AFTER
    with pytest.raises(ToolCircuitOpen):
        await other(call("f"), CallProgress(), works)


async def test_failures_in_a_row_are_counted_over_all_processes(limits: SqlLimits) -> None:
    clock = FakeTime()
    one, other = two_breakers(limits, clock)
    await fail(one, 2)
    await fail(other, 1)
    with pytest.raises(ToolCircuitOpen):
        await other(call("f"), CallProgress(), works)
    assert await limits.troubles() == {"default/f": Trouble(3, clock.now)}


async def test_one_process_tries_and_one_that_died_meanwhile_is_waited_for(limits: SqlLimits) -> None:
    clock = FakeTime()
    one, other = two_breakers(limits, clock)
    await fail(one, 3)
    clock.now += 31
    begun = asyncio.Event()

    async def hangs(asked, running):
        begun.set()
        await asyncio.Event().wait()

    probe = asyncio.create_task(one(call("f"), CallProgress(), hangs))
    await asyncio.wait_for(begun.wait(), 60)
    with pytest.raises(ToolCircuitOpen):
        await other(call("f"), CallProgress(), works)
    clock.now += PROBE_SECONDS + 1
    assert await other(call("f"), CallProgress(), works) == "done"
    assert await limits.troubles() == {}
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)


async def test_nobody_is_refused_by_what_was_known_a_moment_ago(limits: SqlLimits) -> None:
    clock = FakeTime()
    one, other = two_breakers(limits, clock)
    await fail(one, 3)
    with pytest.raises(ToolCircuitOpen):
        await other(call("f"), CallProgress(), works)
    await limits.well("default/f")  # a third process has tried it
    clock.now += STALE_AFTER / 2
    assert await other(call("f"), CallProgress(), works) == "done"


async def test_a_repaired_tool_does_not_inherit_the_failures_of_the_broken_one(limits: SqlLimits) -> None:
    clock = FakeTime()
    pool = SharedCircuits(limits, clock=clock, failures=3)
    broken = replace(definition("f"), type="http", endpoint="http://old.invalid")
    await fail(Breaker(broken, pool, clock), 3)
    with pytest.raises(ToolCircuitOpen):
        await Breaker(broken, pool, clock)(call("f"), CallProgress(), works)

    repaired = replace(broken, endpoint="http://new.invalid")
    assert await Breaker(repaired, pool, clock)(call("f"), CallProgress(), works) == "done"


async def test_without_the_store_a_process_goes_by_what_it_knows() -> None:
    clock = FakeTime()
    one, _ = two_breakers(Down(), clock)
    assert await one(call("f"), CallProgress(), works) == "done"
    await fail(one, 3)
    with pytest.raises(ToolCircuitOpen):
        await one(call("f"), CallProgress(), works)
    clock.now += 31
    assert await one(call("f"), CallProgress(), works) == "done"
    assert await one(call("f"), CallProgress(), works) == "done"


async def test_a_healthy_tool_without_limits_costs_the_store_one_look_in_two_seconds(limits: SqlLimits) -> None:
    clock, counted = FakeTime(), Counted(limits)
    parts = PipelineParts(
        limiter=SharedLimiter(counted, clock=clock),  # type: ignore[arg-type]
        circuits=SharedCircuits(counted, clock=clock),  # type: ignore[arg-type]
        clock=clock,
    )

    @tool(effect="read")
    async def f() -> str:
        return "done"

    pipeline = Pipeline([f], parts)
    for _ in range(100):
        clock.now += 0.039
        assert (await pipeline.call(call("f"))).error is None
    assert counted.asked == 2


async def test_a_wish_names_what_is_wanted(limits: SqlLimits) -> None:
    """Without a rate and without places nothing is refused, and nothing is kept."""
    grant = await limits.ask(LeaseRequest("k", "me"), now=1.0, lease_until=2.0, place_until=3.0)
    assert grant == ToolLease()
