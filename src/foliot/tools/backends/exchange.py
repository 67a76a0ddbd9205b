"""One authorised request of a tool, and what the status of its answer means.

Shared by all backends that speak HTTP, so that a status means the same whichever of them met it.
"""

from __future__ import annotations

import base64
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from foliot.common.threads import unhurried
from foliot.kernel.messages import Media
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolAnswerLost,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolTimeout,
    before_effect,
)
from foliot.tools.contract import (
    ToolResponse,
    check_request_id,
    decode_output,
    decode_response,
    is_envelope,
    result_of,
)
from foliot.tools.errors import LONGEST_WAIT, retry_seconds
from foliot.tools.outbound.client import OutboundAnswer, OutboundClient, decoded
from foliot.tools.secrets.auth import CallAuth, Credentials
from foliot.tools.secrets.masking import Masker

_EXCERPT: Final = 400
_ERROR_BODY: Final = 16 * 1024
# Not the tool's own word: what stands before it heard nothing from it, or lost the connection to it.
_FROM_A_GATEWAY: Final = frozenset({502, 504})


class ToolExchange:
    """Requests of one tool."""

    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: CallAuth) -> None:
        self._definition = definition
        self._client = client
        self._auth = auth

    @property
    def masker(self) -> Masker:
        return self._auth.masker

    @asynccontextmanager
    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[OutboundAnswer]:
        """The answer of a server that did not refuse. Raises the error that its status means.

        When the credentials are not accepted (401), they are looked up once more (a token is fetched anew, a secret may
        have been changed meanwhile), and if there are others the request is made once more: the server did nothing the
        first time.
        """
        tool = self._definition
        patience = self._client.patience.of(tool.timeout)
        with before_effect():
            used = await self._credentials()
        for last in (False, True):
            async with self._client.send(
                method, url, headers=headers, credentials=used.headers, body=body, patience=patience
            ) as answer:
                if answer.status == 401 and tool.auth is not None and not last:
                    refused, used = used, await self._renewed(used)
                    if used.headers != refused.headers:
                        continue
                if answer.status >= 300:
                    raise await self._refusal(answer)
                yield answer
                return

    async def _credentials(self) -> Credentials:
        tool = self._definition
        return await self._auth.credentials(tool.auth, namespace=tool.namespace, tool=tool.name)

    async def _renewed(self, refused: Credentials) -> Credentials:
        self._auth.evict(self._definition.auth, refused)
        return await self._credentials()

    async def _refusal(self, answer: OutboundAnswer) -> ToolError:
        body = (await answer.beginning(_ERROR_BODY)).decode(errors="replace")
        # First redacted, then cut: the half of a secret would not be recognised.
        return status_error(self._definition.name, answer.status, answer.headers, self.masker.redact(body))


def status_error(tool: str, status: int, headers: Mapping[str, str], body: str) -> ToolError:
    """Translates an HTTP status into the error of a call."""
    excerpt = body.strip().encode()[:_EXCERPT].decode(errors="ignore")
    message = f"tool={tool} HTTP {status}: {excerpt}"
    details: dict[str, Any] = {"tool": tool, "http_status": str(status)}
    match status:
        case 401:
            return ToolAuthInvalid(message, **details)
        case 403:
            return ToolAuthForbidden(message, **details)
        case 429:
            error: ToolError = ToolRateLimited(message, **details)
        case _:
            error = ToolError(message, retryable=status >= 500, **details)
            error.lost = status in _FROM_A_GATEWAY
    error.retry_after = retry_after(headers)
    return error


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The wait that a server asks for, in seconds, at most an hour; None when it asks for none."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    seconds = retry_seconds(text)
    if seconds is not None:
        return seconds
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - (time.time() if now is None else now), 0.0), LONGEST_WAIT)


def endpoint_of(definition: ToolDefinition) -> str:
    """Returns the endpoint of the tool. Raises `ToolPolicyInvalid` when it has none."""
    if not definition.endpoint.strip():
        raise ToolPolicyInvalid(
            f"tool {definition.name!r} has no endpoint", hint="set spec.endpoint of the Tool", tool=definition.name
        )
    return definition.endpoint.strip()


def check_deadline(call: Invocation) -> None:
    """Raises `ToolTimeout` when nobody waits for the result any more: then nothing is begun."""
    if call.deadline is not None and time.time() >= call.deadline:
        late = ToolTimeout(f"the deadline of {call.tool!r} had passed before the tool was asked", sent="no")
        late.before_effect = True
        raise late


@contextmanager
def explained(masker: Masker, **details: str) -> Generator[None]:
    """Adds the place to errors raised inside, and masks secrets in them."""
    try:
        yield
    except ToolError as error:
        for key, value in details.items():
            error.details.setdefault(key, value)
        masker.scrub(error)
        raise


# --- stream ----------------------------------------------------------------------------------------------------------

# Answers that come in pieces: server-sent events, or one JSON value a line.
#
# Pieces of the contract are numbered; a repeated one is dropped, a missing one is an error, and the first response
# ends the call, whatever follows. In a stream of anything else each event is a line of the result.

T = TypeVar("T")
EVENTS: Final = "text/event-stream"
LINES: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/jsonlines", "application/json-seq"}
)
_MARK: Final = '"tool_contract_version"'


def is_stream(media_type: str) -> bool:
    return media_type == EVENTS or media_type in LINES


async def read_stream(
    answer: OutboundAnswer, *, masker: Masker, on_output: OnOutput | None, request_id: str | None, contract: bool
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
        """Returns the result of the call.

        Raises the error that the response reports, or `ToolError` when there is none.
        """
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


async def _lines(answer: OutboundAnswer) -> AsyncIterator[str]:
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


# --- answers ---------------------------------------------------------------------------------------------------------

# From the body of an answer to the value of a call.

_MEDIA: Final = ("image/", "audio/", "video/", "font/", "model/")
_BINARY: Final = frozenset({"application/pdf", "application/zip", "application/gzip", "application/x-tar"})
_UNTYPED: Final = frozenset({"application/octet-stream", "binary/octet-stream"})
_answers_MARK: Final = b'"tool_contract_version"'


async def plain_value(answer: OutboundAnswer, masker: Masker, on_output: OnOutput | None) -> Any:
    """Reads the answer of any tool: text as it is, files as parts, and an envelope only if it declares itself one."""
    if is_stream(answer.media_type):
        return await read_stream(answer, masker=masker, on_output=on_output, request_id=None, contract=False)
    body = await answer.read()
    return await unhurried(len(body), _plain, answer.media_type, answer.charset, body, masker)


def _plain(media_type: str, charset: str | None, body: bytes, masker: Masker) -> Any:
    if _is_file(media_type, body):
        return _media(media_type, body, masker)
    if _answers_MARK in body and is_envelope(_json(body)):
        return masker.mask_value(result_of(decode_response(body)))
    return masker.mask(decoded(body, charset).strip())


async def contract_value(answer: OutboundAnswer, masker: Masker, on_output: OnOutput | None, request_id: str) -> Any:
    """Reads the answer of a tool that speaks the contract. Raises `ToolError`, retryable, when it is no envelope."""
    if is_stream(answer.media_type):
        return await read_stream(answer, masker=masker, on_output=on_output, request_id=request_id, contract=True)
    body = await answer.read()
    return await unhurried(len(body), _contract, body, masker, request_id)


def _contract(body: bytes, masker: Masker, request_id: str) -> Any:
    response = decode_response(body)
    check_request_id(response, request_id)
    return masker.mask_value(result_of(response))


def _is_file(media_type: str, body: bytes) -> bool:
    if media_type == "image/svg+xml":
        return False
    if media_type.startswith(_MEDIA) or media_type in _BINARY:
        return True
    if media_type not in _UNTYPED:
        return False
    try:
        return "\0" in body.decode()
    except UnicodeDecodeError:
        return True


def _media(media_type: str, body: bytes, masker: Masker) -> Media:
    data = base64.b64encode(body).decode()
    # A file cannot be masked without being broken.
    if masker.mask(data) != data or masker.mask(body.decode("latin-1")) != body.decode("latin-1"):
        raise ToolAnswerLost("the tool answered with a file that holds a secret; it was not used", retryable=False)
    return Media(media_type, data=data)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
