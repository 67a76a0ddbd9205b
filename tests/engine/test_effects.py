"""Whatever a model or a tool does, one fact comes of it."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest
from msgspec.structs import replace

from foliot.engine.driver.effects import MAX_CALLS
from foliot.kernel.messages import Usage
from foliot.kernel.run.events import ModelFailed, RunFailed, RunSucceeded, ToolFinished
from foliot.kernel.run.spec import Repairs
from foliot.models.base import ModelAuthError, ModelRateLimited
from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.function import tool
from foliot.tools.pipeline.pipeline import Pipeline
from tests.engine.kit import Engine, calls, in_turn, says


async def results(engine: Engine) -> list[ToolFinished]:
    return [event for event in await engine.events() if isinstance(event, ToolFinished)]


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), KeyError("k"), TimeoutError("its own"), RuntimeError("half \ud800")]
)
async def test_a_gateway_that_raises_what_it_should_not_fails_the_run_and_does_not_leave_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # half a surrogate pair in a captured log cannot be sent between test workers
    engine = Engine(in_turn(error))

    state = await engine.run()

    assert isinstance(state.ended, RunFailed)
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert failed.kind == "other"
    assert type(error).__name__ in failed.message
    await engine.close()


async def test_a_gateway_whose_own_task_was_cancelled_is_a_failure_and_not_a_hang() -> None:
    engine = Engine(in_turn(asyncio.CancelledError()))
    assert isinstance((await engine.run()).ended, RunFailed)
    await engine.close()


async def test_a_model_error_keeps_what_a_policy_needs() -> None:
    engine = Engine(in_turn(ModelRateLimited("slow down", provider="p", status=429, retry_after=7.5)))
    await engine.run()
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert (failed.kind, failed.status, failed.retry_after, failed.provider) == ("rate_limit", 429, 7.5, "p")
    await engine.close()


async def test_what_can_be_done_about_a_model_error_is_in_the_journal() -> None:
    engine = Engine(in_turn(ModelAuthError("who are you?", hint="set THE_KEY")))
    await engine.run()
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert failed.message == "who are you? (set THE_KEY)"
    await engine.close()


async def test_an_answer_that_json_cannot_carry_is_garbage_and_asked_for_again() -> None:
    engine = Engine(in_turn(says("half \ud800"), says("whole")), repairs=Repairs(model=1, model_backoff=0.0))

    state = await engine.run()
    if state.ended is None:
        state = await engine.take()

    assert isinstance(state.ended, RunSucceeded)
    assert state.ended.output == "whole"
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert failed.kind == "garbage"
    await engine.close()


async def test_an_answer_with_thousands_of_calls_is_garbage_that_costs_and_none_of_them_is_made() -> None:
    many = replace(calls(*["look"] * (MAX_CALLS + 1)), usage=Usage(input_tokens=7, output_tokens=9))
    engine = Engine(in_turn(many, says("done")), repairs=Repairs(model=1, model_backoff=0.0))

    state = await engine.run()
    if state.ended is None:
        state = await engine.take()

    assert isinstance(state.ended, RunSucceeded)
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert failed.kind == "garbage"
    assert f"{MAX_CALLS + 1} tool calls" in failed.message
    assert failed.usage == many.usage
    assert not await results(engine)
    await engine.close()


async def test_a_result_that_json_cannot_carry_becomes_a_failure_the_model_is_told() -> None:
    @tool(effect="read")
    async def read() -> str:
        return "half a pair \udc00"

    engine = Engine(in_turn(calls("read"), says("done")), [read])

    state = await engine.run()

    assert isinstance(state.ended, RunSucceeded)
    (finished,) = await results(engine)
    assert finished.result.error is not None
    assert "cannot be stored" in finished.result.text
    await engine.close()


async def test_a_tool_whose_inner_task_was_cancelled_gives_a_failure_and_not_a_hang() -> None:
    @tool(effect="read")
    async def fetch() -> str:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner
        return "never"

    engine = Engine(in_turn(calls("fetch"), says("done")), [fetch])

    state = await engine.run()

    assert isinstance(state.ended, RunSucceeded)
    (finished,) = await results(engine)
    assert finished.result.error is not None
    await engine.close()


async def test_a_call_that_is_stopped_before_it_began_leaves_nothing_behind() -> None:
    @tool(effect="read", timeout=5.0)
    async def look() -> str:
        return "seen"

    admitted = await Pipeline([look]).admit(Invocation("r1", "c1", "look", {}, "k1"))
    task = asyncio.create_task(admitted.run())
    task.cancel()  # its first turn, in which it would be over already, has not come yet
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()  # a coroutine that nobody awaited would be a warning, and warnings are errors here


async def test_a_toolbox_that_breaks_gives_a_failure_and_not_a_hang() -> None:
    class Broken:
        def definition(self, name: str) -> ToolDefinition | None:
            return None

        async def admit(self, call):
            return self

        async def run(self, *, on_output=None, may_act=None):
            raise ZeroDivisionError("a bug in a backend")

    @tool(effect="read")
    async def look() -> str:
        return ""

    engine = Engine(in_turn(calls("look"), says("done")), [look], toolbox=Broken())

    assert isinstance((await engine.run()).ended, RunSucceeded)
    (finished,) = await results(engine)
    assert "ZeroDivisionError" in finished.result.text
    await engine.close()


async def test_the_event_of_a_call_says_by_which_contract_it_was_made_and_whether_it_ended_the_run() -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    engine = Engine(in_turn(calls("look")), [look], tool_use_behavior="stop_on_first_tool")
    state = await engine.run()
    await engine.close()

    (finished,) = await results(engine)
    assert (finished.contract, finished.ends_run) == ("v1", True)
    assert isinstance(state.ended, RunSucceeded)
    assert state.ended.output == "seen"
