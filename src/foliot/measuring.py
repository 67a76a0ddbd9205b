"""The metrics of a runtime: its tally hears every event from here on, and its gauges read its store.

with measured(runtime) as metrics:
    text = await metrics.render()
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from foliot.bus.base import Transport
from foliot.bus.later_opened import OpenedLater
from foliot.engine.live import Hub
from foliot.engine.telemetry.metrics import Linked, Metrics
from foliot.runtime import Runtime


@contextmanager
def measured(runtime: Runtime) -> Generator[Metrics]:
    """Metrics of an open runtime, counted while this lasts. Raises `UsageError` for a runtime in memory."""
    tasking = runtime.tasking
    metrics = Metrics(tasking.database, runtime.resources, transport=partial(_connection, tasking.transport))
    watcher = runtime.runs.watcher
    if not isinstance(watcher, Hub):
        raise TypeError("the runs of a runtime are watched by its hub")
    stop = watcher.observe(metrics.tally.recorded)
    try:
        yield metrics
    finally:
        stop()


def _connection(transport: Transport) -> tuple[str, bool]:
    """The sort of a transport, and whether it hears of work now. One over the store is as well as the store is."""
    opened = transport.opened if isinstance(transport, OpenedLater) else transport
    if opened is None:
        return "none", False
    name = type(opened).__name__.removesuffix("Transport").lower()
    return name, opened.is_connected if isinstance(opened, Linked) else True
