"""Control comes back at the bound, whether or not the backend listens; nothing late is believed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time as wall

import pytest

from foliot.tools.base import ToolCancelled, ToolTimeout
from foliot.tools.running import Running
from foliot.tools.stages.attempt import Attempt
from foliot.tools.stages.deadline import Deadline
from tests.tools.governed import FakeTime, call, definition


async def test_work_within_its_time_is_left_alone() -> None:
    async def backend(asked, running):
        await asyncio.sleep(0)
        return "done"

    assert await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), Running(), backend) == "done"


async def test_what_the_backend_raises_comes_out_as_it_is() -> None:
    async def backend(asked, running):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), Running(), backend)


async def test_a_backend_that_listens_is_stopped() -> None:
    tidied = asyncio.Event()

    async def backend(asked, running):
        try:
            await asyncio.Event().wait()
        finally:
            tidied.set()

    with pytest.raises(ToolTimeout, match="was stopped") as caught:
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), Running(), backend)
    assert tidied.is_set()
    assert caught.value.details == {"timeout_scope": "attempt", "forced": False}


async def test_a_backend_that_ignores_cancellation_is_left_behind() -> None:
    release = asyncio.Event()
    finished = asyncio.Event()

    async def deaf(asked, running):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        finished.set()
        return "too late"

    with pytest.raises(ToolTimeout, match="left behind") as caught:
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), Running(), deaf)

    assert caught.value.details["forced"] is True
    assert not finished.is_set()
    release.set()
    await asyncio.wait_for(finished.wait(), 5)


async def test_a_blocking_function_on_a_thread_does_not_hold_the_caller() -> None:
    release = threading.Event()

    async def backend(asked, running):
        return await asyncio.to_thread(release.wait, 10)

    try:
        with pytest.raises(ToolTimeout):
            await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), Running(), backend)
    finally:
        release.set()


async def test_a_silent_tool_is_stopped_and_one_that_speaks_is_not() -> None:
    heard: list[str] = []
    spoke = 0

    async def talks(asked, running):
        nonlocal spoke
        for _ in range(6):
            running.on_output("tick")
            spoke += 1
            await asyncio.sleep(0.02)
        return "done"

    async def silent(asked, running):
        await asyncio.Event().wait()

    stage = Attempt(definition("f", idle_timeout=10.0), wall.time)
    assert await stage(call("f"), Running(heard.append), talks) == "done"
    assert heard == ["tick"] * 6
    with pytest.raises(ToolTimeout, match="silent") as caught:
        await Attempt(definition("f", idle_timeout=0.01), wall.time)(call("f"), Running(heard.append), silent)
    assert caught.value.details["timeout_scope"] == "idle"


async def test_output_after_the_end_is_dropped() -> None:
    heard: list[str] = []
    release, spoke = asyncio.Event(), asyncio.Event()

    async def deaf(asked, running):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        on_output("late")
        spoke.set()

    running = Running(heard.append)

    async def backend(asked, given):
        nonlocal on_output
        on_output = given.on_output
        await deaf(asked, given)

    on_output = heard.append
    with pytest.raises(ToolTimeout):
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), running, backend)
    release.set()
    await asyncio.wait_for(spoke.wait(), 5)

    assert heard == []


async def test_no_time_left_means_not_started() -> None:
    async def backend(asked, running):
        raise AssertionError("it must not be called")

    with pytest.raises(ToolTimeout, match="no time left"):
        await Attempt(definition("f"), FakeTime(1000.0))(call("f", deadline=999.0), Running(), backend)


async def test_a_tool_that_cancels_itself_is_not_taken_for_a_caller_that_does() -> None:
    async def backend(asked, running):
        raise asyncio.CancelledError

    with pytest.raises(ToolCancelled):
        await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), Running(), backend)


async def test_cancelling_the_caller_stops_the_backend_first() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def backend(asked, running):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), Running(), backend))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert stopped.is_set()


@pytest.mark.parametrize(("given", "deadline"), [(None, 1030.0), (1010.0, 1010.0), (1050.0, 1030.0)])
async def test_a_deadline_is_set_and_never_moved_back(given: float | None, deadline: float) -> None:
    async def backend(asked, running):
        return asked.deadline

    assert await Deadline(30.0, FakeTime(1000.0))(call("f", deadline=given), Running(), backend) == deadline
