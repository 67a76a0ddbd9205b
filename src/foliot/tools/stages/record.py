"""Hands every decision and every result to whoever keeps records: audit, metering, traces."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from foliot.kernel.messages import ToolResult
from foliot.tools.base import Invocation, Parked, ToolDefinition, ToolError
from foliot.tools.verdict import Verdict

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
    """What became of one call at one moment. `asks` are the rules that wanted an approval; `seconds` of the finish.

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
    async def record(self, entry: CallRecord) -> None:
        """Keep it. What this raises is told, or for a tool whose records are required, refuses the call."""
        ...


class Unrecorded(ToolError):
    """A required record could not be kept."""

    kind = "internal"
    retryable = False


class Record:
    """Several recorders, one after another. A broken one does not keep the others from hearing."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = tuple(recorders)

    async def __call__(self, entry: CallRecord) -> None:
        """Raises `Unrecorded` when the tool's records are required and one could not be kept."""
        failed: Exception | None = None
        for recorder in self._recorders:
            try:
                await recorder.record(entry)
            except Exception as error:
                log.warning("the record of call %s (%s) was not kept", entry.call.call_id, entry.moment, exc_info=True)
                failed = error
        definition = entry.definition
        if failed is not None and definition is not None and definition.record == "required":
            acted = " although it has acted" if entry.moment == "finished" else ", so it is not run"
            raise Unrecorded(f"the call of {entry.call.tool!r} cannot be recorded{acted}", layer="record") from failed
