"""A call has not started, has a result, or may have acted: every way to end without a result, counted outside."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from aiohttp import web
from pydantic import BaseModel, ConfigDict

from foliot.common.threads import ToldToEnd
from foliot.engine.driver.journal import signal
from foliot.engine.explain.replay import branch
from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import Explanation, RunLiveness, explain
from foliot.kernel.messages import Message, ModelResponse, ToolCall, ToolResult
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.calls import MOST_REPEATS
from foliot.kernel.run.events import (
    CancelRequested,
    RunCancelled,
    RunClaimed,
    RunFailed,
    RunSucceeded,
    ToolFinished,
    ToolUnknown,
    UnknownDecided,
    Unsettled,
)
from foliot.kernel.run.state import State
from foliot.tools.backends.http import ExternalTool, HttpTool
from foliot.tools.base import Invocation, Tool, ToolDefinition
from foliot.tools.function import tool
from foliot.tools.outbound.guard import Guard, Outbound
from tests.engine.kit import Engine, calls, in_turn, says
from tests.tools.web_service import self_signed, serving, way_out

Way = Literal["timeout", "attempt", "idle", "lost", "run_deadline", "http_timeout", "http_lost"]
WAYS: tuple[Way, ...] = ("timeout", "attempt", "idle", "lost", "run_deadline", "http_timeout", "http_lost")
SHORT = 0.03


class Till:
    """What happens outside: how often money left it, and under which keys."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.url = ""
        self.time_is_up: Callable[[], None] = lambda: None

    async def post(self, request: web.Request) -> web.StreamResponse:
        self.paid[request.headers["Idempotency-Key"]] += 1
        if request.path == "/lost":
            assert request.transport is not None
            request.transport.close()
        await asyncio.Event().wait()
        raise AssertionError("never reached")


def paying(till: Till, way: Way, effect: Any, on_unknown: Any, web_tools: Any) -> Tool:
    if way.startswith("http"):
        limits: dict[str, Any] = {"timeout": SHORT * 4} if way == "http_timeout" else {}
        definition = ToolDefinition(
            "pay", endpoint=f"{till.url}/{way.removeprefix('http_')}", type="http", effect=effect, on_unknown=on_unknown
        )
        return web_tools(replace(definition, **limits))

    @tool(effect=effect, on_unknown=on_unknown)
    async def pay(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        if way == "lost":
            raise ConnectionResetError("the line is dead")
        try:
            await asyncio.Event().wait()
        finally:
            till.time_is_up()
        return "paid"

    bounds: dict[str, Any] = {
        "timeout": {"timeout": SHORT},
        "attempt": {"attempt_timeout": SHORT},
        "idle": {"idle_timeout": SHORT},
    }
    return pay.with_definition(replace(pay.definition, **bounds.get(way, {})))


async def play(till: Till, way: Way, effect: str, on_unknown: str) -> tuple[Engine, State]:
    """The model calls, and calls again with the same arguments when it is let."""
    limits = Limits(max_seconds=SHORT) if way == "run_deadline" else Limits()
    async with way_out() as out:
        made = paying(till, way, effect, on_unknown, lambda definition: HttpTool(definition, out.client, out.auth))
        answers = in_turn(calls("pay"), calls("pay"), says("done"))
        engine = Engine(answers, [made], limits=limits)

        def pass_time() -> None:
            engine.now += SHORT

        till.time_is_up = pass_time
        return engine, await engine.run()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("effect", "on_unknown"),
    [("once", "ask"), ("once", "fail"), ("once", "retry"), ("idempotent", "ask"), ("read", "ask")],
)
async def test_no_way_to_end_without_a_result_makes_a_call_twice(way: Way, effect: str, on_unknown: str) -> None:
    till = Till()
    async with serving(till.post) as service:
        till.url = service.url
        engine, state = await play(till, way, effect, on_unknown)
    events = await engine.events()
    unknown = [event for event in events if isinstance(event, ToolUnknown)]
    late = way == "run_deadline"
    match effect, on_unknown:
        case "once", "ask":
            assert sum(till.paid.values()) == 1
            assert len(unknown) == 1
            if late:
                assert isinstance(state.ended, RunFailed)
            else:
                assert state.waiting is not None
                assert state.waiting.reason == "unknown_effect"
        case "once", "fail":
            assert sum(till.paid.values()) == 1
            assert isinstance(state.ended, RunFailed)
            assert late or state.ended.code == "unknown_effect"
        case "once", "retry":
            assert set(till.paid) == {"r1/c1"}, "the same request, however often it is made"
            # The circuit of the tool opens after five failures, and then it is not called at all.
            assert len(unknown) == (1 if late else 5)
            assert 2 * (1 + MOST_REPEATS) > 5
        case "idempotent", _:
            assert set(till.paid) == {"r1/c1"}
            assert not unknown
        case _:
            assert not unknown
    if effect != "read":
        shown = [part for message in state.transcript for part in message.parts if isinstance(part, ToolResult)]
        assert bool(shown) == (state.waiting is None), "a call that is asked about has no result yet"
        for result in shown:
            assert result.error is not None
            assert result.error.unknown
            assert result.error.key == "r1/c1"
            assert "may have taken effect" in result.text
            assert "stopped" not in result.text
        told = story(await engine.runs.facts("r1"), engine)
        assert not any("stopped" in line for line in (told.headline, *told.chain))
    await engine.close()


def story(facts: Any, engine: Engine) -> Explanation:
    return explain(trace_of("r1", facts), RunLiveness("waiting"), engine.spec, engine.now)


def never(till: Till, effect: Any = "once", on_unknown: Any = "ask") -> tuple[Tool, asyncio.Event]:
    began = asyncio.Event()

    @tool(effect=effect, on_unknown=on_unknown)
    async def pay(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        began.set()
        await asyncio.Event().wait()
        return "paid"

    return pay, began


async def cancelled(till: Till, effect: str = "once") -> tuple[Engine, State]:
    pay, began = never(till, effect)
    engine = Engine(in_turn(calls("pay"), calls("pay"), says("done")), [pay])
    run = asyncio.create_task(engine.run())
    await asyncio.wait_for(began.wait(), 60)
    driver = engine.runs.local("r1")
    assert driver is not None
    driver.deliver(signal("r1", CancelRequested("ann"), engine.now))
    return engine, await run


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_a_cancelled_run_says_that_its_call_may_have_acted(effect: str) -> None:
    till = Till()
    engine, state = await cancelled(till, effect)
    assert isinstance(state.ended, RunCancelled)
    events = await engine.events()
    assert [event.reason for event in events if isinstance(event, ToolUnknown)] == ["cancelled"]
    finished = next(event for event in events if isinstance(event, ToolFinished))
    assert finished.result.error is not None
    assert (finished.result.error.unknown, finished.result.error.key) == ("cancelled", "r1/c1")
    assert "may have taken effect" in finished.result.text
    trace = trace_of("r1", await engine.runs.facts("r1"))
    assert trace.calls[0].may_have_acted
    assert any("may have taken effect" in line for line in story(await engine.runs.facts("r1"), engine).chain)
    await engine.close()


async def test_a_run_that_takes_over_a_conversation_holds_the_call_that_may_have_acted() -> None:
    till = Till()
    first, state = await cancelled(till)
    pay, _ = never(till)
    engine = Engine(in_turn(calls("pay")), [pay])
    driver = await engine.runs.start(engine.spec, (), run_id="r2", history=state.transcript)

    state = await asyncio.wait_for(engine.runs.drive(driver), 60)

    assert state.waiting is not None
    assert state.waiting.reason == "unknown_effect"
    assert till.paid == {"r1/c1": 1}
    await first.close()
    await engine.close()


async def test_a_fork_from_before_the_call_holds_it_and_repeats_it_under_the_same_key_when_told_to() -> None:
    till = Till()
    engine, _ = await cancelled(till)
    base = await branch(engine.runs, "r1", at=1)
    assert [(each.tool, each.key) for each in base.unsettled] == [("pay", "r1/c1")]
    engine.models.answer = in_turn(calls("pay"), says("done"))

    @tool
    async def pay(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        return "paid"

    again = Engine(engine.models.answer, [pay], journal=engine.journal)
    driver = await again.runs.start(base.spec, base.input, run_id="r2", fork=base.fork, unsettled=base.unsettled)
    state = await asyncio.wait_for(again.runs.drive(driver), 60)
    assert state.waiting is not None
    assert state.waiting.reason == "unknown_effect"
    assert till.paid == {"r1/c1": 1}

    driver = await again.runs.take("r2")
    driver.deliver(signal("r2", UnknownDecided(state.calls[0].id, "run", "ann"), again.now))
    state = await asyncio.wait_for(again.runs.drive(driver), 60)

    assert isinstance(state.ended, RunSucceeded)
    assert till.paid == {"r1/c1": 2}, "a person said that it had not happened"
    assert not state.unsettled
    await engine.close()
    await again.close()


@pytest.mark.parametrize("duplicates", ["allow", "short_circuit"])
async def test_the_same_call_of_one_answer_waits_until_the_first_is_settled(duplicates: str) -> None:
    till = Till()
    pay = paying(till, "timeout", "once", "ask", None)
    answers = in_turn(calls("pay", "pay"), says("done"))
    engine = Engine(answers, [pay], limits=Limits(parallel_tools=1), duplicates=duplicates)

    state = await engine.run()

    assert state.waiting is not None
    assert state.waiting.calls == ("c1",)
    assert till.paid == {"r1/c1": 1}
    driver = await engine.runs.take("r1")
    said = UnknownDecided("c1", "happened", "ann", result=ToolResult("c1", "pay"))
    driver.deliver(signal("r1", said, engine.now))
    state = await asyncio.wait_for(engine.runs.drive(driver), 60)
    if duplicates == "allow":
        assert till.paid == {"r1/c1": 1, "r1/c2": 1}, "a repeat of what succeeded is allowed"
    else:
        assert till.paid == {"r1/c1": 1}, "it has happened: the same call is not made again"
        assert isinstance(state.ended, RunSucceeded)
    await engine.close()


async def test_what_has_happened_as_a_person_says_is_not_made_again() -> None:
    till = Till()
    pay = paying(till, "timeout", "once", "ask", None)
    engine = Engine(in_turn(calls("pay"), calls("pay"), says("done")), [pay], duplicates="short_circuit")
    state = await engine.run()
    assert state.waiting is not None
    driver = await engine.runs.take("r1")
    driver.deliver(signal("r1", UnknownDecided("c1", "happened", "ann"), engine.now))

    state = await asyncio.wait_for(engine.runs.drive(driver), 60)

    assert isinstance(state.ended, RunSucceeded)
    assert till.paid == {"r1/c1": 1}
    shown = [part for message in state.transcript for part in message.parts if isinstance(part, ToolResult)]
    assert "as ann confirmed" in shown[1].text
    assert "not run again" in shown[1].text
    await engine.close()


async def test_held_calls_of_one_answer_are_settled_together() -> None:
    till = Till()
    first, state = await cancelled(till)
    pay, _ = never(till)
    engine = Engine(in_turn(calls("pay", "pay"), says("done")), [pay], duplicates="short_circuit")
    driver = await engine.runs.start(engine.spec, (), run_id="r2", history=state.transcript)
    state = await asyncio.wait_for(engine.runs.drive(driver), 60)
    assert state.waiting is not None
    driver = await engine.runs.take("r2")
    driver.deliver(signal("r2", UnknownDecided(state.calls[0].id, "happened", "ann"), engine.now))

    state = await asyncio.wait_for(engine.runs.drive(driver), 60)

    assert isinstance(state.ended, RunSucceeded)
    assert till.paid == {"r1/c1": 1}
    await first.close()
    await engine.close()


SPELLINGS = ['{"n":1}', "{}", '{"n":1.0}', '{"n":1,"note":""}', '{"n":1e0,"deep":[{"a":2}]}']


def spelled(arguments: str) -> ModelResponse:
    return ModelResponse(Message("assistant", (ToolCall("", "pay", arguments),)), stop="tool_calls")


@pytest.mark.parametrize("again", SPELLINGS)
async def test_a_call_in_another_spelling_is_the_same_call(again: str) -> None:
    paid: list[int] = []

    @tool
    async def pay(n: int = 1, note: str = "", deep: list[dict[str, float]] = [{"a": 2.0}]) -> str:  # noqa: B006 - a default as a schema has it
        paid.append(n)
        if len(paid) == 1 and lost:
            raise ConnectionResetError("the line is dead")
        return "paid"

    lost = False
    engine = Engine(
        in_turn(spelled('{"n":1}'), spelled(again), spelled('{"n":2}'), says("done")), [pay], duplicates="short_circuit"
    )
    state = await engine.run()
    assert isinstance(state.ended, RunSucceeded)
    assert paid == [1, 2], "made once, and another call is another call"
    await engine.close()

    lost = True
    paid.clear()
    engine = Engine(in_turn(spelled('{"n":1}')), [pay], duplicates="short_circuit")
    driver = await engine.runs.start(engine.spec, (), run_id="r1", unsettled=(Unsettled("pay", again, "r0/c1"),))
    state = await asyncio.wait_for(engine.runs.drive(driver), 60)
    assert state.waiting is not None
    assert not paid, "held"
    await engine.close()


async def test_a_call_that_another_process_takes_over_is_recorded_as_unknown() -> None:
    till = Till()
    pay, began = never(till)
    engine = Engine(in_turn(calls("pay")), [pay])
    run = asyncio.create_task(engine.run())
    await asyncio.wait_for(began.wait(), 60)
    engine.now += 1000.0  # its lease is over
    other = engine.process("w2")

    state = await asyncio.wait_for(other.drive(await other.take("r1")), 60)

    assert state.waiting is not None
    assert [event.reason for event in await engine.events() if isinstance(event, ToolUnknown)] == ["lease_lost"]
    assert sum(till.paid.values()) == 1
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await engine.close()


async def test_a_result_that_cannot_be_stored_is_no_reason_to_pay_again() -> None:
    till = Till()

    @tool
    async def pay(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        return "half \ud800"

    engine = Engine(in_turn(calls("pay"), calls("pay"), says("done")), [pay])
    state = await engine.run()
    assert state.waiting is not None
    assert state.waiting.reason == "unknown_effect"
    assert sum(till.paid.values()) == 1
    await engine.close()


class Custom(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    inside: object


RETURNED: dict[str, Callable[[], object]] = {
    "object": object,
    "inside": lambda: {"id": object()},
    "generator": lambda: (each for each in range(3)),
    "lock": threading.Lock,
    "exception": lambda: ValueError("x"),
    "model": lambda: Custom(inside=object()),
}


@pytest.mark.parametrize("what", RETURNED)
@pytest.mark.parametrize("effect", ["once", "read"])
async def test_a_result_that_cannot_be_shown_is_no_reason_to_pay_again(what: str, effect: Any) -> None:
    till = Till()

    @tool(effect=effect)
    async def pay(call: Invocation) -> object:
        till.paid[call.idempotency_key] += 1
        return RETURNED[what]()

    engine = Engine(in_turn(calls("pay"), calls("pay"), says("done")), [pay])
    state = await engine.run()
    unknown = [event for event in await engine.events() if isinstance(event, ToolUnknown)]
    if effect == "read":
        assert isinstance(state.ended, RunSucceeded)
        assert not unknown
    else:
        assert state.waiting is not None
        assert state.waiting.reason == "unknown_effect"
        assert [each.reason for each in unknown] == ["broken"]
        assert "not JSON" in unknown[0].message
        assert sum(till.paid.values()) == 1
    await engine.close()


class Abort(BaseException):
    def __str__(self) -> str:
        raise ValueError("even this")


ESCAPES: tuple[Callable[[], BaseException], ...] = (
    Abort,
    GeneratorExit,
    ToldToEnd,
    lambda: BaseExceptionGroup("several", [Abort()]),
)


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("kind", ["def", "async", "later"])
@pytest.mark.parametrize("effect", ["once", "read"])
async def test_whatever_a_tool_raises_its_call_ends(
    escape: Callable[[], BaseException], kind: str, effect: Any
) -> None:
    till = Till()

    @tool(effect=effect, name="pay")
    def plain(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        raise escape()

    @tool(effect=effect, name="pay")
    async def waiting(call: Invocation) -> str:
        till.paid[call.idempotency_key] += 1
        if kind == "later":
            await asyncio.sleep(0)
        raise escape()

    engine = Engine(in_turn(calls("pay"), says("done")), [plain if kind == "def" else waiting])
    state = await asyncio.wait_for(engine.run(), 60)
    unknown = [event.reason for event in await engine.events() if isinstance(event, ToolUnknown)]
    assert sum(till.paid.values()) == 1
    if effect == "read":
        assert isinstance(state.ended, RunSucceeded)
        assert not unknown
    else:
        assert state.waiting is not None
        assert unknown in (["broken"], ["cancelled"])
    await engine.close()


@pytest.mark.parametrize("escape", ESCAPES)
async def test_whatever_a_gateway_raises_its_run_ends(escape: Callable[[], BaseException]) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise escape()

    engine = Engine(broken, [])
    state = await asyncio.wait_for(engine.run(), 60)
    assert state.ended is not None or state.waiting is not None
    await engine.close()


async def test_a_refused_connection_is_a_failure_that_the_model_is_told() -> None:
    till = Till()
    async with serving(till.post) as service:
        till.url = service.url
    engine, state = await play(till, "http_lost", "once", "ask")
    assert isinstance(state.ended, RunSucceeded)
    assert not [event for event in await engine.events() if isinstance(event, ToolUnknown)]
    await engine.close()


Unsent = Literal["no_such_name", "no_answer", "no_address", "closed_port", "bad_certificate", "refused_address"]


@pytest.mark.parametrize("way", get_args(Unsent))
@pytest.mark.parametrize("kind", [HttpTool, ExternalTool])
async def test_a_call_that_reached_nobody_is_a_failure_that_nobody_is_asked_about(
    way: Unsent, kind: type[HttpTool | ExternalTool], tmp_path: Path
) -> None:
    async def looked_up(host: str, port: int) -> list[str]:
        if way == "no_such_name":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if way == "no_answer":
            await asyncio.Event().wait()
        return [] if way == "no_address" else ["10.1.2.3"]

    till = Till()
    guard = Guard(Outbound(allow_loopback=True), lookup=looked_up, timeout=SHORT)
    secure = self_signed(tmp_path) if way == "bad_certificate" else None
    async with serving(till.post, tls=secure) as service, way_out(guard=guard) as out:
        place = {"closed_port": "http://127.0.0.1:1", "bad_certificate": service.url}.get(way, "http://pay.example")
        definition = ToolDefinition("pay", endpoint=f"{place}/", type="http", effect="once", on_unknown="ask")
        answers = in_turn(calls("pay"), says("Nobody was there."))
        state = await (engine := Engine(answers, [kind(definition, out.client, out.auth)])).run()

    assert isinstance(state.ended, RunSucceeded), state.waiting
    assert not [event for event in await engine.events() if isinstance(event, ToolUnknown)]
    (result,) = [part for message in state.transcript for part in message.parts if isinstance(part, ToolResult)]
    assert result.error is not None
    assert not result.error.unknown
    assert "may have taken effect" not in result.text
    assert not till.paid


@pytest.mark.parametrize("second", ["died", "gave back"])
async def test_a_call_is_not_said_to_have_been_released_because_a_later_holder_left(second: str) -> None:
    """The second process takes the run and leaves it before it has written anything."""
    till = Till()
    pay, began = never(till)
    engine = Engine(in_turn(calls("pay")), [pay])
    run = asyncio.create_task(engine.run())
    await asyncio.wait_for(began.wait(), 60)
    engine.now += 1000.0  # its lease is over
    lease = await engine.journal.claim("r1", worker="w2", now=engine.now, until=engine.now + 30)
    if second == "gave back":
        await engine.journal.append(lease, [], phase="pending")
    engine.now += 1000.0
    other = engine.process("w3")

    state = await asyncio.wait_for(other.drive(await other.take("r1")), 60)

    assert state.waiting is not None
    events = await engine.events()
    assert [event.reason for event in events if isinstance(event, ToolUnknown)] == ["lease_lost"]
    assert [event.released for event in events if isinstance(event, RunClaimed)] == [False, False]
    told = [mark.text for mark in trace_of("r1", [(0.0, event) for event in events]).marks]
    assert any("was gone while pay was under way" in text for text in told), told
    run.cancel()
