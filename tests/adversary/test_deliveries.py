"""Answers of one tenant and another: a channel that is suspended, slow or flooded holds up its own answers only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from foliot.channels.base import Channel, ChannelMember, DeclaredChannel, Notification
from foliot.channels.delivery import AT_ONCE, OF_A_CHANNEL, OF_A_NAMESPACE, Deliveries
from foliot.engine.driver.runs import Runs
from foliot.kernel.routing import Address
from foliot.store.channels import Outbox
from foliot.store.open import open_database

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


class Receiver:
    """A channel that delivers at once, or never."""

    def __init__(self, namespace: str, name: str, *, suspend: bool = False, never: bool = False) -> None:
        people = {str(number): ChannelMember(str(number), "ann") for number in range(100)}
        self.declared = DeclaredChannel(
            uid=f"{namespace}-{name}",
            namespace=namespace,
            name=name,
            type="webhook",
            agent="a",
            agents=("a",),
            endpoint="",
            secret_ref="",
            secret_hosts=None,
            users=people,
            groups={},
            mode="followup",
            suspend=suspend,
            generation=1,
            declarer="root",
            by_operator=True,
        )
        self.never = never
        self.taken: list[str] = []
        self.at_work = 0

    async def deliver(self, notification: Notification) -> None:
        self.at_work += 1
        try:
            if self.never:
                await asyncio.Event().wait()
            self.taken.append(notification.text)
        finally:
            self.at_work -= 1


class Office:
    def __init__(self, outbox: Outbox, receivers: list[Receiver]) -> None:
        self.outbox = outbox
        self.receivers = {(each.declared.namespace, each.declared.name): each for each in receivers}
        self.deliveries = Deliveries(outbox, cast("Runs", None), self._find, self._reaches, clock=time.time)

    async def _reaches(self, channel: DeclaredChannel, address: Address) -> bool:
        return channel.may_reach(address)

    async def _find(self, namespace: str, name: str) -> Channel:
        return cast("Channel", self.receivers[namespace, name])

    async def writes(self, namespace: str, name: str, *people: int) -> None:
        for each in people:
            key = f"{namespace}-{name}-{each}"
            await self.outbox.notice(key, namespace, Address(name, str(each)), key, now=time.time() - 1)

    async def until_taken(self, receiver: Receiver, count: int) -> None:
        async with asyncio.timeout(60):
            while len(receiver.taken) < count:
                await self.deliveries.begin()
                await asyncio.sleep(0)


@pytest.fixture(params=BOTH)
async def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outbox]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/foliot.db" if sqlite else request.getfixturevalue("postgres_url")
    opened: Any = await open_database(url)
    yield Outbox(opened)
    await opened.close()


async def test_a_channel_of_the_same_name_in_another_namespace_holds_up_nothing(outbox: Outbox) -> None:
    theirs, ours = Receiver("team-b", "bot", suspend=True), Receiver("team-a", "bot")
    office = Office(outbox, [theirs, ours])
    await office.writes("team-b", "bot", 42)
    await office.writes("team-a", "bot", 42)
    await office.until_taken(ours, 1)
    assert theirs.taken == []
    assert await outbox.waits("team-b", Address("bot", "42"))
    await office.deliveries.close()


async def test_a_receiver_that_never_answers_holds_up_its_own_channel_only(outbox: Outbox) -> None:
    slow, ours, beside = Receiver("b", "slow", never=True), Receiver("a", "bot"), Receiver("b", "quick")
    office = Office(outbox, [slow, ours, beside])
    await office.writes("b", "slow", *range(AT_ONCE + 10))
    await office.deliveries.begin()
    await office.writes("a", "bot", *range(10))
    await office.writes("b", "quick", *range(10))
    await office.until_taken(ours, 10)
    await office.until_taken(beside, 10)
    assert slow.at_work == OF_A_CHANNEL
    assert office.deliveries.crowded
    await office.deliveries.close()
    assert slow.at_work == 0


async def test_a_namespace_with_many_slow_channels_leaves_room_for_others(outbox: Outbox) -> None:
    slow = [Receiver("b", f"slow-{number}", never=True) for number in range(AT_ONCE)]
    ours = Receiver("a", "bot")
    office = Office(outbox, [*slow, ours])
    for each in slow:
        await office.writes("b", each.declared.name, *range(2))
    await office.deliveries.begin()
    await office.writes("a", "bot", 1)
    await office.until_taken(ours, 1)
    at_work = Counter[str]()
    for each in slow:
        at_work[each.declared.namespace] += each.at_work
    assert at_work["b"] == OF_A_NAMESPACE
    await office.deliveries.close()
