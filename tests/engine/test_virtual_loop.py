"""The simulator's event loop: virtual time, seeded order, processes that die without a last word."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from simulators.engine.virtual_loop import Stuck, VirtualLoop, context_of


class Process:
    dead = False
    backlog: list[asyncio.Handle] | None = None


def loop(seed: int = 1, **bounds) -> VirtualLoop:
    return VirtualLoop(Random(seed), **bounds)


def test_an_hour_passes_in_no_time() -> None:
    async def main() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert loop().run(main()) == 3660.0


def test_the_seed_chooses_the_order_and_always_the_same_one() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def note(number: int) -> None:
            order.append(number)

        await asyncio.gather(*(note(number) for number in range(8)))
        return order

    orders = [tuple(loop(seed).run(main())) for seed in range(20)]
    assert len(set(orders)) > 10
    assert orders == [tuple(loop(seed).run(main())) for seed in range(20)]


def test_a_dead_process_does_nothing_any_more_not_even_finally() -> None:
    done: list[str] = []
    over = False
    process = Process()

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            process.dead = True
            await asyncio.sleep(1)
            done.append("went on")
        finally:
            if not over:
                done.append("cleaned up")

    def closing() -> None:
        nonlocal over
        over = True

    async def main() -> None:
        asyncio.get_running_loop().create_task(work(), context=context_of(process))
        await asyncio.sleep(100)

    loop().run(main(), closing=closing)
    assert done == []


def test_a_paused_process_goes_on_when_it_wakes_up() -> None:
    process = Process()
    times: list[float] = []

    async def work() -> None:
        await asyncio.sleep(1)
        times.append(asyncio.get_running_loop().time())

    virtual = loop()

    async def main() -> None:
        process.backlog = []
        virtual.create_task(work(), context=context_of(process))
        await asyncio.sleep(10)
        virtual.wake(process)
        await asyncio.sleep(10)

    virtual.run(main())
    assert times == [11.0]


def test_what_never_ends_is_reported_and_not_waited_for() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def ticking() -> None:
        while True:
            await asyncio.sleep(1)

    async def busy() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="nothing is left"):
        loop().run(forever())
    with pytest.raises(Stuck, match="simulated seconds"):
        loop(latest=50.0).run(ticking())
    with pytest.raises(Stuck, match="busy loop"):
        loop(most_callbacks=500).run(busy())


def test_an_error_that_nobody_sees_is_kept() -> None:
    virtual = loop()

    async def main() -> None:
        virtual.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    virtual.run(main())
    assert len(virtual.problems) == 1
    assert "ZeroDivisionError" in virtual.problems[0]
