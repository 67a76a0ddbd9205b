"""The journal as one simulated process sees it: slow, sometimes unavailable, and deaf to the dead.

A write is handed over and performed a moment later, whether or not the one who asked still waits for it, as it is with
a writer thread or a server. A process that dies in between leaves it open whether its last write was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from foliot.errors import FoliotError, Unavailable
from foliot.kernel.run.codec import decode
from foliot.store.journal.base import Entry, Lease, NewRun, Phase, Renewal, RunInfo, Signal, TransactionBody
from simulators.engine.history import Claimed, Stored
from simulators.engine.process import Process
from simulators.engine.world import at_once


class ProcessJournal:
    """A `Journal`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._truth = process.world.journal

    # --- writes

    async def create(
        self,
        run: NewRun,
        first: Sequence[Entry],
        *,
        worker: str | None = None,
        lease_until: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Lease | None:
        def stored(lease: Lease | None) -> None:
            assert lease is not None, "the engine creates runs that it holds"
            self._claimed(run.id, lease)
            self._stored(lease, first, None)

        operation = partial(self._truth.create, run, first, worker=worker, lease_until=lease_until)
        return await self._write("create", run.id, operation, stored)

    async def claim(self, run_id: str, *, worker: str, now: float, until: float, dead: int | None = None) -> Lease:
        operation = partial(self._truth.claim, run_id, worker=worker, now=now, until=until, dead=dead)
        return await self._write("claim", run_id, operation, partial(self._claimed, run_id))

    async def renew(self, leases: Sequence[Lease], *, until: float) -> Renewal:
        return await self._write("renew", "", partial(self._truth.renew, leases, until=until), lambda _: None)

    async def append(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        *,
        phase: Phase | None = None,
        summary: dict[str, Any] | None = None,
        taken: Sequence[str] = (),
        answered: Sequence[str] = (),
        due: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> None:
        operation = partial(self._truth.append, lease, entries, phase=phase, summary=summary, taken=list(taken))
        await self._write("append", lease.run_id, operation, lambda _: self._stored(lease, entries, phase))

    async def signal(self, signal: Signal, *, in_transaction: TransactionBody | None = None) -> None:
        await self._write("signal", signal.run_id, partial(self._truth.signal, signal), lambda _: None)

    async def put_blob(self, data: bytes, *, run_id: str = "") -> str:
        return await self._write("blob", "", partial(self._truth.put_blob, data, run_id=run_id), lambda _: None)

    async def purge(self, *, ended_before: float, limit: int = 1000) -> int:
        operation = partial(self._truth.purge, ended_before=ended_before, limit=limit)
        return await self._write("purge", "", operation, lambda _: None)

    async def forget(self, run_id: str) -> None:
        await self._write("forget", run_id, partial(self._truth.forget, run_id), lambda _: None)

    async def _write(
        self, what: str, run_id: str, operation: Callable[[], Coroutine[Any, Any, Any]], stored: Callable[[Any], None]
    ) -> Any:
        if self._world.over:
            raise Unavailable("this process is dead")
        await self._process.occasion(f"before {what}", run_id)
        done = self._world.loop.create_future()
        self._world.later(self._world.soon(), self._perform, what, run_id, operation, stored, done)
        return await done

    def _perform(
        self,
        what: str,
        run_id: str,
        operation: Callable[[], Coroutine[Any, Any, Any]],
        stored: Callable[[Any], None],
        done: asyncio.Future[Any],
    ) -> None:
        world, process = self._world, self._process
        if world.over or (process.dead and world.maybe(0.5)):
            return
        fails = world.disk_fails()
        if fails and world.maybe(0.5):
            self._fail(done, run_id, f"disk fails before {what}")
            return
        try:
            result = at_once(operation())
        except FoliotError as error:
            world.note(process.name, run_id, f"refused  {what}: {error.code}")
            if not process.dead and not done.done():
                done.set_exception(error)
            return
        stored(result)
        if fails:
            self._fail(done, run_id, f"disk fails after {what}")
            return
        process.occasion_without_waiting(f"after {what}", run_id)
        if not process.dead and not done.done():
            done.set_result(result)

    def _fail(self, done: asyncio.Future[Any], run_id: str, text: str) -> None:
        self._world.note(self._process.name, run_id, text)
        if not self._process.dead and not done.done():
            done.set_exception(Unavailable(text))

    def _claimed(self, run_id: str, lease: Lease) -> None:
        self._world.history.items.append(Claimed(self._world.loop.time(), lease.worker, run_id, lease.epoch))

    def _stored(self, lease: Lease, entries: Sequence[Entry], phase: Phase | None) -> None:
        events = tuple(decode(entry.data) for entry in entries)
        self._world.history.items.append(
            Stored(self._world.loop.time(), lease.worker, lease.run_id, lease.epoch, tuple(entries), events, phase)
        )

    # --- reads

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        await self._reading(run_id)
        return await self._truth.read(run_id, after=after, limit=limit)

    async def turns(self, run_id: str, *, first: str = "") -> dict[str, list[Entry]]:
        await self._reading(run_id)
        return await self._truth.turns(run_id, first=first)

    async def get(self, run_id: str) -> RunInfo:
        await self._reading(run_id)
        return await self._truth.get(run_id)

    async def find(self, prefix: str) -> RunInfo:
        await self._reading(prefix)
        return await self._truth.find(prefix)

    async def list(self, **filters: Any) -> list[RunInfo]:
        await self._reading("")
        return await self._truth.list(**filters)

    async def signals(self, run_ids: Sequence[str]) -> Sequence[Signal]:
        await self._reading("")
        return await self._truth.signals(run_ids)

    async def get_blob(self, digest: str) -> bytes:
        await self._reading("")
        return await self._truth.get_blob(digest)

    async def _reading(self, run_id: str) -> None:
        await asyncio.sleep(0)
        if self._world.over:
            raise Unavailable("this process is dead")
        if self._world.disk_fails():
            self._world.note(self._process.name, run_id, "disk fails on a read")
            raise Unavailable("disk fails on a read")
