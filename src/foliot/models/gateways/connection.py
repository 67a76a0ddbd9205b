"""Bytes to a provider and back: one aiohttp session per event loop, shared by all gateways.

Used by http.py only. Knows no provider's format; it promises that a call ends (connect, idle and total time are
bounded; a stream lives for as long as something of the answer comes), that an answer cannot fill the memory, that
redirects are not followed (they would carry the key elsewhere), and that whatever goes wrong is a `ModelError` without
the key in it. Cancelling closes the connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from foliot.common.waits import Waits, keep_alive
from foliot.errors import FoliotError, InvalidInput
from foliot.models.base import ModelError, ModelGarbage, ModelOverloaded, ModelRequestError, ModelTimeout
from foliot.models.config import GatewayConfig, is_web_address
from foliot.models.credentials import ModelCredentials
from foliot.models.provider_errors import read_body, refusal, shorten
from foliot.version import __version__

if TYPE_CHECKING:
    import aiohttp

_ERROR_BODY = 64 * 1024
_ERROR_SECONDS = 5.0
_GRACE = 0.1
_PAGES = ("html", "xml", "image/", "audio/", "video/", "pdf")
_ANSWERS = (b"{", b"[", b"data:", b"event:", b"id:", b"retry:", b":")
_MARK = b"\xef\xbb\xbf"
_LAST_WORDS = 2.0
# What a fast model writes is read so many times a second at most, and an answer is held up by no more than this part
# of the time that it has taken: to be woken for each word costs more than to read it.
_READS_A_SECOND = 30
_HELD_UP = 2 / 5
_LEAST_WAIT = 0.001  # no timer of an event loop is finer
_MANY = 32 * 1024
_TOKEN_SECONDS = 30.0


def _wakes_when_lowered(platform: str, release: str) -> bool:
    """Whether a system reports bytes that wait already when the mark from which it reports them is lowered.

    Linux does since 4.18. Elsewhere, and before, they might wait there until more comes: pieces do not gather then.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    return platform == "linux" and version is not None and (int(version[1]), int(version[2])) >= (4, 18)


_GATHERS = hasattr(os, "uname") and _wakes_when_lowered(sys.platform, os.uname().release)


class _Passed(Exception):
    """Carries what a caller's function raised past the reading of transport errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Shared:
    """The session of one loop, and how many endpoints hold it."""

    __slots__ = ("holders", "session")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.holders = 0


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


def _new_socket(waits: Waits, address: Any) -> socket.socket:
    """A socket for an address as `getaddrinfo` gives it. The system notices when its other end is gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    keep_alive(made, waits)
    return made


def _open_session(waits: Waits) -> aiohttp.ClientSession:
    import aiohttp  # 0.2 s to import: only who really asks a model pays

    # No limit on connections: how many calls may run at once is the rate limiter's decision, not the socket pool's.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=300, keepalive_timeout=60, socket_factory=partial(_new_socket, waits)
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={
            "User-Agent": f"foliot/{__version__}",
            "Accept": "application/json, text/event-stream",
            # Answers are small and latency matters; it also leaves no room for a compressed bomb.
            "Accept-Encoding": "identity",
        },
    )


class _Patience:
    """Ends a block with `TimeoutError` when nothing of an answer comes for `total` seconds.

    It can also `watch_silence`: then nothing at all may come for `idle` seconds at most. To hear something costs one
    look at the clock; the client library would make and cancel a timer each time.
    """

    __slots__ = ("_bound", "_heard_at", "_idle", "_loop", "_since", "_timer", "_total")

    def __init__(self, total: float, idle: float) -> None:
        self._total = total
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._heard_at: float | None = None
        self._bound = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, *, of_answer: bool) -> None:
        """Notes that something came: of the answer, or a mere sign of life."""
        self._heard_at = self._loop.time()
        if of_answer:
            self._since = self._heard_at

    def watch_silence(self, response: aiohttp.ClientResponse) -> None:
        """Bound the silence of a response from now on, in the place of the client library."""
        connection = response.connection
        if connection is None or connection.protocol is None:  # all of it has come
            return
        connection.protocol.read_timeout = None
        connection.protocol.start_timeout()  # which ends the one that runs
        self._heard_at = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    async def __aenter__(self) -> _Patience:
        await self._bound.__aenter__()
        self._look()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._bound.__aexit__(*raised)

    def _look(self) -> None:
        ends = self._since + self._total
        if self._heard_at is not None:
            ends = min(ends, self._heard_at + self._idle)
        if self._loop.time() >= ends:
            self._bound.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_at(ends, self._look)


class HttpEndpoint:
    """Posts JSON below one base URL. Safe to share; `close` gives back its hold on the loop's session.

    Raises `InvalidInput` when the address and the headers want to say who asks, both in the same place, and for a proxy
    of the environment that cannot be used.
    """

    def __init__(
        self,
        config: GatewayConfig,
        base_url: str,
        headers: dict[str, str],
        credentials: ModelCredentials | None = None,
    ) -> None:
        """`credentials` show who asks, anew for each request, where a key alone does not."""
        self._credentials = credentials
        self._config = config
        self._base = base_url
        self._headers = {"Content-Type": "application/json", **headers, **config.headers}
        if "@" in urlsplit(base_url).netloc and any(name.lower() == "authorization" for name in self._headers):
            raise InvalidInput(
                f"the base URL of model provider {config.provider!r} holds a user, and there is a key besides: "
                "a call can show only one of them",
                hint="take the user out of the address, or the key off the endpoint",
            )
        self._way: dict[str, Any] = {}
        # A proxy would resolve the name itself, after it was checked: see `WayOut`.
        if config.way_out is None and (proxy := _proxy_for(base_url) if config.proxy is None else config.proxy):
            self._go_by(proxy, base_url)
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
        self._urls: dict[str, Any] = {}
        self._timeouts: tuple[Any, Any] | None = None

    @property
    def hidden(self) -> str:
        """The secret that requests show, which no error may repeat."""
        return self._config.api_key if self._credentials is None else self._credentials.shown

    async def fetch(self, path: str, body: bytes, *, content_type: str = "") -> bytes:
        """Post and read the whole JSON answer. `path` may be a whole address of the provider. Raises a `ModelError`."""
        try:
            async with await self._post(path, body, streaming=False, content_type=content_type) as response:
                chunk = await self._beginning(response)
                self._check_type(response, chunk)
                return await self._read(response, chunk)
        except Exception as error:
            self._explain(error)

    async def stream(
        self,
        path: str,
        body: bytes,
        on_chunk: Callable[[bytes], bool | None],
        *,
        is_ending: Callable[[], bool] = lambda: False,
        whole_json: bool = True,
    ) -> bytes | None:
        """Post and hand over each piece as it comes, until `on_chunk` returns True: it needs no more.

        It returns None for a piece that brought nothing of the answer (a sign of life, half a line): when that goes on
        for the total time, it is a time-out. A stream that brings something is never too long.
        Some compatible servers ignore `stream` and answer at once: their whole JSON answer is returned instead. With
        `whole_json` it is known by its first byte; else it is one line like any other, unless it is laid out for
        people. Its type says nothing: they, and proxies, call it and a stream by any.
        Once `is_ending`, what else may come is waited for only shortly: some leave the connection open.
        Raises a `ModelError`; what `on_chunk` raises passes through.
        """
        try:
            async with (
                _Patience(self._config.timeouts.total, self._config.timeouts.idle) as patience,
                await self._post(path, body, streaming=True) as response,
            ):
                chunk = await self._beginning(response)
                self._check_type(response, chunk)
                if chunk.lstrip().startswith((b"{", b"[")) if whole_json else _is_laid_out(chunk):
                    return await self._read(response, chunk)
                left = self._config.max_response_bytes
                patience.watch_silence(response)
                read = _Gathering(response).read
                while chunk:
                    left -= len(chunk)
                    if left < 0:
                        raise self._too_large()
                    try:
                        enough = on_chunk(chunk)
                    except Exception as error:
                        raise _Passed(error) from error
                    if enough:
                        await _drain(response)
                        break
                    patience.hear(of_answer=enough is not None)
                    chunk = await (_soon(read) if is_ending() else read())
                return None
        except _Passed as passed:
            raise passed.error  # noqa: B904  # the caller's own, as if there were no transport around it
        except Exception as error:
            self._explain(error)

    async def close(self) -> None:
        """Give up the session of the running loop; the last holder closes it. May be called twice."""
        loop = asyncio.get_running_loop()
        shared = self._held.pop(loop, None)
        if shared is None:
            return
        shared.holders -= 1
        if shared.holders == 0:
            if _sessions.get(loop) is shared:
                del _sessions[loop]
            await shared.session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            held = _sessions.get(loop)
            if held is None:
                held = _sessions[loop] = _Shared(_open_session(self._config.waits))
            held.holders += 1
            self._held[loop] = held
        return held.session

    async def _post(self, path: str, body: bytes, *, streaming: bool, content_type: str = "") -> aiohttp.ClientResponse:
        plain, stream = self._timeouts or self._make_timeouts()
        headers = {**self._headers, "Content-Type": content_type} if content_type else self._headers
        url, timeout = self._urls.get(path) or self._url(path), stream if streaming else plain
        response = await self._sent(url, body, headers, timeout)
        if response.status == 401 and self._credentials is not None and self._credentials.refused():
            response.release()
            response = await self._sent(url, body, headers, timeout)
        if response.status >= 300:
            async with response:
                body = await _error_body(response)
            raise refusal(
                read_body(body),
                provider=self._config.provider,
                key=self.hidden,
                status=response.status,
                headers=response.headers,
                now=time.time(),
            )
        return response

    async def _sent(self, url: Any, body: bytes, headers: Mapping[str, str], timeout: Any) -> aiohttp.ClientResponse:
        if self._credentials is not None:
            shown = await self._credentials.headers(str(url), body, headers["Content-Type"], self._for_credentials)
            headers = {**headers, **shown}
        return await self._send(url, body, headers, timeout)

    async def _send(
        self, url: Any, body: bytes, headers: Mapping[str, str], timeout: Any, way: Mapping[str, Any] | None = None
    ) -> aiohttp.ClientResponse:
        if self._config.way_out is not None:
            return await self._config.way_out.post(url, data=body, headers=headers, timeout=timeout)
        way = self._way if way is None else way
        return await self._session().post(
            url, data=body, headers=headers, timeout=timeout, allow_redirects=False, **way
        )

    async def _for_credentials(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Ask whoever gives tokens, with the same bounds and the same way out; status and body."""
        from aiohttp import ClientTimeout
        from yarl import URL

        timeout = ClientTimeout(total=_TOKEN_SECONDS, connect=self._config.timeouts.connect)
        goes_by = self._config.proxy if self._config.proxy is not None else _proxy_for(url)
        way = self._way if goes_by else {}
        async with await self._send(URL(url, encoded=True), body, headers, timeout, way) as response:
            return response.status, await _error_body(response)

    def _make_timeouts(self) -> tuple[Any, Any]:
        from aiohttp import ClientTimeout

        given = self._config.timeouts
        # A plain answer is silent until the model has finished thinking: only the total time can bound it.
        plain = ClientTimeout(total=given.total, connect=given.connect, ceil_threshold=60)
        stream = ClientTimeout(total=None, connect=given.connect, sock_read=given.idle, ceil_threshold=60)
        self._timeouts = (plain, stream)
        return self._timeouts

    def _go_by(self, proxy: str, base_url: str) -> None:
        """User and password are taken out of the proxy's address: the client library quotes addresses in its errors."""
        if not is_web_address(proxy):
            raise InvalidInput(
                f"the proxy that the environment names for model provider {self._config.provider!r} cannot be used",
                hint="correct HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, or name the provider's host in NO_PROXY",
            )
        parts = urlsplit(proxy)
        self._way["proxy"] = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        if parts.username:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            shown = {"Proxy-Authorization": f"Basic {b64encode(who.encode()).decode()}"}
            if urlsplit(base_url).scheme == "https":
                self._way["proxy_headers"] = shown  # for the proxy alone: the rest goes through it unseen
            else:
                self._headers |= shown

    def _url(self, path: str) -> Any:
        from yarl import URL

        url = URL(path if path.startswith("http") else self._base + path, encoded=True)
        if len(self._urls) < 256:  # models are few; a caller that invents names must not fill the memory
            self._urls[path] = url
        return url

    async def _beginning(self, response: aiohttp.ClientResponse) -> bytes:
        """The first piece of an answer that is not blank, from its first sign on; empty when there is none."""
        begun, size = b"", 0
        while piece := await response.content.readany():
            size += len(piece)
            if size > self._config.max_response_bytes:
                raise self._too_large()
            begun = (begun + piece).removeprefix(_MARK).lstrip()
            if begun and not _MARK.startswith(begun):
                break
        return begun

    async def _read(self, response: aiohttp.ClientResponse, begun: bytes) -> bytes:
        limit = self._config.max_response_bytes
        if (response.content_length or 0) > limit:
            raise self._too_large()
        read = response.content.readany
        pieces: list[bytes] = []
        size, chunk = 0, begun
        while chunk:
            size += len(chunk)
            if size > limit:
                raise self._too_large()
            pieces.append(chunk)
            chunk = await read()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check_type(self, response: aiohttp.ClientResponse, begun: bytes) -> None:
        """Raises `ModelGarbage` for a page or a picture. What begins like an answer is read, whatever it is called."""
        kind = response.content_type
        if any(page in kind for page in _PAGES) and not begun.startswith(_ANSWERS):
            raise ModelGarbage(
                f"model provider {self._config.provider!r} answered with {kind}, which is not an answer of a model",
                provider=self._config.provider,
                status=response.status,
                hint="check that the base URL is the API's address, and not a web page or a login of a proxy",
            )

    def _too_large(self) -> ModelGarbage:
        return ModelGarbage(
            f"model provider {self._config.provider!r} sent more than {self._config.max_response_bytes:,} bytes; "
            "the rest was not read",
            provider=self._config.provider,
        )

    def _explain(self, error: Exception) -> NoReturn:
        """Turn what the transport raised into a model error."""
        if isinstance(error, ModelError):
            raise error
        if isinstance(error, FoliotError):  # of the way out: an address that may not be reached, or cannot be
            kind = ModelOverloaded if error.retryable else ModelRequestError
            where = f"model provider {self._config.provider!r} is not asked: "
            raise kind(where + error.message, provider=self._config.provider, hint=error.hint) from error
        import aiohttp

        where = f"model provider {self._config.provider!r}"
        words = shorten(str(error) or type(error).__name__, self.hidden)
        limits = self._config.timeouts
        name = self._config.provider
        if isinstance(error, TimeoutError):
            timeout = ModelTimeout(
                f"{where} did not answer in time (connect {limits.connect:g} s, silence {limits.idle:g} s, "
                f"total {limits.total:g} s)",
                provider=name,
            )
            timeout.was_sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
            raise timeout from error
        if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
            raise ModelRequestError(f"the address of {where} cannot be used: {words}", provider=name) from error
        if isinstance(error, aiohttp.ClientSSLError):
            raise ModelOverloaded(
                f"no secure connection to {where}: {words}", provider=name, retryable=False,
                hint="check the certificate of the endpoint and the clock of this machine",
            ) from error  # fmt: skip
        if isinstance(error, aiohttp.ClientHttpProxyError):
            kind = ModelOverloaded if error.status >= 500 else ModelRequestError
            raise kind(
                f"the proxy on the way to {where} refused the connection ({error.status}): {shorten(error.message)}",
                provider=name, hint="check the proxy's address, and its user and password",
            ) from error  # fmt: skip
        if isinstance(error, aiohttp.ClientResponseError):
            raise ModelGarbage(f"{where} does not speak HTTP as it should: {words}", provider=name) from error
        if isinstance(error, (aiohttp.ClientError, ConnectionError, OSError)):
            raise ModelOverloaded(f"the connection to {where} failed: {words}", provider=name) from error
        # The client library refuses what it is given (an address, a header) with plain Python errors.
        raise ModelRequestError(
            f"{where} cannot be asked: {type(error).__name__}: {words}", provider=name,
            hint="check the endpoint's base URL and its key",
        ) from error  # fmt: skip


def _is_laid_out(chunk: bytes) -> bool:
    """Whether JSON begins with a bracket that has a line of its own."""
    return chunk.lstrip().partition(b"\n")[0].strip() in (b"{", b"[")


class _Pace:
    """Says how long the next pieces of a stream may gather before they are read.

    A piece waits for `1 / _READS_A_SECOND` at most, and for no more than the part `_HELD_UP` of the time that the
    answer has taken and the time between two pieces: the first ones are read as they come, and those of a slow model.
    """

    __slots__ = ("_began", "_every", "_lone", "_read_at", "_wait")

    def __init__(self, began: float) -> None:
        self._began = self._read_at = began
        self._every = self._wait = 0.0
        self._lone = 0  # the size of a piece that was read alone

    def wait(self, size: int, now: float) -> float:
        """Seconds to let pieces gather, now that `size` bytes were read; 0 when the next is read as it comes."""
        taken, self._read_at = now - self._read_at, now
        if not self._wait:
            self._lone, self._every = size, taken
        elif size * 2 <= self._lone * 3:  # nothing gathered: the model has become slow
            self._wait = 0.0
            return 0.0
        # After a read it takes about so long until there is a piece that waits.
        wait = min(1 / _READS_A_SECOND, self._every + (now - self._began) * _HELD_UP)
        self._wait = wait if wait >= max(_LEAST_WAIT, self._every * 2) else 0.0
        return self._wait


class _Gathering:
    """Reads a stream piece by piece; of one whose pieces come in quick succession, several at once.

    They gather in the system's buffer, which is told to report nothing below many bytes: there they wake nobody. To
    pause the transport would cost more, and would not help with TLS, which goes on reading below it.
    """

    __slots__ = ("_least", "_loop", "_pace", "_response", "_socket", "_wait")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._loop = asyncio.get_running_loop()
        self._response = response
        connection = response.connection
        transport = None if connection is None else connection.transport
        self._socket: Any = transport.get_extra_info("socket") if _GATHERS and transport is not None else None
        self._least = 1
        self._pace = _Pace(self._loop.time())
        self._wait = 0.0

    async def read(self) -> bytes:
        """The next piece, with those that have followed it; empty at the end."""
        content = self._response.content
        if self._socket is None:
            return await content.readany()
        if not self._wait or self._response.connection is None:  # without a connection: the end has come
            piece = await content.readany()
        else:
            self._report_from(_MANY)
            timer = self._loop.call_later(self._wait, self._report_from, 1)
            try:
                piece = await content.readany()
            finally:
                if self._least > 1:  # in any case: the connection may serve another answer
                    timer.cancel()
                    self._report_from(1)
        self._wait = self._pace.wait(len(piece), self._loop.time())
        return piece

    def _report_from(self, size: int) -> None:
        """Let the system report the connection as readable from so many bytes on, or at its end."""
        self._least = size
        with suppress(OSError):  # it is closed: nothing more comes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


async def _soon(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """The next piece, if it comes within moments: the answer is there, only its count or a good-bye may be missing."""
    try:
        async with asyncio.timeout(_LAST_WORDS):
            return await read()
    except TimeoutError:
        return b""


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read to the end of an answer that is already complete, so that its connection can serve the next one.

    Some servers leave the stream open after their last word: they are not waited for.
    """
    with suppress(Exception):
        async with asyncio.timeout(_GRACE):
            while await response.content.readany():
                pass


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of a refusal's body. The status alone says what kind it is, so a body that fails is no body."""
    body = b""
    with suppress(Exception):
        async with asyncio.timeout(_ERROR_SECONDS):
            while len(body) < _ERROR_BODY and (chunk := await response.content.readany()):
                body += chunk
    return body[:_ERROR_BODY]


def _proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for this address, read once; never for this machine itself."""
    import urllib.request as environment  # heavy, and only needed here

    parts = urlsplit(base_url)
    host = parts.hostname or ""
    proxies = environment.getproxies_environment()
    if host in ("localhost", "127.0.0.1", "::1") or not proxies or _bypassed(host, proxies):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy and proxy.startswith(("http://", "https://")) else None


def _bypassed(host: str, proxies: dict[str, str]) -> bool:
    names = [name.strip().lstrip(".").lower() for name in proxies.get("no", "").split(",")]
    return "*" in names or any(name and (host == name or host.endswith(f".{name}")) for name in names)
