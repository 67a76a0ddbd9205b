"""The suite for backends of tools finds what is wrong with a backend: each of these breaks one promise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.testing import tool_suite as suite
from foliot.testing.tool_suite import Program, Subject, ToolConformance, WireConformance
from foliot.tools.base import Invocation, ToolDefinition


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PATIENCE", 1.0)
    monkeypatch.setattr(suite, "SOON", 0.1)


class Direct:
    """A backend without a fault: the program itself."""

    definition = ToolDefinition("direct", schema=None)

    def __init__(self) -> None:
        self.program = Program()

    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        return await self.program.act(call.arguments, call.idempotency_key)


class ChangesArguments(Direct):
    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        value = call.arguments.get("value")
        if isinstance(value, dict):
            value.pop("nothing", None)
        return await super().invoke(call, on_output=on_output)


class ForgetsTheKey(Direct):
    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        return await super().invoke(replace(call, idempotency_key=""), on_output=on_output)


class HidesFailures(Direct):
    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        try:
            return await super().invoke(call, on_output=on_output)
        except suite.Failed:
            return "all is well"


class IgnoresCancellation(Direct):
    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        task = asyncio.ensure_future(super().invoke(call, on_output=on_output))
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=3)
            except asyncio.CancelledError:
                continue
            if not task.done():
                task.cancel()
        return task.result()


class BreaksAfterAFailure(Direct):
    broken = False

    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        if self.broken:
            raise ConnectionError("gone")
        try:
            return await super().invoke(call, on_output=on_output)
        except suite.Failed:
            self.broken = True
            raise


class MixesUpAnswers(Direct):
    last = ""

    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        self.last = await super().invoke(call, on_output=on_output)
        await asyncio.sleep(0)
        return self.last


class BelievesAnything(Direct):
    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        match call.arguments["do"]:
            case "twice":
                return "second"
            case "wrong_id":
                return "theirs"
            case _:
                return await super().invoke(call, on_output=on_output)


FAULTS = [
    (ChangesArguments, "test_arguments_arrive_as_they_were_given"),
    (ForgetsTheKey, "test_the_idempotency_key_reaches_the_tool_and_is_the_same_again"),
    (HidesFailures, "test_a_failure_is_data_and_the_next_call_goes_well"),
    (HidesFailures, "test_a_failure_that_talks_of_an_approval_is_still_a_failure"),
    (IgnoresCancellation, "test_a_cancelled_call_ends_and_leaves_the_tool_usable"),
    (BreaksAfterAFailure, "test_a_failure_is_data_and_the_next_call_goes_well"),
    (MixesUpAnswers, "test_calls_at_the_same_time_get_their_own_results"),
    (BelievesAnything, "test_the_first_of_two_answers_counts"),
    (BelievesAnything, "test_an_answer_to_another_call_is_not_believed"),
]


@pytest.mark.parametrize(("backend", "promise"), FAULTS, ids=lambda each: getattr(each, "__name__", each))
async def test_a_backend_that_breaks_a_promise_is_found(backend: type[Direct], promise: str) -> None:
    made = backend()
    with pytest.raises(AssertionError):
        await getattr(WireConformance(), promise)(Subject(made, made.program))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.wait({task}, timeout=5)


class TestABackendWithoutAFault(ToolConformance):
    @pytest.fixture
    def subject(self) -> Subject:
        made = Direct()
        return Subject(made, made.program)
