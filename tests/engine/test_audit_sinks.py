"""Where audit records go besides the log, and that a slow or broken place never holds up anybody."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgspec
import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, StatusCode

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.audit.entry import entry_of
from foliot.engine.audit.log import AuditTrail
from foliot.engine.audit.otel_sink import OtelSink
from foliot.engine.audit.sinks import SinkContext, SinkFeed, open_feeds, open_sink
from foliot.errors import FoliotError, Unavailable, UsageError
from foliot.kernel.messages import ToolResult
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditRecord, SqlAuditLog
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.base import ToolDefinition, ToolDenied
from foliot.tools.pipeline.record import CallRecord, snapshot
from foliot.tools.pipeline.results import failure_result
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, Secrets
from tests.tools.governed import call
from tests.tools.web_service import serving


def context(environ: Mapping[str, str] | None = None, *allow: str) -> SinkContext:
    return SinkContext(Secrets(EnvironmentSecrets(environ or {}), Masker()), allow)


def record(seq: int, moment: str = "finished", result: ToolResult | None = None) -> AuditRecord:
    made = CallRecord(
        moment, call(call_id=f"c{seq}"), ToolDefinition("refund"), 100.0, result=result, attempts=1, seconds=0.5
    )
    return AuditRecord(seq, f"hash-{seq}", {**msgspec.to_builtins(entry_of(made, snapshot({}))), "seq": seq})


def ok(seq: int) -> AuditRecord:
    return record(seq, result=ToolResult(f"c{seq}", "refund"))


class Kept:
    """A sink that can be made to fail, and to wait."""

    def __init__(self, *errors: Exception) -> None:
        self.records: list[int] = []
        self.errors = list(errors)
        self.open = asyncio.Event()
        self.open.set()
        self.began = asyncio.Event()
        self.closed = 0

    async def write(self, records) -> None:
        self.began.set()
        await self.open.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.records += [each.seq for each in records]

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.engine.audit.sinks.PAUSE_SECONDS", 0.0)


class TestFeed:
    async def test_closing_hands_over_what_is_queued_and_may_be_done_twice(self) -> None:
        sink = Kept()
        feed = SinkFeed("kept", sink)
        feed.offer([ok(n) for n in range(1, 251)])
        await feed.close()
        await feed.close()
        assert sink.records == list(range(1, 251))
        assert (sink.closed, feed.dropped) == (1, 0)

    async def test_what_does_not_fit_is_dropped_and_counted(self) -> None:
        sink = Kept()
        sink.open.clear()
        feed = SinkFeed("kept", sink, capacity=3)
        feed.offer([ok(1)])
        await asyncio.wait_for(sink.began.wait(), 60)
        feed.offer([ok(n) for n in range(2, 8)])
        sink.open.set()
        await feed.close()
        assert sink.records == [1, 2, 3, 4]
        assert feed.dropped == 3

    async def test_a_failure_that_may_pass_is_tried_again(self) -> None:
        sink = Kept(Unavailable("busy"), OSError("reset"))
        feed = SinkFeed("kept", sink)
        feed.offer([ok(1)])
        await feed.close()
        assert (sink.records, feed.dropped) == ([1], 0)

    async def test_a_refusal_is_not_tried_again_and_later_records_still_come(self) -> None:
        sink = Kept(FoliotError("no"))
        feed = SinkFeed("kept", sink)
        feed.offer([ok(1)])
        await asyncio.wait_for(sink.began.wait(), 60)
        feed.offer([ok(2)])
        await feed.close()
        assert (sink.records, feed.dropped) == ([2], 1)

    async def test_a_sink_that_hangs_does_not_keep_a_process_from_ending(self, monkeypatch) -> None:
        monkeypatch.setattr("foliot.engine.audit.sinks.DRAIN_SECONDS", 0.01)
        sink = Kept()
        sink.open.clear()
        feed = SinkFeed("kept", sink)
        feed.offer([ok(n) for n in range(150)])
        await feed.close()
        assert (feed.dropped, sink.closed) == (150, 1)

    async def test_records_after_the_end_are_counted_as_lost(self) -> None:
        feed = SinkFeed("kept", Kept())
        await feed.close()
        feed.offer([ok(1)])
        assert feed.dropped == 1


async def test_sinks_get_records_only_after_they_are_in_the_log(tmp_path) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    log = SqlAuditLog(database)

    class Looks(Kept):
        async def write(self, records) -> None:
            assert [await log.get(each.seq) for each in records] == list(records)
            await super().write(records)

    sink = Looks()
    trail = AuditTrail(log, feeds=[SinkFeed("looks", sink)])
    for number in range(3):
        trail.record(CallRecord("admitted", call(call_id=f"c{number}"), ToolDefinition("refund"), 1.0))
    await trail.close()
    await database.close()
    assert sink.records == [1, 2, 3]


class TestFile:
    async def test_records_are_lines_that_only_the_owner_reads(self, tmp_path) -> None:
        path = tmp_path / "audit.jsonl"
        sink = open_sink(f"file:{path}", context())
        await sink.write([ok(1), ok(2)])
        await sink.write([ok(3)])
        await sink.close()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["seq"], line["hash"]) for line in lines] == [(1, "hash-1"), (2, "hash-2"), (3, "hash-3")]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    async def test_a_file_that_was_moved_away_is_made_anew(self, tmp_path) -> None:
        path = tmp_path / "audit.jsonl"
        sink = open_sink(f"file:{path}", context())
        await sink.write([ok(1)])
        path.rename(tmp_path / "old.jsonl")
        await sink.write([ok(2)])
        assert json.loads(path.read_text())["seq"] == 2

    @pytest.mark.parametrize("address", ["file:", "file:relative.jsonl", "file:/no/such/folder/audit.jsonl"])
    def test_a_place_that_cannot_be_is_refused_at_once(self, address: str) -> None:
        with pytest.raises(UsageError, match="cannot be written"):
            open_sink(address, context())


class TestWebhook:
    async def test_records_are_posted_with_the_secret_as_a_bearer_token(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=204)

        async with serving(answer) as service:
            sink = open_sink(
                f"webhook:{service.url}/in#siem", context({"FOLIOT_SECRET_SIEM": "t0ken-of-siem"}, "127.0.0.1")
            )
            await sink.write([ok(1), ok(2)])
            await sink.close()
        assert [each["seq"] for each in json.loads(service.bodies[0])["records"]] == [1, 2]
        assert service.requests[0].headers["Authorization"] == "Bearer t0ken-of-siem"
        assert service.requests[0].path == "/in"

    async def test_a_busy_server_is_asked_again_and_a_refusal_is_final(self) -> None:
        statuses = [503, 200, 400]

        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=statuses.pop(0))

        async with serving(answer) as service:
            feed = SinkFeed("webhook", open_sink(f"webhook:{service.url}", context(None, "127.0.0.1")))
            feed.offer([ok(1)])
            async with asyncio.timeout(60):
                while len(service.requests) < 2:
                    await asyncio.sleep(0.01)
            feed.offer([ok(2)])
            await feed.close()
        assert len(service.requests) == 3
        assert feed.dropped == 1

    async def test_a_place_inside_is_not_reached_unless_it_is_allowed(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response()

        async with serving(answer) as service:
            sink = open_sink(f"webhook:{service.url}", context())
            with pytest.raises(FoliotError):
                await sink.write([ok(1)])
            await sink.close()
        assert service.requests == []

    def test_what_is_no_address_is_refused_at_once(self) -> None:
        with pytest.raises(UsageError, match="cannot be posted"):
            open_sink("webhook:ftp://x", context())


class Span(NonRecordingSpan):
    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.name, self.given, self.status, self.ended = name, given, None, None

    def set_status(self, status, description=None) -> None:
        self.status = status

    def end(self, end_time=None) -> None:
        self.ended = end_time


class Tracer(trace.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name, **given):
        self.spans.append(Span(name, **given))
        return self.spans[-1]


class TestOpenTelemetry:
    async def test_a_call_is_a_span_with_its_time_and_its_names(self) -> None:
        tracer = Tracer()
        await OtelSink(tracer).write([record(1, "admitted"), ok(2)])
        (span,) = tracer.spans
        assert span.name == "execute_tool refund"
        assert (span.given["start_time"], span.ended) == (99_500_000_000, 100_000_000_000)
        assert span.given["attributes"]["gen_ai.tool.call.id"] == "c2"
        assert span.given["attributes"]["foliot.audit.hash"] == "hash-2"
        assert span.status is None

    async def test_a_refusal_is_a_span_that_failed(self) -> None:
        tracer = Tracer()
        await OtelSink(tracer).write([record(1, "refused", failure_result(call(), ToolDenied("no", layer="policy")))])
        assert tracer.spans[0].status.status_code is StatusCode.ERROR
        assert tracer.spans[0].status.description == "no"

    async def test_it_opens_by_its_name(self) -> None:
        await open_sink("otel", context()).write([ok(1)])
        with pytest.raises(UsageError, match="takes no address"):
            open_sink("otel:http://x", context())

    def test_without_the_library_it_says_what_to_install(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
        with pytest.raises(UsageError, match="not installed"):
            open_sink("otel", context())


def made_elsewhere(address: str, given: SinkContext) -> Kept:
    if address == "broken":
        raise ValueError("bad address")
    return Kept()


class TestEntryPoints:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = EntryPoints([EntryPoint("mine", f"{__name__}:made_elsewhere", "foliot.audit_sinks")])
        monkeypatch.setattr(EntryPoint, "load", lambda self: made_elsewhere)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **wanted: points.select(**wanted))

    async def test_a_sink_of_somebody_elses_is_found_by_its_name(self) -> None:
        (feed,) = open_feeds(["mine:anything"], context())
        assert feed.name == "mine"
        await feed.close()

    def test_one_that_fails_to_open_is_told_without_a_traceback(self) -> None:
        with pytest.raises(UsageError, match="bad address"):
            open_feeds(["mine:broken"], context())

    def test_an_unknown_name_is_answered_with_those_there_are(self) -> None:
        with pytest.raises(UsageError) as caught:
            open_feeds(["nowhere:x"], context())
        assert caught.value.hint == "there are: file, mine, otel, webhook"


SCRIPT = [{"call": {"ping": {}}}, {"say": "done"}]


class TestRuntime:
    async def test_a_sink_that_the_settings_name_gets_the_records_of_runs(self, tmp_path) -> None:
        path = tmp_path / "audit.jsonl"
        settings = load_settings({"store": str(tmp_path / "foliot.db")}, {"FOLIOT_AUDIT_SINKS": f"file:{path}"})

        @tool
        def ping() -> str:
            """Answer."""
            return "pong"

        async with Runtime(settings=settings) as runtime:
            await runtime.run(Agent("clerk", model=ScriptedModel(SCRIPT), tools=[ping]), "go")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["moment"] for line in lines] == ["finished"]

    async def test_a_sink_that_cannot_be_keeps_the_runtime_from_starting(self, tmp_path) -> None:
        settings = load_settings({"store": str(tmp_path / "foliot.db")}, {"FOLIOT_AUDIT_SINKS": "nowhere:x"})
        with pytest.raises(UsageError, match="no audit sink"):
            async with Runtime(settings=settings):
                pytest.fail("it started")
