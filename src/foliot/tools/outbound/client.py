"""The one HTTP client of tools: guarded, bounded, and with errors in the words of tools.

Every hop of every request is checked and pinned (`guard.py`, `pinned.py`). Redirects are followed one by one, a few at
most, never from https to http; credentials are not taken to another origin. An answer is read up to a limit and never
beyond it. Leaving the `async with` closes what was not read to the end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

from foliot.common.waits import Waits
from foliot.tools.base import ToolAnswerLost, ToolError, ToolTimeout, ToolUnreachable, before_effect
from foliot.tools.outbound.guard import Guard, OutboundRefused, OutboundTarget

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

LARGEST_ANSWER: Final = 4 * 1024 * 1024
MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD: Final = frozenset({307, 308})
_HARMLESS_HEADERS: Final = frozenset(
    {"accept", "accept-language", "content-type", "idempotency-key", "x-tool-contract-version"}
)
# Encodings of pages and APIs. Python knows others that a server shall not choose: of quadratic time (punycode), of
# escapes, or such that raise whatever they are given.
_CHARSETS: Final = re.compile(
    r"utf-?(8|16|16-?[lb]e|32)|(us-)?ascii|latin-?[1-9]|iso-8859-([1-9]|1[0-6])|(windows-|cp)(125[0-8]|874|866|932|949|936)"
    r"|koi8-[ru]|shift-jis|sjis|euc-(jp|kr)|iso-2022-(jp|kr)|gbk|gb2312|gb18030|big5|big5-hkscs|tis-620|macintosh"
)
_BODY_HEADERS: Final = frozenset({"content-type", "content-length", "content-encoding"})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each phase of a request may take, in seconds. Connecting, TLS included, is bounded by the session.

    `head`: from the request to the status and headers of its answer. `silence`: between two pieces of the body. `body`:
    all of it. How long a call may take is decided around this; here it is found out which phase a server hangs in.
    """

    head: float = 300.0
    silence: float = 120.0
    body: float = 900.0

    def of(self, timeout: float | None) -> Patience:
        """Returns a patience that allows a longer call: one with an hour may compute or stream for that long."""
        if timeout is None or timeout <= self.head:
            return self
        return Patience(timeout, max(self.silence, timeout), max(self.body, timeout))


class ToolAnswerTooLarge(ToolError):
    """More came than is read. Nothing of it is used: half an answer could say the opposite of the whole."""

    kind = "too_large"
    retryable = False
    lost = True


class OutboundAnswer:
    """A response. Its body is still on the way: `read` or `pieces` it once."""

    def __init__(self, response: aiohttp.ClientResponse, where: str, patience: Patience) -> None:
        self._response = response
        self._where = where
        self._patience = patience
        self._until = asyncio.get_running_loop().time() + patience.body
        self.status = response.status
        self.url = str(response.url)  # of the last hop
        self.headers: Mapping[str, str] = response.headers
        self.media_type = response.content_type.lower() if "Content-Type" in response.headers else ""
        self.charset = response.charset

    async def read(self, limit: int = LARGEST_ANSWER) -> bytes:
        """The whole body. Raises `ToolAnswerTooLarge` as soon as it is known, `ToolUnreachable` when it breaks off."""
        if (self._response.content_length or 0) > limit:
            raise self._too_large(limit)
        return b"".join([piece async for piece in self.pieces(limit)])

    async def beginning(self, size: int) -> bytes:
        """At most `size` bytes, whatever follows; less when it breaks off. For bodies of errors."""
        found = bytearray()
        try:
            while len(found) < size and (piece := await self._piece()):
                found += piece
        except Exception:
            return bytes(found[:size])  # the status has said what matters
        return bytes(found[:size])

    async def pieces(self, limit: int = LARGEST_ANSWER) -> AsyncIterator[bytes]:
        """The body as it comes. Raises like `read`."""
        left = limit
        while True:
            piece = await self._piece()
            if not piece:
                return
            left -= len(piece)
            if left < 0:
                raise self._too_large(limit)
            yield piece

    async def _piece(self) -> bytes:
        """Read what has come since, empty at the end. Raises `ToolTimeout` when nothing does, or it takes too long."""
        until = min(asyncio.get_running_loop().time() + self._patience.silence, self._until)
        bound = asyncio.timeout_at(until)
        try:
            async with bound:
                return await self._response.content.readany()
        except Exception as error:
            if isinstance(error, TimeoutError) and bound.expired():
                self._response.close()
                limit = self._patience.body if until == self._until else self._patience.silence
                what = (
                    "took too long to send its answer"
                    if until == self._until
                    else "stopped in the middle of its answer"
                )
                raise ToolTimeout(f"{self._where} {what} (limit {limit:g} s)", sent="yes", phase="body") from None
            _explain(error, self._where, sent="yes")

    def _too_large(self, limit: int) -> ToolAnswerTooLarge:
        self._response.close()  # at once, so that the sender stops
        return ToolAnswerTooLarge(
            f"{self._where} answered with more than {limit:,} bytes; the answer was not used",
            hint="ask for less: a filter, a page, a range",
            limit=limit,
        )


def decoded(body: bytes, charset: str | None) -> str:
    """Text for a model. What is none in its encoding shows as a replacement character; an odd encoding is UTF-8."""
    name = (charset or "utf-8").strip().lower().replace("_", "-")
    return body.decode(name if _CHARSETS.fullmatch(name) else "utf-8", "replace")


class OutboundClient:
    """Asks servers on behalf of tools. One per runtime; `close` when done."""

    def __init__(self, guard: Guard, *, waits: Waits | None = None, patience: Patience | None = None) -> None:
        self.guard = guard
        self.patience = patience or Patience()
        self._waits = waits or Waits()
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Mapping[str, str] | None = None,
        body: bytes | None = None,
        redirects: int = MAX_REDIRECTS,
        patience: Patience | None = None,
    ) -> AsyncGenerator[OutboundAnswer]:
        """The answer to a request, whatever its status. `credentials` are headers that stay with their origin.

        Raises `OutboundRefused` for a place that may not be reached, `ToolUnreachable` and `ToolTimeout`.
        """
        from yarl import URL

        patience = patience or self.patience
        with before_effect():
            target = await self.guard.check_url(url)
        place, sent = URL(url.strip()), {**(headers or {}), **(credentials or {})}
        acted = False  # whether a server that sends us on may have done what it was asked to
        hops = 0
        while True:
            try:
                response = await self._ask(method, place, target, sent, body, patience.head)
            except ToolError as error:
                refused = isinstance(error, OutboundRefused)
                error.before_effect = (not hops) if refused else error.before_effect and not acted
                raise
            async with response:
                onward = response.headers.get("Location") if response.status in _REDIRECTS else None
                if onward is None:
                    _check_encoding(response, target)
                    yield OutboundAnswer(response, _where(target), patience)
                    return
            if redirects <= 0:
                raise OutboundRefused(f"{_where(target)} redirects to somewhere else too often", host=target.host)
            redirects, hops = redirects - 1, hops + 1
            if response.status not in _SAME_METHOD and method not in ("GET", "HEAD"):
                method, body, acted = "GET", None, True
                sent = {name: value for name, value in sent.items() if name.lower() not in _BODY_HEADERS}
            try:
                previous, (target, place) = target, await self._redirected(place, onward)
            except ToolError as error:
                error.before_effect = error.before_effect and not acted
                raise
            if previous.origin != target.origin:  # for good: who sends us away must not choose what we do at home
                sent = {name: value for name, value in sent.items() if name.lower() in _HARMLESS_HEADERS}
            if (previous.scheme, target.scheme) == ("https", "http"):
                raise OutboundRefused(f"{_where(previous)} redirects to an insecure address", host=target.host)

    async def post(
        self, url: URL, *, data: bytes, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """One request for whoever reads the answer himself: models. Redirects are not followed.

        Raises `OutboundRefused`, `ToolUnreachable`, and what aiohttp raises.
        """
        from foliot.tools.outbound.pinned import CHECKED

        token = CHECKED.set(await self.guard.check_url(url))
        try:
            return await self._session().post(
                url, data=data, headers=dict(headers), timeout=timeout, allow_redirects=False
            )
        finally:
            CHECKED.reset(token)

    async def close(self) -> None:
        """Close the connections of the running loop. May be called twice."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _redirected(self, place: URL, onward: str) -> tuple[OutboundTarget, URL]:
        from yarl import URL

        try:
            text = urljoin(str(place), onward.strip())
            target = await self.guard.check_url(text)
            return target, URL(text)
        except ValueError:
            raise OutboundRefused("a redirect to an address that cannot be read is not followed") from None

    async def _ask(
        self,
        method: str,
        place: URL,
        target: OutboundTarget,
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> aiohttp.ClientResponse:
        from foliot.tools.outbound.pinned import CHECKED

        token = CHECKED.set(target)
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                return await self._session().request(
                    method,
                    place,
                    headers=dict(headers),
                    data=body,
                    allow_redirects=False,
                    skip_auto_headers=("Content-Type",),
                )
        except Exception as error:
            if isinstance(error, TimeoutError) and bound.expired():
                message = f"{_where(target)} did not begin to answer within {seconds:g} s"
                raise ToolTimeout(message, sent="unknown", phase="headers") from None
            _explain(error, _where(target), sent="unknown")
        finally:
            CHECKED.reset(token)

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            from foliot.tools.outbound.pinned import open_session  # 0.2 s to import: only who really connects pays

            session = self._sessions[loop] = open_session(self._waits)
        return session


def _where(target: OutboundTarget) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{target.scheme}://{host}:{target.port}"


def _check_encoding(response: aiohttp.ClientResponse, target: OutboundTarget) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ToolAnswerLost(
            f"{_where(target)} answered in {encoding[:40]!r}, although it was not asked to", retryable=False
        )


def _explain(error: Exception, where: str, *, sent: str) -> NoReturn:
    """Translates an exception of the transport into a tool error. `sent` says whether the server may have acted."""
    import aiohttp

    words = str(error) or type(error).__name__
    if isinstance(error, ToolError):
        raise error
    unsent: ToolError | None = None
    if isinstance(error, aiohttp.ClientConnectorError):
        secure = not isinstance(error, aiohttp.ClientSSLError)
        what = "cannot be reached" if secure else "has no secure connection to offer"
        unsent = ToolUnreachable(f"{where} {what}: {words}", retryable=secure, sent="no")
    elif isinstance(error, aiohttp.ConnectionTimeoutError):
        unsent = ToolTimeout(f"no connection to {where} in time", sent="no", phase="connect")
    elif isinstance(error, aiohttp.InvalidURL) or type(error) is ValueError:
        unsent = ToolError(f"the request to {where} cannot be made: {words}", retryable=False, sent="no")
    if unsent is not None:
        unsent.before_effect = sent != "yes"
        raise unsent from error
    if isinstance(error, TimeoutError):
        raise ToolTimeout(f"{where} did not answer in time", sent=sent) from error
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        raise ToolError(f"the request to {where} cannot be made: {words}", retryable=False, sent="no") from error
    if isinstance(error, aiohttp.ClientResponseError):
        message = f"{where} does not speak HTTP as it should: {words}"
        raise ToolAnswerLost(message, retryable=False, sent=sent) from error
    if isinstance(error, aiohttp.ClientError | OSError):
        raise ToolUnreachable(f"the connection to {where} broke off: {words}", sent=sent) from error
    raise error
