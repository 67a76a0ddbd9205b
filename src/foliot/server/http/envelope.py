"""Around every request: its id, its limits, a line in the access log, and headers that keep browsers careful.

Pure ASGI, because it stands in the way of every request and every chunk of a stream. Whatever goes wrong inside comes
out as a problem; nothing of a traceback leaves the machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foliot.engine.telemetry.context import RequestContext
from foliot.errors import FoliotError
from foliot.server.context import CALLER
from foliot.server.errors import TooSlow
from foliot.server.http.heads import HeadLimits, RequestHead, new_id, read_head, request_id, too_large
from foliot.server.http.problems import Report, answer_to, problem_of

# --- access log ------------------------------------------------------------------------------------------------------

# One line per request, whatever became of it, with fields for programs that collect logs.
#
# Never the query, for people put secrets there, nor a header. Of a credential there is only the name that it stands
# for.

access = logging.getLogger("foliot.server.access")

# Nobody was left to be told.
GONE: Final = 499
LONGEST: Final = 512
_UNPRINTABLE: Final = re.compile(r"[^ -~]")


def tell(scope: Scope, method: str, *, request: str, status: int, seconds: float, sent: int) -> None:
    """Write the line of one request."""
    if not access.isEnabledFor(logging.INFO):
        return
    caller = scope.get(CALLER)
    fields = {
        "request": request,
        "method": method,
        # A line stays one line, whatever somebody writes into an address.
        "path": _UNPRINTABLE.sub("?", scope["path"])[:LONGEST],
        "status": status or GONE,
        "ms": round(seconds * 1000, 2),
        "bytes": sent,
        "client": (scope.get("client") or ("",))[0],
        "caller": caller.name if caller is not None else "",
    }
    access.info("%s %s %d", method, fields["path"], fields["status"], extra=fields)


def tell_refused(client: str, *, request: str, status: int, why: str) -> None:
    """Write the line of something that was no request."""
    fields = {"request": request, "status": status, "client": client}
    access.info("refused: %s", why, extra=fields)


# --- envelope --------------------------------------------------------------------------------------------------------

# --- cors ------------------------------------------------------------------------------------------------------------

# Which pages of other sites may call this server from a browser: those of the setting `cors_origins`, and no others.
#
# A browser asks first (a preflight). Only for an origin that is configured it is told yes; for all others the request
# is answered like any OPTIONS, without a word about origins, which is a no. There is no wildcard, and cookies are
# never allowed: a page elsewhere needs a token of its own.

_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_MAY_SEND: Final = (
    b"Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, Last-Event-ID, MCP-Protocol-Version, "
    b"MCP-Session-Id, Traceparent, X-Request-ID"
)
_MAY_SEE: Final = b"ETag, Location, MCP-Session-Id, Retry-After, X-Request-ID"
_REMEMBERED: Final = b"600"  # seconds that a browser need not ask again

Headers = list[tuple[bytes, bytes]]


class CrossOrigin:
    """The CORS headers for pages of these origins."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, origin: str) -> Headers:
        """Returns the headers for an answer to a page of this origin; only `vary` when it may not see it."""
        # Caches must keep the answers to different pages apart, also that to a page which gets none.
        told: Headers = [(b"vary", b"Origin")]
        if origin in self._origins:
            told += [(b"access-control-allow-origin", origin.encode()), (b"access-control-expose-headers", _MAY_SEE)]
        return told

    def answers(self, scope: Scope, origin: str) -> bool:
        """Whether this is a preflight of a page that may call."""
        return (
            scope["method"] == "OPTIONS"
            and origin in self._origins
            and any(name == b"access-control-request-method" for name, _ in scope["headers"])
        )

    async def preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Yes, for a while. Who sends what follows is asked then: nothing is allowed by this."""
        told = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _MAY_SEND),
            (b"access-control-max-age", _REMEMBERED),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": told})
        await send({"type": "http.response.body", "body": b""})


# --- envelope --------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

REQUEST_ID: Final = "foliot.request_id"
# Where a scope has a function that says whether the next part of the body is here, if its server says so.
IS_HERE: Final = "foliot.is_here"
# Sent unless the route says otherwise. Pages of the console bring their own policy.
CAREFUL: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
_CAREFUL_NAMES: Final = frozenset(name for name, _ in CAREFUL)
# A browser that was here by https does not come by http any more. It takes this over https only.
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
# Where images and files come with what is said.
MEDIA: Final = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens"})
# Somebody who sends a body more slowly than so is not sending one.
SLOWEST: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class RequestLimits(HeadLimits):
    """The limits of one request, and on the number of them. Times are in seconds.

    `media_body` is the size of a body where images and files come with what is said.
    A body must come within `body_within` and a second more for every `SLOWEST` bytes of it. `rate` requests a second
    and `burst` at once are for one caller, `auth_failures` a minute for one address; 0 is any number. `origins` are
    those whose pages may call. `https`: browsers reach the server by https, though something else ends TLS.
    """

    media_body: int = 48 * 1024 * 1024
    body_within: float = 30.0
    rate: float = 500.0
    burst: int = 2000
    auth_failures: float = 30.0
    origins: tuple[str, ...] = ()
    https: bool = False


class EnvelopeMiddleware:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, limits: RequestLimits | None = None, report: Report | None = None) -> None:
        """`report` makes the answer for an error of a request, a problem by default."""
        self._app = app
        self._limits = limits or RequestLimits()
        self._media_limits = replace(self._limits, body=max(self._limits.media_body, self._limits.body))
        self._report: Report = report or _problem
        self._cors = CrossOrigin(self._limits.origins) if self._limits.origins else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits = self._media_limits if scope["path"] in MEDIA else self._limits
        exchange = _Exchange(scope, receive, send, limits, self._cors)
        try:
            head = exchange.read_head()
            # Always set: a request may find the context of the one before it on the same connection.
            with RequestContext(exchange.id, head.trace):
                await self._pass_on(exchange)
        except FoliotError as error:
            await exchange.fail(self._report(scope, error))
        except ClientDisconnect:
            pass  # in the middle of its body: nobody is left to be told, and nothing went wrong here
        except Exception:
            with RequestContext(exchange.id):
                log.exception("request %s failed", exchange.id)
            detail = f"this server made a mistake; its log has more, under request {exchange.id}"
            await exchange.fail(self._report(scope, FoliotError(detail)))
        finally:
            exchange.tell()

    async def _pass_on(self, exchange: _Exchange) -> None:
        scope = exchange.scope
        app = self._app
        if self._cors is not None and self._cors.answers(scope, exchange.origin):
            app = self._cors.preflight
        elif scope["method"] == "HEAD":
            # Whatever can be read can be asked about. The server below sends no body, for it knows the real method.
            scope = exchange.scope = {**scope, "method": "GET"}
        try:
            await app(scope, exchange.receive, exchange.send)
        except (FoliotError, HTTPException) as error:
            if exchange.begun:
                log.exception("request %s failed in the middle of its answer", exchange.id)
            else:
                await exchange.fail(await answer_to(error, scope, self._report))


def _problem(_: Scope, error: FoliotError) -> Response:
    return problem_of(error)


class _Exchange:
    """One request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits, cors: CrossOrigin | None
    ) -> None:
        self.scope = scope
        self.id = ""
        self.origin = ""
        self._receive = receive
        self._send = send
        self._limits = limits
        self._cors = cors
        self._began = time.perf_counter()
        self._read = 0
        self._complete = False
        self._status = 0
        self._sent = 0
        self._method: str = scope["method"]
        self._bodiless = self._method == "HEAD"
        self._over = False

    def read_head(self) -> RequestHead:
        """Raises `Malformed`, `HeadersTooLarge`, `TooLarge` for what is refused before any of the body was read."""
        try:
            head = read_head(self.scope, self._limits)
        except FoliotError:
            self._named(request_id(self.scope))
            raise
        self._named(head.id or new_id())
        self.origin = head.origin
        return head

    @property
    def begun(self) -> bool:
        """Whether an answer is already under way."""
        return self._status != 0

    def _named(self, id: str) -> None:
        self.id = self.scope[REQUEST_ID] = id

    async def receive(self) -> Message:
        """The next part of the body, in time and within its limit."""
        if self._over:
            return {"type": "http.disconnect"}
        if self._complete:
            return await self._receive()
        # Counted from the beginning: a byte now and then does not keep a request alive.
        patience = self._limits.body_within + self._read / SLOWEST
        left = self._began + patience - time.perf_counter()
        is_here = self.scope.get(IS_HERE)
        if left > 0 and is_here is not None and is_here():
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout(left):
                    message = await self._receive()
            except TimeoutError:
                raise TooSlow(f"the body did not come within {patience:g} seconds") from None
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._read > self._limits.body:
                raise too_large(self._limits)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            names = {name for name, _ in given}
            if _CAREFUL_NAMES.isdisjoint(names):
                given += CAREFUL
            else:
                given += [pair for pair in CAREFUL if pair[0] not in names]
            if (self._limits.https or self.scope.get("scheme") == "https") and HSTS[0] not in names:
                given.append(HSTS)
            given.append((b"x-request-id", self.id.encode()))
            if self._cors is not None:
                given += self._cors.headers(self.origin)
            message = {"type": "http.response.start", "status": self._status, "headers": given}
        elif self._bodiless:
            await self._send_no_body()
            return
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    async def _send_no_body(self) -> None:
        """The end of an answer without a body: also for a stream, which is told that nobody listens."""
        if not self._over:
            self._over = True
            await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, response: ASGIApp) -> None:
        """Answer with a problem, unless an answer is already under way."""
        if not self._status:
            await response(self.scope, self._receive, self.send)

    def tell(self) -> None:
        seconds = time.perf_counter() - self._began
        tell(self.scope, self._method, request=self.id, status=self._status, seconds=seconds, sent=self._sent)
