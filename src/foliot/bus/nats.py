"""The transport over NATS JetStream: each ticket is a message in a work queue, and goes to one worker.

Publishing only hands tickets to the outbox of this process. Losing the server, its data or a message costs time and
nothing else: tickets that were not acknowledged are sent again, those that no worker finished are given to another one,
a stream that is gone is made anew, and what is lost all the same is found in the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from foliot.bus.base import Delivery, Ticket
from foliot.bus.envelope import Undecodable, decode, encode, subject_for
from foliot.bus.local import AlarmClock, LocalDelivery, LocalQueue
from foliot.bus.nats_link import NatsLink
from foliot.bus.nats_stream import StreamPlan, StreamUnusable, ensure
from foliot.common.cancellation import stop_tasks
from foliot.kernel.backoff import backoff

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg


# --- nats outbox -----------------------------------------------------------------------------------------------------

# Tickets on their way to JetStream: kept until the server has them, many at a time, and never in anybody's way.

log = logging.getLogger(__name__)

MOST: Final = 10_000
_WINDOW: Final = 256
_BACKOFF: Final = (0.05, 2.0)


class Outbox:
    """`send` brings tickets to the server and returns those that arrived; it does not raise.

    When too many wait the oldest are dropped: a ticket is permission to look, and the others are permission enough.
    """

    def __init__(self, send: Callable[[Sequence[Ticket]], Awaitable[Iterable[Ticket]]], *, most: int = MOST) -> None:
        self._send = send
        self._most = most
        self._waiting: dict[str, Ticket] = {}
        self._sender: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._full = False

    def add(self, tickets: Sequence[Ticket]) -> None:
        """Never waits."""
        for ticket in tickets:
            if len(self._waiting) >= self._most:
                del self._waiting[next(iter(self._waiting))]
                if not self._full:
                    log.warning("more than %d tickets wait for NATS: workers find the work by themselves", self._most)
                self._full = True
            self._waiting[ticket.id] = ticket
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """The server is there again: do not wait any longer before the next try."""
        self._hurry.set()

    async def close(self, *, patience: float) -> int:
        """Let the rest go out, for so many seconds; the number of those that did not."""
        if self._sender is not None and not self._sender.done():
            self._hurry.set()
            await asyncio.wait((self._sender,), timeout=patience)
            await stop_tasks(self._sender, again=0.5)
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    async def _run(self) -> None:
        failures = 0
        while self._waiting:
            self._hurry.clear()
            arrived = list(await self._send(list(islice(self._waiting.values(), _WINDOW))))
            for ticket in arrived:
                if self._waiting.get(ticket.id) is ticket:  # not one that was published again meanwhile
                    del self._waiting[ticket.id]
            if arrived:
                failures, self._full = 0, False
                continue
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff(failures, *_BACKOFF)):
                    await self._hurry.wait()


# --- nats puller -----------------------------------------------------------------------------------------------------

# Pulling messages from a JetStream consumer: at once when there is one, and no more than somebody has room for.
#
# The client's own `fetch` waits until it has as many as it was asked for. Here a request for one message waits at the
# server, and when that has come, those that lie ready are asked for. What comes for a request that nobody waits for
# any more is given back at once, and another worker has it.

# A request is made anew after this time. It is what a request that got lost can cost.
_LONGEST: Final = 5.0
_ANSWER_SECONDS: Final = 0.5
_NO_MESSAGES, _TIMEOUT = "404", "408"


class NoConsumer(Exception):
    """Raised when the consumer cannot be reached: it, its stream or JetStream is gone, or no answer came in time."""


class _Lane:
    """An inbox for one request at a time: a message does not say which request it answers."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.subscription: Any = None
        self.arrived: asyncio.Queue[Msg | None] | None = None


class Puller:
    """Pulls messages for one connected client. `give_back` is called with messages that nobody waits for."""

    def __init__(self, client: Client, subject: str, give_back: Callable[[Msg], None]) -> None:
        self.client = client
        self._subject = subject
        self._give_back = give_back
        self._lanes: set[_Lane] = set()
        self._free: list[_Lane] = []
        self._leaving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for lane in list(self._lanes):
            await self._leave(lane)

    def forget(self) -> None:
        """The connection is a new one and the server does not know of any request, or we are closing."""
        for lane in self._lanes:
            if lane.arrived is not None:
                lane.arrived.put_nowait(None)

    async def pull(self, *, want: int, deadline: float) -> list[Msg]:
        """Up to `want` messages as soon as there is one; none at `deadline` (of `time.monotonic`).

        Raises `NoConsumer`, and the client's errors when the connection is closed.
        """
        if ready := await self._ask(want, wait=0.0):
            return ready
        while (left := deadline - time.monotonic()) > 0:
            if first := await self._ask(1, wait=min(left, _LONGEST)):
                try:
                    return first + (await self._ask(want - 1, wait=0.0) if want > 1 else [])
                except NoConsumer:
                    return first
                except BaseException:
                    self._give_back(first[0])
                    raise
        return []

    async def _ask(self, batch: int, *, wait: float) -> list[Msg]:
        """One request. With `wait` it lies at the server until a message comes, otherwise only what is ready comes."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            lane = self._free.pop() if self._free else await self._make_lane()
        arrived = lane.arrived = asyncio.Queue()
        got: list[Msg] = []
        over = False  # the server has said its last word on this request
        request = {"batch": batch, "expires": int(wait * 1e9)} if wait else {"batch": batch, "no_wait": True}
        try:
            async with asyncio.timeout(wait + _ANSWER_SECONDS):
                await self.client.publish(self._subject, json.dumps(request).encode(), lane.inbox)
                while len(got) < batch:
                    message = await arrived.get()
                    status = "forgotten" if message is None else _status(message)
                    if message is not None and status is None:
                        got.append(message)
                        continue
                    over = True
                    if got or status in (_NO_MESSAGES, _TIMEOUT):
                        break
                    raise NoConsumer(status)
                over = True
        except TimeoutError:
            if not got:
                raise NoConsumer("no answer") from None
        except asyncio.CancelledError:
            self._hand_back(got)
            raise
        finally:
            lane.arrived = None
            self._hand_back([message for _ in range(arrived.qsize()) if (message := arrived.get_nowait())])
            if over:
                self._free.append(lane)
            else:
                self._abandon(lane, wait + _ANSWER_SECONDS)
        return got

    async def _make_lane(self) -> _Lane:
        lane = _Lane(self.client.new_inbox())

        async def arrived(message: Msg) -> None:
            if lane.arrived is not None:
                lane.arrived.put_nowait(message)
            else:
                self._hand_back([message])

        client: Any = self.client  # its calls are only partly typed
        lane.subscription = await client.subscribe(lane.inbox, cb=arrived)
        self._lanes.add(lane)
        return lane

    def _abandon(self, lane: _Lane, seconds: float) -> None:
        """Abandons a request: until it has ended at the server, messages may come, and are handed back."""

        def leave() -> None:
            if lane in self._lanes:
                self._leaving.add(task := asyncio.create_task(self._leave(lane)))
                task.add_done_callback(self._leaving.discard)

        asyncio.get_running_loop().call_later(seconds, leave)

    async def _leave(self, lane: _Lane) -> None:
        from nats.errors import Error

        if lane in self._lanes:
            self._lanes.discard(lane)
            with suppress(Error, TimeoutError):
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await lane.subscription.unsubscribe()

    def _hand_back(self, messages: list[Msg]) -> None:
        for message in messages:
            if _status(message) is None:
                self._give_back(message)


def _status(message: Msg) -> str | None:
    """The code of a message that the server itself sent; None for one that was published."""
    return None if message.data or not message.headers else message.headers.get("Status")


# --- nats ------------------------------------------------------------------------------------------------------------

_nats_ANSWER_SECONDS: Final = 2.0
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
        self._rings = LocalQueue(most_rings=1)
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
                return [LocalDelivery(each, self._rings) for each in rings]
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
        """Starts over after a reconnect: the stream may have been lost meanwhile, and its messages with it."""
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
                js: Any = client.jetstream(timeout=_nats_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType]
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
        """Sends something without waiting for it."""
        task = asyncio.create_task(_say(saying))
        self._said.add(task)
        task.add_done_callback(self._said.discard)

    async def _send(self, tickets: Sequence[Ticket]) -> Iterable[Ticket]:
        """Publishes tickets for the outbox; returns those that the stream has now."""
        from nats.errors import Error

        if (client := self._link.client) is None:
            return []
        try:
            await self._prepare(client)
        except (StreamUnusable, Error, TimeoutError, OSError) as error:
            self._complain(error)
            return []
        js: Any = client.jetstream(timeout=_nats_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType]
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
