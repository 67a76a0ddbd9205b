"""Requests that are done once by their key, by however many servers on one store, and what was answered to each.

A key is claimed before its request is done, and its answer is kept afterwards. The claim of a server that died lapses;
whether the request may then be done again is for whoever claims it to say. Of the key itself there is only a digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from foliot.common.cancellation import stop_tasks
from foliot.errors import Conflict, FoliotError
from foliot.store.access.users import digest_of
from foliot.store.base import Database
from foliot.store.portions import FORGOTTEN_AT_ONCE
from foliot.store.transaction import Row, Tx, one, run

Headers: TypeAlias = list[tuple[str, str]]
# A claim is believed for so many seconds without a sign of life, and an answer kept for so many.
HELD: Final = 60.0
KEPT: Final = 86_400.0
# A second request waits so long for the answer to the first before it is refused.
PATIENCE: Final = 10.0
LOOK_EVERY: Final = 0.1
_headers: Final = msgspec.json.Decoder(Headers)


class KeptAnswer(Struct, frozen=True):
    """The stored answer to a request with a key."""

    status: int
    headers: Headers
    body: bytes


class ClaimedKey(Struct, frozen=True):
    """The request is the claimer's to do. `broken`: another one began with it, and did not come to an end."""

    id: str
    claim: str
    broken: bool = False


class UnderWay(Struct, frozen=True):
    """Another request with the same key is in progress."""


class OtherRequest(Struct, frozen=True):
    """The key was used for something else."""


Found: TypeAlias = KeptAnswer | ClaimedKey | UnderWay | OtherRequest


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
            yield from run("request_key_prune", now=now, count=FORGOTTEN_AT_ONCE)
            times = {"held_until": now + HELD, "forget_at": now + KEPT}
            row: Row | None = None
            while row is None:  # whoever had it may give it up before it is locked
                if (yield from run("request_key_add", id=id, request=request, claim=claim, **times)):
                    return ClaimedKey(id, claim)
                row = yield from one("request_key_get", id=id)
                if row is not None and row["forget_at"] <= now:  # nobody has come to forget it
                    yield from run("request_key_lapse", id=id, now=now)
                    row = None
            if row["request"] != request:
                return OtherRequest()
            if row["status"] is not None:
                return KeptAnswer(row["status"], _headers.decode(row["headers"]), bytes(row["body"]))
            if row["held_until"] > now:
                return UnderWay()
            yield from run("request_key_take", id=id, claim=claim, held_until=now + HELD)
            return ClaimedKey(id, claim, broken=True)

        return await self._db.write(body)

    async def obtain(
        self, who: str, key: str, request: str, *, stop: Callable[[], bool] = lambda: False
    ) -> KeptAnswer | ClaimedKey:
        """The claim, or the answer; while another request with the key is in progress, that is waited for.

        `stop` ends the waiting early. Raises `Conflict`.
        """
        until = time.monotonic() + PATIENCE
        while True:
            match await self.claim(who, key, request, now=self.clock()):
                case KeptAnswer() | ClaimedKey() as found:
                    return found
                case OtherRequest():
                    raise Conflict(
                        "this idempotency key was used for another request", hint="a key belongs to one request"
                    )
                case UnderWay():
                    if time.monotonic() >= until or stop():
                        raise Conflict(
                            "the first request with this key is under way", hint="ask again in a moment", retryable=True
                        )
                    await asyncio.sleep(LOOK_EVERY)

    @contextlib.asynccontextmanager
    async def kept_alive(self, claimed: ClaimedKey) -> AsyncGenerator[None]:
        """Renew the claim for as long as this process works on the request."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(HELD / 3)
                with contextlib.suppress(FoliotError):  # the store may be back in time
                    await self.hold(claimed, until=self.clock() + HELD)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            await stop_tasks(renewing)

    async def give_up(self, claimed: ClaimedKey, *, changed_nothing: bool) -> None:
        """Drop the claim of a request that changed nothing; mark any other as broken, so that nobody waits for it."""
        with contextlib.suppress(FoliotError):  # then the claim lapses by itself
            if changed_nothing:
                await self.drop(claimed)
            else:
                await self.hold(claimed, until=0.0)

    async def hold(self, claimed: ClaimedKey, *, until: float) -> bool:
        """Be believed until then; False when somebody else has it by now."""

        def body() -> Tx[int]:
            return (yield from run("request_key_hold", id=claimed.id, claim=claimed.claim, held_until=until))

        return bool(await self._db.write(body))

    async def answer(self, claimed: ClaimedKey, kept: KeptAnswer) -> None:
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

    async def drop(self, claimed: ClaimedKey) -> None:
        """Deletes the key of a request that failed before it changed anything."""

        def body() -> Tx[int]:
            return (yield from run("request_key_drop", id=claimed.id, claim=claimed.claim))

        await self._db.write(body)
