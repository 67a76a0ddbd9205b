"""Keeps what a model reads short: the beginning and the end, and where the rest is."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from msgspec.structs import replace

from foliot.kernel.messages import Media, Text, ToolResult
from foliot.tools.base import Invocation

log = logging.getLogger(__name__)


class StoreBlob(Protocol):
    """Keeps content for a run, and names it."""

    def __call__(self, data: bytes, /, *, run_id: str = "") -> Awaitable[str]: ...


LIMIT: Final = 50_000
# More than this is not kept at all: a tool that floods must not fill the disk.
MOST_KEPT: Final = 64 * 1024 * 1024
# The beginning says what it is, the end how it went; the beginning says more.
HEAD_SHARE: Final = 0.7
READER: Final = "read_result"


class Truncate:
    """`limit` is in characters, over all texts of a result. Images and files are not touched."""

    def __init__(self, limit: int = LIMIT, store_blob: StoreBlob | None = None) -> None:
        self._limit = limit
        self._store_blob = store_blob

    def leaves(self, result: ToolResult) -> bool:
        return _length(result) <= self._limit

    async def __call__(self, call: Invocation, result: ToolResult) -> ToolResult:
        size = _length(result)
        if size <= self._limit:
            return result
        whole = result.text
        head = int(self._limit * HEAD_SHARE)
        tail = self._limit - head
        where = await self._keep(call, whole)
        left_out = f"\n\n[… {size - head - tail} of {size} characters left out; {where}]\n\n"
        text = Text(whole[:head] + left_out + whole[size - tail :])
        media: tuple[Media, ...] = tuple(part for part in result.content if isinstance(part, Media))
        error = result.error
        if error is not None and len(error.message) > self._limit:
            error = replace(error, message=error.message[: self._limit] + " […]")
        return replace(result, content=(text, *media), error=error)

    async def _keep(self, call: Invocation, whole: str) -> str:
        if self._store_blob is None:
            return "the rest was not kept"
        kept = whole.encode("utf-8", "replace")[:MOST_KEPT]
        try:
            digest = await self._store_blob(kept, run_id=call.run_id)
        except Exception:
            # The tool has acted and its answer is worth having, even when only part of it can be kept.
            log.warning("the full result of %s could not be kept", call.call_id, exc_info=True)
            return "the rest could not be kept"
        shown = call.caller.advertised
        if shown is not None and READER in shown:
            return f'read the rest with {READER}(call_id="{call.call_id}", offset=…); kept as {digest}'
        return f"the whole is kept as {digest}"


def _length(result: ToolResult) -> int:
    """Of all texts, in characters."""
    length = 0
    for part in result.content:
        if isinstance(part, Text):
            length += len(part.text)
    return length
