"""The pool of connections to PostgreSQL: bounded, in line, healed after a loss, and empty when it is idle."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from foliot.common.waits import Waits
from foliot.store.postgres import connections
from foliot.store.postgres.connections import Connections
from foliot.store.postgres.driver import NotSent, PostgresConnection


class Wire:
    """A connection of which only the ends matter."""

    def __init__(self) -> None:
        self.closed = False
        self.ended = asyncio.Event()

    def is_closed(self) -> bool:
        return self.closed

    def terminate(self) -> None:
        self.closed = True
        self.ended.set()

    async def close(self) -> None:
        self.terminate()


class Pool(Connections):
    def __init__(self, size: int, lease: float = 30.0) -> None:
        super().__init__("postgresql://x", size, Waits(lease))
        self.wires: list[Wire] = []
        self.refuses = False

    async def listener(self) -> PostgresConnection:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError("refused")
        self.wires.append(Wire())
        return cast("PostgresConnection", self.wires[-1])


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_there_are_no_more_than_its_size_and_who_waits_longest_is_next() -> None:
    pool, order = Pool(2), list[int]()
    go_on = asyncio.Event()

    async def work(number: int) -> None:
        async with pool.hold():
            order.append(number)
            await go_on.wait()

    working = [asyncio.create_task(work(number)) for number in range(6)]
    await turns()
    assert order == [0, 1]
    go_on.set()
    await asyncio.gather(*working)
    assert order == list(range(6))
    assert len(pool.wires) == 2


async def test_what_was_cut_off_or_lost_ends_its_connection_and_makes_room() -> None:
    pool = Pool(1)
    for error in (TimeoutError("late"), OSError("reset"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with pool.hold():
                raise error
    with pytest.raises(ValueError, match="the body's own"):
        async with pool.hold():
            raise ValueError("the body's own")
    async with pool.hold() as held:
        assert held is cast("Any", pool.wires[-1])
    assert [each.closed for each in pool.wires] == [True, True, True, False]


async def test_a_connection_that_ended_while_nobody_used_it_is_not_given_out() -> None:
    pool = Pool(1)
    async with pool.hold():
        pass
    pool.wires[0].closed = True
    async with pool.hold() as held:
        assert held is cast("Any", pool.wires[1])


async def test_whoever_stops_waiting_keeps_nobody_from_a_connection() -> None:
    pool = Pool(1)
    first = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await turns()
    waiting[0].cancel()  # in line
    await turns()
    pool.release(first)
    waiting[1].cancel()  # it was given the connection, and has not had its turn
    assert await waiting[2] is first
    assert [each.cancelled() for each in waiting] == [True, True, False]


async def test_a_server_that_refuses_holds_up_nobody_who_waits() -> None:
    pool = Pool(1)
    pool.refuses = True
    outcomes = await asyncio.gather(*(pool.acquire() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [OSError] * 3
    pool.refuses = False
    assert await pool.acquire() is cast("Any", pool.wires[0])


async def test_work_that_takes_too_long_is_ended_with_its_connection() -> None:
    pool = Pool(1)
    with pytest.raises(TimeoutError):
        async with pool.hold(within=0.0):
            await asyncio.Event().wait()
    async with pool.hold(), asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with pool.hold(within=0.0):  # all are in use
                pytest.fail("there is only one")


async def test_what_nobody_uses_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE", 0.0)
    pool = Pool(2)
    async with pool.hold(), pool.hold():
        pass
    await asyncio.wait_for(asyncio.gather(*(each.ended.wait() for each in pool.wires)), 30)
    async with pool.hold() as held:
        assert held is cast("Any", pool.wires[2])


async def test_it_closes_when_what_is_at_work_has_ended() -> None:
    pool = Pool(2)
    held = await pool.acquire()
    closing = asyncio.create_task(pool.close())
    await turns()
    assert not closing.done()
    pool.release(held)
    await closing
    assert all(each.closed for each in pool.wires)
    with pytest.raises(NotSent):
        await pool.acquire()


async def test_it_does_not_wait_for_ever_for_what_is_at_work() -> None:
    pool = Pool(2, lease=0.01)
    await pool.acquire()
    waiting = asyncio.create_task(asyncio.wait_for(pool.acquire(), 30))
    await waiting
    stuck = asyncio.create_task(pool.acquire())
    await turns()
    await pool.close()
    with pytest.raises(NotSent):
        await stuck
    assert all(each.closed for each in pool.wires)
