"""A call is not called stopped while something of it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest

from foliot.engine.telemetry.metrics import Metrics
from foliot.tools.base import Invocation, ToolCancelled, ToolRateLimited
from foliot.tools.function import FunctionTool, tool
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.running import MOST_GOING_ON, CallProgress, blocking, current, going_on
from tests.tools.governed import call

# Seconds in which a thread has certainly begun, also on a busy machine: what has not begun does not go on.
ENOUGH_TO_BEGIN = 1.0


class Stuck:
    """A function that blocks where nothing can end it, until it is released."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.begun = threading.Event()
        self.acted = threading.Event()

    def tool(self, **options: Any) -> FunctionTool:
        @tool(name="stuck", effect="read", **options)
        def stuck() -> None:
            self.begun.set()
            self.lock.acquire()
            self.acted.set()

        return stuck

    async def release(self) -> None:
        self.lock.release()
        while going_on():
            await asyncio.sleep(0.001)


async def test_a_function_that_blocks_is_said_to_go_on_until_it_has_ended(caplog) -> None:
    stuck = Stuck()
    box = Pipeline([stuck.tool(timeout=ENOUGH_TO_BEGIN)])

    result = await box.call(call("stuck"))

    assert result.error is not None
    assert "goes on" in result.error.message
    assert "stopped" not in result.error.message
    assert result.error.details["still_running"] is True
    assert [(each.tool, each.call_id, each.what) for each in going_on()] == [("stuck", "c1", "thread")]
    assert 'foliot_tool_calls_going_on{tool="stuck"} 1.0' in str(await Metrics(None).render())
    with caplog.at_level(logging.WARNING):
        await stuck.release()
    assert "ended" in caplog.text
    assert not stuck.acted.is_set()  # it heard that it was to end when it came back


async def test_a_function_that_computes_ends_when_it_is_told_to(monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.pipeline.running.END_WITHIN", 30.0)
    begun, tidied = threading.Event(), threading.Event()

    @tool(effect="read")
    def compute() -> None:
        begun.set()
        try:
            while True:
                pass
        finally:
            tidied.set()

    task = asyncio.create_task(compute.invoke(call("compute")))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert tidied.is_set()
    assert going_on() == []


async def test_a_task_that_does_not_listen_is_said_to_go_on() -> None:
    release = asyncio.Event()

    async def never() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    @tool(effect="read", timeout=0.01)
    async def waits() -> None:
        await asyncio.gather(asyncio.create_task(never()))

    result = await Pipeline([waits]).call(call("waits"))

    assert result.error is not None
    assert result.error.details["still_running"] is True
    assert [each.what for each in going_on()] == ["task"]
    release.set()
    while going_on():
        await asyncio.sleep(0)


async def test_who_is_cancelled_leaves_a_record_that_the_call_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.pipeline.running.END_WITHIN", 0.01)
    kept: list[Any] = []

    class Keeps:
        def record(self, entry: Any) -> None:
            kept.append(entry)

    stuck = Stuck()
    box = Pipeline([stuck.tool(timeout=60)], PipelineParts(recorders=(Keeps(),)))
    task = asyncio.create_task(box.call(call("stuck")))
    while not stuck.begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert kept[-1].result.error.details == {"still_running": True}
    await stuck.release()


async def test_no_more_calls_are_started_of_a_function_whose_calls_never_end(monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.pipeline.running.MOST_GOING_ON", 2)
    assert MOST_GOING_ON > 2
    stuck = Stuck()
    made = stuck.tool(timeout=ENOUGH_TO_BEGIN)
    box = Pipeline([made])
    for _ in range(2):
        await box.call(call("stuck"))

    refused = await box.call(call("stuck"))

    assert refused.error is not None
    assert refused.error.kind == ToolRateLimited.kind
    assert "2 earlier calls" in refused.error.message
    for left in (1, 0):
        stuck.lock.release()
        while len(going_on()) > left:
            await asyncio.sleep(0.001)


# --- whoever slept ----------------------------------------------------------------------------------------------------


class Right:
    """`answers` are what is said when it is asked; what it holds until then is not certain."""

    def __init__(self, *answers: bool, certain: bool = False) -> None:
        self.certain = certain
        self.answers = list(answers)

    def holds(self) -> bool:
        return self.certain

    async def __call__(self) -> bool:
        await asyncio.sleep(0)
        self.certain = self.answers.pop(0)
        return self.certain


async def test_a_function_is_not_called_when_the_right_to_it_was_lost_on_the_way_to_its_thread() -> None:
    acted: list[int] = []
    current.set(CallProgress(None, Right(False)))

    with pytest.raises(ToolCancelled, match="was not called"):
        await blocking(call("f"), None, acted.append, 1)
    assert acted == []


async def test_a_function_is_called_once_when_the_right_to_it_was_only_in_doubt() -> None:
    acted: list[int] = []
    current.set(CallProgress(None, Right(True)))

    await blocking(call("f"), None, acted.append, 1)

    assert acted == [1]


@pytest.mark.parametrize(("kept", "expected"), [(True, ["begun", "went on"]), (False, ["begun", "tidied"])])
async def test_a_coroutine_goes_on_after_a_wait_only_with_the_right_to(kept: bool, expected: list[str]) -> None:
    acted: list[str] = []
    right = Right(kept, certain=True)

    @tool(effect="once", timeout=None)
    async def pays(context: Invocation) -> str:
        acted.append("begun")
        right.certain = False  # the process sleeps while it waits
        try:
            await asyncio.sleep(0.001)
            acted.append("went on")
        except BaseException:
            acted.append("tidied")
            raise
        return "paid"

    admitted = await Pipeline([pays]).admit(call("pays"))
    result = await admitted.run(may_act=right)  # type: ignore[union-attr]

    assert acted == expected
    assert (result.error is None) is kept
    assert kept or "went to another" in result.error.message  # type: ignore[union-attr]
