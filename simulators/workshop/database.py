"""The one true database of a workshop, and the wire on which each process reaches it.

A write is one instant, as on SQLite; or, where the profile says so, a statement at a time with those of others between
them, as on PostgreSQL (read_committed.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import apsw

from foliot.errors import FoliotError, Unavailable
from foliot.kernel.errors import IllegalEvent
from foliot.store.base import Size
from foliot.store.schema import CREATE_VERSIONS, migrations
from foliot.store.sqlite.file import SqliteConnection
from foliot.store.sqlite.writer import Executor, WriteJob
from foliot.store.transaction import Row, Statement, Tx
from simulators.engine.process import Mortal
from simulators.engine.world import World
from simulators.workshop.read_committed import Transaction, Weave

P = ParamSpec("P")
T = TypeVar("T")
_NOWHERE = Path(":memory:")
_UNHEARD = """
SELECT q.run_id FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.held = 0 AND q.due_at IS NULL AND EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = q.run_id)"""
_THEFTS = """
CREATE TEMP TABLE theft (run TEXT, victim TEXT, until REAL, thief TEXT, at REAL);
CREATE TEMP TRIGGER stolen AFTER UPDATE OF worker ON main.run
 WHEN NEW.worker IS NOT NULL AND OLD.worker IS NOT NULL AND NEW.worker <> OLD.worker
      AND OLD.lease_until > true_now() AND lives(OLD.worker)
BEGIN
    INSERT INTO theft VALUES (OLD.id, OLD.worker, OLD.lease_until, NEW.worker, true_now());
END;
"""


class Truth:
    """A SQLite database in memory, with the real schema and the real queries. Each transaction is one instant, unless
    they are `woven`."""

    def __init__(self, *, woven: bool = False) -> None:
        self._database: Any = apsw.Connection(":memory:")
        self._connection = cast("SqliteConnection", self._database)
        self._watched = False
        self._connection.execute(CREATE_VERSIONS)
        for migration in migrations("sqlite"):
            self._connection.execute(migration.script)
        self._executor = Executor(self._connection)
        # Told of each run that its holder begins to let go of, by its id.
        self.about_to_rest: Callable[[str], None] = lambda _: None
        # Runs of which it was told that they rest unheard.
        self.told: set[str] = set()
        self.weave = Weave(self._connection, self._ask) if woven else None

    def watch_thefts(self, world: World, *, alive: Callable[[str | None], bool]) -> None:
        """Write down every run that is taken from somebody who lives while its lease does, by the database's clock."""
        self._database.create_scalar_function("true_now", lambda: world.now, 0)
        self._database.create_scalar_function("lives", lambda worker: int(alive(worker)), 1)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]  # SQLite gives what it has
        self._connection.execute(_THEFTS)
        self._watched = True

    def thefts(self) -> list[tuple[Any, ...]]:
        """Returns the thefts: the run, who held it until when, who took it and when."""
        if not self._watched:
            return []
        return self._connection.execute("SELECT run, victim, until, thief, at FROM theft").fetchall()

    def _ask(self, statement: Statement) -> Any:
        def body() -> Tx[Any]:
            return (yield statement)

        return self._executor.run(_job(body, (), {}), _NOWHERE)

    def read(self, name: str, params: dict[str, Any]) -> list[Row]:
        return self._ask(Statement(name, params, "rows"))

    def write(self, body: Callable[..., Tx[T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Runs a body as one transaction. Raises what the body raises, and then nothing of it is stored."""
        self._executor.begin()
        try:
            result = self._executor.run(_job(body, args, kwargs), _NOWHERE)
        except BaseException:
            self._executor.rollback()
            raise
        self._executor.commit()
        return result

    def lease_of(self, run_id: str) -> tuple[str | None, float | None]:
        """Returns the holder of a run, and until when."""
        (row,) = self.read("run_get", {"id": run_id})
        return row["worker"], row["lease_until"]

    def unheard(self) -> list[str]:
        """Runs of tasks that rest until somebody signals, and were signalled."""
        found = self._connection.execute(_UNHEARD).fetchall()
        return [run_id for (run_id,) in found]

    def close(self) -> None:
        self._connection.close()


def _job(body: Callable[..., Tx[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> WriteJob:
    return WriteJob(cast("Any", None), cast("Any", None), body, args, kwargs)


class Wire:
    """The `Database` of one process. A write may fail before or after it was stored, or never be answered.

    `cut_until` is until when the process cannot reach the database at all.
    """

    def __init__(self, process: Mortal, truth: Truth) -> None:
        self._process = process
        self._world: World = process.world
        self._truth = truth
        self.cut_until = 0.0

    async def read(self, name: str, /, **params: Any) -> list[Row]:
        await asyncio.sleep(self._world.soon() / 10)
        self._reach(name)
        if self._world.disk_fails():
            self._world.note(self._process.name, "", f"disk fails on {name}")
            raise Unavailable("disk fails on a read")
        return self._truth.read(name, params)

    async def write(self, body: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        what = getattr(body, "__name__", "a write")
        await self._process.occasion(f"before {what}")
        self._reach(what)
        done: asyncio.Future[T] = self._world.loop.create_future()
        self._world.later(self._world.soon() / 4, self._perform, what, body, args, kwargs, done)
        return await done

    def clock(self) -> float:
        """The database's time, which no machine's clock moves."""
        return self._world.now

    lease_clock = clock

    def _reach(self, what: str) -> None:
        if self._world.over:
            raise Unavailable("this process is dead")
        if self._world.loop.time() < self.cut_until:
            raise Unavailable(f"cut off from the database at {what}")

    def _perform(
        self,
        what: str,
        body: Callable[..., Tx[T]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        done: asyncio.Future[T],
    ) -> None:
        world, process = self._world, self._process
        if world.over or (process.dead and world.maybe(0.5)):
            return
        fails = world.disk_fails()
        if fails and world.maybe(0.5):
            self._fail(done, f"disk fails before {what}")
            return
        weave = self._truth.weave
        if weave is not None:
            if what == "_let_go":
                self._truth.about_to_rest(args[0].run_id)
            self._step(what, weave.begin(body, args, kwargs), done, fails=fails)
            return
        try:
            result = self._truth.write(body, args, kwargs)
        except Exception as error:
            self._refuse(what, error, done)
            return
        self._answer(what, result, done, fails=fails)

    def _step(self, what: str, transaction: Transaction, done: asyncio.Future[Any], *, fails: bool) -> None:
        """One statement of a transaction, and in a while the next. The connection of a dead process is closed, sooner
        or later, and what was not committed is undone."""
        world, process = self._world, self._process
        if world.over:
            return
        if process.dead and world.maybe(0.3):
            transaction.undo()
            return
        try:
            going = transaction.step()
        except Exception as error:
            self._refuse(what, error, done)
            return
        if going != "ready":
            world.later(world.soon() / 20, partial(self._step, what, transaction, done, fails=fails))
            return
        world.later(world.soon() / 20, partial(self._commit, what, transaction, done, fails=fails))

    def _commit(self, what: str, transaction: Transaction, done: asyncio.Future[Any], *, fails: bool) -> None:
        if self._world.over:
            return
        result = transaction.commit()
        for run_id in self._truth.unheard():
            if run_id not in self._truth.told:
                self._truth.told.add(run_id)
                problem = f"run {run_id} rests with a signal that nobody will take, since {what}"
                self._world.history.problems.append(problem)
        self._answer(what, result, done, fails=fails)

    def _refuse(self, what: str, error: Exception, done: asyncio.Future[Any]) -> None:
        process = self._process
        if not isinstance(error, (FoliotError, IllegalEvent)):
            self._world.history.problems.append(f"{process.name}: {what} raised {error!r}")
            error = Unavailable(str(error))
        if not process.dead and not done.done():
            done.set_exception(error)

    def _answer(self, what: str, result: T, done: asyncio.Future[T], *, fails: bool) -> None:
        process = self._process
        if fails:
            self._fail(done, f"disk fails after {what}")
            return
        process.occasion_without_waiting(f"after {what}")
        if not process.dead and not done.done():
            done.set_result(result)

    def _fail(self, done: asyncio.Future[Any], text: str) -> None:
        self._world.note(self._process.name, "", text)
        if not self._process.dead and not done.done():
            done.set_exception(Unavailable(text))

    def change_mark(self) -> object:
        """Returns a mark of nothing: commits are not heard of."""
        return None

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        await asyncio.sleep(timeout)

    def version(self) -> object | None:
        """Returns None: the version cannot be told without asking."""
        return None

    async def size(self) -> Size:
        """Returns a size of zero: the database is in memory."""
        return Size(0, 0, shrinks=True)

    async def refresh_statistics(self) -> None:
        pass

    async def shrink(self) -> int:
        return 0

    async def close(self) -> None:
        """Does nothing: there is nothing to release."""
