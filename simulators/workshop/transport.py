"""A transport that loses, doubles, delays and reorders what it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foliot.bus.base import Ticket
from simulators.engine.process import Mortal
from simulators.engine.world import World


class Broker:
    """The broker that all processes share. Tickets go to any one process that listens, if they go anywhere."""

    def __init__(self, world: World, *, lost: float, doubled: float) -> None:
        self._world = world
        self._lost = lost
        self._doubled = doubled
        self.listening: list[UnsureTransport] = []

    def carry(self, ticket: Ticket, delay: float = 0.0) -> None:
        world = self._world
        copies = 0 if world.maybe(self._lost) else 2 if world.maybe(self._doubled) else 1
        for _ in range(copies):
            world.later(delay + world.soon(), self._hand, ticket)

    def _hand(self, ticket: Ticket) -> None:
        alive = [each for each in self.listening if not each.process.dead]
        if alive:
            self._world.chance.choice(alive).take(ticket)


class Slip:
    """A delivery."""

    def __init__(self, broker: Broker, ticket: Ticket) -> None:
        self._broker = broker
        self.ticket: Ticket | None = ticket

    async def done(self) -> None:
        """Forgotten."""

    async def again(self, *, delay: float) -> None:
        if self.ticket is not None:
            self._broker.carry(self.ticket, delay)

    async def extend(self) -> None:
        """Does nothing: no one else has the ticket."""


class UnsureTransport:
    """The `Transport` of one process."""

    def __init__(self, process: Mortal, broker: Broker) -> None:
        self.process = process
        self._broker = broker
        self._waiting: list[Ticket] = []
        self._bell: asyncio.Future[None] | None = None
        broker.listening.append(self)

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        await self.process.occasion("before publishing")
        for ticket in tickets:
            self._broker.carry(ticket, max(0.0, ticket.due_at - self.process.world.now))

    async def receive(self, *, want: int, timeout: float) -> Sequence[Slip]:
        if not self._waiting:
            self._bell = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._bell], timeout=max(0.0, timeout))
        taken, self._waiting = self._waiting[:want], self._waiting[want:]
        return [Slip(self._broker, ticket) for ticket in taken]

    def take(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def close(self) -> None:
        """Closes the transport; tickets that were not taken are lost, as they may be."""
