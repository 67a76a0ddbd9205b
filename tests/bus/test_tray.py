from __future__ import annotations

import asyncio
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from foliot.bus.local import MOST_TICKETS, AlarmClock, DelayQueue, LocalQueue, LocalTransport
from tests.conformance.transports import SOON, ticket


class TestBounds:
    async def test_a_flood_becomes_a_count_and_every_ticket_is_still_announced_once(self) -> None:
        transport = LocalTransport()
        for first in range(0, 100_000, 1000):
            await transport.publish([ticket(number) for number in range(first, first + 1000)])
        assert len(transport._tray) <= MOST_TICKETS + 1
        names, rings = 0, 0
        while got := await transport.receive(want=1000, timeout=0):
            names += sum(each.ticket is not None for each in got)
            rings += sum(each.ticket is None for each in got)
        assert (names, rings) == (MOST_TICKETS, 100_000 - MOST_TICKETS)

    async def test_rings_can_be_bounded_too(self) -> None:
        tray = LocalQueue(most_rings=3)
        tray.ring(1000)
        tray.put(None)
        assert await tray.take(want=10, timeout=0) == [None] * 3

    @given(st.lists(st.integers(0, 1000), max_size=200))
    def test_of_too_many_for_later_the_nearest_are_kept(self, delays) -> None:
        later = DelayQueue(most=10)
        for number, delay in enumerate(delays):
            later.push(ticket(number), delay=delay)
        assert len(later) <= 20
        kept = [each.id for each in later.pop_due(time.monotonic() + 2000) if each is not None]
        nearest = sorted(range(len(delays)), key=lambda number: (delays[number], number))[:10]
        assert kept[: len(nearest)] == [ticket(number).id for number in nearest]


class TestThreads:
    async def test_a_ticket_from_another_thread_wakes_who_waits_here(self) -> None:
        transport = LocalTransport()
        waiting = asyncio.create_task(transport.receive(want=1, timeout=SOON))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: asyncio.run(transport.publish([ticket(1)])))
        thread.start()
        (got,) = await waiting
        await asyncio.to_thread(thread.join)
        assert got.ticket == ticket(1)

    def test_receivers_in_several_threads_share_the_tickets(self) -> None:
        transport = LocalTransport()
        taken: list[str] = []
        lock = threading.Lock()

        async def work() -> None:
            while got := await transport.receive(want=3, timeout=SOON):
                with lock:
                    taken.extend(each.ticket.id for each in got if each.ticket)
                    if len(taken) >= 300:
                        await transport.close()

        async def feed() -> None:
            for number in range(300):
                await transport.publish([ticket(number)])

        threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(feed())
        for thread in threads:
            thread.join(SOON)
        assert sorted(taken) == sorted(ticket(number).id for number in range(300))

    async def test_a_loop_that_was_closed_while_it_waited_is_no_trouble(self) -> None:
        tray = LocalQueue()
        loop = asyncio.new_event_loop()
        tray._waiting.add((loop, loop.create_future()))
        loop.close()
        tray.put(ticket(1))
        assert await tray.take(want=1, timeout=0) == [ticket(1)]


class TestAlarmClock:
    async def test_one_timer_serves_tickets_in_the_order_of_their_times(self) -> None:
        rung: list[str] = []
        all_rung = asyncio.Event()

        def due(tickets) -> None:
            rung.extend(each.id for each in tickets)
            if len(rung) == 3:
                all_rung.set()

        clock = AlarmClock(due)
        for number, delay in enumerate((0.15, 0.05, 0.1)):
            clock.set(ticket(number), delay=delay)
        async with asyncio.timeout(SOON):
            await all_rung.wait()
        assert rung == [ticket(1).id, ticket(2).id, ticket(0).id]
        assert clock.close() is False

    async def test_a_closed_one_is_silent_and_says_what_it_had(self) -> None:
        clock = AlarmClock(lambda _: None)
        clock.set(ticket(1), delay=3600)
        assert clock.close() is True
        clock.set(ticket(2), delay=0)
        assert len(clock) == 0
