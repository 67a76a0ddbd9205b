"""Keeps what a model reads short: the beginning and the end, and where the rest is.

What was cut says so twice: where something is missing, with the way to the rest, and in its last line, which programs
can look for: `…[truncated: <original> bytes → <limit>]`. With both it is never longer than the limit.
"""

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
# The bytes of UTF-8 that do not begin a character.
_INSIDE: Final = bytes(range(0x80, 0xC0))


class Truncate:
    """`limit` is in bytes of UTF-8, over all texts of a result. Images and files are not touched."""

    def __init__(self, limit: int = LIMIT, store_blob: StoreBlob | None = None) -> None:
        self._limit = limit
        self._store_blob = store_blob

    def leaves(self, result: ToolResult) -> bool:
        return _size(result.text) <= self._limit

    async def __call__(self, call: Invocation, result: ToolResult) -> ToolResult:
        if self.leaves(result):
            return result
        whole = result.text
        text = Text(_cut(whole, await self._keep(call, whole), self._limit))
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


def _cut(whole: str, where: str, limit: int) -> str:
    """The beginning and the end of a text, in all at most `limit` bytes."""
    size, data = len(whole), whole.encode("utf-8", "replace")
    mark = f"\n…[truncated: {len(data)} bytes → {limit}]"
    left_out = "\n\n[… {} of {} characters left out; {}]\n\n"
    room = limit - _size(mark) - _size(left_out.format(size, size, where))
    if room <= 0:  # too little to say where the rest is, or even that it was cut
        return _begin(data, limit - _size(mark)) + mark if limit >= _size(mark) else _begin(mark.encode(), limit)
    head = _begin(data, int(room * HEAD_SHARE))
    end = data[len(data) - (room - _size(head)) :]
    tail = end.lstrip(_INSIDE).decode()  # not from the middle of a character
    return head + left_out.format(size - len(head) - len(tail), size, where) + tail + mark


def _begin(data: bytes, length: int) -> str:
    """As much of a text as fits, up to a whole character."""
    return data[: max(0, length)].decode("utf-8", "ignore")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
