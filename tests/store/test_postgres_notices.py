"""Notices between the processes of one PostgreSQL database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from foliot.store.postgres.connections import Notice, Noticeboard
from foliot.store.postgres.database import PostgresDatabase

SOON = 60.0


class Ear:
    """Notes what is heard."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []
        self._alarm = asyncio.Event()

    def __call__(self, payload: str | None) -> None:
        self.heard.append(payload)
        self._alarm.set()

    async def until(self, payload: str | None) -> None:
        async with asyncio.timeout(SOON):
            while payload not in self.heard:
                self._alarm.clear()
                await self._alarm.wait()


@pytest.fixture
async def pair(postgres_url):
    first, second = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    yield first, second
    await first.close()
    await second.close()


async def test_payloads_come_to_every_process_in_their_order_after_a_first_none(pair) -> None:
    sender, receiver = pair
    near, far = Ear(), Ear()
    sender.listen("room", near)
    receiver.listen("room", far)
    await near.until(None)
    await far.until(None)
    for number in range(1000):
        sender.post("room", str(number))
    expected = [None, *map(str, range(1000))]
    for ear in (near, far):
        await ear.until("999")
        assert ear.heard == expected


async def test_other_channels_are_not_heard_and_who_stopped_hears_nothing(pair) -> None:
    sender, receiver = pair
    stopped, staying, other = Ear(), Ear(), Ear()
    stop = receiver.listen("room", stopped)
    receiver.listen("room", staying)
    stop_other = receiver.listen("other", other)
    for ear in (stopped, staying, other):
        await ear.until(None)
    stop()
    stop()
    stop_other()
    sender.post("other", "a")
    sender.post("room", "b")
    await staying.until("b")
    assert stopped.heard == [None]
    assert other.heard == [None]
    again = Ear()
    receiver.listen("other", again)
    await again.until(None)
    sender.post("other", "c")
    await again.until("c")


async def test_a_listener_that_was_cut_off_listens_again_and_says_so(pair, postgres_url) -> None:
    sender, receiver = pair
    ear = Ear()
    receiver.listen("room", ear)
    await ear.until(None)
    ear.heard.clear()
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await admin.close()
    await ear.until(None)
    sender.post("room", "after", urgent=True)
    await ear.until("after")


async def test_what_was_posted_just_before_closing_is_sent(postgres_url) -> None:
    sender, receiver = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    ear = Ear()
    receiver.listen("room", ear)
    await ear.until(None)
    sender.post("room", "last words")
    await sender.close()
    sender.post("room", "from the grave")
    await ear.until("last words")
    await receiver.close()


async def test_a_flood_is_bounded_and_does_not_push_out_what_is_urgent() -> None:
    sent: list[Notice] = []
    gate = asyncio.Event()

    async def send(notices: Sequence[Notice]) -> None:
        await gate.wait()
        sent.extend(notices)

    async def connect():
        raise OSError("nobody listens here")

    board = Noticeboard(connect, send)
    board.post("work", "a ticket", urgent=True)
    for number in range(30_000):
        board.post("live", str(number))
        board.post("change")  # equal ones wait once
    gate.set()
    async with asyncio.timeout(SOON):
        while Notice("live", "29999") not in sent:
            await asyncio.sleep(0.01)
    await board.close()
    assert sent[0] == Notice("work", "a ticket")
    assert len(sent) <= 10_001
    assert sum(notice.channel == "change" for notice in sent) <= 10
