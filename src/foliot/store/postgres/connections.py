"""Connections to one PostgreSQL that never wait for ever.

A piece of work holds one connection, with a bound on all of it: a place in the pool, the connecting, every statement,
COMMIT and ROLLBACK. What does not end in time, is cancelled or breaks ends its connection too, and the pool makes
another one: an answer that is still on its way must not be taken for the answer to the next question.

The server is told the same bounds for each session, so that a client that is gone without a word keeps neither a lock
nor a running statement. What the operator has set lower stays.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits, keep_alive
from foliot.kernel.backoff import backoff
from foliot.store.postgres.driver import DriverErrors, NotSent, PostgresConnection, connect, is_lost

_LIMIT: Final = """
SELECT set_config(bound.name, bound.value::text, false)
  FROM unnest($1::text[], $2::bigint[]) AS bound(name, value) JOIN pg_settings AS present ON present.name = bound.name
 WHERE present.setting::bigint = 0 OR present.setting::bigint > bound.value
"""


# A connection that was not used for so many seconds is ended: many processes share what a server has.
IDLE: Final = 300.0


# What is written looks up rows by their keys, a few or some hundred. A plan that walks through a table because it was
# small when the plan was made is kept for minutes, while the table grows: so there is none.
BY_KEYS: Final = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")


class Connections:
    """Up to `size` connections, made when they are needed. Belongs to one event loop.

    The one used last is used next: the others grow old and are ended. It is not the driver's pool, which starts
    a task and asks the loop for a timer at every use: a third of what a short query costs.
    """

    def __init__(self, url: str, size: int, waits: Waits, *, off: Sequence[str] = ()) -> None:
        """`off` are settings of the planner that are off in these sessions."""
        self._url = url
        self._size = size
        self._off = off
        self._waits = waits
        self._made: set[PostgresConnection] = set()
        self._making = 0
        self._free: list[tuple[PostgresConnection, float]] = []  # since when; the one used last is last
        self._waiting: deque[asyncio.Future[PostgresConnection | None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def hold(self, *, within: float | None = None) -> HeldConnection:
        """One connection for one piece of work, which takes `within` seconds at most, all in all (else one attempt).

        Raises `TimeoutError` when it would take longer; nothing more is then known of the work than after a reset.
        """
        return HeldConnection(self, self._waits.attempt if within is None else min(within, self._waits.attempt))

    async def acquire(self) -> PostgresConnection:
        """A connection for the caller alone, until it is released. Waits, in line, when all are in use."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            while self._free:
                connection, _ = self._free.pop()
                if not connection.is_closed():
                    return connection
                self._made.discard(connection)
            if len(self._made) + self._making < self._size:
                return await self._make()
            place: asyncio.Future[PostgresConnection | None] = loop.create_future()
            self._waiting.append(place)
            try:
                if (given := await place) is not None:
                    return given
            except BaseException:
                if place.done() and not place.cancelled():  # it was given one, and stopped, at the same moment
                    self._pass_on(place.result())
                raise
        raise NotSent("the store is closed")

    def release(self, connection: PostgresConnection) -> None:
        """Gives a connection back. One that has ended makes room for another."""
        if connection.is_closed():
            self._made.discard(connection)
            self._pass_on(None)
        else:
            self._pass_on(connection)

    async def listener(self) -> PostgresConnection:
        """A connection of its own, for whoever listens. Ended by its owner."""
        connection = await connect(self._url, within=self._waits.attempt)
        try:
            async with asyncio.timeout(self._waits.attempt):
                await _bound(connection, self._waits)
                if self._off:
                    await connection.execute("; ".join(f"SET {setting} = off" for setting in self._off))
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def close(self) -> None:
        """Let what is at work end, but not for long."""
        self._closed = True
        try:
            async with asyncio.timeout(self._waits.leave):
                while self._making or len(self._free) < len(self._made):
                    place: asyncio.Future[PostgresConnection | None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(place)
                    if (given := await place) is not None:
                        self._free.append((given, 0.0))
                await asyncio.gather(*(connection.close() for connection in self._made), return_exceptions=True)
        except TimeoutError:
            pass
        finally:
            self.terminate()

    def terminate(self) -> None:
        """End all connections at once."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._made:
            connection.terminate()
        while self._waiting:
            self._pass_on(None)

    async def _make(self) -> PostgresConnection:
        self._making += 1
        try:
            connection = await self.listener()
        except BaseException:
            self._making -= 1
            self._pass_on(None)
            raise
        self._making -= 1
        self._made.add(connection)
        if self._closed:
            connection.terminate()
        return connection

    def _pass_on(self, connection: PostgresConnection | None) -> None:
        """Gives a connection to the caller that waits longest; one that is given none makes one."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(connection)
                return
        if connection is not None:
            loop = asyncio.get_running_loop()
            self._free.append((connection, loop.time()))
            if self._sweep is None:
                self._sweep = loop.call_later(IDLE, self._end_idle)

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        old = [connection for connection, since in self._free if since <= loop.time() - IDLE]
        self._free = [each for each in self._free if each[0] not in old]
        for connection in old:
            connection.terminate()
            self._made.discard(connection)
        self._sweep = loop.call_later(IDLE, self._end_idle) if self._free and not self._closed else None


class HeldConnection:
    """A connection for as long as its block lasts, and no longer than it may. Work that is cut off ends it."""

    __slots__ = ("_connection", "_connections", "_timeout")

    def __init__(self, connections: Connections, within: float) -> None:
        self._connections = connections
        self._timeout = asyncio.timeout(within)
        self._connection: PostgresConnection | None = None

    async def __aenter__(self) -> PostgresConnection:
        await self._timeout.__aenter__()
        try:
            connection = self._connection = await self._connections.acquire()
        except BaseException:
            await self._timeout.__aexit__(*sys.exc_info())
            raise
        return connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        assert self._connection is not None  # entered
        if error is not None and (is_lost(error) or not isinstance(error, Exception)):
            self._connection.terminate()
        self._connections.release(self._connection)
        await self._timeout.__aexit__(kind, error, trace)


async def _bound(connection: PostgresConnection, waits: Waits) -> None:
    watch_over(connection, waits)
    bounds = {
        "statement_timeout": int(waits.attempt * 900),  # ms: before the client gives up, so that the session stays
        "lock_timeout": int(waits.lock * 1000),
        "idle_in_transaction_session_timeout": int(waits.answer * 1000),
        "client_connection_check_interval": int(waits.ping * 1000),
        "tcp_user_timeout": int(waits.answer * 1000),
        "tcp_keepalives_idle": max(1, int(waits.ping)),  # s
        "tcp_keepalives_interval": max(1, int(waits.ping)),
        "tcp_keepalives_count": 2,
    }
    await connection.execute(_LIMIT, list(bounds), list(bounds.values()))


def watch_over(connection: PostgresConnection, waits: Waits) -> None:
    """Have the system find out that the server is gone."""
    transport: Any = getattr(connection, "_transport", None)  # the driver has no word for it
    found: Any = transport.get_extra_info("socket") if transport is not None else None
    if found is not None:
        keep_alive(found, waits)


# --- notices ---------------------------------------------------------------------------------------------------------

# Short messages between the processes of one PostgreSQL database: LISTEN/NOTIFY, with one connection that listens.
#
# Everything here is a hint. A notice may be lost with the connection that carries it, so whoever listens is told when
# that may have happened. Notices are sent in the background, many in one statement, and never inside a transaction
# that changes something: PostgreSQL takes a lock for the whole server when a transaction with a NOTIFY commits, which
# would end group commit.

Heard: TypeAlias = Callable[[str | None], None]

SEND: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS notice(channel, payload)"
# Notices that are not urgent and come faster than this share one statement.
_PACE: Final = 0.01
_MOST_WAITING: Final = 10_000
_MOST_AT_ONCE: Final = 500
_BACKOFF: Final = (0.1, 5.0)
_CLOSE_SECONDS: Final = 1.0


class Notice(NamedTuple):
    channel: str
    payload: str


class Noticeboard:
    """`connect` makes the connection that listens; `send` brings notices to the server. Belongs to one event loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[PostgresConnection]],
        send: Callable[[Sequence[Notice]], Awaitable[None]],
        waits: Waits | None = None,
    ) -> None:
        self._waits = waits or Waits()
        self._connect = connect
        self._send = send
        # In order, equal ones once. Urgent ones go first, and are not pushed out by a flood of others.
        self._outbox: dict[Notice, None] = {}
        self._first: dict[Notice, None] = {}
        self._urgent = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._heard: dict[str, list[Heard]] = {}
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    def post(self, channel: str, payload: str = "", *, urgent: bool = False) -> None:
        """Send soon, or at once when `urgent`. Never waits and never raises; the oldest go when too many wait."""
        outbox = self._first if urgent else self._outbox
        if len(outbox) >= _MOST_WAITING:
            del outbox[next(iter(outbox))]
        outbox[Notice(channel, payload)] = None
        if urgent:
            self._urgent.set()
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())

    def listen(self, channel: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` with every payload, and with None when some may have been missed. Returns how to stop."""
        self._heard.setdefault(channel, []).append(heard)
        self._changed.set()
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())

        def stop() -> None:
            # One more than this one may be listening, and with an equal function.
            with suppress(KeyError, ValueError):
                self._heard[channel].remove(heard)
                if not self._heard[channel]:
                    del self._heard[channel]
                    self._changed.set()

        return stop

    async def close(self) -> None:
        """Send what waits, but not for long; then stop listening."""
        self._urgent.set()
        for task, patience in ((self._sender, _CLOSE_SECONDS), (self._listener, 0.0)):
            if task is not None:
                if patience:
                    await asyncio.wait((task,), timeout=patience)
                await stop_tasks(task)

    async def _send_all(self) -> None:
        while self._first or self._outbox:
            self._urgent.clear()
            batch = list(islice(chain(self._first, self._outbox), _MOST_AT_ONCE))
            for notice in batch:
                if notice in self._first:
                    del self._first[notice]
                else:
                    del self._outbox[notice]
            for _ in range(2):  # the first try may meet a connection that broke while nobody used it
                try:
                    await self._send(batch)
                    break
                except DriverErrors:
                    continue
            if len(self._outbox) < _MOST_AT_ONCE:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PACE):
                        await self._urgent.wait()

    async def _listen(self) -> None:
        failures = 0
        while True:
            connection: PostgresConnection | None = None
            with suppress(*DriverErrors):
                connection = await self._connect()
                failures = 0
                await self._follow(connection)
            if connection is not None:
                connection.terminate()
            # Not all processes at the same moment: the server has just come up.
            failures += 1
            await asyncio.sleep(backoff(failures, *_BACKOFF, jitter="equal", share=random.random()))

    async def _follow(self, connection: PostgresConnection) -> None:
        """Listen until the connection is lost."""
        lost = False
        listening: set[str] = set()

        def ended(_: object) -> None:
            nonlocal lost
            lost = True
            self._changed.set()

        try:
            connection.add_termination_listener(ended)
            while not lost:
                self._changed.clear()
                async with asyncio.timeout(self._waits.attempt):
                    for channel in self._heard.keys() - listening:
                        await connection.add_listener(channel, self._dispatch)
                        listening.add(channel)
                        self._tell(channel, None)  # whatever was said before we listened
                    for channel in listening - self._heard.keys():
                        await connection.remove_listener(channel, self._dispatch)
                        listening.discard(channel)
                try:
                    # A connection whose other end is gone is as silent as one that has nothing to tell.
                    async with asyncio.timeout(self._waits.ping):
                        await self._changed.wait()
                except TimeoutError:
                    async with asyncio.timeout(self._waits.attempt):
                        await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _dispatch(self, _connection: object, _process: int, channel: str, payload: str) -> None:
        self._tell(channel, payload)

    def _tell(self, channel: str, payload: str | None) -> None:
        for heard in tuple(self._heard.get(channel, ())):
            heard(payload)
