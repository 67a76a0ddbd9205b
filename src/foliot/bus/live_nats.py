"""Live pieces over NATS, without JetStream: on `foliot.live.<namespace>.<run>`, to whoever listens at that moment."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from foliot.bus.envelope import subject_token
from foliot.bus.live import Numbers, Piece, Readers, Subscription
from foliot.bus.nats_link import NatsLink
from foliot.common.cancellation import stop_tasks

if TYPE_CHECKING:
    from nats.aio.msg import Msg

PREFIX: Final = "foliot.live"
MOST_WAITING: Final = 4096


class _Wire(Struct, array_like=True):
    sender: str
    seq: int
    namespace: str
    run_id: str
    data: bytes


_decoder: Final = msgspec.msgpack.Decoder(_Wire)


class NatsLive:
    """Belongs to one event loop; the link is closed with it. While the server is away pieces are dropped."""

    def __init__(self, link: NatsLink) -> None:
        """Raises `UsageError` for options of the link that can never work."""
        self._link = link
        self._sender = secrets.token_hex(6)
        self._numbers = Numbers()
        self._readers = Readers(self._wake)
        self._outbox: deque[tuple[str, bytes]] = deque(maxlen=MOST_WAITING)
        self._subscribed: dict[Subscription, tuple[Any, Any]] = {}
        self._work = asyncio.Event()
        link.on_connect(self._wake)
        link.start()
        self._pump = asyncio.create_task(self._run())

    def publish(self, namespace: str, run_id: str, data: bytes) -> None:
        seq = self._numbers.next(namespace, run_id)
        wire = msgspec.msgpack.encode(_Wire(self._sender, seq, namespace, run_id, data))
        self._outbox.append((_subject(namespace, run_id), wire))
        self._wake()

    def subscribe(self, namespace: str, run_id: str | None = None) -> Subscription:
        return self._readers.add(namespace, run_id)

    async def close(self) -> None:
        self._readers.close()
        await stop_tasks(self._pump, again=0.5)
        await self._link.close()

    def _wake(self) -> None:
        self._work.set()

    async def _run(self) -> None:
        from nats.errors import Error

        patience = self._link.options.waits.attempt  # a silent connection takes nothing when its buffers are full
        while True:
            await self._work.wait()
            self._work.clear()
            client: Any = self._link.client  # its calls are only partly typed
            if client is None:
                self._outbox.clear()
                continue
            with suppress(Error, OSError, TimeoutError):
                async with asyncio.timeout(patience):
                    await self._attend(client)
                while self._outbox:
                    subject, wire = self._outbox.popleft()
                    if len(wire) <= client.max_payload:
                        async with asyncio.timeout(patience):
                            await client.publish(subject, wire)

    async def _attend(self, client: Any) -> None:
        """Subscribe for every reader, on this very client, and for no others."""
        wanted = set(self._readers)
        for reader in self._subscribed.keys() - wanted:
            _, subscription = self._subscribed.pop(reader)
            await subscription.unsubscribe()
        for reader in wanted:
            known, _ = self._subscribed.get(reader, (None, None))
            if known is not client:

                async def hear(message: Msg, reader: Subscription = reader) -> None:
                    with suppress(msgspec.DecodeError):
                        wire = _decoder.decode(message.data)
                        reader.put(Piece(wire.namespace, wire.run_id, wire.data, wire.seq, wire.sender))

                subscription = await client.subscribe(_subject(reader.namespace, reader.run_id), cb=hear)
                self._subscribed[reader] = (client, subscription)
                reader.hears()  # the server takes what is sent next after this


def _subject(namespace: str, run_id: str | None) -> str:
    """Names that differ only in what a subject cannot hold share one; readers look at what the piece says."""
    return f"{PREFIX}.{subject_token(namespace)}.{'*' if run_id is None else subject_token(run_id)}"
