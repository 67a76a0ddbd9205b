"""Answers that come in pieces: server-sent events, or one JSON value a line.

Pieces of the contract are numbered; a repeated one is dropped, a missing one is an error, and the first response ends
the call, whatever follows. In a stream of anything else each event is a line of the result.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, TypeVar

from foliot.threads import unhurried
from foliot.tools.base import OnOutput, ToolAnswerLost
from foliot.tools.contract import (
    ToolResponse,
    check_request_id,
    decode_output,
    decode_response,
    result_of,
)
from foliot.tools.masking import Masker
from foliot.tools.outbound.client import Answer

T = TypeVar("T")
EVENTS: Final = "text/event-stream"
LINES: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/jsonlines", "application/json-seq"}
)
_MARK: Final = '"tool_contract_version"'


def is_stream(media_type: str) -> bool:
    return media_type == EVENTS or media_type in LINES


async def read_stream(
    answer: Answer, *, masker: Masker, on_output: OnOutput | None, request_id: str | None, contract: bool
) -> Any:
    """The result at the end of a stream, masked; what comes before goes to `on_output`. Raises `ToolError`."""
    told: list[str] = []
    result = StreamedResult(masker, told.append if on_output else None, request_id=request_id, contract=contract)

    async def off_the_loop(size: int, work: Callable[[], T]) -> T:
        value = await unhurried(size, work)
        while told and on_output is not None:  # here, because it belongs to the loop
            on_output(told.pop(0))
        return value

    lines, size = _lines(answer), 0
    async for event in _events(lines) if answer.media_type == EVENTS else lines:
        size += len(event)
        if await off_the_loop(len(event), partial(result.feed, event)):
            break
    found = await off_the_loop(size, result.value)
    return await unhurried(size, masker.mask_value, found)


class StreamedResult:
    """Collects the events of one stream. Pure: `feed` it, then ask for its `value`."""

    def __init__(self, masker: Masker, on_output: OnOutput | None, *, request_id: str | None, contract: bool) -> None:
        self._shown = masker.stream()
        self._on_output = on_output
        self._request_id = request_id
        self._contract = contract
        self._pieces: list[str] = []
        self._last = 0
        self._response: ToolResponse | None = None

    def feed(self, event: str) -> bool:
        """Take one event; True when nothing more is needed. Raises `ToolError` for one that does not belong here."""
        event = event.strip("\r\n")
        if not event:
            return False
        if event.strip() == "[DONE]":
            return True
        if _MARK in event:
            return self._feed_contract(event)
        if self._contract or self._last:
            raise ToolAnswerLost("the stream holds something that is not of the contract")
        self._pieces.append(event + "\n")
        self._show(event + "\n")
        return False

    def value(self) -> Any:
        """What the call came to. Raises the error that the response reports, or `ToolError` when there is none."""
        rest = self._shown.flush()
        if rest and self._on_output is not None:
            self._on_output(rest)
        text = "".join(self._pieces)
        if self._response is not None:
            value = result_of(self._response)
            return text if value == "" else value
        if self._contract or self._last:
            raise ToolAnswerLost("the stream ended without a result")
        return text.removesuffix("\n")

    def _feed_contract(self, event: str) -> bool:
        output = decode_output(event)
        if output is None:
            response = decode_response(event)
            if self._request_id is not None:
                check_request_id(response, self._request_id)
            self._response = response
            return True
        if self._request_id is not None and output.request_id not in ("", self._request_id):
            raise ToolAnswerLost("a piece of output belongs to another request", retryable=False, field="request_id")
        if output.seq > self._last + 1:
            raise ToolAnswerLost(f"the stream lost a piece: {self._last} is followed by {output.seq}")
        if output.seq == self._last + 1:
            self._last = output.seq
            self._pieces.append(output.delta)
            self._show(output.delta)
        return False

    def _show(self, text: str) -> None:
        if self._on_output is not None and (ready := self._shown.feed(text)):
            self._on_output(ready)


async def _lines(answer: Answer) -> AsyncIterator[str]:
    """Lines of text; bytes that are none show as a replacement character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held: list[
        str
    ] = []  # of a line that has not ended; joined once, or a long line in small pieces would cost its square
    async for piece in answer.pieces():
        first, *whole = decoder.decode(piece).split("\n")
        held.append(first)
        for part in whole:
            yield "".join(held).removesuffix("\r").lstrip("\x1e")
            held = [part]
    held.append(decoder.decode(b"", final=True))
    if rest := "".join(held):
        yield rest.removesuffix("\r").lstrip("\x1e")


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """The data of server-sent events. Names, ids and comments say nothing about the result."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)
