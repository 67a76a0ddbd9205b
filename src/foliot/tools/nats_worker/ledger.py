"""The ledger of executions: each completed outcome is kept before it is published.

Each caller (`owner`) has a space of its own: ids are chosen by callers, and nobody finds or takes another's.

A call may be delivered more than once. With the ledger it runs once all the same: what is there is published again. A
key is written once and never changed. For a tool that must not be repeated, the start is noted too: a start without an
outcome means that somebody died in between, and nobody can know what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from foliot.errors import FoliotError, Unavailable
from foliot.tools.nats_worker.messages import VERSION, CallMessage, ResultMessage, fingerprint, outcome_key, started_key

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

BUCKET: Final = "AGENT_TOOL_OUTCOMES"
KEPT_SECONDS: Final = 7 * 24 * 3600.0


class ExecutionRecord(Struct, frozen=True):
    version: str
    execution_id: str
    request_id: str
    call_id: str
    call_ordinal: int
    fingerprint: str
    result: ResultMessage


class _Started(Struct, frozen=True):
    version: str
    execution_id: str
    fingerprint: str


class Collision(FoliotError):
    """The same execution id with other content."""


class Corrupt(FoliotError):
    """A stored outcome cannot be read."""


class StoreFailed(Unavailable):
    """The store does not answer, or does not take it. `operation` and `too_large` say more."""

    def __init__(self, operation: Literal["get", "create", "read_winner"], *, too_large: bool = False) -> None:
        super().__init__(f"the outcome store failed ({operation})")
        self.operation = operation
        self.too_large = too_large


_encode = msgspec.json.Encoder(enc_hook=str).encode
_record = msgspec.json.Decoder(ExecutionRecord)
_started = msgspec.json.Decoder(_Started)


class Ledger:
    """A ledger on a JetStream key-value bucket, so that every server of a deployment sees the same."""

    def __init__(self, bucket: KeyValue, *, largest: int) -> None:
        self._bucket = bucket
        self._largest = largest

    @classmethod
    async def open(cls, js: Any, *, bucket: str = BUCKET, largest: int, seconds: float = KEPT_SECONDS) -> Ledger:
        """Make the bucket, or take the one that is there."""
        from nats.js.api import KeyValueConfig
        from nats.js.errors import NotFoundError

        try:
            found = await js.key_value(bucket)
        except NotFoundError:
            found = await js.create_key_value(KeyValueConfig(bucket=bucket, history=1, ttl=seconds))
        return cls(found, largest=largest)

    async def find(self, call: CallMessage, owner: str) -> ResultMessage | None:
        """The outcome of this call. Raises `Collision`, `Corrupt`, `StoreFailed`."""
        data = await self._get(outcome_key(call.execution_id, owner), "get")
        return None if data is None else _checked(data, call)

    async def began(self, call: CallMessage, owner: str) -> bool:
        """Whether somebody has begun this call. Raises as `find`."""
        data = await self._get(started_key(call.execution_id, owner), "get")
        if data is None:
            return False
        try:
            started = _started.decode(data)
        except msgspec.DecodeError:
            raise Corrupt(f"the start of {call.execution_id} cannot be read") from None
        if started.fingerprint != fingerprint(call):
            raise Collision(f"{call.execution_id} was begun with other content")
        return True

    async def begin(self, call: CallMessage, owner: str) -> bool:
        """Note that the call is about to act; False when another one has done so. Raises `StoreFailed`."""
        note = _Started(VERSION, call.execution_id, fingerprint(call))
        return await self._create(started_key(call.execution_id, owner), _encode(note))

    async def keep(self, call: CallMessage, result: ResultMessage, owner: str) -> ResultMessage:
        """Keep the outcome; the one that counts, which is another when somebody was faster.

        Raises `StoreFailed`, with `too_large` when it can never be kept.
        """
        record = ExecutionRecord(
            VERSION, call.execution_id, call.request_id, call.id, call.call_ordinal, fingerprint(call), result
        )
        data = _encode(record)
        if len(data) > self._largest:
            raise StoreFailed("create", too_large=True)
        if await self._create(outcome_key(call.execution_id, owner), data):
            return result
        winner = await self._get(outcome_key(call.execution_id, owner), "read_winner")
        if winner is None:
            raise StoreFailed("read_winner")
        return _checked(winner, call)

    async def _get(self, key: str, operation: Literal["get", "read_winner"]) -> bytes | None:
        from nats.errors import Error
        from nats.js.errors import KeyNotFoundError

        try:
            return (await self._bucket.get(key)).value
        except KeyNotFoundError:
            return None
        except (Error, TimeoutError):
            raise StoreFailed(operation) from None

    async def _create(self, key: str, data: bytes) -> bool:
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import KeyWrongLastSequenceError

        try:
            await self._bucket.create(key, data)
        except KeyWrongLastSequenceError:
            return False
        except MaxPayloadError:
            raise StoreFailed("create", too_large=True) from None
        except (Error, TimeoutError):
            raise StoreFailed("create") from None
        return True


def _checked(data: bytes, call: CallMessage) -> ResultMessage:
    try:
        record = _record.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Corrupt(f"the outcome of {call.execution_id} cannot be read") from None
    if record.version != VERSION or record.execution_id != call.execution_id:
        raise Corrupt(f"the outcome of {call.execution_id} is of another version, or of another call")
    if record.fingerprint != fingerprint(call):
        raise Collision(f"{call.execution_id} was run with other content")
    return record.result
