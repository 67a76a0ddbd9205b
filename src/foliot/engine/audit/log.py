"""Keeps the audit log: takes what the pipeline tells about every call, writes it in order, then feeds the sinks.

Calls do not wait for the log: records gather while one batch is written and go out together with the next. Two things
are different for a tool whose records are required (`record: required`): its calls wait until the record is durable,
and one that cannot be written fails the call, before it runs or before its result is used. Other records may be lost
when the process is killed at once, or when the log cannot keep up; the latter are counted in `dropped`. What is lost of
finished calls is made up from the journals: see completion.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct

from foliot.engine.audit.entry import budget_entry, egress_entry, entry_of, unfenced_entry
from foliot.engine.audit.sinks import SinkContext, SinkFeed, open_feeds
from foliot.engine.audit.words import BudgetOutcome
from foliot.engine.budgets.declared import Payer
from foliot.errors import FoliotError, Unavailable
from foliot.sandbox.egress.rules import EgressRecord
from foliot.settings.settings import Settings
from foliot.store.audit.chain import Entry
from foliot.store.audit.log import AuditRecord, SqlAuditLog
from foliot.store.base import Database
from foliot.store.ledger.budgets import PaidAct
from foliot.tools.pipeline.parts import spent
from foliot.tools.pipeline.record import CallRecord, snapshot
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import Secrets
from foliot.tools.workspaces import FenceOwner

log = logging.getLogger(__name__)

CAPACITY: Final = 10_000
# Each concurrent run leaves about one record between two batches: a smaller one falls behind a thousand runs.
BATCH: Final = 2000
# Losing thousands of records must not also drown the log of the process.
WARN_EVERY: Final = 1.0
# How long a call waits for its required record, and a process that ends for those on their way.
WAIT_SECONDS: Final = 5.0
TRIES: Final = 3
PAUSE_SECONDS: Final = 0.1


class AuditLog(Protocol):
    async def append(self, entries: Sequence[Entry], *, told: bool = True) -> list[AuditRecord]:
        """Appends entries to the log, with the same promises as `SqlAuditLog.append`."""
        ...


class AuditFeed(Protocol):
    """A receiver of records after they are in the log. Implemented in sinks.py."""

    def offer(self, records: Sequence[AuditRecord]) -> None: ...

    async def close(self) -> None: ...


class _Pending(Struct, frozen=True, gc=False):
    """An entry to be written: `make(*given)` builds it on the writer's time, so that calls do not pay for it."""

    make: Callable[..., Entry]
    given: tuple[Any, ...] = ()
    kept: asyncio.Future[None] | None = None


class AuditTrail:
    """A `Recorder` on an audit log. Belongs to one event loop; `close` it before the database."""

    def __init__(
        self, log: AuditLog, *, masker: Masker | None = None, feeds: Sequence[AuditFeed] = (), capacity: int = CAPACITY
    ) -> None:
        self._log = log
        self.masker = masker
        self._feeds = tuple(feeds)
        self._capacity = capacity
        self._queue: deque[_Pending] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self._warned_at = -WARN_EVERY

    def record(self, entry: CallRecord) -> Awaitable[None] | None:
        """Keep it. There is something to wait for, and `Unavailable` is raised, only when records are required."""
        required = entry.definition is not None and entry.definition.record == "required"
        if self._closed or (len(self._queue) >= self._capacity and not required):
            self._drop(1, "the log is closed" if self._closed else "the log cannot keep up")
            if required:
                raise Unavailable("the audit log is closed")
            return None
        kept = asyncio.get_running_loop().create_future() if required else None
        usage = spent() if entry.moment == "finished" else None
        arguments = entry.arguments or snapshot(entry.call.arguments)
        self._enqueue(_Pending(entry_of, (entry, arguments, self.masker, usage), kept))
        return None if kept is None else _durable(kept)

    def budget(self, payer: Payer, act: PaidAct, outcome: BudgetOutcome, budget: str, message: str) -> None:
        """A budget had no room for an act, or much of it is spent. Never waits, never raises."""
        if self._closed:
            self._drop(1, "the log is closed")
        else:
            make = partial(budget_entry, payer, act.run_id, act.name, outcome, budget, message, time.time())
            self._enqueue(_Pending(make))

    def egress(self, owner: FenceOwner, record: EgressRecord) -> None:
        """Keep what left a sandbox, or was refused there. Raises `Unavailable` when it cannot be kept."""
        if self._closed or len(self._queue) >= self._capacity:
            raise Unavailable("the audit log is closed, or cannot keep up")
        self._enqueue(_Pending(partial(egress_entry, owner, record, time.time())))

    async def unfenced(self, owner: FenceOwner, command: Sequence[str]) -> None:
        """Record that a program is started without a sandbox. Returns when it is durable. Raises `Unavailable`."""
        await self.act(unfenced_entry(owner, command, time.time()))

    async def act(self, entry: Mapping[str, Any]) -> None:
        """Records an act from outside, given as the members of an audit record. Returns when it is durable.

        Raises `Unavailable` when it cannot be written.
        """
        if self._closed:
            raise Unavailable("the audit log is closed")
        kept = asyncio.get_running_loop().create_future()
        self._enqueue(_Pending(dict[str, Any], (entry,), kept))
        await _durable(kept)

    @property
    def fed(self) -> bool:
        """Whether somebody wants to hear of records."""
        return bool(self._feeds)

    def appended(self, records: Sequence[AuditRecord]) -> None:
        """Records that somebody else has appended to the log, together with what they tell of: for the feeds."""
        for feed in self._feeds:
            feed.offer(records)

    def _enqueue(self, pending: _Pending) -> None:
        self._queue.append(pending)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """Return when everything that was recorded so far is written, or given up."""
        while (writer := self._writer) is not None:
            await asyncio.wait({writer})

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most; then close the feeds. May be called twice."""
        self._closed = True
        if (writer := self._writer) is not None:
            _, late = await asyncio.wait({writer}, timeout=WAIT_SECONDS)
            if late:
                writer.cancel()
                await asyncio.wait({writer})
                left = [each.kept for each in self._queue if each.kept is not None]
                self._give_up(len(self._queue), left, Unavailable("the process ends"))
                self._queue.clear()
        feeds, self._feeds = self._feeds, ()
        for feed in feeds:
            await feed.close()

    async def _write(self) -> None:
        try:
            while self._queue:
                entries, waiting = self._take()
                try:
                    written = await self._append(entries)
                except asyncio.CancelledError:
                    self._give_up(len(entries), waiting, Unavailable("the process ends"))
                    raise
                except Exception as error:
                    self._give_up(len(entries), waiting, error)
                    continue
                for kept in waiting:
                    if not kept.done():
                        kept.set_result(None)
                for feed in self._feeds:
                    feed.offer(written)
        finally:
            self._writer = None

    def _take(self) -> tuple[list[Entry], list[asyncio.Future[None]]]:
        """Makes the next records; returns them, and who waits for them. What they were made from is let go.

        One that cannot be made does not take the others with it.
        """
        entries: list[Entry] = []
        waiting: list[asyncio.Future[None]] = []
        for _ in range(min(BATCH, len(self._queue))):
            each = self._queue.popleft()
            kept = () if each.kept is None else (each.kept,)
            try:
                entries.append(each.make(*each.given))
                waiting += kept
            except Exception as error:
                self._give_up(1, kept, error)
        return entries, waiting

    async def _append(self, entries: list[Entry]) -> list[AuditRecord]:
        told = bool(self._feeds)
        for number in range(1, TRIES):
            try:
                return await self._log.append(entries, told=told)
            except FoliotError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(PAUSE_SECONDS * number)
        return await self._log.append(entries, told=told)

    def _give_up(self, count: int, waiting: Sequence[asyncio.Future[None]], error: Exception) -> None:
        self._drop(count, str(error))
        for kept in waiting:
            if not kept.done():
                kept.set_exception(Unavailable(f"the audit log cannot be written: {error}"))

    def _drop(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            now = time.monotonic()
            if now - self._warned_at >= WARN_EVERY:
                self._warned_at = now
                log.warning("audit records were not kept (%d so far): %s", self.dropped, why)


async def _durable(kept: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait_for(kept, WAIT_SECONDS)
    except TimeoutError:
        raise Unavailable(f"the audit log did not take a record within {WAIT_SECONDS:g} seconds") from None


# --- open ------------------------------------------------------------------------------------------------------------

# The audit log of one process: what the settings say about it, put together.


def open_audit(database: Database, secrets: Secrets, settings: Settings | None) -> AuditTrail:
    """Opens the audit trail of this database. Raises `UsageError` for a sink that cannot be opened.

    It is told at the start: records that go nowhere are worse than a process that does not start.
    """
    feeds: list[SinkFeed] = []
    if settings is not None and settings.audit_sinks:
        feeds = open_feeds(settings.audit_sinks, SinkContext(secrets, settings.outbound_allow, settings.namespace))
    return AuditTrail(SqlAuditLog(database), masker=secrets.masker, feeds=feeds)
