"""Turns at a model: never more in any window than its limit, in order, in memory and in the store alike."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.engine.limits.shared import SharedTurns
from foliot.errors import InvalidInput
from foliot.kernel.messages import Usage
from foliot.models.routing.limits import LocalTurns, Turns, counted
from foliot.resources.rates import NO_LIMITS, Declarer, QueueAhead, RateLimits, RateLine, UsedSlot, earliest
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.open import open_database

HAIR = 1e-6


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def turns(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[Turns]:
    if request.param == "memory":
        yield LocalTurns(clock)
        return
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "store.db")
    database = await open_database(url)
    shared = SharedTurns(SqlModelLimits(database), clock=clock)
    yield shared
    await shared.close()
    await database.close()


async def until_it_passes(turns: Turns, clock: Clock, asker: str, limits: RateLimits, tokens: int = 0) -> Any:
    """As a run does that is let go and comes back when it is time. A turn that never comes is an error."""
    for _ in range(1000):
        turn = await turns.take("k", asker, limits, tokens, queue=True)
        if turn.wait <= 0:
            return turn
        clock.now += turn.wait + HAIR
    raise AssertionError(f"{asker} never had a turn")


async def test_whoever_finds_no_room_keeps_its_place_and_hears_how_long_it_takes(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(requests=2, per=60)
    assert [(await turns.take("k", name, limits, 0, queue=True)).wait for name in "ab"] == [0, 0]
    third = await turns.take("k", "c", limits, 0, queue=True)
    assert (third.ahead, third.bound, third.wait) == (0, "requests", pytest.approx(60, abs=0.1))
    fifth = [await turns.take("k", name, limits, 0, queue=True) for name in "de"][1]
    assert (fifth.ahead, fifth.wait) == (2, pytest.approx(120, abs=0.2))
    clock.now += 60.1
    late = await turns.take("k", "f", limits, 0, queue=True)
    assert late.wait > 0  # there is room for two, and three came before
    assert (await turns.take("k", "d", limits, 0, queue=True)).wait == 0
    assert (await turns.take("k", "c", limits, 0, queue=True)).wait == 0
    assert (await turns.take("k", "e", limits, 0, queue=True)).wait > 0


async def test_looking_takes_no_place(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(requests=1, per=60)
    await turns.take("k", "a", limits, 0, queue=True)
    assert (await turns.take("k", "b", limits, 0, queue=False)).wait > 0
    assert (await turns.take("k", "c", limits, 0, queue=True)).ahead == 0


async def test_other_models_and_keys_have_lines_of_their_own(turns: Turns) -> None:
    limits = RateLimits(requests=1, per=60)
    assert (await turns.take("one", "a", limits, 0, queue=True)).wait == 0
    assert (await turns.take("other", "b", limits, 0, queue=True)).wait == 0


async def test_whoever_does_not_come_when_it_is_time_keeps_nobody(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(requests=1, per=10)
    await turns.take("k", "a", limits, 0, queue=True)
    await turns.take("k", "gone", limits, 0, queue=True)
    clock.now += 10.1
    assert (await turns.take("k", "b", limits, 0, queue=True)).wait > 0
    clock.now += 6
    assert (await turns.take("k", "b", limits, 0, queue=True)).wait == 0


async def test_a_place_that_is_given_up_is_free(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(requests=1, per=10)
    await turns.take("k", "a", limits, 0, queue=True)
    await turns.take("k", "b", limits, 0, queue=True)
    await turns.leave("b")
    assert (await turns.take("k", "c", limits, 0, queue=True)).ahead == 0


async def test_a_limit_that_changes_counts_at_once(turns: Turns) -> None:
    small, large = RateLimits(requests=1, per=60), RateLimits(requests=3, per=60)
    await turns.take("k", "a", small, 0, queue=True)
    assert (await turns.take("k", "b", small, 0, queue=True)).wait > 0
    assert (await turns.take("k", "b", large, 0, queue=True)).wait == 0
    assert (await turns.take("k", "c", small, 0, queue=True)).wait > 0


async def test_tokens_are_counted_as_they_were_used(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(tokens=100, per=60)
    turn = await turns.take("k", "a", limits, 90, queue=True)
    assert (await turns.take("k", "b", limits, 20, queue=False)).bound == "tokens"
    await turns.settle("k", "a", turn, -80)
    turn = await turns.take("k", "b", limits, 20, queue=True)
    assert turn.wait == 0
    await turns.settle("k", "b", turn, 70)  # more than was expected
    assert (await turns.take("k", "c", limits, 1, queue=False)).wait > 0
    clock.now += 60.1
    assert (await turns.take("k", "d", limits, 5000, queue=True)).wait == 0  # more than ever fits: alone


async def test_calls_at_a_time(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(concurrency=1)
    turn = await turns.take("k", "a", limits, 0, queue=True)
    second = await turns.take("k", "b", limits, 0, queue=True)
    assert (second.bound, second.wait > 0) == ("calls at a time", True)
    await turns.settle("k", "a", turn, 0)
    assert (await turns.take("k", "c", limits, 0, queue=False)).wait > 0  # b was first
    assert (await turns.take("k", "b", limits, 0, queue=True)).wait == 0


ONE, OTHER = Declarer("n/one", "m", "1"), Declarer("n/other", "m", "1")


async def passed(turns: Turns, limits: RateLimits, by: Declarer, tokens: int = 0) -> int:
    """How many of ten pass."""
    found = [await turns.take("k", f"{by.endpoint}{n}", limits, tokens, queue=False, by=by) for n in range(10)]
    return sum(turn.wait <= 0 for turn in found)


@pytest.mark.parametrize("strict_first", [False, True])
async def test_every_limit_of_a_key_and_model_holds_for_all_who_ask_there(turns: Turns, strict_first: bool) -> None:
    strict, wide = (RateLimits(requests=3, per=60), ONE), (RateLimits(requests=7, per=60), OTHER)
    first, second = (strict, wide) if strict_first else (wide, strict)
    assert (await turns.take("k", "a", first[0], 0, queue=False, by=first[1])).wait == 0
    assert (await turns.take("k", "b", second[0], 0, queue=False, by=second[1])).wait == 0
    assert await passed(turns, *wide) + await passed(turns, *strict) == 1
    told = await turns.take("k", "c", wide[0], 0, queue=False, by=OTHER)
    assert (told.bound, told.limits) == ("requests", strict[0])


async def test_windows_of_different_lengths_hold_together(turns: Turns, clock: Clock) -> None:
    short, long = RateLimits(requests=2, per=1), RateLimits(requests=3, per=60)
    await turns.take("k", "a", long, 0, queue=False, by=OTHER)
    assert await passed(turns, short, ONE) == 1
    clock.now += 1.1
    assert await passed(turns, short, ONE) == 1
    clock.now += 1.1
    assert (await turns.take("k", "b", short, 0, queue=False, by=ONE)).wait == pytest.approx(57.8, abs=0.1)


async def test_calls_without_a_limit_count_where_another_endpoint_has_one(turns: Turns, clock: Clock) -> None:
    assert await passed(turns, NO_LIMITS, OTHER) == 10
    assert turns.is_free("k")
    assert await passed(turns, RateLimits(requests=2), ONE) == 2
    assert await passed(turns, NO_LIMITS, OTHER) == 0
    assert not turns.is_free("k")
    clock.now += 60.1
    assert await passed(turns, NO_LIMITS, OTHER) == 2
    assert await passed(turns, RateLimits(requests=2), ONE) == 0


async def test_a_limit_that_was_taken_back_is_gone_for_all(turns: Turns, clock: Clock) -> None:
    await turns.take("k", "a", RateLimits(requests=1), 0, queue=False, by=ONE)
    assert await passed(turns, NO_LIMITS, OTHER) == 0
    assert (await turns.take("k", "a", NO_LIMITS, 0, queue=False, by=ONE)).wait == 0
    assert await passed(turns, NO_LIMITS, OTHER) == 10


async def test_tokens_and_calls_at_a_time_are_settled_for_all(turns: Turns) -> None:
    turn = await turns.take("k", "a", RateLimits(tokens=100, per=60), 90, queue=False, by=ONE)
    assert await passed(turns, RateLimits(concurrency=1), OTHER, 20) == 0
    await turns.settle("k", "a", turn, -90)
    second = await turns.take("k", "b", RateLimits(concurrency=1), 20, queue=False, by=OTHER)
    assert second.wait == 0
    assert (
        await turns.take("k", "c", RateLimits(tokens=100, per=60), 20, queue=False, by=ONE)
    ).bound == "calls at a time"
    await turns.settle("k", "b", second, 80)
    assert (await turns.take("k", "c", RateLimits(tokens=100, per=60), 20, queue=False, by=ONE)).bound == "tokens"


async def test_a_pause_holds_who_has_no_limit_too(turns: Turns, clock: Clock) -> None:
    assert (await turns.take("k", "a", NO_LIMITS, 0, queue=False, by=ONE)).wait == 0
    await turns.pause("k", 30)
    assert not turns.is_free("k")
    waits = await turns.take("k", "a", NO_LIMITS, 0, queue=False, by=ONE)
    assert (waits.wait, waits.bound) == (pytest.approx(30), "the provider")
    clock.now += 30.1
    assert (await turns.take("k", "a", NO_LIMITS, 0, queue=False, by=ONE)).wait == 0
    assert turns.is_free("k")


async def test_a_pause_holds_the_line(turns: Turns, clock: Clock) -> None:
    limits = RateLimits(requests=5)
    await turns.pause("k", 30)
    await turns.pause("k", 10)
    assert (await turns.take("k", "a", limits, 0, queue=True)).wait == pytest.approx(30)
    clock.now += 30.1
    assert (await turns.take("k", "a", limits, 0, queue=True)).wait == 0


def most_in_any_window(times: list[tuple[float, int]], seconds: float) -> int:
    return max((sum(n for at, n in times if start <= at < start + seconds) for start, _ in times), default=0)


async def crowd(turns: Turns, clock: Clock, limits: RateLimits, seed: int, size: int) -> list[tuple[float, int, int]]:
    """Runs that come, wait and come back late or never, in any order: when each passed, with its number and tokens."""
    chance = random.Random(seed)
    waiting: dict[int, tuple[float, int]] = {}
    passed: list[tuple[float, int, int]] = []
    number = 0
    while number < size or waiting:
        if number < size and chance.random() < 0.5:
            waiting[number] = (clock.now, chance.randint(0, 60))
            number += 1
        elif waiting and not any(due <= clock.now for due, _ in waiting.values()):
            clock.now = min(due for due, _ in waiting.values()) + HAIR
        clock.now += chance.choice((0.0, 0.001, 0.3, 2.0))
        for asker in [asker for asker, (due, _) in waiting.items() if due <= clock.now]:
            _, tokens = waiting[asker]
            if chance.random() < 0.02:
                del waiting[asker]  # it was cancelled
                continue
            turn = await turns.take("k", str(asker), limits, tokens, queue=True)
            if turn.wait <= 0:
                del waiting[asker]
                passed.append((clock.now, asker, tokens))
            else:
                waiting[asker] = (clock.now + turn.wait, tokens)
    return passed


@settings(max_examples=40, deadline=None)
@given(
    requests=st.integers(1, 12),
    tokens=st.none() | st.integers(60, 200),
    burst=st.none() | st.integers(1, 4),
    per=st.sampled_from([0.5, 7.0, 60.0]),
    seed=st.integers(0, 10**9),
)
async def test_no_window_holds_more_than_the_limit(
    requests: int, tokens: int | None, burst: int | None, per: float, seed: int
) -> None:
    clock = Clock()
    limits = RateLimits(requests, tokens, per, burst=burst)
    passed = await crowd(LocalTurns(clock), clock, limits, seed, 60)
    assert passed
    assert most_in_any_window([(at, 1) for at, _, _ in passed], per) <= requests
    if burst is not None and burst < requests:
        assert most_in_any_window([(at, 1) for at, _, _ in passed], per * burst / requests) <= burst
    if tokens is not None:
        assert most_in_any_window([(at, used) for at, _, used in passed], per) <= tokens


@pytest.mark.parametrize("seed", range(3))
async def test_no_window_of_the_store_holds_more_than_the_limit(turns: Turns, clock: Clock, seed: int) -> None:
    limits = RateLimits(requests=5, tokens=150, per=20)
    passed = await crowd(turns, clock, limits, seed, 40)
    assert most_in_any_window([(at, 1) for at, _, _ in passed], 20) <= 5
    assert most_in_any_window([(at, used) for at, _, used in passed], 20) <= 150


@given(
    most=st.integers(1, 50),
    used=st.lists(st.integers(0, 59), max_size=60),
    ahead=st.integers(0, 200),
)
def test_a_turn_is_expected_when_it_comes(most: int, used: list[int], ahead: int) -> None:
    """Played out one by one: everybody in front passes as soon as it can."""
    limits = RateLimits(requests=most, per=60)
    begun = sorted(1000.0 + at for at in used)
    expected, _ = earliest(limits, RateLine([UsedSlot(at, 1, 0) for at in begun], QueueAhead(ahead, 0)), 0, 1060.0)
    now = 1060.0
    for _ in range(ahead + 1):
        inside = [at for at in begun if at + 60 > now]
        if len(inside) >= most:
            now = sorted(inside)[len(inside) - most] + 60
        begun.append(now)
    assert expected == pytest.approx(now)


def test_tokens_read_from_a_cache_count_where_the_provider_counts_them() -> None:
    usage = Usage(1000, 50, cache_read_tokens=900)
    assert [counted(name, usage) for name in ("openai", "gemini", "anthropic", "groq")] == [1050, 1050, 150, 150]


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"tokens": -1}, {"concurrency": 0}, {"per": 0}, {"burst": 0}])
def test_a_limit_that_lets_nothing_pass_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        RateLimits(**wrong)
