"""Requests to an HTTP server: who calls is shown, where it goes is checked, and how much comes back is bounded.

A request that fails here (refused connection, blocked address, broken answer) becomes the failure of that request
alone. Left to itself, the SDK would end the whole session and with it every other call that is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import httpx2

from foliot.common.threads import on_thread
from foliot.errors import FoliotError
from foliot.kernel.json_texts import MOST_VALUES, has_more_values
from foliot.tools.base import AuthSpec, OnOutput, ToolUnreachable
from foliot.tools.mcp.process import ServerSpec
from foliot.tools.outbound.client import ToolAnswerTooLarge

# --- exchange --------------------------------------------------------------------------------------------------------

# What one request to a server met on its way: shared by the call that waits and the transport that works for it.
#
# The SDK reports an HTTP failure as a protocol error without its status, so the transport notes here what it saw. The
# context variable reaches it because the SDK carries the context of the caller with each message.


@dataclass(slots=True, eq=False)
class Exchange:
    """`status` is the HTTP status that refused the request; `failure` an error that kept it from being answered.

    `sent` is False as long as the server cannot have begun to act. `session_gone`: the server does not know our session
    any more, so it did nothing.
    """

    on_output: OnOutput | None = None
    status: int | None = None
    retry_after: float | None = None
    failure: FoliotError | None = None
    sent: bool = False
    session_gone: bool = False


EXCHANGE: ContextVar[Exchange | None] = ContextVar("foliot_mcp_exchange", default=None)


# --- http ------------------------------------------------------------------------------------------------------------

SESSION_HEADER: Final = "mcp-session-id"
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
BAD_GATEWAY: Final = 502
CONNECT_SECONDS: Final = 15.0
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")

Guard: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""`(host, port)` to the addresses that may be connected to; raises a `ToolError` when there are none."""


class Authorize(Protocol):
    """The headers that tell a server who calls. `rejected`: those given last were refused, so nothing kept may be used.

    Raises `ToolSecretMissing` or another `ToolError`.
    """

    async def __call__(self, auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]: ...


class ServerTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one server's session."""

    def __init__(
        self,
        server: ServerSpec,
        *,
        authorize: Authorize,
        guard: Guard | None,
        max_message: int,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = server
        self._authorize = authorize
        self._guard = guard
        self._max_message = max_message
        self._inner = inner or httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = EXCHANGE.get() or Exchange()
        try:
            return await self._send(request, exchange)
        except FoliotError as error:
            exchange.failure = error
        except httpx2.TransportError as error:
            exchange.failure = ToolUnreachable(
                f"{self._server} cannot be reached: {_words(error)}", hint="check spec.endpoint, and that it runs"
            )
        exchange.status = BAD_GATEWAY
        return httpx2.Response(BAD_GATEWAY, request=request)

    async def _send(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        await self._show_who_calls(request, rejected=False)
        response = await self._pass_on(request, exchange)
        if response.status_code == UNAUTHORIZED and self._server.auth is not None:
            shown = dict(request.headers)
            await self._show_who_calls(request, rejected=True)
            if dict(request.headers) != shown:
                await response.aclose()
                response = await self._pass_on(request, exchange)
        if request.method == "POST":  # the stream of a session may be refused; servers need not have one
            self._note(request, response, exchange)
        return response

    async def _show_who_calls(self, request: httpx2.Request, *, rejected: bool) -> None:
        if self._server.auth is not None:
            headers = await self._authorize(self._server.auth, self._server.namespace, rejected=rejected)
            request.headers.update(headers)

    async def _pass_on(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        outgoing = await self._pinned(request)
        try:
            response = await self._inner.handle_async_request(outgoing)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.TransportError:
            exchange.sent = True  # the request may have arrived although no answer did
            raise
        exchange.sent = response.status_code < 400 or response.status_code >= 500
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # Events are bounded one by one, and their size by the SDK; a stream of them may be long.
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        limit = None if events else self._max_message
        response.stream = BoundedStream(response.stream, limit, self._server, exchange)
        return response

    async def _pinned(self, request: httpx2.Request) -> httpx2.Request:
        """The request, aimed at an address that was checked: a name that resolves anew cannot lead elsewhere."""
        if self._guard is None:
            return request
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        addresses = await self._guard(host, port)
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=addresses[0]),
            headers=request.headers,  # with the Host header of the name
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )

    def _note(self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange) -> None:
        exchange.failure = None
        exchange.status = response.status_code if response.status_code >= 400 else None
        exchange.session_gone = response.status_code == NOT_FOUND and SESSION_HEADER in request.headers
        with suppress(ValueError):
            exchange.retry_after = float(response.headers.get("retry-after", ""))

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedStream(httpx2.AsyncByteStream):
    """A body of at most so many bytes, or events of any number, none of which has more values than are read in time.

    The SDK reads a message on the event loop. Whatever goes wrong with the body is the matter of this request.
    """

    def __init__(
        self, inner: httpx2.AsyncByteStream, limit: int | None, server: ServerSpec, exchange: Exchange
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._server = server
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        message = bytearray()
        judged = MOST_VALUES
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if self._limit is not None and size > self._limit:
                    raise self._too_large(f"{self._limit} bytes")
                known = max(len(message) - 3, 0)
                message += chunk
                begun = max(message.rfind(end, known) for end in _EVENT_ENDS) if self._limit is None else -1
                if begun >= 0:
                    del message[:begun]
                    judged = MOST_VALUES
                if len(message) > judged:  # looked through again when it is twice as long
                    judged = 2 * len(message)
                    if await on_thread(has_more_values, bytes(message)):
                        raise self._too_large(f"{MOST_VALUES} values")
                yield chunk
        except httpx2.TransportError as error:
            self._exchange.failure = ToolUnreachable(f"{self._server} broke off its answer: {_words(error)}")
            raise httpx2.StreamError("the answer was broken off") from error

    def _too_large(self, what: str) -> httpx2.StreamError:
        message = f"{self._server} answered with more than {what}"
        self._exchange.failure = ToolAnswerTooLarge(message)
        return httpx2.StreamError(message)

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(transport: ServerTransport) -> httpx2.AsyncClient:
    """A client that waits for answers as long as the call may take; its own limits are only for connecting."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    return httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
