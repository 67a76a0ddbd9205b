"""The one thread that writes to a SQLite file: it takes whatever waits, and commits it together.

One `fsync` serves up to `LARGEST_BATCH` transactions. While it runs, the next ones gather. An error undoes nothing but
the body that raised it: the others of its batch are run again, and committed. Results go back to each loop in one call.
Bodies of one batch move the heads that all share once (store/heads.py).

Written to by:  SqliteDatabase.write, from any thread.
Invariant:      a future is resolved exactly once, with a result only after the commit; what was accepted before
                `stop` is finished.
"""

from __future__ import annotations

import random
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import apsw
from msgspec import Struct

from foliot.common.waits import Waits
from foliot.errors import FoliotError, Unavailable
from foliot.store import queries
from foliot.store.heads import Heads
from foliot.store.sqlite.file import (
    WRITE_PATIENCE,
    Cursor,
    OpenFiles,
    SqliteConnection,
    connect,
    count_rows,
    explain,
    leave_log,
)
from foliot.store.transaction import Guarded, GuardFailed, Statement, Tx

LARGEST_BATCH = 1024
# As many rows are worth a statement of their own, and so many guarded bodies two.
ROWS_AT_ONCE = 16
BODIES_AT_ONCE = 32

# A process that finds others writing to the same file lets go for a moment after each of its commits. Without this the
# busiest one takes the lock again before a napping one can look.
_COURTESY = 0.004
_COURTESY_BATCHES = 20


class WriteJob(Struct, frozen=True, gc=False):
    """One transaction that waits for its turn."""

    future: Future[Any]
    loop: AbstractEventLoop
    body: Callable[..., Tx[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Outcome: TypeAlias = tuple[WriteJob, Any, BaseException | None]


class Writer:
    """Owns the writing connection. `on_commit` is called on the writer's thread after each commit."""

    def __init__(
        self,
        path: Path,
        *,
        files: OpenFiles,
        waits: Waits,
        on_commit: Callable[[], None],
        on_loss: Callable[[Unavailable], None],
    ) -> None:
        """`on_loss` is called when the files are found to have been deleted or replaced: nothing can be stored then."""
        self._path = path
        self._files = files
        self._patience = min(waits.answer, WRITE_PATIENCE)
        self._on_loss = on_loss
        self._on_commit = on_commit
        self._queue: SimpleQueue[Sequence[WriteJob] | None] = SimpleQueue()
        self._executor: Executor | None = None
        self._others_seen = 0
        self._version = 0
        self.submit = self._queue.put
        # Commits of up to 1, 2, 4 … 1024 transactions and of more, and all transactions. Only the thread writes them.
        self.commit_sizes = [0] * 12
        self.committed = 0
        self._thread = threading.Thread(target=self._work, name=f"foliot-writer-{path.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what was accepted, then end. Blocks for as long as that takes."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while self._write_waiting():
            pass
        if self._executor is not None:
            with suppress(apsw.Error):  # statistics are a help, and the next one to close looks again
                self._executor.connection.execute("PRAGMA busy_timeout = 0").fetchall()
                count_rows(self._executor.connection)
            self._executor.connection.close()
        self._refuse_late()

    def _write_waiting(self) -> bool:
        """Write whatever waits; False when nothing more will come. A frame of its own, so that it keeps no batch."""
        batch, stopping = self._take()
        jobs = [job for job in batch if not job.future.cancelled()]
        if jobs:
            outcomes = self._commit(jobs)
            self.commit_sizes[min((len(jobs) - 1).bit_length(), 11)] += 1
            self.committed += len(jobs)
            _deliver(outcomes)
            self._on_commit()
        return not stopping

    def _refuse_late(self) -> None:
        """Answer what another thread handed in while the store was being closed."""
        closed = Unavailable(f"the store {self._path} is closed", hint="open it again", retryable=False)
        while not self._queue.empty():
            if (jobs := self._queue.get()) is not None:
                _deliver([(job, None, closed) for job in jobs])

    def _take(self) -> tuple[list[WriteJob], bool]:
        """Takes the waiting jobs off the queue; returns them, and whether the writer ends after them."""
        batch: list[WriteJob] = []
        handed = self._queue.get()
        try:
            while handed is not None:
                batch.extend(handed)
                if len(batch) >= LARGEST_BATCH:
                    return batch, False
                handed = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, True

    def _commit(self, jobs: list[WriteJob]) -> list[Outcome]:
        """Run all jobs under one commit. Never raises: an error becomes the outcome of every job it concerns."""
        try:
            if self._executor is None:
                self._executor = Executor(connect(self._path, patience=self._patience))
            executor = self._executor
            connection = executor.connection
            executor.begin()
            try:
                self._files.check_all()  # before, so that nothing is added to the log of another store
                outcomes = self._run_together(executor, jobs)
                executor.commit()
                self._files.check()  # after, so that nobody is told of a commit that went with its file
            except BaseException:
                if connection.in_transaction:
                    executor.rollback()
                raise
            self._be_courteous(executor)
        except BaseException as error:
            told = explain(error, self._path) if isinstance(error, apsw.Error) else error
            self._see_loss(told)
            return [(job, None, told) for job in jobs]
        else:
            return outcomes

    def _see_loss(self, error: BaseException) -> None:
        """A file that was deleted may show as any error of the disk."""
        try:
            self._files.check_all()
        except Unavailable as lost:
            if self._executor is not None:
                leave_log(self._executor.connection)
            self._on_loss(lost)
            if error is not lost and isinstance(error, FoliotError):
                error.__cause__ = lost

    def _run_together(self, executor: Executor, jobs: list[WriteJob]) -> list[Outcome]:
        """Almost every batch is without an error, and then savepoints would be a third of its statements.

        One with an error is undone, and its bodies are run again each in a savepoint, which bodies allow.
        """
        if len(jobs) > 1 or isinstance(jobs[0].body, Guarded):
            try:
                return executor.run_all(jobs, self._path)
            except BaseException:
                if executor.connection.in_transaction:
                    executor.rollback()
                executor.begin()
        return self._run_each(executor, jobs)

    def _run_each(self, executor: Executor, jobs: list[WriteJob]) -> list[Outcome]:
        alone = len(jobs) == 1
        outcomes: list[Outcome] = []
        for job in jobs:
            if not alone:
                executor.savepoint()
            try:
                result = executor.run(job, self._path)
            except BaseException as error:
                if not executor.connection.in_transaction:
                    raise  # the disk is full or failing: SQLite undid the whole batch by itself
                outcomes.append((job, None, error))
                if alone:
                    executor.rollback()
                    executor.begin()
                else:
                    executor.undo()
            else:
                outcomes.append((job, result, None))
            if not alone:
                executor.release()
        return outcomes

    def _be_courteous(self, executor: Executor) -> None:
        version = executor.version()
        if version != self._version:
            self._others_seen = _COURTESY_BATCHES if self._version else 0
            self._version = version
        elif self._others_seen:
            self._others_seen -= 1
        if self._others_seen:
            time.sleep(random.uniform(_COURTESY / 4, _COURTESY))


class Executor:
    """Runs bodies on one connection."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection
        self._cursor = connection.cursor()
        self._texts = queries.load()
        self._columns: dict[str, tuple[str, ...]] = {}
        self._heads: Heads | None = None  # while the bodies of a batch share them

    def begin(self) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def rollback(self) -> None:
        self._cursor.execute("ROLLBACK")

    def savepoint(self) -> None:
        self._cursor.execute("SAVEPOINT body")

    def undo(self) -> None:
        self._cursor.execute("ROLLBACK TO body")

    def release(self) -> None:
        self._cursor.execute("RELEASE body")

    def version(self) -> int:
        """A number that changes when another connection commits, not when this one does."""
        return self._cursor.execute("PRAGMA data_version").fetchall()[0][0]

    def run_all(self, jobs: Sequence[WriteJob], path: Path) -> list[Outcome]:
        """Run every body; guarded ones last and together. Raises what any of them raises, `GuardFailed` too."""
        outcomes: list[Outcome] = []
        together: dict[Guarded, list[WriteJob]] = {}
        self._heads = heads = Heads(ROWS_AT_ONCE)
        try:
            for job in jobs:
                body: object = job.body
                if isinstance(body, Guarded):
                    together.setdefault(body, []).append(job)
                else:
                    outcomes.append((job, self.run(job, path), None))
            for body, guarded in together.items():
                for start in range(0, len(guarded), BODIES_AT_ONCE):
                    outcomes += self._run_guarded(body, guarded[start : start + BODIES_AT_ONCE], path)
            for statement in heads.rest():
                self._execute(statement)
        except apsw.Error as error:
            raise explain(error, path) from error
        finally:
            self._heads = None
        return outcomes

    def _run_guarded(self, body: Guarded, jobs: Sequence[WriteJob], path: Path) -> list[Outcome]:
        """Run bodies of one kind together, but for those that cannot be planned."""
        outcomes: list[Outcome] = []
        guards: list[tuple[Any, ...]] = []
        added: list[tuple[Any, ...]] = []
        for job in jobs:
            if (planned := body.plan(*job.args)) is None:
                outcomes.append((job, self.run(job, path), None))
            else:
                outcomes.append((job, None, None))
                guards.append(planned.guard)
                added += planned.rows
        if self._heads is not None:
            for statement in self._heads.due(body.guard):
                self._execute(statement)
        connection, cursor = self.connection, self._cursor
        before = connection.total_changes()
        cursor.executemany(self._texts[body.guard], guards)
        if connection.total_changes() - before != len(guards):
            raise GuardFailed
        cursor.executemany(self._texts[body.add], added)
        return outcomes

    def run(self, job: WriteJob, path: Path) -> Any:
        """Drive the body to its end. A failed statement is raised inside the body, which may only translate it."""
        body = job.body(*job.args, **job.kwargs)
        execute = self._perform
        try:
            statement = next(body)
            while True:
                try:
                    result = execute(statement)
                except (apsw.Error, UnicodeEncodeError) as error:
                    told = explain(error, path)
                    told.__cause__ = error
                    body.throw(told)
                    body.close()
                    raise told from error
                statement = body.send(result)
        except StopIteration as end:
            return end.value

    def _perform(self, statement: Statement) -> Any:
        """Performs a statement of a body; of one about a head that several share, only what cannot be put off."""
        name = statement.name
        if (heads := self._heads) is None or name not in heads.names:
            return self._execute(statement)
        if (known := heads.answers((statement,))) is not None:
            return known[0]
        for left in heads.due(name):
            self._execute(left)
        result = self._execute(statement)
        heads.done((statement,))
        return result

    def _execute(self, statement: Statement) -> Any:
        name, params, want = statement.name, statement.params, statement.want
        cursor = self._cursor
        if want == "many":
            cursor.executemany(self._texts[name], params)
            return None
        cursor.execute(self._texts[name], params)
        if want == "count":
            cursor.fetchall()
            return self.connection.changes()
        return fetch(cursor, name, self._columns)


def fetch(cursor: Cursor, name: str, columns: dict[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """The rows as dicts. The names of the columns are known only while there is a row, and are then remembered."""
    if (names := columns.get(name)) is None:
        try:
            names = columns[name] = tuple(column[0] for column in cursor.get_description())
        except apsw.ExecutionCompleteError:
            return []
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _deliver(outcomes: Sequence[Outcome]) -> None:
    """Hand the outcomes to their event loops, one call for each loop."""
    loops = {outcome[0].loop for outcome in outcomes}
    for loop in loops:
        mine = outcomes if len(loops) == 1 else [outcome for outcome in outcomes if outcome[0].loop is loop]
        with suppress(RuntimeError):  # the loop was closed: nobody is left to hear the outcome
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for job, result, error in outcomes:
        if job.future.done():
            continue  # the caller was cancelled meanwhile
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
