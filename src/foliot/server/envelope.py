"""Around every request: its id, its limits, a line in the access log, and headers that keep browsers careful.

Pure ASGI, because it stands in the way of every request and every chunk of a stream. Whatever goes wrong inside comes
out as a problem; nothing of a traceback leaves the machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foliot.errors import FoliotError
from foliot.server.context import CALLER
from foliot.server.errors import HeadersTooLarge, TooLarge, TooSlow
from foliot.server.problems import problem, problem_of

log = logging.getLogger(__name__)
access = logging.getLogger("foliot.server.access")

REQUEST_ID: Final = "foliot.request_id"
_GOOD_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# Sent unless the route says otherwise. Pages of the console bring their own policy.
_CAREFUL: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may be. Times are in seconds."""

    body: int = 4 * 1024 * 1024
    headers: int = 32 * 1024
    header_count: int = 100
    path: int = 4096
    body_within: float = 30.0


class Envelope:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, limits: Limits | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        try:
            exchange.check()
            await self._app(scope, exchange.receive, exchange.send)
        except FoliotError as error:
            await exchange.fail(problem_of(error))
        except Exception:
            log.exception("request %s failed", exchange.id)
            detail = f"this server made a mistake; its log has more, under request {exchange.id}"
            await exchange.fail(problem(500, "internal", detail))
        finally:
            exchange.tell()


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limits = limits
        self._began = time.perf_counter()
        self._read = 0
        self._complete = False
        self._status = 0
        self._sent = 0
        self.id = _request_id(scope)
        scope[REQUEST_ID] = self.id

    def check(self) -> None:
        """Raises `HeadersTooLarge`, `TooLarge` for what is too much before any of the body was read."""
        headers: list[tuple[bytes, bytes]] = self._scope["headers"]
        limits = self._limits
        if len(headers) > limits.header_count or sum(len(k) + len(v) for k, v in headers) > limits.headers:
            raise HeadersTooLarge("the headers are too large", hint=f"at most {limits.headers} bytes in all")
        if len(self._scope.get("raw_path") or b"") + len(self._scope["query_string"]) > limits.path:
            raise TooLarge("the address is too long", hint=f"at most {limits.path} bytes")
        for name, value in headers:
            if name == b"content-length" and (not value.isdigit() or int(value) > limits.body):
                raise self._too_large()

    async def receive(self) -> Message:
        """The next part of the body, in time and within its limit."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._limits.body_within):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(f"the body did not come within {self._limits.body_within:g} seconds") from None
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._read > self._limits.body:
                raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            names = {name for name, _ in given}
            given += [pair for pair in _CAREFUL if pair[0] not in names]
            given.append((b"x-request-id", self.id.encode()))
            message = {**message, "headers": given}
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    async def fail(self, response: ASGIApp) -> None:
        """Answer with a problem, unless an answer is already under way."""
        if not self._status:
            await response(self._scope, self._receive, self.send)

    def tell(self) -> None:
        """One line of JSON. Never the query: people put secrets there."""
        if not access.isEnabledFor(logging.INFO):
            return
        scope = self._scope
        caller = scope.get(CALLER)
        line: dict[str, Any] = {
            "request": self.id,
            "method": scope["method"],
            "path": scope["path"],
            "status": self._status or 499,
            "ms": round((time.perf_counter() - self._began) * 1000, 2),
            "bytes": self._sent,
            "client": (scope.get("client") or ("",))[0],
            "caller": caller.name if caller is not None else "",
        }
        access.info("%s", json.dumps(line, ensure_ascii=True))

    def _too_large(self) -> TooLarge:
        return TooLarge("the body is too large", hint=f"at most {self._limits.body} bytes")


def _request_id(scope: Scope) -> str:
    """The caller's own id when it has a harmless form, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GOOD_ID.fullmatch(value):
            return value.decode()
    return os.urandom(8).hex()
