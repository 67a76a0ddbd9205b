"""The seam to places that want audit records too."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, cast

from foliot.errors import FoliotError, UsageError
from foliot.store.audit.log import AuditRecord
from foliot.tools.secrets.secrets import Secrets


class AuditSink(Protocol):
    """Gets every record after it is in the log, in order, in batches. Arguments in them are redacted already."""

    async def write(self, records: Sequence[AuditRecord]) -> None:
        """Take all of them. What this raises is told; an error that is `retryable` is tried again."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The services a sink may use: secrets by reference, and the internal hosts it may connect to."""

    secrets: Secrets
    outbound_allow: Collection[str] = ()
    namespace: str = "default"


SinkFactory: TypeAlias = Callable[[str, SinkContext], AuditSink]
"""What an entry point in the group `foliot.audit_sinks` names: makes a sink from what stands behind the colon."""


def as_data(record: AuditRecord) -> dict[str, Any]:
    """A record as one JSON object; taking `hash` out and encoding it canonically gives back what was hashed."""
    return {**record.body, "hash": record.hash}


# --- feed ------------------------------------------------------------------------------------------------------------

# Between the log and one sink: a bounded queue, so that a slow or broken sink never holds up a call.

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


# --- open ------------------------------------------------------------------------------------------------------------

# Sinks by their addresses: `file:/var/log/foliot.jsonl`, `webhook:https://…`, `otel`, `name:…` of an entry point.

GROUP: Final = "foliot.audit_sinks"
_AT: Final = "foliot.engine.audit"
BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "file": (f"{_AT}.file_sink", "file_sink"),
    "webhook": (f"{_AT}.webhook_sink", "webhook_sink"),
    "otel": (f"{_AT}.otel_sink", "otel_sink"),
}


def open_feeds(addresses: Iterable[str], context: SinkContext) -> list[SinkFeed]:
    """One feed for each address. Raises `UsageError` for one that names no sink or cannot be used."""
    return [SinkFeed(address.partition(":")[0], open_sink(address, context)) for address in addresses]


def open_sink(address: str, context: SinkContext) -> AuditSink:
    """Raises `UsageError`."""
    name, _, rest = address.partition(":")
    factory = _factory(name)
    try:
        return factory(rest, context)
    except FoliotError:
        raise
    except Exception as error:
        raise UsageError(f"the audit sink {name!r} cannot be opened: {error}") from error


def _factory(name: str) -> SinkFactory:
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        return cast("SinkFactory", getattr(import_module(module), attribute))
    from importlib.metadata import entry_points  # every start would pay for it

    found = entry_points(group=GROUP, name=name)
    if not found:
        others = sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})
        raise UsageError(f"there is no audit sink named {name!r}", hint=f"there are: {', '.join(others)}")
    try:
        return cast("SinkFactory", next(iter(found)).load())
    except Exception as error:
        raise UsageError(f"the audit sink {name!r} cannot be loaded: {error}") from error
