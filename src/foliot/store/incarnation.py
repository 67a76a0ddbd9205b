"""The beginning of a new incarnation: a store that was put back, and may have been another one at its newest revisions.

Whoever knew the lost changes holds versions and positions of watches that the store would hand out again, for something
else. So the revision goes on at a number that no earlier history has reached, every resource gets it as its version,
and all changes before it count as forgotten: an old version is a conflict, an old position is gone.

Written by:  store/backup.py, which restores a file; store/postgres/database.py, which finds that its database was
restored: by
             the number of the database or of a table, which every `pg_restore` and every copy draws anew, or by the
             timeline, which a recovery to a point in time and a standby that takes over begin; cli/commands/backup.py,
             for an operator who knows what no store can notice: rows, files or disks that were put back in place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from foliot.errors import NotFound, Unavailable
from foliot.store.base import Database
from foliot.store.resources.documents import decode, encode
from foliot.store.sqlite.file import PREPARE_PATIENCE, connect, prepare, told_in_words
from foliot.store.sqlite.file import SqliteConnection as FileConnection
from foliot.store.transaction import Tx, run

if TYPE_CHECKING:
    from foliot.store.postgres.driver import PostgresConnection

log = logging.getLogger(__name__)

# A version stands in the document too. Where its name and value are there once, they are those of the metadata, and
# replaced as text: by PostgreSQL itself, for all in one statement, with the rest of the document left as it is. (As a
# part of a text they would have backslashes.) Few documents say it twice, such as in an annotation.
_STAMP: Final = """
UPDATE resource
   SET version = $1,
       document = replace(document, '"resourceVersion":"' || version || '"', '"resourceVersion":"' || $1::bigint || '"')
 WHERE length(document) - length(replace(document, '"resourceVersion":"' || version || '"', ''))
       = length('"resourceVersion":"' || version || '"')
"""
_ATTEMPTS: Final = 5
_ANOTHER: Final = """
UPDATE store_life SET incarnation = md5(random()::text || clock_timestamp()::text || txid_current()::text)
"""
# The parts of a place: cluster, database, table, and behind a dot the timeline. Some services hide the last or first.
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"
_TIMELINE: Final = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_NUMBERS: Final = """
SELECT database.oid::text || '/' || 'counter'::regclass::oid::text
  FROM pg_database AS database WHERE database.datname = current_database()
"""
_LEFT: Final = "SELECT key, document FROM resource WHERE key > $1 AND version <> $2 ORDER BY key LIMIT 1000"


def first_revision(newest: int, at: float) -> int:
    """The revision that an incarnation begins with: 2^20 for each second since 1970, and one for each microsecond."""
    seconds, rest = divmod(int(at * 1_000_000), 1_000_000)
    return max(newest + 1, (seconds << 20) + rest)


def begin_in_file(connection: FileConnection, at: float, *, beyond: int = 0) -> int:
    """The first revision of the new incarnation. `beyond` is a revision that is known of the lost history."""
    connection.execute("BEGIN IMMEDIATE")
    (newest,) = connection.execute("SELECT value FROM counter WHERE name = 'revision'").fetchall()[0]
    revision = first_revision(max(newest, beyond), at)
    connection.execute("UPDATE counter SET value = ? WHERE name IN ('revision', 'compacted')", (revision,))
    connection.execute(
        "UPDATE resource SET version = ?, document = json_set(document, '$.metadata.resourceVersion', ?)",
        (revision, str(revision)),
    )
    if connection.table_exists("main", "store_life"):
        # Who knew the store as it was later must not take this one for it.
        connection.execute("UPDATE store_life SET incarnation = lower(hex(randomblob(16)))")
    connection.execute("COMMIT")
    return revision


def renew_file(path: Path) -> int:
    """Begin a new incarnation of a store that may be in use; its first revision. Raises `NotFound`, `Unavailable`."""
    if not path.is_file():
        raise NotFound(f"there is no store at {path}", hint="name the store with --store or FOLIOT_STORE")
    prepare(path).close()
    with told_in_words(path):
        connection = connect(path, patience=PREPARE_PATIENCE)
        try:
            return begin_in_file(connection, time.time())
        finally:
            connection.close()


async def renew_database(url: str) -> int:
    """Renew a PostgreSQL database as `renew_file` does a file. Raises `InvalidInput`, `Unavailable`."""
    from foliot.store.postgres import driver as postgres_driver
    from foliot.store.postgres.database import PostgresDatabase
    from foliot.store.postgres.driver import explain, place

    await (await PostgresDatabase.open(url)).close()  # it is up to date then, and has found what it can find itself
    try:
        connection = await postgres_driver.connect(url, within=PREPARE_PATIENCE)
        try:
            for _ in range(_ATTEMPTS):
                try:
                    return await _renewed(connection)
                except postgres_driver.Retryable:
                    continue  # somebody writes at this moment
        finally:
            connection.terminate()
    except postgres_driver.DriverErrors as error:
        # Not `from error`: the driver may quote the URL.
        raise explain(error, place(url)) from None
    raise Unavailable(f"the store at {place(url)} is written to all the time", hint="stop the writers, then try again")


async def _renewed(connection: PostgresConnection) -> int:
    async with connection.transaction():
        await connection.execute("SELECT place FROM store_life FOR UPDATE")
        newest: int = await connection.fetchval("SELECT value FROM counter WHERE name = 'revision' FOR UPDATE")
        revision = await _begin(connection, newest)
        await connection.execute(_ANOTHER)
        return revision


async def settle(connection: PostgresConnection, *, within: float, rewriting: float) -> None:
    """Compare where a PostgreSQL database is with where it was, and begin a new incarnation when that is elsewhere.

    On a connection outside any transaction, of a database that is up to date. The answer comes `within` so many
    seconds; to begin anew every resource is written, for which there are those of `rewriting`.
    """
    async with asyncio.timeout(within):
        if await connection.fetchval("SELECT pg_is_in_recovery()"):
            return  # a standby, on which nothing can be written
        here = await _place(connection)
        if await connection.fetchval("SELECT place FROM store_life") == here:
            return
    async with asyncio.timeout(rewriting), connection.transaction():
        # The bounds of a session are those of a read or a write. Its own end takes these away again.
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute("SET LOCAL lock_timeout = 0")
        # Others that open the store at this moment wait here, and then find it settled.
        was: str = await connection.fetchval("SELECT place FROM store_life FOR UPDATE")
        if was == here:
            return
        newest: int = await connection.fetchval("SELECT value FROM counter WHERE name = 'revision' FOR UPDATE")
        copied, moved = _differs(was, here)
        if copied or moved:
            log.warning("the store was put back or taken over: versions and watches of resources begin anew")
            await _begin(connection, newest)
        if copied:
            await connection.execute(_ANOTHER)
        await connection.execute("UPDATE store_life SET place = $1", here)


def _differs(was: str, here: str) -> tuple[bool, bool]:
    """Whether it is a copy, and whether it is on another timeline; what was or is unknown says nothing."""
    if not was:
        return False, False
    (store_then, _, line_then), (store_now, _, line_now) = was.rpartition("."), here.rpartition(".")
    pairs = zip(store_then.split("/"), store_now.split("/"), strict=True)
    return any(then != now for then, now in pairs if then and now), bool(
        line_then and line_now and line_then != line_now
    )


async def _place(connection: PostgresConnection) -> str:
    system, timeline = [await _told(connection, each) for each in (_SYSTEM, _TIMELINE)]
    return f"{system}/{await connection.fetchval(_NUMBERS)}.{timeline}"


async def _told(connection: PostgresConnection, question: str) -> str:
    from foliot.store.postgres.driver import ServerError

    try:
        return str(await connection.fetchval(question))
    except ServerError:
        return ""  # a service that does not let us ask


async def _begin(connection: PostgresConnection, newest: int) -> int:
    at: float = await connection.fetchval("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8)")
    revision = first_revision(newest, at)
    await connection.execute("UPDATE counter SET value = $1 WHERE name IN ('revision', 'compacted')", revision)
    await connection.execute(_STAMP, revision)
    last = ""
    while found := await connection.fetch(_LEFT, last, revision):
        rows = [(each["key"], revision, _stamped(each["document"], revision)) for each in found]
        await connection.executemany("UPDATE resource SET version = $2, document = $3 WHERE key = $1", rows)
        last = found[-1]["key"]
    return revision


def _stamped(text: str, revision: int) -> str:
    document = decode(text)
    document["metadata"]["resourceVersion"] = str(revision)
    return encode(document)


# --- life ------------------------------------------------------------------------------------------------------------

# Which store this is, and whether it went back in time: by a failover to an old replica, or a backup put back.
#
# What was done after the moment it went back to, it does not know: effects happened that no journal tells of, and
# would happen again. So whoever holds something newer than the store knows says so, and stops: a worker whose signs of
# life are ahead, a holder whose epoch or last event is. What was found is kept for `foliot doctor`.
#
# Written by: work/worker/worker.py and engine/driver/runs.py, who find it; incarnation.py begins a new one. Read by:
# cli/doctor/store.py.


class StoreLife(Struct, frozen=True):
    """`set_back_at` is when a process last found the store older than what it had seen; `set_back` says what."""

    incarnation: str
    set_back_at: float | None = None
    set_back: str = ""


async def store_life(db: Database) -> StoreLife:
    (row,) = await db.read("life_get")
    return StoreLife(**row)


async def note_set_back(db: Database, what: str, *, clock: Callable[[], float]) -> None:
    """Say that the store is older than it was, loudly, and keep it."""
    log.error("THE STORE WENT BACK IN TIME: %s. What was done since may be done again; see `foliot doctor`", what)
    await db.write(_note, what, clock())


def _note(what: str, now: float) -> Tx[int]:
    return (yield from run("life_set_back", what=what, now=now))
