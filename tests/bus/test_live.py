"""Every live bus under the same suite: within a process, over PostgreSQL, over NATS."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack

import pytest

from foliot.bus.live import MOST_WAITING, LiveBus, LocalLive, Numbers, Piece, Subscription
from foliot.bus.live_nats import NatsLive
from foliot.bus.live_postgres import LARGEST, PART_BYTES, PostgresLive
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.store.open import open_database

SOON = 60.0


class Place:
    """`sender` and `reader` are of two processes, where there can be two."""

    def __init__(self, sender: LiveBus, reader: LiveBus) -> None:
        self.sender = sender
        self.reader = reader
        self._probes = itertools.count(1)

    async def heard(self, subscription: Subscription, run_id: str = "probe") -> None:
        """Publish until the reader hears it: a new one takes a moment. Leaves nothing unread."""
        await self.heard_by(self.sender, subscription, run_id)

    async def heard_by(self, sender: LiveBus, subscription: Subscription, run_id: str = "probe") -> None:
        """As `heard`, with another sender."""
        deadline = time.monotonic() + SOON
        stream = subscription.__aiter__()
        first = asyncio.ensure_future(anext(stream))
        number = 0
        while not first.done() or not number:
            assert time.monotonic() < deadline, "nothing is heard"
            number = next(self._probes)
            sender.publish(subscription.namespace, subscription.run_id or run_id, f"probe {number}".encode())
            await asyncio.wait([first], timeout=0.05)
        last = first.result()
        while last.data != f"probe {number}".encode():
            last = await asyncio.wait_for(anext(stream), SOON)
        await stream.aclose()


async def take(subscription: Subscription, count: int) -> list[Piece]:
    got: list[Piece] = []
    async with asyncio.timeout(SOON):
        async for piece in subscription:
            got.append(piece)
            if len(got) == count:
                break
    return got


@pytest.fixture(
    params=[
        "local",
        pytest.param("postgres", marks=pytest.mark.services),
        pytest.param("nats", marks=pytest.mark.services),
    ]
)
async def place(request):
    async with AsyncExitStack() as stack:

        def keep(bus: LiveBus) -> LiveBus:
            stack.push_async_callback(bus.close)
            return bus

        if request.param == "local":
            bus = keep(LocalLive())
            yield Place(bus, bus)
        elif request.param == "postgres":
            url = request.getfixturevalue("postgres_url")
            first, second = await open_database(url), await open_database(url)
            stack.push_async_callback(first.close)
            stack.push_async_callback(second.close)
            yield Place(keep(PostgresLive(first)), keep(PostgresLive(second)))
        else:
            url = request.getfixturevalue("nats_url")
            links = [NatsLink(NatsOptions(url)) for _ in range(2)]
            buses = [keep(NatsLive(link)) for link in links]
            for link in links:
                assert await link.connected(timeout=SOON)
            yield Place(*buses)


async def test_pieces_of_a_run_come_in_their_order(place: Place) -> None:
    with place.reader.subscribe("team", "run-1") as subscription:
        await place.heard(subscription)
        pieces = [f"word {number} ü".encode() for number in range(500)]
        for piece in pieces:
            place.sender.publish("team", "run-1", piece)
        assert [piece.data for piece in await take(subscription, 500)] == pieces
        assert subscription.missed == 0


async def test_a_reader_of_a_run_hears_no_other_run_and_no_other_namespace(place: Place) -> None:
    with place.reader.subscribe("team", "run-1") as subscription:
        await place.heard(subscription)
        for namespace, run_id in (("team", "run-2"), ("other", "run-1"), ("TEAM", "run-1"), ("te.am", "run-1")):
            place.sender.publish(namespace, run_id, b"not for you")
        place.sender.publish("team", "run-1", b"for you")
        assert [piece.data for piece in await take(subscription, 1)] == [b"for you"]


async def test_a_reader_of_a_namespace_hears_all_its_runs_with_their_names(place: Place) -> None:
    with place.reader.subscribe("Team.One") as subscription:
        await place.heard(subscription)
        place.sender.publish("Team.One", "order 17", b"a")
        place.sender.publish("team_one", "order 18", b"not for you")
        place.sender.publish("Team.One", "order/19", b"b")
        got = {(piece.namespace, piece.run_id, piece.data) for piece in await take(subscription, 2)}
        assert got == {("Team.One", "order 17", b"a"), ("Team.One", "order/19", b"b")}


async def test_any_bytes_up_to_the_largest_arrive_as_they_were(place: Place) -> None:
    with place.reader.subscribe("team", "run-1") as subscription:
        await place.heard(subscription)
        pieces = [
            b"",
            b"\x00\xff" * 10,
            b"x" * PART_BYTES,
            b"y" * (PART_BYTES + 1),
            bytes(range(256)) * (LARGEST // 256),
        ]
        for piece in pieces:
            place.sender.publish("team", "run-1", piece)
        assert [piece.data for piece in await take(subscription, len(pieces))] == pieces


async def test_a_slow_reader_keeps_the_newest_and_is_told_what_it_missed(place: Place) -> None:
    with place.reader.subscribe("team", "run-1") as slow, place.reader.subscribe("team", "run-1") as quick:
        await place.heard(quick)
        await place.heard(slow)
        already = slow.missed
        reading = asyncio.create_task(last_of(quick, b"the end"))
        for number in range(2 * MOST_WAITING):
            place.sender.publish("team", "run-1", str(number).encode())
            if number % 100 == 0:
                await asyncio.sleep(0.005)  # so that only the reader is too slow, and no queue on the way
        place.sender.publish("team", "run-1", b"the end")
        await reading
        slow.close()
        left = [piece.data async for piece in slow]
        assert left[-1] == b"the end"
        assert len(left) <= MOST_WAITING
        assert slow.missed - already + len(left) == 2 * MOST_WAITING + 1


async def last_of(subscription: Subscription, data: bytes) -> None:
    async with asyncio.timeout(SOON):
        async for piece in subscription:
            if piece.data == data:
                return


async def test_who_leaves_hears_no_more_and_readers_end_with_the_bus(place: Place) -> None:
    gone = place.reader.subscribe("team", "run-1")
    gone.close()
    gone.close()
    assert [piece async for piece in gone] == []
    staying = place.reader.subscribe("team")
    reading = asyncio.create_task(anext(staying.__aiter__(), None))
    await asyncio.sleep(0)
    await place.reader.close()
    assert await asyncio.wait_for(reading, SOON) is None


async def test_a_reader_is_told_when_what_is_answered_will_be_heard(place: Place) -> None:
    hears = asyncio.Event()
    with place.reader.subscribe("team", "answers") as answers, place.sender.subscribe("team", "asked") as asked:
        if isinstance(place.reader, LocalLive):
            hears.set()
        answers.when_heard(hears.set)
        await place.heard_by(place.reader, asked)
        await asyncio.wait_for(hears.wait(), SOON)
        place.reader.publish("team", "asked", b"anybody?")
        assert [piece.data for piece in await take(asked, 1)] == [b"anybody?"]
        place.sender.publish("team", "answers", b"here")
        assert [piece.data for piece in await take(answers, 1)] == [b"here"]


class TestLosses:
    def test_a_gap_in_the_numbers_is_counted_and_repeats_are_passed_over(self) -> None:
        subscription = Subscription("team", None, lambda _: None)
        for seq in (5, 6, 6, 3, 9):
            subscription.put(Piece("team", "r", b"", seq, "a"))
        subscription.put(Piece("team", "r", b"", 1, "another worker took over"))
        assert subscription.missed == 2

    def test_numbers_of_a_run_never_go_back_however_many_runs_there_are(self) -> None:
        numbers = Numbers()
        first = [numbers.next("team", "r") for _ in range(10)]
        for number in range(10_000):
            numbers.next("team", f"other-{number}")
        assert first == list(range(1, 11))
        assert numbers.next("team", "r") > 10

    async def test_a_piece_that_is_too_large_for_a_notice_is_missed_by_its_number(self, postgres_url) -> None:
        database = await open_database(postgres_url)
        bus = PostgresLive(database)
        place = Place(bus, bus)
        with bus.subscribe("team", "run-1") as subscription:
            await place.heard(subscription)
            bus.publish("team", "run-1", b"x" * (LARGEST + 1))
            bus.publish("team", "run-1", b"after")
            assert [piece.data for piece in await take(subscription, 1)] == [b"after"]
            assert subscription.missed == 1
        await bus.close()
        await database.close()

    async def test_while_nats_is_away_publishing_returns_and_later_pieces_arrive(self, nats_service) -> None:
        bus = NatsLive(NatsLink(NatsOptions(nats_service.url)))
        place = Place(bus, bus)
        with bus.subscribe("team", "run-1") as subscription:
            await place.heard(subscription)
            await asyncio.to_thread(nats_service.kill)
            for _ in range(10_000):
                bus.publish("team", "run-1", b"lost")
            await asyncio.to_thread(nats_service.start)
            await place.heard(subscription)
        await bus.close()
