"""Audit records as spans of OpenTelemetry: one for every call that ran, was refused or waits for an approval.

Only the API is used; where spans go is set up by whoever configures its SDK in this process. Imported when asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foliot.engine.audit.sinks import SinkContext
from foliot.errors import UsageError
from foliot.store.audit.log import AuditRecord
from foliot.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_FAILED = frozenset({"denied", "refused", "failed"})


class OtelSink:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def write(self, records: Sequence[AuditRecord]) -> None:
        for record in records:
            # Of what is admitted the result follows, with the time it took; what people decide is no call.
            if record.body["moment"] in ("finished", "refused", "parked"):
                self._span(record)

    async def close(self) -> None:
        pass  # the provider belongs to the process

    def _span(self, record: AuditRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        body = record.body
        ended = int(body["at"] * 1e9)
        seconds = body.get("metering", {}).get("seconds", 0.0)
        span = self._tracer.start_span(
            f"execute_tool {body['tool']}",
            kind=SpanKind.INTERNAL,
            start_time=ended - int(seconds * 1e9),
            attributes=_attributes(record),
        )
        if body["outcome"] in _FAILED:
            said = body.get("result") or body["decision"]
            span.set_status(Status(StatusCode.ERROR, said.get("message", body["outcome"])))
        span.end(end_time=ended)


def _attributes(record: AuditRecord) -> dict[str, Any]:
    body = record.body
    found: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": body["tool"],
        "gen_ai.tool.call.id": body["call_id"],
        "gen_ai.agent.name": body["agent"],
        "foliot.namespace": body["namespace"],
        "foliot.run.id": body["run_id"],
        "foliot.outcome": body["outcome"],
        "foliot.rule": body["decision"].get("rule", ""),
        "foliot.audit.seq": record.seq,
        "foliot.audit.hash": record.hash,
    }
    for name, amount in body.get("metering", {}).items():
        found[f"foliot.{name}"] = amount
    if code := body.get("result", {}).get("code"):
        found["error.type"] = code
    return found


def otel_sink(address: str, _: SinkContext) -> OtelSink:
    """`otel:` or `otel`. Raises `UsageError` when OpenTelemetry is not installed."""
    if address:
        raise UsageError(
            f"the audit sink `otel` takes no address, not {address!r}", hint="OpenTelemetry has its own settings"
        )
    try:
        from opentelemetry.trace import get_tracer
    except ImportError:
        raise UsageError(
            "audit records cannot go to OpenTelemetry: it is not installed", hint="pip install opentelemetry-sdk"
        ) from None
    return OtelSink(get_tracer("foliot.audit", __version__))
