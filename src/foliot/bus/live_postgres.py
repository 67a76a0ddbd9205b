"""Live pieces as notices of PostgreSQL, on one channel for each namespace.

A notice holds less than 8,000 bytes, so a larger piece travels in parts; one of more than `LARGEST` bytes is dropped,
and its number with it, so readers know that something is missing. Every process that reads a namespace gets all of it:
right for a console and a few workers. For many, use NATS.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from foliot.bus.live import Numbers, Piece, Readers, Subscription
from foliot.store.base import Notices

PART_BYTES: Final = 5000  # a third more in base64, and room for names
MOST_PARTS: Final = 8
LARGEST: Final = PART_BYTES * MOST_PARTS
_LARGEST_NOTICE: Final = 7999


class _Part(Struct, array_like=True):
    sender: str
    seq: int
    part: int
    parts: int
    namespace: str
    run_id: str
    data: bytes


_decoder: Final = msgspec.json.Decoder(_Part)


class PostgresLive:
    """Belongs to the event loop of the database, which is not closed with it."""

    def __init__(self, database: Notices) -> None:
        self._database = database
        self._sender = secrets.token_hex(6)
        self._numbers = Numbers()
        self._readers = Readers(self._attend)
        self._listening: dict[str, Callable[[], None]] = {}
        self._begun: dict[tuple[str, str], list[_Part]] = {}

    def publish(self, namespace: str, run_id: str, data: bytes) -> None:
        seq = self._numbers.next(namespace, run_id)
        if len(data) > LARGEST:
            return
        parts = max(1, -(-len(data) // PART_BYTES))
        channel = _channel(namespace)
        for part in range(parts):
            piece = data[part * PART_BYTES : (part + 1) * PART_BYTES]
            notice = msgspec.json.encode(_Part(self._sender, seq, part, parts, namespace, run_id, piece)).decode()
            if len(notice) <= _LARGEST_NOTICE:
                self._database.post(channel, notice)

    def subscribe(self, namespace: str, run_id: str | None = None) -> Subscription:
        return self._readers.add(namespace, run_id)

    async def close(self) -> None:
        self._readers.close()

    def _attend(self) -> None:
        """Listen to the namespaces that somebody reads, and to no others."""
        for namespace in self._readers.namespaces - self._listening.keys():
            self._listening[namespace] = self._database.listen(_channel(namespace), partial(self._hear, namespace))
        for namespace in self._listening.keys() - self._readers.namespaces:
            self._listening.pop(namespace)()
        if not self._listening:
            self._begun.clear()

    def _hear(self, namespace: str, notice: str | None) -> None:
        if notice is None:
            self._readers.hear(namespace)  # what was missed shows in the numbers
            return
        try:
            part = _decoder.decode(notice)
        except (msgspec.DecodeError, RecursionError):
            return  # not ours
        key = (part.sender, part.run_id)
        begun = self._begun.pop(key, [])
        if begun and (begun[0].seq, len(begun)) != (part.seq, part.part):
            begun = []
        if part.part != len(begun):
            return  # an earlier part is missing
        begun.append(part)
        if len(begun) < part.parts:
            if len(begun) < MOST_PARTS and len(self._begun) < 1000:
                self._begun[key] = begun
            return
        data = b"".join(each.data for each in begun)
        self._readers.put(Piece(part.namespace, part.run_id, data, part.seq, part.sender))


def _channel(namespace: str) -> str:
    """A name of at most 63 bytes. Two namespaces may share one; readers look at what the piece says."""
    return f"foliot_live_{blake2b(namespace.encode(), digest_size=12).hexdigest()}"
