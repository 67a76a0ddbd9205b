"""Pulling messages from a JetStream consumer: at once when there is one, and no more than somebody has room for.

The client's own `fetch` waits until it has as many as it was asked for. Here a request for one message waits at the
server, and when that has come, those that lie ready are asked for. What comes for a request that nobody waits for any
more is given back at once, and another worker has it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

# A request is made anew after this time. It is what a request that got lost can cost.
_LONGEST: Final = 5.0
_ANSWER_SECONDS: Final = 0.5
_NO_MESSAGES, _TIMEOUT = "404", "408"


class NoConsumer(Exception):
    """Nobody serves the consumer: it, its stream, or JetStream itself is gone. Or no answer came in time."""


class _Lane:
    """An inbox for one request at a time: a message does not say which request it answers."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.subscription: Any = None
        self.arrived: asyncio.Queue[Msg | None] | None = None


class Puller:
    """For one connected client. `give_back` is called with messages that nobody waits for."""

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
        """Until the request is over at the server, messages may come, and are handed back."""

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
