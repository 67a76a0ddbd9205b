"""The store on PostgreSQL: a pool of connections, and concurrent writes that share a commit.

A body of a transaction is driven on one connection, statement by statement. When several wait, one connection runs them
in a single transaction, in the order of what they lock (batches.py): each then costs only its own statements,
not a BEGIN and a COMMIT (with a wait for the disk) of its own, and what several have come to do is one statement. Those
that decide nothing (`Guarded`) are one statement altogether. If a body fails after it has changed something, the
transaction is rolled back and each is run again alone, which bodies must allow anyway.

Belongs to the event loop that opened it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.errors import ReadTooLong, TooManyReads, Unavailable, UsageError
from foliot.store import schema
from foliot.store.base import Size
from foliot.store.database_clock import DatabaseClock, follow, steady
from foliot.store.incarnation import settle
from foliot.store.postgres.batches import BodyBatch, LeftOut, Part, RefusedBody
from foliot.store.postgres.connections import BY_KEYS, SEND, Connections, Notice, Noticeboard, watch_over
from foliot.store.postgres.driver import (
    DriverErrors,
    NotSent,
    PostgresConnection,
    Retryable,
    RowErrors,
    connect,
    explain,
    is_lost,
    is_too_long,
    place,
)
from foliot.store.postgres.sets import can_share, run_guarded, run_many, run_shared
from foliot.store.queries import load_for_postgres, long_reads
from foliot.store.transaction import Alone, Guarded, Params, Planned, Row, Statement, Tx

# --- postgres signal -------------------------------------------------------------------------------------------------

# Hearing of commits: a notice as a hint between processes, a counter within one.
#
# The notice is sent after the commit and not inside it (see connections.py). A process that dies in between owes
# a hint; whoever waits looks again after its timeout anyway.

CHANNEL = "foliot_change"


class ChangeSignal:
    """Counts commits that this process knows of, and wakes who waits for one."""

    def __init__(self, board: Noticeboard) -> None:
        self._board = board
        self._count = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._listening = False

    def committed(self) -> None:
        """This process committed something: wake its own waiters now and tell the other processes soon."""
        self.wake()
        self._board.post(CHANNEL)

    def mark(self) -> int:
        """Returns how many commits this process knows of. What is committed before it listens counts as one more."""
        if not self._listening:
            self._listening = True
            self._board.listen(CHANNEL, self.wake)
        return self._count

    async def wait(self, seen: object, timeout: float) -> None:
        """Return at the first commit after the mark `seen`, or after `timeout` seconds."""
        if self.mark() == seen:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(woken)
            try:
                await asyncio.wait((woken,), timeout=timeout)
            finally:
                self._waiting.discard(woken)

    def wake(self, _payload: str | None = None) -> None:
        """Wakes the waiting callers: something was committed, here or elsewhere, or the store is closing."""
        self._count += 1
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


# --- postgres --------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

POOL = 10
# One writer stores what has gathered while it stored the group before. Others help when it is held up: by a row that
# another process has locked, or by a slow disk. Each statement to a server that is far away waits for the network, and
# groups wait for it together: there all writers start at once.
WRITERS: Final = 4
HELD_UP: Final = 0.05
FAR_AWAY: Final = 0.001
# So many of the others may be held by reads that can become long: the rest is for small ones, whatever people list.
LONG_READS = 3
LARGEST_BATCH = 64
ALONE = 2
ATTEMPTS = 5
# For what is brought up to date when a store is opened or taken over, the wait for others that do the same included.
MIGRATION_SECONDS: Final = 3600.0
_MIGRATION_LOCK = 0x464F4C494F54  # "FOLIOT"


class _Job(NamedTuple):
    future: asyncio.Future[Any]
    body: Callable[..., Tx[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expires: float
    passed_by: int = 0  # how often it was left out of a transaction that others shared; alone from the second time on

    @property
    def is_fact(self) -> bool:
        """Whether it decides nothing, and is done with others of its kind only."""
        return isinstance(self.body, Guarded)

    def goes_with(self, other: _Job) -> bool:
        return self.body is other.body if self.is_fact else not other.is_fact


class _CommitUnknown(Exception):
    """The connection went away while the COMMIT was on its way."""


class PostgresDatabase:
    """One PostgreSQL database. Make it with `await PostgresDatabase.open(url)`."""

    def __init__(self, url: str, connections: Connections, waits: Waits, *, writing: Connections | None = None) -> None:
        """Use `open`; the database must have been migrated. `writing`: for what is written, else `connections` too."""
        self._place = place(url)
        self._connections = connections
        self._writing = writing or connections
        self._waits = waits
        self._long = long_reads()
        self._long_places = asyncio.Semaphore(LONG_READS)
        self._pending: deque[_Job] = deque()
        self._under_way: list[list[_Job]] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._writers: dict[asyncio.Task[None], float] = {}  # when each began its group
        self._helper: asyncio.TimerHandle | None = None
        self._round_trip = math.inf  # about that of the network, once it was measured
        self._board = Noticeboard(self._listener, self._send, waits)
        self._signal = ChangeSignal(self._board)
        self._closed = False
        # The server's time. It only reckons, so any thread may ask.
        self.clock = self.lease_clock = self._clock = DatabaseClock()
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, waits: Waits | None = None) -> PostgresDatabase:
        """Connect, and bring the database up to date. Raises `InvalidInput`, `Unavailable`; never shows a password."""
        where = place(url)
        waits = waits or Waits()
        try:
            await _migrate(url, where, waits)
            connections = Connections(url, POOL - WRITERS, waits)
            writing = Connections(url, WRITERS, waits, off=BY_KEYS)
        except DriverErrors as error:
            # Not `from error`: the driver may quote the URL.
            raise explain(error, where) from None
        except ValueError:
            raise UsageError(f"the URL of PostgreSQL at {where} has a part that is not understood") from None
        database = cls(url, connections, waits, writing=writing)
        try:
            await database._measure_clock()
        except DriverErrors as error:
            # By a clock that was never measured all leases may look over: whoever goes by it would take every run.
            connections.terminate()
            raise explain(error, where) from None
        except BaseException:
            connections.terminate()
            raise
        database._following = asyncio.create_task(follow(database._clock, database._measure_clock))
        return database

    async def read(self, name: str, /, **params: Any) -> list[Row]:
        self._check_open()
        ends = asyncio.get_running_loop().time() + self._waits.answer
        if name not in self._long:
            return await self._fetch(name, params, ends)
        try:
            async with asyncio.timeout(self._waits.place):
                await self._long_places.acquire()
        except TimeoutError:
            raise TooManyReads.of(name, self._waits.place) from None
        try:
            self._check_open()
            return await self._fetch(name, params, ends)
        finally:
            self._long_places.release()

    async def _fetch(self, name: str, params: Params, ends: float) -> list[Row]:
        text, names = load_for_postgres(name)
        arguments = [params[each] for each in names]
        now = asyncio.get_running_loop().time
        for attempt in (1, 2):
            try:
                async with self._connections.hold(within=ends - now()) as connection:
                    return [dict(record) for record in await connection.fetch(text, *arguments)]
            except DriverErrors as error:
                # A connection that broke while nobody used it is replaced by the pool.
                if attempt == 2 or not is_lost(error):
                    if is_too_long(error) and name in self._long:
                        raise ReadTooLong.of(name, now() - ends + self._waits.answer) from error
                    raise explain(error, self._place) from error
        raise AssertionError("unreachable")

    def write(self, body: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        passed_by = ALONE if type(body) is Alone else 0
        self._pending.append(_Job(future, body, args, kwargs, loop.time() + self._waits.answer, passed_by))
        if self._sweep is None:
            self._sweep = loop.call_later(self._waits.answer / 8, self._expire)
        self._add_writer()
        return future

    def _add_writer(self) -> None:
        """Starts a writer when there is none, or when all of them are held up; looks again while they are not."""
        if not self._pending or len(self._writers) >= WRITERS:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        held_up = HELD_UP if self._round_trip < FAR_AWAY else 0.0
        if all(now - began >= held_up for began in self._writers.values()):
            self._writers[loop.create_task(self._drain())] = now
        elif self._helper is None:
            self._helper = loop.call_later(held_up, self._look_again)

    def _look_again(self) -> None:
        self._helper = None
        self._add_writer()

    async def _measure_clock(self) -> None:
        async with self._connections.hold() as connection:
            asked = steady()
            theirs = await connection.fetchval("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8)")
            answered = steady()
            self._clock.measured(theirs, asked, answered)
            # The shortest of all: a busy machine answers late, and is not far away for that.
            self._round_trip = min(self._round_trip, answered - asked)

    def change_mark(self) -> object:
        self._check_open()
        return self._signal.mark()

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        self._check_open()
        await self._signal.wait(seen, timeout)

    def version(self) -> None:
        return None  # a notice of a change may come later than the change

    def post(self, channel: str, payload: str, *, urgent: bool = False) -> None:
        """One of `Notices`."""
        if not self._closed:
            self._board.post(channel, payload, urgent=urgent)

    def listen(self, channel: str, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """One of `Notices`."""
        self._check_open()
        return self._board.listen(channel, heard)

    async def size(self) -> Size:
        self._check_open()
        try:
            async with self._connections.hold(within=self._waits.answer) as connection:
                total: Any = await connection.fetchval("SELECT pg_database_size(current_database())")
        except DriverErrors as error:
            raise explain(error, self._place) from error
        return Size(total, total, shrinks=False)

    async def shrink(self) -> int:
        return 0  # its own autovacuum sees to it that what is free is used again

    async def refresh_statistics(self) -> None:
        """Does nothing: PostgreSQL's own autovacuum does it."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await stop_tasks(self._following)
        if self._writers:
            await asyncio.wait(set(self._writers), timeout=self._waits.leave)
        if waited := [job.future for job in chain(*self._under_way, self._pending) if not job.future.done()]:
            await asyncio.wait(waited, timeout=self._waits.leave)
        self._expire(all_of_them=True)
        if self._helper is not None:
            self._helper.cancel()
        await stop_tasks(*self._writers)
        self._signal.wake()
        await self._board.close()
        await asyncio.gather(self._connections.close(), self._writing.close())

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(
                f"the store on PostgreSQL at {self._place} is closed",
                hint="open it again",
                retryable=False,
                place=self._place,
            )

    async def _drain(self) -> None:
        """Run what waits until nothing does. Never raises: each outcome goes to its own caller."""
        this = asyncio.current_task()
        assert this is not None  # started as a task by `write`
        try:
            await self._drain_all(this)
        finally:
            # In the same step that found nothing waiting: a write that comes later sees that it must start a writer.
            del self._writers[this]

    async def _drain_all(self, this: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time
        while self._pending:
            self._writers[this] = now()
            batch = self._next_batch()
            self._under_way.append(batch)
            try:
                if len(batch) > 1 or (batch and batch[0].is_fact and batch[0].passed_by < ALONE):
                    self._pending.extendleft(reversed(await self._run_together(batch)))
                elif batch:
                    await self._run_alone(batch[0])
            finally:
                self._under_way.remove(batch)

    def _next_batch(self) -> list[_Job]:
        """The jobs that wait longest and may share a transaction: bodies with bodies, facts with those of a kind."""
        batch: list[_Job] = []
        others: list[_Job] = []
        while self._pending and len(batch) < LARGEST_BATCH and len(others) < LARGEST_BATCH:
            job = self._pending.popleft()
            if job.future.done():
                continue
            if batch and (job.passed_by >= ALONE or not job.goes_with(batch[0])):
                others.append(job)
                continue
            batch.append(job)
            if job.passed_by >= ALONE:
                break
        self._pending.extendleft(reversed(others))
        return batch

    def _expire(self, *, all_of_them: bool = False) -> None:
        """Answer those that have waited for too long. What is under way may be stored all the same."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._sweep is not None:
            self._sweep.cancel()
        for job in chain(*self._under_way, self._pending):
            if (all_of_them or job.expires <= now) and not job.future.done():
                job.future.set_exception(
                    Unavailable(
                        f"PostgreSQL at {self._place} does not answer: the change may or may not be stored",
                        hint="read before you write it again",
                        place=self._place,
                    )
                )
        while self._pending and self._pending[0].future.done():
            self._pending.popleft()
        waits = (self._pending or self._under_way) and not self._closed
        self._sweep = loop.call_later(self._waits.answer / 8, self._expire) if waits else None

    async def _run_together(self, batch: list[_Job]) -> list[_Job]:
        """Commit the batch at once; the jobs of which nothing is stored, and that must be done again."""
        try:
            results = await (self._record if batch[0].is_fact else self._transact)(batch)
        except _CommitUnknown as error:
            self._fail(batch, error)
            return []
        except Exception:
            return [job._replace(passed_by=ALONE) for job in batch]  # each of them will meet its own error alone
        again: list[_Job] = []
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, LeftOut):
                again.append(job._replace(passed_by=ALONE if result.alone else job.passed_by + 1))
            elif isinstance(result, RefusedBody) and not job.future.done():
                job.future.set_exception(result.error)
            elif not job.future.done():
                job.future.set_result(result)
        return again

    async def _run_alone(self, job: _Job) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            if job.future.done():
                return  # cancelled
            try:
                (result,) = await self._transact([job])
            except Exception as error:
                lost_once = is_lost(error) and attempt == 1  # the server may have been restarted long ago
                if attempt < ATTEMPTS and (isinstance(error, Retryable) or lost_once):
                    continue
                self._fail([job], error)
                return
            if not job.future.done():
                job.future.set_result(result)
            return

    def _fail(self, batch: list[_Job], error: Exception) -> None:
        if isinstance(error, _CommitUnknown):
            error = Unavailable(
                f"PostgreSQL at {self._place} went away during a commit: the change may or may not be stored",
                hint="read before you write it again",
                place=self._place,
            )
        elif isinstance(error, DriverErrors):
            error = explain(error, self._place)
        for job in batch:
            if not job.future.done():
                job.future.set_exception(error)

    async def _transact(self, batch: list[_Job]) -> list[Any]:
        committing = False
        try:
            async with self._writing.hold() as connection:
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                try:
                    results = await self._run_all(connection, batch)
                except Exception as error:  # when the time is over the connection ends, and all that was done on it
                    if not is_lost(error):
                        await connection.execute("ROLLBACK")
                    raise
                committing = True
                await connection.execute("COMMIT")
        except Exception as error:
            if committing and is_lost(error):
                raise _CommitUnknown from error
            raise  # or the server refused, and has undone everything
        self._signal.committed()
        return results

    async def _run_all(self, connection: PostgresConnection, batch: list[_Job]) -> list[Any]:
        """One body to its end; several in the order of what they lock, with the statements that they have in common."""
        if len(batch) == 1:
            return [await self._drive(connection, batch[0])]

        async def execute(parts: Sequence[Part], statements: Sequence[Statement]) -> Sequence[Any]:
            if not parts:
                return [await _execute(connection, each) for each in statements]
            if len(parts) > 1 and (shared := await _execute_shared(connection, statements)) is not None:
                return shared
            return [
                await self._step(connection, part.body, statement)
                for part, statement in zip(parts, statements, strict=True)
            ]

        return await BodyBatch(execute).run([job.body(*job.args, **job.kwargs) for job in batch])

    async def _record(self, batch: list[_Job]) -> list[Any]:
        """Facts of one kind in one statement, a transaction by itself. Whose guard did not hold is left out."""
        kind: Any = batch[0].body
        plans: list[Planned | None] = [kind.plan(*job.args) for job in batch]
        wanted = [planned for planned in plans if planned is not None]
        asked = False
        try:
            async with self._writing.hold() as connection:
                asked = True
                held = iter(await run_guarded(connection, kind, wanted) if wanted else ())
        except Exception as error:
            if asked and is_lost(error) and not isinstance(error, NotSent):
                raise _CommitUnknown from error
            raise
        self._signal.committed()
        return [None if planned is not None and next(held) else LeftOut(alone=True) for planned in plans]

    async def _drive(self, connection: PostgresConnection, job: _Job) -> Any:
        """Drive one body to its end. A failed statement is raised inside the body, which may only translate it."""
        body = job.body(*job.args, **job.kwargs)
        try:
            statement = next(body)
            while True:
                statement = body.send(await self._step(connection, body, statement))
        except StopIteration as end:
            return end.value

    async def _step(self, connection: PostgresConnection, body: Tx[Any], statement: Statement) -> Any:
        try:
            return await _execute(connection, statement)
        except DriverErrors as error:
            if is_lost(error) or isinstance(error, Retryable):
                body.close()
                raise
            told = explain(error, self._place)
            told.__cause__ = error
            body.throw(told)
            body.close()
            raise told from error

    async def _listener(self) -> PostgresConnection:
        """A connection that listens. It is made anew after each loss, such as when a standby takes over."""
        connection = await self._connections.listener()
        try:
            await settle(connection, within=self._waits.attempt, rewriting=MIGRATION_SECONDS)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _send(self, notices: Sequence[Notice]) -> None:
        async with self._connections.hold() as connection:
            await connection.execute(SEND, [each.channel for each in notices], [each.payload for each in notices])


async def _execute(connection: PostgresConnection, statement: Statement) -> Any:
    text, names = load_for_postgres(statement.name)
    if statement.want == "many":
        return await run_many(connection, statement.name, _sets(statement, names))
    params: Params = statement.params  # type: ignore[assignment]  # only "many" has a sequence
    arguments = [params[name] for name in names]
    if statement.want == "rows":
        return [dict(record) for record in await connection.fetch(text, *arguments)]
    status = await connection.execute(text, *arguments)  # such as "UPDATE 3"
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0


async def _execute_shared(connection: PostgresConnection, statements: Sequence[Statement]) -> Sequence[Any] | None:
    """Several statements of one name as one; None when they must be done one by one."""
    name, want = statements[0].name, statements[0].want
    if not can_share(name, want):
        return None
    if want != "many":
        return await run_shared(connection, statements)
    names = load_for_postgres(name)[1]
    await run_many(connection, name, [each for statement in statements for each in _sets(statement, names)])
    return [None] * len(statements)


def _sets(statement: Statement, names: Sequence[str]) -> Sequence[Sequence[Any]]:
    sets: Any = statement.params
    return sets if type(sets[0]) is tuple else [[each[name] for name in names] for each in sets]


async def _migrate(url: str, where: str, waits: Waits) -> None:
    connection = await connect(url, within=waits.attempt)
    try:
        watch_over(connection, waits)
        async with asyncio.timeout(waits.answer):
            exists = await connection.fetchval("SELECT to_regclass('schema_version')") is not None
            version = await connection.fetchval(schema.READ_VERSION) if exists else 0
        if not exists or schema.pending(version, "postgres", where):
            async with asyncio.timeout(MIGRATION_SECONDS):
                # A migration may take long, but must not stand in line before everybody else for the lock of a table.
                await connection.execute(f"SET lock_timeout = {int(waits.lease * 1000)}")
                # Held by the session, because each migration is a transaction of its own; let go with the connection.
                await connection.execute("SET statement_timeout = 0")
                await _lock_migrations(connection)
                await migrate(connection, where)
        await settle(connection, within=waits.answer, rewriting=MIGRATION_SECONDS)
    finally:
        connection.terminate()


async def _lock_migrations(connection: PostgresConnection) -> None:
    """Wait until no other process migrates. Asked for again and again: it may take longer than any wait for a lock."""
    while True:
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _MIGRATION_LOCK):
            return
        await asyncio.sleep(0.1)


async def migrate(connection: PostgresConnection, where: str) -> None:
    """Apply what is pending."""
    await connection.execute(schema.CREATE_VERSIONS)
    version = await connection.fetchval(schema.READ_VERSION)
    async with connection.transaction():  # all or nothing, as on SQLite
        for migration in schema.pending(version, "postgres", where):
            try:
                await connection.execute(migration.script)
            except RowErrors as error:
                # Its text may quote a row, which is nobody's business.
                raise schema.failure(migration, where, type(error).__name__) from error
