"""The transport over NATS JetStream: each ticket is a message in a work queue, and goes to one worker.

Publishing only hands tickets to the outbox of this process. Losing the server, its data or a message costs time and
nothing else: tickets that were not acknowledged are sent again, those that no worker finished are given to another one,
a stream that is gone is made anew, and what is lost all the same is found in the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from foliot.bus.base import Delivery, Ticket
from foliot.bus.envelope import Undecodable, decode, encode, subject_for
from foliot.bus.later import AlarmClock
from foliot.bus.nats_link import NatsLink
from foliot.bus.nats_outbox import Outbox
from foliot.bus.nats_puller import NoConsumer, Puller
from foliot.bus.nats_stream import StreamPlan, StreamUnusable, ensure
from foliot.bus.tray import Handed, Tray

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 2.0
_TRY_AGAIN: Final = 0.5
_HEADER_ROOM: Final = 4096
# Clocks of two machines differ: a ticket that is early by less than this is not sent away.
_EARLY: Final = 0.05


class NatsDelivery:
    """One message. What cannot be said to the server any more, it finds out after `ack_wait`."""

    def __init__(self, ticket: Ticket, message: Msg) -> None:
        self._ticket = ticket
        self._message = message
        self.settled = False

    @property
    def ticket(self) -> Ticket | None:
        return self._ticket

    async def done(self) -> None:
        if not self.settled:
            self.settled = True
            await _say(self._message.ack())

    async def again(self, *, delay: float) -> None:
        if not self.settled:
            self.settled = True
            await _say(self._message.nak(max(0.0, delay)))

    async def extend(self) -> None:
        if not self.settled:
            await _say(self._message.in_progress())


class NatsTransport:
    """Make it with `open`. Belongs to one event loop; the link is closed with it."""

    def __init__(self, link: NatsLink, plan: StreamPlan, *, clock: Callable[[], float] = time.time) -> None:
        self._link = link
        self._plan = plan
        self._clock = clock
        self._outbox = Outbox(self._send)
        self._alarms = AlarmClock(self._outbox.add)
        self._rings = Tray(most_rings=1)
        self._handed: WeakSet[NatsDelivery] = WeakSet()
        self._puller: Puller | None = None
        self._ready = False
        self._preparing = asyncio.Lock()
        self._refused = ""
        self._connections = 0
        self._said: set[asyncio.Task[None]] = set()
        self._closed = False
        link.on_connect(self._connected)

    @property
    def is_connected(self) -> bool:
        """Whether it can be heard now. Meanwhile workers look by themselves."""
        return self._ready and self._link.client is not None

    @classmethod
    async def open(
        cls,
        link: NatsLink,
        plan: StreamPlan | None = None,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = 2.0,
    ) -> NatsTransport:
        """Connect, and see that stream and consumer are there. A server that does not answer within `patience` seconds
        is waited for in the background. Raises `UsageError`, `StreamUnusable`.
        """
        transport = cls(link, plan or StreamPlan(), clock=clock)
        try:
            link.start()
            if (client := await link.connected(timeout=patience)) is not None:
                await transport._prepare(client)
        except BaseException:
            await transport.close()
            raise
        return transport

    @property
    def waiting(self) -> int:
        """Tickets that the server does not have yet, and those for later. Bounded."""
        return len(self._outbox) + len(self._alarms)

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        if self._closed:
            return
        now = self._clock()
        for ticket in tickets:
            if ticket.due_at > now:
                self._alarms.set(ticket, delay=ticket.due_at - now)
        self._outbox.add([ticket for ticket in tickets if ticket.due_at <= now])

    async def receive(self, *, want: int, timeout: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + timeout
        while not self._closed:
            if rings := await self._rings.take(want=1, timeout=0):
                return [Handed(each, self._rings) for each in rings]
            messages = await self._pull(want, min(deadline, self._rings.next_at or deadline))
            # No await from here on: who is cancelled must not take messages along.
            if handed := [each for message in messages if (each := self._accept(message)) is not None]:
                return handed
            if time.monotonic() >= deadline:
                break
        return []

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._alarms.close()
        self._rings.close()
        if self._puller is not None:
            self._puller.forget()
            await self._puller.close()
        for each in list(self._handed):
            await each.again(delay=0)
        if left := await self._outbox.close(patience=_CLOSE_SECONDS if self._link.client else 0.0):
            log.info("%d tickets did not reach NATS; the work is found in the database", left)
        if self._said:
            await asyncio.wait(self._said, timeout=1)
        await self._link.close()

    def _connected(self) -> None:
        """While the connection was away, the stream may have been lost, and its messages with it."""
        self._ready = False
        self._connections += 1
        if self._connections > 1:
            self._rings.ring()
        if self._puller is not None:
            self._puller.forget()
        self._outbox.hurry()

    async def _pull(self, want: int, deadline: float) -> list[Msg]:
        from nats.errors import Error

        client = await self._link.connected(timeout=deadline - time.monotonic())
        if client is None:
            return []
        try:
            puller = await self._prepare(client)
            return await puller.pull(want=want, deadline=deadline)
        except (NoConsumer, StreamUnusable, Error, TimeoutError, OSError) as error:
            self._ready = False
            self._complain(error)
            if not self._closed and not len(self._rings):
                await asyncio.sleep(max(0.0, min(_TRY_AGAIN, deadline - time.monotonic())))
            return []

    async def _prepare(self, client: Client) -> Puller:
        """Stream, consumer and the inbox of this process. Raises `StreamUnusable` and errors of the client."""
        async with self._preparing:
            if not self._ready:
                js: Any = client.jetstream(timeout=_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType]
                if await ensure(js, self._plan) and self._connections > 1:
                    log.warning("the JetStream stream %r was gone and is made anew", self._plan.stream)
                    self._rings.ring()
                self._ready = True
                self._refused = ""
            if self._puller is None or self._puller.client is not client:
                next_message = f"$JS.API.CONSUMER.MSG.NEXT.{self._plan.stream}.{self._plan.consumer}"
                self._puller = Puller(client, next_message, self._give_back)
            return self._puller

    def _accept(self, message: Msg) -> NatsDelivery | None:
        try:
            ticket = decode(message.data)
        except Undecodable as error:
            log.warning("a message on %s is thrown away: %s", message.subject, error)
            self._tell(message.term())
            return None
        early = ticket.due_at - self._clock()
        if early > _EARLY:
            self._tell(message.nak(early))
            return None
        delivery = NatsDelivery(ticket, message)
        self._handed.add(delivery)
        return delivery

    def _give_back(self, message: Msg) -> None:
        self._tell(message.nak())

    def _tell(self, saying: Any) -> None:
        """Without waiting for it."""
        task = asyncio.create_task(_say(saying))
        self._said.add(task)
        task.add_done_callback(self._said.discard)

    async def _send(self, tickets: Sequence[Ticket]) -> Iterable[Ticket]:
        """For the outbox: those that the stream has now."""
        from nats.errors import Error

        if (client := self._link.client) is None:
            return []
        try:
            await self._prepare(client)
        except (StreamUnusable, Error, TimeoutError, OSError) as error:
            self._complain(error)
            return []
        js: Any = client.jetstream(timeout=_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType]
        largest = client.max_payload - _HEADER_ROOM

        async def send(ticket: Ticket) -> Ticket | None:
            data = encode(ticket, now=self._clock(), largest=largest)
            subject = subject_for(self._plan.prefix, ticket.namespace, ticket.agent)
            try:
                await js.publish(subject, data, headers={"Nats-Msg-Id": _header_value(ticket.id)})
            except (Error, TimeoutError, OSError, ValueError, KeyError) as error:
                self._ready = False  # look whether the stream is still there
                self._complain(error)
                return None
            return ticket

        return [ticket for ticket in await asyncio.gather(*map(send, tickets)) if ticket is not None]

    def _complain(self, error: Exception) -> None:
        """Once for each cause: the work goes on without NATS, only slower."""
        text = error.message if isinstance(error, StreamUnusable) else type(error).__name__
        if text != self._refused:
            self._refused = text
            log.log(
                logging.ERROR if isinstance(error, StreamUnusable) else logging.INFO,
                "NATS cannot be used at the moment, workers find work by themselves: %s",
                text,
            )


def _header_value(id: str) -> str:
    """Headers are lines of text: an id that does not fit on one is represented by its digest."""
    return id if id.isascii() and id.isprintable() and id == id.strip() else sha256(id.encode()).hexdigest()


async def _say(saying: Any) -> None:
    """Tell the server about a message, if it can be told."""
    from nats.errors import Error
    from nats.js.errors import Error as JetStreamError

    with suppress(Error, JetStreamError, TimeoutError, OSError):
        async with asyncio.timeout(1):
            await saying
