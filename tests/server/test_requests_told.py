"""What is left of a request: one line in the access log, its id in every other line, and the trace that it came in."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx2 as httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette

from foliot.catalog.apply import apply_documents
from foliot.cli.logs import configure
from foliot.engine.telemetry.context import log_fields
from foliot.kernel.run.events import RunCreated
from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.runtime.telemetry import traced
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.envelope import RequestLimits
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.queue.placement import Offer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
WORLD = """\
kind: ModelEndpoint
metadata: {name: talker}
spec: {provider: scripted, default_model: scripted, script: [{turns: [{say: "Yes."}]}]}
---
kind: Agent
metadata: {name: echo}
spec: {model_ref: talker}
---
kind: AgentSystem
metadata: {name: alone}
spec: {agents: [echo]}
"""
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
TASK = {"metadata": {"name": "asked"}, "spec": {"system": "alone", "input": {"topic": "clocks"}}}


@pytest.fixture
async def world(runtime: Runtime) -> None:
    await apply_documents(runtime.inside.resources, parse_text(WORLD, "world").documents)


class TestTheAccessLog:
    @pytest.fixture(autouse=True)
    def heard(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "foliot.server.access")

    @staticmethod
    def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
        return [each for each in caplog.records if each.name == "foliot.server.access"]

    async def test_each_request_is_one_line_with_fields(
        self, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        await http.get("/v1/agents?limit=3", headers={"X-Request-ID": "r-1"})
        await http.get("/v1/none/at/all")

        first, second = self.lines(caplog)
        assert first.getMessage() == "GET /v1/agents 200"
        assert (first.request, first.method, first.path, first.status) == ("r-1", "GET", "/v1/agents", 200)
        assert (first.caller, first.client) == ("anonymous", "127.0.0.1")
        assert first.bytes > 0
        assert first.ms > 0
        assert (second.status, second.caller) == (404, "")

    async def test_who_asked_too_often_is_in_it(
        self, runtime: Runtime, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, text = await SqlTokens(runtime.inside.tasking.database).create(
            "ci", namespaces=["*"], roles=["reader"], now=0.0
        )
        auth = TokenAuth(runtime.inside.tasking.database, local=True)
        app = create_app(runtime, settings=settings, auth=auth, limits=RequestLimits(rate=0.01, burst=1))
        known = {"Authorization": f"Bearer {text}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert [(await http.get("/v1/agents", headers=known)).status_code for _ in range(2)] == [200, 429]
        await auth.close()

        assert [(line.caller, line.status) for line in self.lines(caplog)] == [("ci", 200), ("ci", 429)]

    async def test_nothing_that_may_be_secret_is_in_it(
        self, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        headers = {"Authorization": "Bearer fol_sesame", "Cookie": "foliot=sesame", "X-Api-Key": "sesame"}
        await http.post("/v1/secrets?token=sesame&q=sesame", headers=headers, json={"spec": {"data": {"a": "sesame"}}})

        (line,) = self.lines(caplog)
        assert "sesame" not in str(vars(line))

    async def test_a_line_stays_one_line(self, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
        await http.get("/v1/agents/a%0aGET%20/forged%20200%1b[31m")

        (line,) = self.lines(caplog)
        assert line.getMessage().isprintable()
        assert line.path.isprintable()
        assert line.status == 400

    async def test_what_is_no_request_has_a_line_too(self, app: Starlette, caplog: pytest.LogCaptureFixture) -> None:
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(b"sesame\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
            await writer.wait_closed()

        (line,) = self.lines(caplog)
        assert (line.status, line.client) == (400, "127.0.0.1")
        assert "sesame" not in str(vars(line))

    async def test_as_json_it_is_one_object(
        self, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], settings: Settings
    ) -> None:
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            configure(load_settings({"home": str(settings.home), "log_format": "json", "log_level": "info"}, {}))
            await http.get("/livez", headers={"X-Request-ID": "r-2"})
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        (line,) = [each for each in lines if each["logger"] == "foliot.server.access"]
        assert (line["request"], line["status"], line["path"], line["message"]) == (
            "r-2",
            200,
            "/livez",
            "GET /livez 200",
        )


async def test_whatever_is_logged_during_a_request_carries_its_id(
    runtime: Runtime, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(f"{record.name} {log_fields().get('request')}")

    async def broken() -> None:
        logging.getLogger("foliot.store").error("far below")
        raise RuntimeError("sesame")

    monkeypatch.setattr(runtime.inside.resources, "revision", broken)
    handler = Keeper(logging.ERROR)
    logging.getLogger("foliot").addHandler(handler)
    try:
        answer = await http.get("/v1/agents", headers={"X-Request-ID": "r-3"})
    finally:
        logging.getLogger("foliot").removeHandler(handler)

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "sesame" not in answer.text
    assert "r-3" in answer.json()["detail"]
    assert seen == ["foliot.store r-3", "foliot.server.http.envelope r-3"]
    assert log_fields() == {}


class TestTraces:
    async def test_a_run_that_a_request_begins_goes_on_in_the_trace_of_the_caller(
        self, world: None, runtime: Runtime, http: httpx.AsyncClient, settings: Settings
    ) -> None:
        memory = InMemorySpanExporter()
        async with traced(runtime, settings, sender=memory):
            answer = await http.post("/v1/chat/completions", json=CHAT, headers=PARENT)
            assert answer.status_code == 200, answer.text
        spans = memory.get_finished_spans()

        assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
        (run,) = [span for span in spans if span.name == "invoke_agent echo"]
        assert f"{run.parent.span_id:016x}" == SPAN

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/tasks", TASK),
            ("/v1/tasks/submit", {"target_kind": "system", "target": "alone", "message": "Hello"}),
            ("/v1/apply?run=true", {"kind": "Task", **TASK}),
        ],
    )
    async def test_a_task_that_a_request_begins_and_its_runs_go_on_in_it(
        self, world: None, runtime: Runtime, http: httpx.AsyncClient, settings: Settings, path: str, body: Any
    ) -> None:
        memory = InMemorySpanExporter()
        async with traced(runtime, settings, sender=memory):
            answer = await http.post(path, json=body, headers=PARENT)
            assert answer.status_code in (200, 201), answer.text
            offer = Offer(name="w1", identity=runtime.inside.runs.worker, capacity=1)
            await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)
        spans = {span.name: span for span in memory.get_finished_spans()}

        task = spans["invoke_workflow alone"]
        assert f"{task.context.trace_id:032x}" == TRACE
        assert f"{task.parent.span_id:016x}" == SPAN
        assert f"{spans['invoke_agent echo'].context.trace_id:032x}" == TRACE

    async def test_the_next_request_of_a_connection_is_in_its_own_trace(
        self, world: None, runtime: Runtime, app: Starlette
    ) -> None:
        async with (
            HttpServer(app, Listen("127.0.0.1", 0)) as server,
            httpx.AsyncClient(base_url=server.url, timeout=20, limits=httpx.Limits(max_connections=1)) as http,
        ):
            for headers in (PARENT, {}, {"traceparent": "nonsense"}):
                answer = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
                assert answer.status_code == 200, answer.text
        events = [(await runtime.inside.runs.facts(each))[0][1] for each in await _runs(app)]
        traces = [event.trace for event in events if isinstance(event, RunCreated)]

        assert sorted(traces) == ["", "", PARENT["traceparent"]]


async def _runs(app: Starlette) -> list[str]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        return [each["metadata"]["name"] for each in (await http.get("/v1/runs")).json()["items"]]
