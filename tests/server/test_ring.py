"""What many streams share: from any position, everything behind it, each once."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.server.streams import resource_feed as ring_module
from foliot.server.streams.resource_feed import Ring

# A machine that is busy with something else is no reason to fail.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROUNDS = st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(1, 60), max_size=6)), min_size=1, max_size=12)


def filled(rounds: list[tuple[int, list[int]]], kept: int) -> tuple[Ring, list[tuple[int, bytes]]]:
    """A ring after some rounds, and all frames that were ever in it."""
    ring = Ring(100)
    ring.kept_bytes = kept
    told: list[tuple[int, bytes]] = []
    for step, sizes in rounds:
        frames = [(ring.head + step * (n + 1), b"%d:" % (len(told) + n) + b"x" * size) for n, size in enumerate(sizes)]
        ring.put(ring.head + step * (len(sizes) + 1), frames)
        told += frames
    return ring, told


def read_all(ring: Ring, after: int) -> bytes:
    got = b""
    while (found := ring.next(after)) is not None:
        assert found[0] > after
        after, data = found
        got += data
    assert after == max(after, ring.head)
    return got


@BUSY
@given(ROUNDS, st.integers(0, 400))
def test_whoever_is_not_below_the_floor_gets_all_that_follows(rounds: list[tuple[int, list[int]]], kept: int) -> None:
    ring, told = filled(rounds, kept)
    assert 100 <= ring.floor <= ring.head
    for position in range(ring.floor, ring.head + 2):
        assert read_all(ring, position) == b"".join(data for place, data in told if place > position)


@BUSY
@given(ROUNDS)
def test_large_frames_are_not_put_into_one_piece(rounds: list[tuple[int, list[int]]]) -> None:
    largest, ring_module.LARGEST_PIECE = ring_module.LARGEST_PIECE, 64  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]  # so that few are many
    try:
        ring, told = filled(rounds, 10**6)
        after, most = 100, 0
        while (found := ring.next(after)) is not None:
            after, data = found
            most = max(most, len(data))
        assert most <= max([64, *(len(data) for _, data in told)])
        assert read_all(ring, 100) == b"".join(data for _, data in told)
    finally:
        ring_module.LARGEST_PIECE = largest  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]  # as it was


def test_only_so_much_is_kept_and_the_newest_always() -> None:
    ring = Ring(0)
    ring.kept_bytes = 100
    for place in range(1, 50):
        ring.put(place, [(place, b"x" * 30)])
    assert ring.floor == 46
    assert read_all(ring, 46) == b"x" * 90
    ring.put(50, [(50, b"y" * 1000)])
    assert (ring.floor, read_all(ring, 49)) == (49, b"y" * 1000)


def test_a_ring_that_begins_anew_has_nothing_from_before() -> None:
    ring = Ring(0)
    ring.put(1, [(1, b"a")])
    ring.begin_anew(7)
    ring.put(9, [(8, b"b")])
    assert (ring.floor, ring.head) == (7, 9)
    assert read_all(ring, 7) == b"b"


async def test_all_who_wait_are_woken_and_one_who_leaves_disturbs_nobody() -> None:
    ring = Ring(0)
    waiting = [asyncio.create_task(ring.wait()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[2].cancel()
    await asyncio.sleep(0)
    ring.put(1, [])
    await asyncio.sleep(0)
    assert not waiting[0].done(), "there is nothing to tell"
    ring.put(2, [(2, b"x")])
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.cancelled() for task in waiting] == [False, False, True, False, False]
