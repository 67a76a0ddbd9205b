"""Requests that are done once by their key, by however many servers on one store, and what was answered to each.

A key is claimed before its request is done, and its answer is kept afterwards. The claim of a server that died lapses;
whether the request may then be done again is for whoever claims it to say. Of the key itself there is only a digest.
"""

from __future__ import annotations

import secrets
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from foliot.store.access.users import digest_of
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, one, run

Headers: TypeAlias = list[tuple[str, str]]
# A claim is believed for so many seconds without a sign of life, and an answer kept for so many.
HELD: Final = 60.0
KEPT: Final = 86_400.0
_headers: Final = msgspec.json.Decoder(Headers)


class Kept(Struct, frozen=True):
    """The stored answer to a request with a key."""

    status: int
    headers: Headers
    body: bytes


class Claimed(Struct, frozen=True):
    """The request is the claimer's to do. `broken`: another one began with it, and did not come to an end."""

    id: str
    claim: str
    broken: bool = False


class UnderWay(Struct, frozen=True):
    """Another request with the same key is in progress."""


class OtherRequest(Struct, frozen=True):
    """The key was used for something else."""


Found: TypeAlias = Kept | Claimed | UnderWay | OtherRequest


class SqlRequestKeys:
    """The idempotency keys of requests, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def clock(self) -> float:
        """The time that claims are judged by."""
        return self._db.lease_clock()

    async def claim(self, who: str, key: str, request: str, *, now: float) -> Found:
        """Claim a key of somebody for a request, of which `request` is a digest; or what is known of it."""
        id, claim = digest_of(f"{who}\0{key}"), secrets.token_hex(8)

        def body() -> Tx[Found]:
            yield from run("request_key_prune", now=now)
            times = {"held_until": now + HELD, "forget_at": now + KEPT}
            row: Row | None = None
            while row is None:  # whoever had it may give it up before it is locked
                if (yield from run("request_key_add", id=id, request=request, claim=claim, **times)):
                    return Claimed(id, claim)
                row = yield from one("request_key_get", id=id)
            if row["request"] != request:
                return OtherRequest()
            if row["status"] is not None:
                return Kept(row["status"], _headers.decode(row["headers"]), bytes(row["body"]))
            if row["held_until"] > now:
                return UnderWay()
            yield from run("request_key_take", id=id, claim=claim, held_until=now + HELD)
            return Claimed(id, claim, broken=True)

        return await self._db.write(body)

    async def hold(self, claimed: Claimed, *, until: float) -> bool:
        """Be believed until then; False when somebody else has it by now."""

        def body() -> Tx[int]:
            return (yield from run("request_key_hold", id=claimed.id, claim=claimed.claim, held_until=until))

        return bool(await self._db.write(body))

    async def answer(self, claimed: Claimed, kept: Kept) -> None:
        """Keep what was answered."""

        def body() -> Tx[int]:
            return (
                yield from run(
                    "request_key_answer",
                    id=claimed.id,
                    claim=claimed.claim,
                    status=kept.status,
                    headers=msgspec.json.encode(kept.headers).decode(),
                    body=kept.body,
                )
            )

        await self._db.write(body)

    async def drop(self, claimed: Claimed) -> None:
        """Deletes the key of a request that failed before it changed anything."""

        def body() -> Tx[int]:
            return (yield from run("request_key_drop", id=claimed.id, claim=claimed.claim))

        await self._db.write(body)
