"""Sends the spans of runs that end to a collector, over OTLP/HTTP. The one file that knows OpenTelemetry's SDK.

A run's journal is read once, when it has ended; nothing is done for its steps meanwhile. Sending is best effort and
never in the way of work: what a collector does not take for a while is dropped, and the journal still has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from foliot.common.cancellation import stop_tasks
from foliot.common.threads import on_thread
from foliot.engine.telemetry.spans import Span
from foliot.errors import FoliotError, UsageError
from foliot.kernel.messages import Number
from foliot.kernel.run.events import Event, RunCancelled, RunDeadLettered, RunFailed, RunSucceeded
from foliot.version import __version__, install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

MOST_WAITING: Final = 10_000
AT_ONCE: Final = 50
CLOSE_WITHIN: Final = 5.0
_ENDS: Final = (RunSucceeded, RunFailed, RunCancelled, RunDeadLettered)


class Sender(Protocol):
    """The part of a span exporter that is used here. It may block."""

    def export(self, spans: Sequence[ReadableSpan], /) -> Any: ...
    def shutdown(self) -> None: ...


def otlp_sender(endpoint: str, headers: dict[str, str] | None = None) -> Sender:
    """Sends to `<endpoint>/v1/traces`. Raises `UsageError` when the packages are not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise UsageError(
            "traces need OpenTelemetry, which is not installed",
            hint=f"{install_command('otel')}, or unset otel_endpoint",
        ) from None
    address = endpoint.rstrip("/")
    if not address.endswith("/v1/traces"):
        address += "/v1/traces"
    return OTLPSpanExporter(endpoint=address, headers=headers, timeout=10)


class TraceExporter:
    """Hears of every event (`RunHub.observe(exporter.recorded)`), and sends what `read` makes of a run that ended.

    `start` it on the event loop that drives the runs, and `close` it before the store.
    """

    def __init__(
        self, sender: Sender, read: Callable[[str], Awaitable[Sequence[Span]]], *, service: str = "foliot"
    ) -> None:
        self.dropped = 0
        self._sender = sender
        self._read = read
        self._service = service
        self._ended: asyncio.Queue[str | None] = asyncio.Queue(MOST_WAITING)
        self._sending: asyncio.Task[None] | None = None
        self._complained = False

    def start(self) -> None:
        self._sending = asyncio.create_task(self._send_all())

    def recorded(self, run_id: str, seq: int, at: Number, event: Event) -> None:
        """An observer of the hub."""
        if isinstance(event, _ENDS):
            try:
                self._ended.put_nowait(run_id)
            except asyncio.QueueFull:
                self.dropped += 1

    async def close(self) -> None:
        """Send what is there, for a few seconds at most."""
        if self._sending is not None:
            with suppress(asyncio.QueueFull):
                self._ended.put_nowait(None)
            await asyncio.wait({self._sending}, timeout=CLOSE_WITHIN)
            await stop_tasks(self._sending)
            self._sending = None
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await on_thread(self._sender.shutdown)

    async def _send_all(self) -> None:
        going_on = True
        while going_on:
            batch = [await self._ended.get()]
            while len(batch) < AT_ONCE and not self._ended.empty():
                batch.append(self._ended.get_nowait())
            going_on = None not in batch
            spans = [span for run_id in dict.fromkeys(batch) if run_id is not None for span in await self._of(run_id)]
            if spans:
                await self._send(spans)

    async def _of(self, run_id: str) -> Sequence[Span]:
        try:
            return await self._read(run_id)
        except FoliotError as error:
            log.warning("the trace of run %s cannot be made: %s", run_id, error)
            return ()

    async def _send(self, spans: Sequence[Span]) -> None:
        ready = readable(spans, service=self._service)
        try:
            result = await on_thread(self._sender.export, ready)
            failed = getattr(result, "name", "SUCCESS") != "SUCCESS"
        except Exception as error:  # whatever a collector or its client does, runs go on
            failed = True
            log.debug("spans could not be sent: %s", type(error).__name__)
        if failed:
            self.dropped += len(spans)
            if not self._complained:
                log.warning("the collector of traces does not take them; they are dropped until it does")
        self._complained = failed


def readable(spans: Sequence[Span], *, service: str) -> list[ReadableSpan]:
    """Spans as the SDK's exporters want them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    resource = Resource.create({"service.name": service, "service.version": __version__})
    scope = InstrumentationScope("foliot", __version__)
    kinds = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
    flags = TraceFlags(TraceFlags.SAMPLED)

    def context(span: Span, id: str) -> SpanContext:
        return SpanContext(int(span.trace, 16), int(id, 16), is_remote=False, trace_flags=flags)

    return [
        ReadableSpan(
            name=span.name,
            context=context(span, span.id),
            parent=context(span, span.parent) if span.parent else None,
            resource=resource,
            attributes=span.attributes,
            events=[SpanEvent(name, attributes=dict(said), timestamp=_nanos(at)) for at, name, said in span.moments],
            kind=kinds[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_nanos(span.start),
            end_time=_nanos(span.end),
            instrumentation_scope=scope,
        )
        for span in spans
    ]


def _nanos(at: float) -> int:
    return int(at * 1e9)
