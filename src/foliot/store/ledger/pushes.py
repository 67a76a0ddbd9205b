"""Results that tools push, shared by all processes of an installation: who waits for one may not be who receives it.

A call that waits adds a row under its request id; whichever server process the push reaches answers the row, once, and
whoever waits finds it there. The rows are those of requests that are done once (`queries/request_keys.sql`), under ids
that no client can choose; what is forgotten there in time is forgotten here too.

The key that signs addresses is one for the store, made by whoever needs it first. It and the pushed bodies are sealed
like the values of Secrets: a result may hold anything.

Written by: tools/backends/callbacks.py.
"""

from __future__ import annotations

import secrets
from typing import Final

from foliot.errors import SecretError
from foliot.store.base import Database
from foliot.store.secrets.sealing import Sealer
from foliot.store.secrets.store_key import StoreKey
from foliot.store.transaction import Tx, one, run

KEY: Final = "callbacks.key"
_KEY_CONTEXT: Final = "store/callbacks-key"
_CLAIM: Final = "tool-push"
_TAKEN: Final = 202
# How long a row outlives the call that waited, should nobody be there to remove it.
_KEPT_SECONDS: Final = 3600.0


class StoredPushes:
    """Pushes by way of the store. Raises `Unavailable` when it does not answer, `SecretError` without its keys."""

    def __init__(self, database: Database, keys: StoreKey) -> None:
        self._database = database
        self._keys = keys

    async def key(self) -> bytes:
        """The key that signs addresses, the same for every process."""
        while True:
            ring = await self._keys.sealing()
            rows = await self._database.read("setting_get", name=KEY)
            sealed = str(rows[0]["value"]) if rows else ""
            try:
                if sealed:
                    return ring.open(sealed, context=_KEY_CONTEXT)
            except SecretError:
                pass  # sealed with a key that was given up since: addresses of before are no good any more
            made = ring.seal(secrets.token_bytes(32), context=_KEY_CONTEXT)
            await self._database.write(_put_key, sealed, made)

    async def expect(self, request_id: str, until: float) -> None:
        """Let a result be pushed until then. One that was pushed already stays."""
        await self._database.write(_expect, _row(request_id), until, until + _KEPT_SECONDS)

    async def take(self, request_id: str, body: bytes) -> bool:
        """Keep a result that was pushed. True exactly once for a request that is waited for."""
        ring = await self._keys.sealing()
        sealed = ring.seal(body, context=_row(request_id))
        return await self._database.write(_take, _row(request_id), sealed.encode())

    async def pushed(self, request_id: str) -> bytes | None:
        """The result, once it is there."""
        rows = await self._database.read("request_key_look", id=_row(request_id))
        if not rows or rows[0]["body"] is None:
            return None
        return (await self._keys.opening()).open(bytes(rows[0]["body"]).decode(), context=_row(request_id))

    async def forget(self, request_id: str) -> None:
        """Take no result any more."""
        await self._database.write(_forget, _row(request_id))


def _row(request_id: str) -> str:
    return f"tool-push {request_id}"


def _put_key(seen: str, made: str) -> Tx[None]:
    """Store a key in place of the one that was seen; of several who do that at once the first one wins."""
    if seen:
        row = yield from one("setting_turn", name=KEY)
        if row is not None and row["value"] == seen:
            yield from run("setting_put", name=KEY, value=made)
    else:
        yield from run("setting_new", name=KEY, value=made)


def reseal_key(ring: Sealer) -> Tx[None]:
    """Seal the key that signs with the one that is active now: addresses that were given out before stay good."""
    row = yield from one("setting_turn", name=KEY)
    if row is None:
        return
    try:
        key = ring.open(str(row["value"]), context=_KEY_CONTEXT)
    except SecretError:
        return  # sealed with a key that is lost: the next one who needs it makes another
    yield from run("setting_put", name=KEY, value=ring.seal(key, context=_KEY_CONTEXT))


def _expect(id: str, until: float, forget_at: float) -> Tx[None]:
    yield from run("request_key_add", id=id, request=_CLAIM, claim=_CLAIM, held_until=until, forget_at=forget_at)


def _take(id: str, body: bytes) -> Tx[bool]:
    return (yield from run("request_key_answer", id=id, claim=_CLAIM, status=_TAKEN, headers="", body=body)) == 1


def _forget(id: str) -> Tx[None]:
    yield from run("request_key_end", id=id, claim=_CLAIM)
