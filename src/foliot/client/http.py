"""Requests to a server: who asks, how long to wait, what to ask again, and streams that go on where they broke off.

A request is asked again when that cannot do anything twice: reads, writes that name the version they are about, and
requests that carry a key. Others are asked again only when the server was never reached, or said that it did nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from foliot.client import wire
from foliot.client.errors import error_of
from foliot.client.local_access import LocalAccess
from foliot.common.pages import read_all
from foliot.errors import FoliotError, OutcomeUnknown, Unavailable, UsageError
from foliot.kernel.backoff import backoff
from foliot.store.base import Document
from foliot.version import __version__

# --- events ----------------------------------------------------------------------------------------------------------

# Server-sent events: from bytes to events, without looking at the network.

# One event is one resource or one batch of facts; a server that sends more without an end is none.
LONGEST: Final = 64 * 1024 * 1024


class ServerEvent(Struct, frozen=True):
    """`id` is where to go on after it; it stays that of the last event that had one."""

    name: str
    data: str
    id: str | None


class EventReader:
    """Takes bytes as they come, in pieces of any size, and gives events as they are complete."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self._rest = bytearray()
        self._searched = 0
        self._name = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that this piece completes. Raises `Unavailable` for a line that does not end."""
        self._rest += piece
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._searched))) >= 0:
            line = self._rest[start:end].rstrip(b"\r").decode("utf-8", "replace")
            start = end + 1
            if (event := self._take(line)) is not None:
                yield event
        del self._rest[:start]
        self._searched = len(self._rest)  # what was looked through is not looked through again
        if len(self._rest) > LONGEST:
            raise Unavailable("the server sends an event that does not end")

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._complete()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment is a sign of life, and what is not known is for newer clients
        return None

    def _complete(self) -> ServerEvent | None:
        # Only now: whoever breaks off in the middle of an event must get it again.
        if self._id is not None:
            self.last_id, self._id = self._id, None
        name, data, self._name, self._data = self._name, self._data, "", []
        return ServerEvent(name or "message", "\n".join(data), self.last_id) if data else None


# --- http ------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

ATTEMPTS: Final = 5
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
# A server whose store is silent takes seconds to say so: after this long it is not asked again.
TRIED_FOR: Final = 10.0
# A server that asks for more patience than this is told of, not waited for.
LONGEST_WAIT: Final = 30.0
# A stream sends a sign of life every 15 seconds.
SILENCE: Final = 50.0
_warned: Final[set[str]] = set()
Params = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, the credentials for it, and the certificates to trust.

    `timeout` is for one request, in seconds.

    `patience` is how long a stream tries to reach a server that is gone before it says so. Without a token, a server on
    this machine is shown that one knows the local key of `home`; the key itself is sent to nobody.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    home: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None
    timeout: float = 30.0
    patience: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises `Unavailable` when it is not JSON: something else than a Foliot server has answered."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Unavailable("the answer is not JSON", hint="check the address of the server") from None


class Http:
    """One server, over as few connections as will do. Close it, or use it with `async with`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._base = checked_url(server.url)
        self._ssl = _trust(server) if self._base.startswith("https:") else True
        if server.token and self._base.startswith("http:"):
            _warn_of_listeners(self._base)
        self._local = None if server.token or server.home is None else LocalAccess.to(self._base, server.home)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        timeout: float | None = None,
    ) -> HttpAnswer:
        """The answer, when it is a good one. `repeatable` is whether it may be done twice; reads may.

        Raises the `FoliotError` that the server tells of, `Unavailable` when it does not answer.
        """
        again = method == "GET" if repeatable is None else repeatable
        limit = aiohttp.ClientTimeout(total=timeout or self.server.timeout, sock_connect=10.0)
        attempt, began = 0, time.monotonic()
        before: Unavailable | None = None
        while True:
            attempt += 1
            try:
                return await self._once(method, path, params, body, headers, limit)
            except OutcomeUnknown as error:
                raise before or error from error  # what went wrong says more than that nobody knows what came of it
            except _Lost as lost:
                if attempt >= ATTEMPTS or not (again or not lost.reached):
                    raise self._unreachable(lost) from None
                pause = _pause(attempt)
            except Unavailable as error:
                told = error.details.get("retry_after")
                undone = error.details.get("status") == 429
                if attempt >= ATTEMPTS or not (again or undone) or (told or 0.0) > LONGEST_WAIT:
                    raise
                if not undone and time.monotonic() - began >= TRIED_FOR:
                    raise
                if attempt == 1 and not undone:
                    log.warning("the server at %s says: %s; it is asked again", self._base, error.message)
                before = error
                pause = told if told is not None else _pause(attempt)
            await asyncio.sleep(pause)

    async def stream(
        self, path: str, *, params: Params | None = None, after: str | None = None
    ) -> AsyncGenerator[ServerEvent]:
        """Events until an event `end`. A stream that breaks off goes on behind its last id: none is lost or doubled.

        Raises what the server tells of, `Unavailable` when it cannot be reached for `patience` seconds.
        """
        last, failures, heard = after, 0, time.monotonic()
        while True:
            reader = EventReader(last)
            try:
                async with aclosing(self._read(path, params, reader)) as events:
                    async for event in events:
                        failures, heard = 0, time.monotonic()
                        if event is None:
                            continue
                        last = event.id
                        if event.name == "end":
                            return
                        yield event
                        heard = time.monotonic()  # how long the caller takes is not the server's silence
            except (_Lost, Unavailable) as error:
                if time.monotonic() - heard >= self.server.patience:
                    raise (self._unreachable(error) if isinstance(error, _Lost) else error) from None
            failures += 1
            await asyncio.sleep(_pause(failures))

    async def _read(self, path: str, params: Params | None, reader: EventReader) -> AsyncGenerator[ServerEvent | None]:
        """The events of one connection; None for a sign of life."""
        headers = {"Accept": "text/event-stream"}
        if reader.last_id is not None:
            headers["Last-Event-ID"] = reader.last_id
        limit = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENCE)
        known, new = await self._known()
        try:
            async with self._opened().get(
                self._base + path,
                params=_query(params),
                headers={**headers, **known},
                timeout=limit,
                allow_redirects=False,
                ssl=self._ssl,
            ) as response:
                if response.status == 401 and self._is_stale(new):
                    raise _Lost("it was started anew", reached=False)
                if response.status != 200:
                    raise self._error(response.status, response.headers, await response.read())
                yield None
                async for piece in response.content.iter_any():
                    yield None
                    for event in reader.feed(piece):
                        if event.name == "error":
                            raise error_of(500, event.data.encode(), where=self._base)
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(error) from None

    async def _once(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        limit: aiohttp.ClientTimeout,
    ) -> HttpAnswer:
        known, new = await self._known()
        sent = {"Accept": "application/json", **known, **(headers or {})}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            async with self._opened().request(
                method,
                self._base + path,
                params=_query(params),
                data=body,
                headers=sent,
                timeout=limit,
                allow_redirects=False,  # whoever is sent elsewhere would take the token along
                ssl=self._ssl,
            ) as response:
                answer = HttpAnswer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(error) from None
        if 200 <= answer.status < 300:
            return answer
        if answer.status == 401 and self._is_stale(new):
            return await self._once(method, path, params, body, headers, limit)
        raise self._error(answer.status, answer.headers, answer.body)

    def _error(self, status: int, headers: Mapping[str, str], body: bytes) -> FoliotError:
        return error_of(status, body, where=self._base, retry_after=_seconds(headers.get("Retry-After")))

    async def _known(self) -> tuple[dict[str, str], bool]:
        """Headers that say who asks, and whether that was found out just now. Raises `_Lost`."""
        headers, token, new = {"User-Agent": f"foliot/{__version__}"}, self.server.token, True
        if self._local is not None:
            try:
                token, new = await self._local.bearer(self._opened(), self._ssl)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _Lost(str(_lost(error)), reached=False) from None
        return ({**headers, "Authorization": f"Bearer {token}"} if token else headers), new

    def _is_stale(self, new: bool) -> bool:
        """Whether somebody who was known is not any more, and may ask to be known again: nothing was done then."""
        if self._local is None or new:
            return False
        self._local.forget()
        return True

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No proxy of the environment, no .netrc, no cookies: nothing but what was said is sent.
            connector = None if self._local is None else aiohttp.TCPConnector(family=self._local.family)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    def _unreachable(self, lost: _Lost) -> Unavailable:
        hint = "is it running, and is the address right? `foliot context show` says which is used"
        if lost.reached and self._base.startswith("https:") and self.server.cert is None:
            hint = "a server that hangs up like this may ask for a certificate: set server_cert and server_cert_key"
        return Unavailable(f"the server at {self._base} cannot be reached: {lost}", hint=hint)


class _Lost(Exception):
    """The server did not answer. `reached`: the request may have arrived, and been done."""

    def __init__(self, text: str, *, reached: bool) -> None:
        super().__init__(text)
        self.reached = reached


def checked_url(url: str) -> str:
    """The address without a slash at its end. Raises `UsageError`."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError("the address of the server cannot be used", hint="expected http://host:port or https://host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "the address of the server has a login, a query or a fragment in it",
            hint="give only https://host:port; a token goes into FOLIOT_TOKEN or a file",
        )
    return url.strip().rstrip("/")


def _warn_of_listeners(url: str) -> None:
    """Say once for each address that others can read a token on its way, unless it does not leave this machine."""
    from ipaddress import ip_address
    from urllib.parse import urlsplit

    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost" or host.endswith(".localhost")
    if not local and url not in _warned:
        _warned.add(url)
        log.warning("the token is sent in clear to %s: whoever is on the way can read it. Use https://", url)


def _trust(server: Server) -> ssl.SSLContext:
    """Raises `UsageError` for a certificate that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=None if server.ca is None else str(server.ca))
        if server.cert is not None:
            context.load_cert_chain(str(server.cert), None if server.cert_key is None else str(server.cert_key))
    except (OSError, ssl.SSLError) as error:
        which = server.cert or server.ca
        raise UsageError(
            f"the certificate {which} cannot be used: {error.strerror or type(error).__name__}",
            hint="expected a file in PEM form",
        ) from None
    return context


def _lost(error: BaseException) -> _Lost:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return _Lost(f"its certificate is not trusted ({error.certificate_error})", reached=False)
        case aiohttp.ClientConnectorError():
            return _Lost(error.strerror or str(error.os_error), reached=False)
        case TimeoutError():
            return _Lost("it did not answer in time", reached=True)
        case _:
            return _Lost("the connection broke off", reached=True)


def new_key() -> dict[str, str]:
    """The header with which a server does a request once, however often it is asked."""
    return {"Idempotency-Key": secrets.token_hex(16)}


def _pause(failures: int) -> float:
    """Longer each time, and never the same for two clients that lost the same server."""
    return backoff(failures, FIRST_PAUSE, LONGEST_PAUSE, jitter="equal", share=random.random())


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _query(params: Params | None) -> dict[str, str]:
    shown = {True: "true", False: "false"}
    return {
        name: shown[value] if isinstance(value, bool) else str(value)
        for name, value in (params or {}).items()
        if value is not None
    }


# --- asking ----------------------------------------------------------------------------------------------------------

# What the parts of a remote client share: the connection, and answers read into their shapes.


class RemoteGroup:
    """A part of a client on a server."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def _get(self, path: str, shape: type[wire.T], **params: Any) -> wire.T:
        answer = await self._http.ask("GET", path, params=params)
        return wire.read(answer.body, shape)

    async def _all(self, path: str, namespace: str | None, **params: Any) -> list[Document]:
        """Returns the documents of every page of a list."""
        return await read_all(self._page, path, namespace=namespace, **params)

    async def _page(
        self, path: str, *, cursor: str | None = None, behind: str = "continue", **params: Any
    ) -> wire.Items:
        """Returns one page of a list; `behind` is the parameter that takes the cursor."""
        return await self._get(path, wire.Items, **{behind: cursor}, **params)

    async def _post(
        self,
        path: str,
        body: Any,
        shape: type[wire.T],
        *,
        repeatable: bool = False,
        timeout: float | None = None,
        **params: Any,
    ) -> wire.T:
        """Posts a body. An act that may not happen twice is given a key, so that a retry is safe."""
        headers = None if repeatable else new_key()
        data = msgspec.json.encode(body)
        answer = await self._http.ask(
            "POST", path, params=params, body=data, headers=headers, repeatable=True, timeout=timeout
        )
        return wire.read(answer.body, shape)
