"""Between the log and one sink: a bounded queue, so that a slow or broken sink never holds up a call."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from foliot.engine.records.sinks.base import AuditSink
from foliot.errors import FoliotError
from foliot.store.audit import AuditRecord

log = logging.getLogger(__name__)

CAPACITY: Final = 10_000
BATCH: Final = 100
TRIES: Final = 3
PAUSE_SECONDS: Final = 0.2
# One batch, and all that is left when the process ends.
WRITE_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 5.0


class SinkFeed:
    """Belongs to one event loop. `dropped` counts records that the sink did not get."""

    def __init__(self, name: str, sink: AuditSink, *, capacity: int = CAPACITY) -> None:
        self.name = name
        self.dropped = 0
        self._sink = sink
        self._capacity = capacity
        self._queue: deque[AuditRecord] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def offer(self, records: Sequence[AuditRecord]) -> None:
        """Take what there is room for, without waiting."""
        room = 0 if self._closed else self._capacity - len(self._queue)
        self._queue.extend(records[:room])
        self._drop(len(records) - min(room, len(records)), "it is closed" if self._closed else "it cannot keep up")
        if self._queue and self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Hand over what is queued, for a few seconds at most, then close the sink. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if (worker := self._worker) is not None:
            _, late = await asyncio.wait({worker}, timeout=DRAIN_SECONDS)
            if late:
                worker.cancel()
                await asyncio.wait({worker})
                self._drop(len(self._queue), "the process ends")
                self._queue.clear()
        try:
            await self._sink.close()
        except Exception:
            log.warning("the audit sink %s could not be closed", self.name, exc_info=True)

    async def _work(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                try:
                    await self._deliver(batch)
                except asyncio.CancelledError:
                    self._drop(len(batch), "the process ends")
                    raise
                except Exception as error:
                    self._drop(len(batch), str(error) or type(error).__name__)
        finally:
            self._worker = None

    async def _deliver(self, batch: Sequence[AuditRecord]) -> None:
        for number in range(1, TRIES + 1):
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._sink.write(batch)
                return
            except (FoliotError, OSError) as error:  # a time-out is an OSError too
                if number == TRIES or (isinstance(error, FoliotError) and not error.retryable):
                    raise
                await asyncio.sleep(PAUSE_SECONDS * number)

    def _drop(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            log.warning("the audit sink %s missed %d records (%d so far): %s", self.name, count, self.dropped, why)
