"""Messages that were taken: each once for its source, whatever session it went to.

A source is a channel, a hook or a schedule. The row is written in the transaction that says the message, or before a
command acts: whoever hands the same message on again gets what became of it, and never has it done a second time.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

from foliot.errors import Conflict
from foliot.kernel.routing import Address
from foliot.store.base import Database
from foliot.store.channels import store_notice
from foliot.store.portions import forget_old
from foliot.store.transaction import Row, Tx, one, run


class OtherWords(Conflict):
    """The id of a message or the key of an input was used before, for something else."""


class MessageKey(Struct, frozen=True):
    """The key of a message: its `id` is unique for its `source`, and `digest` tells whether it is the same message."""

    source: str
    id: str
    digest: str

    @property
    def row(self) -> str:
        """The id of its row: of bounded length, and the same for no other source and id."""
        return hashlib.sha256(f"{len(self.source)}:{self.source}:{self.id}".encode()).hexdigest()


class Taken(Struct, frozen=True):
    """The outcome of a message. `target` is the session that it was said to, or what its command acts on.

    A command without an `outcome` was begun, and may have been done.
    """

    target: str
    seq: int
    outcome: str
    reply: str


class TakenMessages:
    """The messages that an installation has taken."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def get(self, key: MessageKey) -> Taken | None:
        """Returns what became of a message; None for one that is new. Raises `OtherWords`."""
        found = await self._db.read("taken_get", id=key.row)
        return _taken(found[0], key) if found else None

    async def begin(self, key: MessageKey, target: str, *, now: float) -> Taken:
        """Takes a message that is a command, with what it acts on; or returns what is known of it. Raises `OtherWords`.

        Whoever does it again acts on the target that was stored first.
        """
        return await self._db.write(_begin, key, target, now)

    async def reply(
        self, key: MessageKey, notice: str, namespace: str, address: Address, text: str, *, now: float
    ) -> bool:
        """Ends a message with a reply, which is delivered under the key `notice`. False when it had ended before."""
        return await self._db.write(_reply, key, notice, namespace, address, text, now)

    async def prune(self, *, before: float) -> int:
        """Forgets messages that were taken before this time."""
        return await forget_old(self._db, "taken_prune", before=before)


def take_message(key: MessageKey, target: str, now: float) -> Tx[Taken | None]:
    """Takes a message for a target, as the first part of a transaction; returns what is known of one taken before.

    Raises `OtherWords`.
    """
    row = key.row
    if (yield from run("taken_add", id=row, source=key.source, digest=key.digest, target=target, at=now)):
        return None
    known = yield from one("taken_lock", id=row)
    return None if known is None else _taken(known, key)


def end_message(key: MessageKey, seq: int, outcome: str, reply: str = "") -> Tx[None]:
    """Stores what became of a message; part of the transaction that took it."""
    yield from run("taken_outcome", id=key.row, seq=seq, outcome=outcome, reply=reply)


def _begin(key: MessageKey, target: str, now: float) -> Tx[Taken]:
    known = yield from take_message(key, target, now)
    return known or Taken(target, 0, "", "")


def _reply(key: MessageKey, notice: str, namespace: str, address: Address, text: str, now: float) -> Tx[bool]:
    known = yield from take_message(key, "", now)
    if known is not None and known.outcome:
        return False
    yield from end_message(key, 0, "replied", text)
    yield from store_notice(notice, namespace, address, text, now)
    return True


def _taken(row: Row, key: MessageKey) -> Taken:
    if row["digest"] != key.digest:
        raise OtherWords(
            f"the message {key.id[:80]!r} came before, in other words", hint="give each message an id of its own"
        )
    return Taken(row["target"], row["seq"], row["outcome"], row["reply"])
