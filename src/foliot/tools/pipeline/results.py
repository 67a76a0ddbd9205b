"""From what a backend returned or raised to the one result the model sees."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from foliot.common.threads import unhurried
from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.kernel.run.events import UnknownReason
from foliot.kernel.run.feedback import NOT_AGAIN
from foliot.tools.base import Effect, Invocation, OnOutput, ToolError, ToolUnreachable
from foliot.tools.pipeline.running import CallProgress, Handler

# --- failures --------------------------------------------------------------------------------------------------------

# Says of whatever a backend raised what kind of failure it is, after each attempt.

log = logging.getLogger(__name__)


# What HTTP libraries raise that functions use, by name, so that none of them has to be installed: the connection or the
# answer was lost, and among them what is raised before anything was sent.
LOST: Final = frozenset(
    {
        *("httpx.TransportError", "requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
        *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError", "urllib3.HTTPError"),
    }
)
UNSENT: Final = frozenset(
    {
        *("httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout", "httpx.UnsupportedProtocol"),
        *("requests.ConnectTimeout", "aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError"),
        *("urllib3.NewConnectionError", "urllib3.ConnectTimeoutError"),
    }
)


class Classify:
    """A `ToolError` is precise already; the rest goes by its type, never by its text, which the tool can choose."""

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        try:
            value = await next(call, running)
            running.returned = True
            return value
        except ToolError:
            raise
        except Exception as error:
            raise classified(error, call.tool) from error
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise  # told from outside, perhaps: whoever drives it can tell
        except BaseException as error:
            raise broke_off(error) from error


def classified(error: Exception, tool: str) -> ToolError:
    """The failure that an exception means. The stack goes to the log, not to the model."""
    if isinstance(error, ToolError):
        return error
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lost = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    unsent = isinstance(error, ConnectionRefusedError | socket.gaierror)
    if not lost:
        names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        lost, unsent = not names.isdisjoint(LOST), not names.isdisjoint(UNSENT)
    if lost:
        unreachable = ToolUnreachable(said)
        unreachable.before_effect = unsent
        return unreachable
    if isinstance(error, RecursionError | MemoryError):
        return ToolInternal(said, retryable=False)
    log.info("the tool %s raised", tool, exc_info=error)
    return ToolInternal(said)


class ToolInternal(ToolError):
    """The tool itself is at fault."""

    kind = "internal"


def broke_off(error: BaseException) -> ToolInternal:
    """The failure that an exception means which is none of `Exception`: nothing in the tool was ready for it.

    So it has not said how the call ended: it may have acted.
    """
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # its text is made by the tool
        said = type(error).__name__
    broken = ToolInternal(f"the tool broke off: {said}", retryable=False)
    broken.lost = True
    return broken


# --- results ---------------------------------------------------------------------------------------------------------

# A tool chooses the text of its errors; a model needs the beginning of it.
LONGEST_MESSAGE = 8_000
MAY_HAVE_ACTED = "it may have taken effect"
ACTED = "it has taken effect all the same"
SAME_REQUEST = "The same call again is the same request to the tool: it goes by the same idempotency key."

_encode = msgspec.json.Encoder(enc_hook=lambda value: _plain(value)).encode


def success_result(call: Invocation, value: object, note: str = "") -> ToolResult:
    """Text stays text, parts stay parts; every other value becomes JSON. A note is not added to that: programs read it.

    Raises `ToolError` for a value that cannot: the tool has acted, and whoever asked does not learn what came of it.
    """
    match value:
        case str():
            content: tuple[Text | Media, ...] = (Text(value),)
        case None:
            content, note = (Text("null"),), ""
        case Text() | Media():
            content = (value,)
        case tuple() | list() if value and all(isinstance(part, Text | Media) for part in value):  # pyright: ignore[reportUnknownVariableType] - narrowed by the guard
            content = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - see above
        case _:
            note = ""
            try:
                content = (Text(_encode(value).decode()),)
            except (TypeError, ValueError) as error:
                what = type(value).__name__
                raise ToolError(f"the tool returned {what}, which is not JSON: {error}", retryable=False) from error
    return noted(ToolResult(call.call_id, call.tool, content), note)


def failure_result(
    call: Invocation, error: Exception, unknown: UnknownReason | None = None, effect: Effect = "once"
) -> ToolResult:
    """The error as data. The text names the cause, so that the model can do better the next time.

    `unknown` says why nobody knows whether the call has acted; it is of no matter for a tool that only reads.
    """
    known = classified(error, call.tool)
    message = known.message if len(known.message) <= LONGEST_MESSAGE else f"{known.message[:LONGEST_MESSAGE]} […]"
    if unknown is None or effect == "read":
        failure = ToolFailure(
            known.code,
            known.reason,
            message,
            known.retryable,
            known.kind,
            known.details,
            before_effect=known.before_effect,
        )
        return ToolResult(call.call_id, call.tool, (Text(f"Error ({failure.code}): {failure.message}"),), failure)
    message = f"{message}; {ACTED if unknown == 'broken' and not known.lost else MAY_HAVE_ACTED}"
    failure = ToolFailure(
        known.code, known.reason, message, False, known.kind, known.details, unknown, call.idempotency_key
    )
    advice = SAME_REQUEST if effect == "idempotent" else NOT_AGAIN[0].upper() + NOT_AGAIN[1:]
    return ToolResult(call.call_id, call.tool, (Text(f"Error ({failure.code}): {message}. {advice}"),), failure)


def noted(result: ToolResult, note: str) -> ToolResult:
    """The result with a note of what stood around the call, in its text and in its error. A blank one adds nothing."""
    if not note:
        return result
    error = None if result.error is None else replace(result.error, message=f"{result.error.message}\n{note}")
    return replace(result, content=(*result.content, Text(note)), error=error)


def _plain(value: object) -> object:
    """Converts a returned value that is no JSON: pydantic models, paths, and whatever else pydantic can write."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__next__"):  # it may never end
        raise TypeError("return a list of what it gives")
    from pydantic_core import to_jsonable_python  # here, because almost nobody pays for it

    return to_jsonable_python(value)


# --- mask ------------------------------------------------------------------------------------------------------------

# Takes secrets out of whatever a tool answers, before anybody sees it.


class Stream(Protocol):
    def feed(self, text: str) -> str: ...

    def flush(self) -> str: ...


class ResultMasker(Protocol):
    """Knows the secrets of the process; see masking.py."""

    @property
    def knows_none(self) -> bool:
        """Whether there is nothing to take out of anything."""
        ...

    def mask(self, text: str) -> str:
        """The text without any secret."""
        ...

    def mask_result(self, result: ToolResult) -> ToolResult:
        """The result without any secret, in its texts and in its error."""
        ...

    def stream(self) -> Stream:
        """Returns a masker for a text in pieces: a secret may lie across two of them."""
        ...


class Mask:
    """A masker that breaks is not passed over: the result is lost then, and a failure takes its place."""

    def __init__(self, masker: ResultMasker) -> None:
        self._masker = masker

    def leaves(self, result: ToolResult) -> bool:
        return self._masker.knows_none

    async def __call__(self, call: Invocation, result: ToolResult) -> ToolResult:
        size = sum(len(part.text if isinstance(part, Text) else part.data or "") for part in result.content)
        return await unhurried(size, self._masker.mask_result, result)


def masked_output(masker: ResultMasker, heard: OnOutput) -> tuple[OnOutput, Callable[[], None]]:
    """Returns a masked sink for a tool's output, and the function to call at its end."""
    stream = masker.stream()

    def on_output(text: str) -> None:
        if safe := stream.feed(text):
            heard(safe)

    def ended() -> None:
        if rest := stream.flush():
            heard(rest)

    return on_output, ended


# --- truncate --------------------------------------------------------------------------------------------------------

# Keeps what a model reads short: the beginning and the end, and where the rest is.
#
# What was cut says so twice: where something is missing, with the way to the rest, and in its last line, which
# programs can look for: `…[truncated: <original> bytes → <limit>]`. With both it is never longer than the limit.


class StoreBlob(Protocol):
    """Keeps content for a run, and names it."""

    def __call__(self, data: bytes, /, *, run_id: str = "") -> Awaitable[str]: ...


LIMIT: Final = 50_000
# More than this is not kept at all: a tool that floods must not fill the disk.
MOST_KEPT: Final = 64 * 1024 * 1024
# The beginning says what it is, the end how it went; the beginning says more.
HEAD_SHARE: Final = 0.7
READER: Final = "read_result"
# Bytes of one in UTF-8.
LONGEST_CHARACTER: Final = 4
# The bytes of UTF-8 that do not begin a character.
_INSIDE: Final = bytes(range(0x80, 0xC0))


class Truncate:
    """`limit` is in bytes of UTF-8, over all texts of a result. Images and files are not touched."""

    def __init__(self, limit: int = LIMIT, store_blob: StoreBlob | None = None) -> None:
        self._limit = limit
        self._store_blob = store_blob

    def leaves(self, result: ToolResult) -> bool:
        content = result.content
        if len(content) == 1 and isinstance(part := content[0], Text):  # nearly all: nothing is to be put together
            return len(part.text) * LONGEST_CHARACTER <= self._limit or _size(part.text) <= self._limit
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
    """Decodes the beginning of a text, up to a whole character."""
    return data[: max(0, length)].decode("utf-8", "ignore")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
