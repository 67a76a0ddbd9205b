"""Hands every decision and every result to whoever keeps records: audit, metering, traces."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from foliot.kernel.messages import ToolResult
from foliot.tools.base import Invocation, Parked, ToolDefinition, ToolError
from foliot.tools.governance.rules import Verdict

log = logging.getLogger(__name__)

Moment: TypeAlias = Literal["admitted", "parked", "refused", "finished"]
UNREADABLE: Final = b'{"(left out)":"cannot be written as JSON"}'
_encode: Final = msgspec.json.Encoder().encode


def snapshot(arguments: dict[str, Any]) -> bytes:
    """The arguments as they are now: a tool is handed the same object, and may change it."""
    try:
        return _encode(arguments)
    except Exception:  # whatever a model can write must not keep a record from being made
        return UNREADABLE


class CallRecord(Struct, frozen=True, gc=False):
    """The record of one call at one moment. `asks` are the rules that wanted an approval; `seconds` of the finish.

    `arguments` is the JSON that was decided about; when it is empty, those of `call` have not been out of hand since.
    """

    moment: Moment
    call: Invocation
    definition: ToolDefinition | None
    at: float
    asks: tuple[Verdict, ...] = ()
    parked: Parked | None = None
    result: ToolResult | None = None
    attempts: int = 0
    seconds: float = 0.0
    arguments: bytes = b""


class Recorder(Protocol):
    def record(self, entry: CallRecord) -> Awaitable[None] | None:
        """Keep it; None when there is nothing to wait for.

        What this raises, or what is waited for, is told; for a tool whose records are required it refuses the call.
        """
        ...


class RecordRefused(ToolError):
    """A required record could not be kept."""

    kind = "internal"
    retryable = False


class Recorders:
    """Several recorders, one after another. A broken one does not keep the others from hearing."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = tuple(recorders)

    def __call__(self, entry: CallRecord) -> Awaitable[None] | None:
        """Records the entry. Raises `RecordRefused`, here or when awaited, if a required record was not kept."""
        waits: list[Awaitable[None]] = []
        failed: Exception | None = None
        for recorder in self._recorders:
            try:
                kept = recorder.record(entry)
            except Exception as error:
                failed = _told(error, entry)
            else:
                if kept is not None:
                    waits.append(kept)
        if waits:
            return _wait(waits, entry, failed)
        if failed is not None:
            _refuse_if_required(entry, failed)
        return None


async def _wait(waits: Sequence[Awaitable[None]], entry: CallRecord, failed: Exception | None) -> None:
    for kept in waits:
        try:
            await kept
        except Exception as error:
            failed = _told(error, entry)
    if failed is not None:
        _refuse_if_required(entry, failed)


def _told(error: Exception, entry: CallRecord) -> Exception:
    log.warning("the record of call %s (%s) was not kept", entry.call.call_id, entry.moment, exc_info=error)
    return error


def _refuse_if_required(entry: CallRecord, failed: Exception) -> None:
    definition = entry.definition
    if definition is not None and definition.record == "required":
        acted = " although it has acted" if entry.moment == "finished" else ", so it is not run"
        raise RecordRefused(f"the call of {entry.call.tool!r} cannot be recorded{acted}", layer="record") from failed
