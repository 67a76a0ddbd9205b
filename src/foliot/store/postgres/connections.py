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
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits, keep_alive
from foliot.kernel.backoff import backoff
from foliot.store.postgres.driver import DriverErrors, Pool, PostgresConnection, connect, is_lost, make_pool

_LIMIT: Final = """
SELECT set_config(bound.name, bound.value::text, false)
  FROM unnest($1::text[], $2::bigint[]) AS bound(name, value) JOIN pg_settings AS present ON present.name = bound.name
 WHERE present.setting::bigint = 0 OR present.setting::bigint > bound.value
"""


class Connections:
    """A pool. Make it with `await Connections.open(url, size, waits)`. Belongs to one event loop."""

    def __init__(self, url: str, pool: Pool, waits: Waits) -> None:
        self._url = url
        self._pool = pool
        self._waits = waits

    @classmethod
    async def open(cls, url: str, size: int, waits: Waits) -> Connections:
        async def begin(connection: PostgresConnection) -> None:
            await _bound(connection, waits)

        return cls(url, await make_pool(url, size, within=waits.attempt, begin=begin), waits)

    @asynccontextmanager
    async def hold(self, *, within: float | None = None) -> AsyncGenerator[PostgresConnection]:
        """One connection for one piece of work, which takes `within` seconds at most, all in all (else one attempt).

        Raises `TimeoutError` when it would take longer; nothing more is then known of the work than after a reset.
        """
        async with asyncio.timeout(self._waits.attempt if within is None else min(within, self._waits.attempt)):
            connection = await self._pool.acquire(timeout=None)
            try:
                yield connection
            except BaseException as error:
                if is_lost(error) or not isinstance(error, Exception):
                    connection.terminate()
                raise
            finally:
                await self._pool.release(connection)

    async def listener(self) -> PostgresConnection:
        """A connection of its own, for whoever listens. Ended by its owner."""
        connection = await connect(self._url, within=self._waits.attempt)
        try:
            async with asyncio.timeout(self._waits.attempt):
                await _bound(connection, self._waits)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def close(self) -> None:
        """Let what is at work end, but not for long."""
        try:
            async with asyncio.timeout(self._waits.leave):
                await self._pool.close()
        except TimeoutError:
            self.terminate()

    def terminate(self) -> None:
        """End all connections at once."""
        self._pool.terminate()


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
