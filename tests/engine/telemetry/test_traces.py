"""Traces are a fold over journals: one truthful trace, whatever crashed on the way, and across agents, HTTP and MCP."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web
from msgspec import structs
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from foliot import Agent, RunFailedError, Runtime, ScriptedModel, tool
from foliot.engine.telemetry import conventions
from foliot.engine.telemetry.export import TraceExporter, otlp_sender, readable
from foliot.engine.telemetry.spans import spans_of_run
from foliot.kernel.messages import Message, ModelResponse, ToolFailure, ToolResult, Usage
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    ModelResponded,
    RunClaimed,
    RunCreated,
    RunSucceeded,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from foliot.kernel.traces import TraceContext, call_span, new_trace, read_context, run_span, under_call
from foliot.runtime.telemetry import traced
from foliot.settings.settings import load_settings
from foliot.store.queue.placement import Offer
from foliot.tools.backends.http import HttpTool
from foliot.work.tasks.base import Command
from tests.tools.web_service import call, definition, serving, way_out

NO_SETTINGS = load_settings({}, {})


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


LOOKER = Agent("looker", model=ScriptedModel([{"call": "look"}, {"say": "I have {last_result} it."}]), tools=[look])


def by_name(spans) -> dict[str, object]:
    return {span.name: span for span in spans}


async def test_a_run_is_one_trace_of_the_conventions(tmp_path) -> None:
    memory = InMemorySpanExporter()
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=memory):
        result = await runtime.run(LOOKER, "go", run_id="r1")
    spans = memory.get_finished_spans()

    names = sorted(span.name for span in spans)
    assert [name.partition(" ")[0] for name in names] == ["chat", "chat", "execute_tool", "invoke_agent"]
    assert names[2:] == ["execute_tool look", "invoke_agent looker"]
    run = by_name(spans)["invoke_agent looker"]
    assert len({span.context.trace_id for span in spans}) == 1
    assert run.parent is None
    assert all(span.parent.span_id == run.context.span_id for span in spans if span is not run)
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.usage.input_tokens"] == result.usage.input_tokens
    assert run.attributes["foliot.outcome"] == "succeeded"
    looked = by_name(spans)["execute_tool look"]
    assert looked.attributes["gen_ai.tool.name"] == "look"
    assert run.start_time <= looked.start_time <= looked.end_time <= run.end_time
    chats = [span for span in spans if span.name.startswith("chat")]
    assert all(span.kind is SpanKind.CLIENT for span in chats)
    assert sum(span.attributes["gen_ai.usage.output_tokens"] for span in chats) == result.usage.output_tokens


async def test_nothing_that_was_said_is_in_a_span(tmp_path) -> None:
    memory = InMemorySpanExporter()
    agent = Agent("talker", model=ScriptedModel([{"say": "the secret word"}]))
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=memory):
        await runtime.run(agent, "the secret question")
    assert "secret" not in "".join(span.to_json() for span in memory.get_finished_spans())


async def test_a_run_that_was_cut_off_and_gone_on_with_is_one_trace(tmp_path) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def slow() -> str:
        """Waits."""
        started.set()
        await gate.wait()
        return "done"

    agent = Agent("waiter", model=ScriptedModel([{"call": "slow"}, {"say": "ok"}]), tools=[slow])
    memory = InMemorySpanExporter()
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=memory):
        running = asyncio.create_task(runtime.run(agent, "go", run_id="r1"))
        await asyncio.wait_for(started.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert memory.get_finished_spans() == (), "a run that has not ended has no span yet"

    again = InMemorySpanExporter()
    gate.set()
    async with (
        Runtime(tmp_path / "foliot.db", clock=lambda: time.time() + 3600) as runtime,
        traced(runtime, NO_SETTINGS, sender=again),
    ):
        await runtime.resume("r1", agent=agent)
    spans = again.get_finished_spans()
    assert len([span for span in spans if span.name == "execute_tool slow"]) == 1
    assert len([span for span in spans if span.name == "invoke_agent waiter"]) == 1
    run = by_name(spans)["invoke_agent waiter"]
    assert run.attributes["foliot.attempt"] == 1  # a moved lease is no attempt
    assert f"{run.context.span_id:016x}" == run_span("r1")
    assert [event.name for event in run.events].count("foliot.run.claimed") == 2


async def test_a_failed_run_is_an_error_with_its_code(tmp_path) -> None:
    memory = InMemorySpanExporter()
    agent = Agent("failer", model=ScriptedModel([{"fail": "auth"}]))
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=memory):
        with pytest.raises(RunFailedError):
            await runtime.run(agent, "go")
    run = by_name(memory.get_finished_spans())["invoke_agent failer"]
    assert run.status.status_code is StatusCode.ERROR
    assert run.attributes["error.type"]


async def test_without_an_endpoint_nothing_is_loaded_and_nothing_traced(tmp_path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS):
        await runtime.run(LOOKER, "go", run_id="r1")
        (_, created), *_ = await runtime.inside.runs.facts("r1")
    assert isinstance(created, RunCreated)
    assert created.trace == ""


async def test_an_agent_that_another_one_calls_stands_below_the_call(tmp_path) -> None:
    memory = InMemorySpanExporter()
    helper = Agent("helper", model=ScriptedModel([{"say": "helped"}]))
    turns = [{"call": {"delegate": {"tasks": [{"agent": "helper", "task": "help"}]}}}, {"say": "done"}]
    boss = Agent("boss", model=ScriptedModel(turns), tools=[helper, "delegate"])
    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=memory):
        await runtime.run(boss, "go", run_id="r1")
    spans = by_name(memory.get_finished_spans())
    child, call = spans["invoke_agent helper"], spans["execute_tool delegate"]
    assert child.parent.span_id == call.context.span_id
    assert child.context.trace_id == spans["invoke_agent boss"].context.trace_id


async def test_a_task_its_message_and_its_run_stand_in_the_trace_of_whoever_asked(tmp_path) -> None:
    memory = InMemorySpanExporter()
    clerk = Agent("clerk", model=ScriptedModel([{"say": "done"}]))
    asked = str(TraceContext("a" * 32, "b" * 16))
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.run(clerk, "so that this runtime knows it")
        async with traced(runtime, NO_SETTINGS, sender=memory):
            tasks = runtime.inside.tasking.tasks
            accepted = await tasks.accept(Command("agent", "clerk", message="m", idempotency_key="k", trace=asked))
            again = await tasks.accept(Command("agent", "clerk", message="m", idempotency_key="k", trace=""))
            assert again.task.name == accepted.task.name, "who traces it does not make it another task"
            offer = Offer(name="w1", identity=runtime.inside.runs.worker, capacity=1)
            await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)
    spans = by_name(memory.get_finished_spans())
    task, message, run = (
        spans[name] for name in ("invoke_workflow clerk", "foliot.message system -> clerk", "invoke_agent clerk")
    )
    assert f"{task.context.trace_id:032x}" == "a" * 32
    assert task.parent.span_id == int("b" * 16, 16)
    assert message.parent.span_id == task.context.span_id
    assert run.parent.span_id == message.context.span_id
    assert task.attributes["foliot.outcome"] == "succeeded"


async def test_a_task_without_a_trace_gets_one_where_traces_are_on_and_a_wrong_one_is_dropped(tmp_path) -> None:
    memory = InMemorySpanExporter()
    clerk = Agent("clerk", model=ScriptedModel([{"say": "done"}]))
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.run(clerk, "so that this runtime knows it")
        async with traced(runtime, NO_SETTINGS, sender=memory):
            await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", message="m", trace="nonsense"))
            offer = Offer(name="w1", identity=runtime.inside.runs.worker, capacity=1)
            await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)
    task = by_name(memory.get_finished_spans())["invoke_workflow clerk"]
    assert task.parent is None


async def test_a_tool_over_http_is_told_the_trace_and_only_when_there_is_one() -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("traceparent"))
        return web.json_response({"ok": True})

    context = under_call(str(new_trace("r1")), "r1", "c1")
    async with serving(answer) as service, way_out({}) as out:
        http = HttpTool(definition(service.url), out.client, out.auth)
        await http.invoke(structs.replace(call({}), trace=context))
        await http.invoke(call({}))
    assert seen == [context, None]


async def test_spans_reach_a_collector_over_http(tmp_path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[tuple[str, bytes, str]] = []

    async def take(request: web.Request) -> web.Response:
        received.append((request.path, await request.read(), request.headers.get("x-team", "")))
        return web.Response(body=b"", content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        environ = {"FOLIOT_OTEL_HEADERS": "x-team=agents", "FOLIOT_OTEL_SERVICE": "my-agents"}
        settings = load_settings({"otel_endpoint": address}, environ)
        async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, settings):
            await runtime.run(LOOKER, "go")
    finally:
        await runner.cleanup()
    assert received
    path, body, team = received[0]
    assert (path, team) == ("/v1/traces", "agents")
    import gzip

    message = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    (batch,) = message.resource_spans
    assert {"invoke_agent looker", "execute_tool look"} <= {s.name for scope in batch.scope_spans for s in scope.spans}
    assert any(a.key == "service.name" and a.value.string_value == "my-agents" for a in batch.resource.attributes)


async def test_a_collector_that_breaks_is_in_nobodys_way(tmp_path) -> None:
    class Broken:
        def export(self, spans: object, /) -> None:
            raise ConnectionError("away")

        def shutdown(self) -> None:
            pass

    async with Runtime(tmp_path / "foliot.db") as runtime, traced(runtime, NO_SETTINGS, sender=Broken()):
        assert (await runtime.run(LOOKER, "go")).phase == "succeeded"


async def test_too_many_ends_are_dropped_and_counted() -> None:
    async def read(run_id: str):
        return ()

    exporter = TraceExporter(InMemorySpanExporter(), read)
    for n in range(10_005):
        exporter.recorded(f"r{n}", 1, 0.0, RunSucceeded("x"))
    assert exporter.dropped == 5


def test_a_call_that_two_processes_worked_on_is_one_span_that_tells_of_both() -> None:
    context = str(TraceContext("a" * 32, "b" * 16))
    answer = ModelResponse(Message("assistant", ()), Usage(3, 2), stop="tool_calls", model="m", provider="gemini")
    facts = [
        (1.0, RunCreated("x", "s", trace=context)),
        (1.0, RunClaimed(1, "w1")),
        (2.0, StepStarted(1)),
        (3.0, RunClaimed(2, "w2")),
        (3.0, StepStarted(1, 2)),
        (4.0, ModelResponded(1, answer)),
        (4.0, ToolStarted("c1", "t", "k")),
        (5.0, RunClaimed(3, "w3")),
        (6.0, ToolStarted("c1", "t", "k", 2)),
        (7.0, ToolFinished(ToolResult("c1", "t", (), ToolFailure("timeout", "r", "too late")))),
        (7.5, ApprovalRequested("c2", "a", "pay", "d")),
        (9.5, ApprovalDecided("c2", "approve")),
        (10.0, RunSucceeded("ok")),
    ]
    run, cut_off, asked, call, approval = spans_of_run("r1", facts)
    assert (run.parent, run.trace) == ("b" * 16, "a" * 32)
    assert (cut_off.attributes["error.type"], cut_off.start, cut_off.end) == ("interrupted", 2.0, 3.0)
    assert asked.attributes["gen_ai.provider.name"] == "gcp.gemini"
    assert asked.attributes["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert (call.id, call.start, call.end) == (call_span("r1", "c1"), 4.0, 7.0)
    assert [name for _, name, _ in call.moments] == ["foliot.run.claimed", "foliot.tool.started"]
    assert (call.error, call.attributes["error.type"]) == ("too late", "timeout")
    assert (approval.end - approval.start, approval.attributes["foliot.approval.decision"]) == (2.0, "approve")
    assert spans_of_run("r1", facts) == [run, cut_off, asked, call, approval], "the same spans every time"
    assert readable([run], service="x")[0].parent.span_id == int("b" * 16, 16)


def test_a_run_that_has_not_ended_or_is_not_traced_has_no_spans() -> None:
    assert spans_of_run("r", []) == []
    assert spans_of_run("r", [(1.0, RunCreated("x", "s")), (2.0, RunSucceeded("y"))]) == []
    assert spans_of_run("r", [(1.0, RunCreated("x", "s", trace=str(new_trace("r"))))]) == []


def test_every_word_of_the_conventions_is_one_that_they_have() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {v for v in vars(conventions).values() if isinstance(v, str) and v.startswith("gen_ai.")}
    assert used
    assert used <= known


@pytest.mark.parametrize(
    "text", ["", "x", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "ff-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-a-b-01"]
)
def test_what_is_no_context_is_none(text: str) -> None:
    assert read_context(text) is None
    assert under_call(text, "r", "c") == ""


def test_a_context_is_read_as_it_is_written() -> None:
    context = new_trace("r1")
    assert read_context(str(context)) == context
    assert read_context(under_call(str(context), "r1", "c1")) == TraceContext(context.trace, call_span("r1", "c1"))


def test_without_the_packages_it_is_said_what_to_install(monkeypatch) -> None:
    import sys

    from foliot.errors import UsageError

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match="not installed"):
        otlp_sender("http://127.0.0.1:4318")
