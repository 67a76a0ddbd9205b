"""Traces of a runtime: runs and tasks that begin here are traced, and those that end here are sent to a collector.

    async with traced(runtime, settings):
        ...

Without an endpoint in the settings nothing is loaded, and nothing is traced.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from foliot.bus.base import Transport
from foliot.bus.open import OpenedLater
from foliot.engine.live.hub import RunHub
from foliot.engine.telemetry.metrics import Linked, Metrics
from foliot.errors import NotFound
from foliot.kernel.run.events import RunCreated
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import Settings

if TYPE_CHECKING:
    from foliot.engine.telemetry.export import Sender
    from foliot.engine.telemetry.spans import Span

EVENTS_AT_ONCE = 500


@asynccontextmanager
async def traced(runtime: Runtime, settings: Settings, *, sender: Sender | None = None) -> AsyncGenerator[None]:
    """Exports traces meanwhile. `sender` replaces the one that the settings name. Raises `UsageError`."""
    if settings.otel_endpoint is None and sender is None:
        yield
        return
    from foliot.engine.telemetry.export import TraceExporter, otlp_sender

    if sender is None:
        assert settings.otel_endpoint is not None
        sender = otlp_sender(settings.otel_endpoint, dict(settings.otel_headers))
    watcher = runtime.inside.runs.watcher
    if not isinstance(watcher, RunHub):
        raise TypeError("the runs of a runtime are watched by its hub")
    exporter = TraceExporter(sender, _Journals(runtime).spans, service=settings.otel_service)
    tasks = runtime.inside.tasking.tasks
    exporter.start()
    stop = watcher.observe(exporter.recorded)
    runtime.inside.runs.traced = tasks.traced = True
    try:
        yield
    finally:
        runtime.inside.runs.traced = tasks.traced = False
        stop()
        await exporter.close()


class _Journals:
    """Reads what spans are made of."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def spans(self, run_id: str) -> Sequence[Span]:
        """Returns the spans of an ended run; and those of its task, when that has ended with it."""
        from foliot.engine.telemetry.spans import spans_of_run

        facts = await self._runtime.inside.runs.facts(run_id)
        spans = spans_of_run(run_id, facts)
        created = facts[0][1] if facts else None
        if spans and isinstance(created, RunCreated) and created.task and not (created.parent or created.fork):
            # Several runs may end with their task: its spans have the same names whoever sends them.
            spans += await self._of_task(created.task)
        return spans

    async def _of_task(self, task: str) -> list[Span]:
        from foliot.engine.telemetry.spans import spans_of_task
        from foliot.work.tasks.base import Command

        namespace, _, name = task.partition("/")
        tasks = self._runtime.inside.tasking.tasks
        try:
            found = await self._runtime.inside.tasking.database.read("task_content", namespace=namespace, name=name)
            if not found:
                return []
            command = msgspec.json.decode(found[0]["command"], type=Command)
            records = await tasks.events(namespace, name, limit=EVENTS_AT_ONCE)
            while len(records) % EVENTS_AT_ONCE == 0 and records:
                more = await tasks.events(namespace, name, after=records[-1].seq, limit=EVENTS_AT_ONCE)
                if not more:
                    break
                records += more
        except NotFound:  # deleted meanwhile
            return []
        return spans_of_task(task, command.target, command.trace, [(record.at, record.event) for record in records])


# --- measuring -------------------------------------------------------------------------------------------------------

# The metrics of a runtime: its tally hears every event from here on, and its gauges read its store.
#
# with measured(runtime) as metrics:
#     text = await metrics.render()


@contextmanager
def measured(runtime: Runtime) -> Generator[Metrics]:
    """Metrics of an open runtime, counted while this lasts. Raises `UsageError` for a runtime in memory."""
    tasking = runtime.inside.tasking
    metrics = Metrics(tasking.database, runtime.inside.resources, transport=partial(_connection, tasking.transport))
    watcher = runtime.inside.runs.watcher
    if not isinstance(watcher, RunHub):
        raise TypeError("the runs of a runtime are watched by its hub")
    stop = watcher.observe(metrics.tally.recorded)
    tasking.performer.counts = tasking.tasks.counts = metrics.tasks
    try:
        yield metrics
    finally:
        tasking.performer.counts = tasking.tasks.counts = None
        stop()


def _connection(transport: Transport) -> tuple[str, bool]:
    """The sort of a transport, and whether it hears of work now. One over the store is as well as the store is."""
    opened = transport.opened if isinstance(transport, OpenedLater) else transport
    if opened is None:
        return "none", False
    name = type(opened).__name__.removesuffix("Transport").lower()
    return name, opened.is_connected if isinstance(opened, Linked) else True
