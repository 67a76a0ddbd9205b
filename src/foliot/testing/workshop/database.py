"""The one true database of a workshop, and the wire on which each process reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import apsw

from foliot.errors import FoliotError, Unavailable
from foliot.kernel.errors import IllegalEvent
from foliot.store.base import Size
from foliot.store.schema import CREATE_VERSIONS, migrations
from foliot.store.sqlite_file import Connection
from foliot.store.sqlite_writer import Executor, Job
from foliot.store.transaction import Row, Statement, Tx
from foliot.testing.simulator.process import Mortal
from foliot.testing.simulator.world import World

P = ParamSpec("P")
T = TypeVar("T")
_NOWHERE = Path(":memory:")


class Truth:
    """A SQLite database in memory, with the real schema and the real queries. Each transaction is one instant."""

    def __init__(self) -> None:
        self._connection = cast("Connection", apsw.Connection(":memory:"))
        self._connection.execute(CREATE_VERSIONS)
        for migration in migrations("sqlite"):
            self._connection.execute(migration.script)
        self._executor = Executor(self._connection)

    def read(self, name: str, params: dict[str, Any]) -> list[Row]:
        def body() -> Tx[list[Row]]:
            return (yield Statement(name, params, "rows"))

        return self._executor.run(_job(body, (), {}), _NOWHERE)

    def write(self, body: Callable[..., Tx[T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """As one transaction. Raises what the body raises, and then nothing of it is stored."""
        self._executor.begin()
        try:
            result = self._executor.run(_job(body, args, kwargs), _NOWHERE)
        except BaseException:
            self._executor.rollback()
            raise
        self._executor.commit()
        return result

    def lease_of(self, run_id: str) -> tuple[str | None, float | None]:
        """Who holds a run, and until when."""
        (row,) = self.read("run_get", {"id": run_id})
        return row["worker"], row["lease_until"]

    def close(self) -> None:
        self._connection.close()


def _job(body: Callable[..., Tx[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job:
    return Job(cast("Any", None), cast("Any", None), body, args, kwargs)


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
        try:
            result = self._truth.write(body, args, kwargs)
        except (FoliotError, IllegalEvent) as error:
            if not process.dead and not done.done():
                done.set_exception(error)
            return
        except Exception as error:
            world.history.problems.append(f"{process.name}: {what} raised {error!r}")
            if not process.dead and not done.done():
                done.set_exception(Unavailable(str(error)))
            return
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

    async def wait_for_change(self, *, timeout: float) -> None:
        await asyncio.sleep(timeout)

    def version(self) -> object | None:
        """It cannot be told without asking."""
        return None

    async def size(self) -> Size:
        """In memory it has none."""
        return Size(0, 0, shrinks=True)

    async def shrink(self) -> int:
        return 0

    async def close(self) -> None:
        """Nothing to let go of."""
