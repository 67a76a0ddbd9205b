"""One connection, as patient as it has to be and no more.

uvicorn parses, and hands requests on. Here is what it leaves to others: how long somebody may take to send a head, how
large one may be, how many connections there are, how long somebody may not read what they asked for, and what is said
to those who send something that is no request. Whatever is said is a problem (see problems.py).

And what it does more often than it has to: an answer whose length is known leaves in one write, its head checked as a
whole, and a connection has one timer for its rests, not a new one for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

import httptools
from starlette.responses import Response
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from foliot.server.http.envelope import CAREFUL, IS_HERE, tell_refused
from foliot.server.http.heads import HEALTH, new_id
from foliot.server.http.problems import RETRY_AFTER, problem
from foliot.server.list_reads import WHEN_GONE

# What others send is no news, however often uvicorn warns of it; the access log has it.
_errors = logging.getLogger(__name__)
_errors.setLevel(logging.ERROR)

# Requests that may be sent before the answer to the first has come.
MOST_AHEAD: Final = 16
# More than the application would take: a head that is only a little too large is refused there, with the limit.
LARGEST_HEAD: Final = 64 * 1024
# Connections beyond the limit that are still told why; what comes on top is cut off without a word.
TOLD: Final = 128
_HEALTH: Final = tuple(f"GET {path} ".encode() for path in HEALTH)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times are in seconds; 0 connections are any number of them.

    `headers_within` is from the first byte, or the beginning of the connection, to the end of the headers.
    `read_within` is how long a peer may leave an answer lying. `linger` is how long the rest of a body may take that
    nobody waits for any more.
    """

    connections: int = 4096
    headers_within: float = 10.0
    read_within: float = 60.0
    linger: float = 2.0


class Answer(RequestResponseCycle):
    """One request and its answer. The head of an answer whose length is known waits for its body, and leaves with it.

    Everything else (streams, HEAD, connections that are closed behind it) is uvicorn's.
    """

    _head = b""
    _when_gone: Callable[[], None] | None = None

    def when_gone(self, do: Callable[[], None] | None) -> None:
        """Has `do` called when the client has gone, at once if it has already; None: nothing."""
        self._when_gone = do
        if self.disconnected:
            self.leave()

    def leave(self) -> None:
        """Tells the handler that the client has gone."""
        self.disconnected = True
        self.message_event.set()
        do, self._when_gone = self._when_gone, None
        if do is not None:
            do()

    async def send(self, message: Message) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # wider
        if self._head:
            await self._send_whole(message)
        elif self.response_started or not self._holds_back(message):
            await super().send(cast("Any", message))

    def _holds_back(self, message: Message) -> bool:
        """Whether this is the head of an answer that can leave in one piece; it is kept then."""
        if message["type"] != "http.response.start" or not self.keep_alive or self.scope["method"] == "HEAD":
            return False
        headers: list[tuple[bytes, bytes]] = [*self.default_headers, *message["headers"]]
        length = -1
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name in _FRAMING:
                return False
        if length < 0:
            return False
        self._head = _head_of(message["status"], headers)
        self.expected_content_length = length
        self.response_started = True
        self.waiting_for_100_continue = False
        return True

    async def _send_whole(self, message: Message) -> None:
        """The body, or the first part of it, with the head before it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        head, self._head = self._head, b""
        if self.disconnected:
            return
        body: bytes = message.get("body", b"")
        if message.get("more_body", False) or len(body) != self.expected_content_length:
            self.transport.write(head)
            self.chunked_encoding = False
            await super().send(cast("Any", message))
            return
        if len(body) < _JOINED:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)
        self.expected_content_length = 0
        self.response_complete = True
        self.message_event.set()
        self.on_response()


# Larger bodies are not copied to put a head before them.
_JOINED: Final = 64 * 1024
_FRAMING: Final = frozenset({b"connection", b"transfer-encoding"})
# Names of headers that were found to be names, and pairs that are the same in most answers, as they are written.
_names: Final[set[bytes]] = set()
_MOST_NAMES: Final = 256


def _head_of(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Returns a head as it is written. Raises `RuntimeError` for a header that would be more than one."""
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        if name not in _names:
            if HEADER_RE.search(name):
                raise RuntimeError("Invalid HTTP header name.")
            if len(_names) < _MOST_NAMES:
                _names.add(name)
        lines += (name, b": ", value, b"\r\n")
    if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
        raise RuntimeError("Invalid HTTP header value.")
    lines.append(b"\r\n")
    return b"".join(lines)


class _Refusal(NamedTuple):
    status: int
    code: str
    detail: str
    hint: str | None
    retry: bool


class BoundedConnection(HttpToolsProtocol):
    """A connection within bounds."""

    bounds = Bounds()
    _heading = False
    _head_size = 0
    _refused = False
    _refusal: _Refusal | None = None  # of what came behind requests that are not answered yet
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _resting_since: float | None = None

    def connection_made(self, transport: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as its base
        self.logger = _errors
        super().connection_made(transport)
        # Answers that are not complete while the next request is already here. uvicorn forgets those.
        self._earlier: list[RequestResponseCycle] = []
        most = self.bounds.connections
        beyond = len(self.connections) - most if most else 0
        if beyond > TOLD:
            transport.abort()
            return
        self._refused = beyond > 0
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._unread, self._lingering, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        for cycle in (*self._earlier, self.cycle):
            if cycle and not cycle.response_complete:  # None before the first
                cast("Answer", cycle).leave()
        super().connection_lost(exc)

    # --- what comes in -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._refusal is not None:
            return
        if self._refused and not data.startswith(_HEALTH):
            hint = "come back when others have gone"
            self._refuse(503, "busy", "this server has as many connections as it takes", hint, retry=True)
            return
        super().data_received(data)
        if self._heading and not self.transport.is_closing():
            self._head_size += len(data)
            if self._head_size > LARGEST_HEAD:
                self._refuse(431, "headers_too_large", "the headers are too large", "send less")
            elif self._deadline is None:
                self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heading, self._head_size = True, 0
        self._resting_since = None  # the timer of rests stays, and finds no rest

    def on_headers_complete(self) -> None:
        self._heading = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        before = self.cycle  # None before the first
        if len(self.pipeline) >= MOST_AHEAD:
            raise ValueError("too many requests ahead of their answers")
        self._begin_request(before)
        # What follows a body in chunks is no header: it comes after the decision who this is.
        self.headers = []
        if before and not before.response_complete:
            self._earlier = [each for each in self._earlier if not each.response_complete]
            self._earlier.append(before)

    def _begin_request(self, before: RequestResponseCycle | None) -> None:
        """Begins a request, or queues it behind those before it: what uvicorn does, without its other protocols."""
        scope, parser = self.scope, self.parser
        assert parser is not None, "it is the parser that calls this"
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        address = httptools.parse_url(self.url)
        raw: bytes = address.path
        path = raw.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw
        scope["query_string"] = address.query or b""
        arrived = asyncio.Event()
        cast("dict[str, Any]", scope)[IS_HERE] = arrived.is_set
        self.cycle = Answer(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=arrived,
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cast("dict[str, Any]", scope)[WHEN_GONE] = self.cycle.when_gone
        app = cast("Any", self.app)  # pyright: ignore[reportUnknownMemberType]  # uvicorn does not say what it is
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def on_message_complete(self) -> None:
        if self._lingering is not None:  # the rest of the body has come after all
            self._lingering.cancel()
            self._lingering = None
            self._rest()
        super().on_message_complete()
        self.cycle.more_body = False

    def _unsupported_upgrade_warning(self) -> None:
        # No other protocol is spoken here. The request is answered, and what follows it may be no request.
        self.cycle.keep_alive = False

    # --- what goes out -------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._rest()
        if self._refusal is not None and not self._working():
            self._say_refusal(self._refusal)
        elif self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            # Answered before all of the body was here. To close at once could take the answer away from the peer.
            self._lingering = self.loop.call_later(self.bounds.linger, self.transport.close)

    def _rest(self) -> None:
        """Wait for the next request, for as long as connections are kept. Few need a timer of their own for it."""
        if self._heading:
            return  # the next one has begun; its head has a deadline
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            wait = self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(wait, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Does nothing: uvicorn calls it for whatever comes, and a blank line between requests begins none."""

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._resting_since is None:
            return
        left = self._resting_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.bounds.read_within, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """Called for what cannot be parsed."""
        self._refuse(400, "malformed", "this is not a request of HTTP/1.1", None)

    # --- refusing ------------------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self.bounds.headers_within, self._too_late)

    def _too_late(self) -> None:
        self._deadline = None
        if self._heading:
            within = f"{self.bounds.headers_within:g} seconds"
            self._refuse(408, "too_slow", f"the headers did not come within {within}", None)
        else:
            self.transport.close()  # nothing was asked

    def _refuse(self, status: int, code: str, detail: str, hint: str | None, *, retry: bool = False) -> None:
        """Say why, and hang up. In the middle of an answer nothing can be said.

        Requests that came before, whole, are answered first: a refusal in the place of their answers would say that
        nothing was done.
        """
        if self.transport.is_closing() or self._refusal is not None:
            return
        refusal = _Refusal(status, code, detail, hint, retry)
        working = self._working()
        broken = self.cycle if working and self.cycle in working and self.cycle.more_body else None
        whole = [each for each in working if each is not broken]
        if not whole:
            self._say_refusal(refusal)
        elif any(each.response_started for each in whole):
            self.transport.close()
        else:
            self._refusal = refusal
            self.pipeline = deque(each for each in self.pipeline if each[0] is not broken)
            if broken is not None:  # it is never begun
                broken.response_complete = True

    def _working(self) -> list[RequestResponseCycle]:
        """The requests that are not answered yet."""
        return [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]

    def _say_refusal(self, refusal: _Refusal) -> None:
        if self.transport.is_closing():
            return
        if not any(each.response_started for each in self._working()):
            id = new_id()
            headers = {
                "Connection": "close",
                "X-Request-ID": id,
                **({"Retry-After": RETRY_AFTER} if refusal.retry else {}),
            }
            told = problem(refusal.status, refusal.code, refusal.detail, hint=refusal.hint, headers=headers)
            self.transport.write(_serialised(told))
            tell_refused(self.client[0] if self.client else "", request=id, status=refusal.status, why=refusal.detail)
        self.transport.close()


def bounded(bounds: Bounds) -> type[BoundedConnection]:
    """The class of connections with these bounds."""
    return type("BoundedConnection", (BoundedConnection,), {"bounds": bounds})


def _serialised(response: Response) -> bytes:
    lines = [STATUS_LINE[response.status_code]]
    lines += [name + b": " + value + b"\r\n" for name, value in (*response.raw_headers, *CAREFUL)]
    return b"".join([*lines, b"\r\n", bytes(response.body)])
