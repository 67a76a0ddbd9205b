"""One connection, as patient as it has to be and no more.

uvicorn parses, and hands requests on. Here is what it leaves to others: how long somebody may take to send a head, how
large one may be, how many connections there are, how long somebody may not read what they asked for, and what is said
to those who send something that is no request. Whatever is said is a problem (see problems.py).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from foliot.server.http.envelope import CAREFUL, tell_refused
from foliot.server.http.heads import HEALTH, new_id
from foliot.server.http.problems import RETRY_AFTER, problem

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


class BoundedConnection(HttpToolsProtocol):
    """A connection within bounds."""

    bounds = Bounds()
    _heading = False
    _head_size = 0
    _refused = False
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None

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
        for timer in (self._deadline, self._unread, self._lingering):
            if timer is not None:
                timer.cancel()
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # --- what comes in -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
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

    def on_headers_complete(self) -> None:
        self._heading = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        before = self.cycle  # None before the first
        if len(self.pipeline) >= MOST_AHEAD:
            raise ValueError("too many requests ahead of their answers")
        super().on_headers_complete()
        # What follows a body in chunks is no header: it comes after the decision who this is.
        self.headers = []
        if before and not before.response_complete:
            self._earlier = [each for each in self._earlier if not each.response_complete]
            self._earlier.append(before)

    def on_message_complete(self) -> None:
        if self._lingering is not None:  # the rest of the body has come after all
            self._lingering.cancel()
            self._lingering = None
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        super().on_message_complete()
        self.cycle.more_body = False

    def _unsupported_upgrade_warning(self) -> None:
        # No other protocol is spoken here. The request is answered, and what follows it may be no request.
        self.cycle.keep_alive = False

    # --- what goes out -------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            # Answered before all of the body was here. To close at once could take the answer away from the peer.
            self._lingering = self.loop.call_later(self.bounds.linger, self.transport.close)

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
        """Say why, and hang up. In the middle of an answer nothing can be said."""
        if self.transport.is_closing():
            return
        working = [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]
        if not any(each.response_started for each in working):
            id = new_id()
            headers = {
                "Connection": "close",
                "X-Request-ID": id,
                **({"Retry-After": RETRY_AFTER} if retry else {}),
            }
            self.transport.write(_serialised(problem(status, code, detail, hint=hint, headers=headers)))
            tell_refused(self.client[0] if self.client else "", request=id, status=status, why=detail)
        self.transport.close()


def bounded(bounds: Bounds) -> type[BoundedConnection]:
    """The class of connections with these bounds."""
    return type("BoundedConnection", (BoundedConnection,), {"bounds": bounds})


def _serialised(response: Response) -> bytes:
    lines = [STATUS_LINE[response.status_code]]
    lines += [name + b": " + value + b"\r\n" for name, value in (*response.raw_headers, *CAREFUL)]
    return b"".join([*lines, b"\r\n", bytes(response.body)])
