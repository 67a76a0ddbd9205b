"""Connections to one PostgreSQL that never wait for ever.

A piece of work holds one connection, with a bound on all of it: a place in the pool, the connecting, every statement,
COMMIT and ROLLBACK. What does not end in time, is cancelled or breaks ends its connection too, and the pool makes
another one: an answer that is still on its way must not be taken for the answer to the next question.

The server is told the same bounds for each session, so that a client that is gone without a word keeps neither a lock
nor a running statement. What the operator has set lower stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from foliot.common.waits import Waits, keep_alive
from foliot.store.postgres.driver import Connection, Pool, connect, is_lost, make_pool

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
        async def begin(connection: Connection) -> None:
            await _bound(connection, waits)

        return cls(url, await make_pool(url, size, within=waits.attempt, begin=begin), waits)

    @asynccontextmanager
    async def hold(self, *, within: float | None = None) -> AsyncGenerator[Connection]:
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

    async def listener(self) -> Connection:
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


async def _bound(connection: Connection, waits: Waits) -> None:
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


def watch_over(connection: Connection, waits: Waits) -> None:
    """Have the system find out that the server is gone."""
    transport: Any = getattr(connection, "_transport", None)  # the driver has no word for it
    found: Any = transport.get_extra_info("socket") if transport is not None else None
    if found is not None:
        keep_alive(found, waits)
