"""Control comes back at the bound, whether or not the backend listens; nothing late is believed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time as wall
from typing import Any

import pytest

from foliot.tools.base import ToolCancelled, ToolTimeout
from foliot.tools.pipeline.attempt import Attempt, Deadline
from foliot.tools.pipeline.running import CallProgress
from tests.tools.governed import FakeTime, call, definition


async def test_work_within_its_time_is_left_alone() -> None:
    async def backend(asked, running):
        await asyncio.sleep(0)
        return "done"

    assert await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend) == "done"


async def test_what_the_backend_raises_comes_out_as_it_is() -> None:
    async def backend(asked, running):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)


async def test_a_backend_that_listens_is_stopped() -> None:
    tidied = asyncio.Event()

    async def backend(asked, running):
        try:
            await asyncio.Event().wait()
        finally:
            tidied.set()

    with pytest.raises(ToolTimeout, match="took longer than") as caught:
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), backend)
    assert tidied.is_set()
    assert caught.value.details == {"timeout_scope": "attempt", "forced": False}


async def deaf(asked, running):
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def deaf_to_everything(asked, running):
    for _ in range(3):  # the cancellation, and even being closed; but not for ever, or the interpreter could not end it
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


@pytest.mark.parametrize("backend", [deaf, deaf_to_everything])
async def test_a_backend_that_ignores_cancellation_is_ended_by_force(backend) -> None:
    with pytest.raises(ToolTimeout, match="did not stop when it was told to") as caught:
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), backend)

    assert caught.value.details == {"timeout_scope": "attempt", "forced": True}
    assert not_cancelled()


async def test_a_backend_that_is_ended_by_force_leaves_its_contexts() -> None:
    left = False

    async def stubborn(asked, running):
        nonlocal left
        try:
            await deaf(asked, running)
        finally:
            left = True

    with pytest.raises(ToolTimeout):
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), stubborn)

    assert left


async def test_a_task_that_the_backend_waits_for_and_that_does_not_listen_does_not_hold_the_caller() -> None:
    release = asyncio.Event()

    async def never_stops() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    other = asyncio.create_task(never_stops())

    async def backend(asked, running):
        await other

    with pytest.raises(ToolTimeout, match="did not stop when it was told to"):
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), backend)

    assert not other.done()
    release.set()
    await other


def not_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def test_a_timeout_inside_the_tool_is_the_tools_own() -> None:
    async def backend(asked, running):
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "gave up by itself"

    assert await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend) == (
        "gave up by itself"
    )
    assert not_cancelled()


async def test_a_timeout_around_the_call_is_the_callers_own() -> None:
    async def backend(asked, running):
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)
    assert not_cancelled()


async def test_tasks_and_futures_inside_the_tool_work_as_ever() -> None:
    async def part(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def backend(asked, running):
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(part(n)) for n in range(3)]
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("from afar"))
        try:
            await future
        except KeyError as error:
            return [each.result() for each in parts], str(error), await asyncio.to_thread(lambda: 7)

    found = await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)

    assert found == ([0, 1, 2], "'from afar'", 7)


async def test_a_failing_task_group_inside_the_tool_fails_as_ever() -> None:
    async def breaks() -> None:
        raise ValueError("one of many")

    async def backend(asked, running):
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            group.create_task(asyncio.sleep(30))

    with pytest.raises(ExceptionGroup):
        await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)


async def test_cancelling_a_caller_whose_tool_does_not_listen_takes_a_bounded_time(monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.pipeline.attempt.STOP_GRACE", 0.01)
    task = asyncio.create_task(
        Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), deaf)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()

    done, _ = await asyncio.wait([task], timeout=60)

    assert done
    assert task.cancelled()


async def test_a_result_that_comes_during_the_grace_is_not_believed() -> None:
    async def backend(asked, running):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "too late"

    with pytest.raises(ToolTimeout, match="took longer than"):
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), backend)


async def test_a_blocking_function_on_a_thread_does_not_hold_the_caller() -> None:
    release = threading.Event()

    async def backend(asked, running):
        return await asyncio.to_thread(release.wait, 10)

    try:
        with pytest.raises(ToolTimeout):
            await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(), backend)
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
    assert await stage(call("f"), CallProgress(heard.append), talks) == "done"
    assert heard == ["tick"] * 6
    with pytest.raises(ToolTimeout, match="silent") as caught:
        await Attempt(definition("f", idle_timeout=0.01), wall.time)(call("f"), CallProgress(heard.append), silent)
    assert caught.value.details["timeout_scope"] == "idle"


async def test_output_after_the_end_is_dropped() -> None:
    heard: list[str] = []
    kept: list[Any] = []

    async def backend(asked, running):
        kept.append(running.on_output)
        running.on_output("in time")
        await asyncio.Event().wait()

    with pytest.raises(ToolTimeout):
        await Attempt(definition("f", attempt_timeout=0.01), wall.time)(call("f"), CallProgress(heard.append), backend)
    kept[0]("late")

    assert heard == ["in time"]


async def test_no_time_left_means_not_started() -> None:
    async def backend(asked, running):
        raise AssertionError("it must not be called")

    with pytest.raises(ToolTimeout, match="no time left"):
        await Attempt(definition("f"), FakeTime(1000.0))(call("f", deadline=999.0), CallProgress(), backend)


async def test_a_tool_that_cancels_itself_is_not_taken_for_a_caller_that_does() -> None:
    async def backend(asked, running):
        raise asyncio.CancelledError

    with pytest.raises(ToolCancelled):
        await Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)


async def test_cancelling_the_caller_stops_the_backend_first() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def backend(asked, running):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(
        Attempt(definition("f", attempt_timeout=30.0), wall.time)(call("f"), CallProgress(), backend)
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert stopped.is_set()


@pytest.mark.parametrize(("given", "deadline"), [(None, 1030.0), (1010.0, 1010.0), (1050.0, 1030.0)])
async def test_a_deadline_is_set_and_never_moved_back(given: float | None, deadline: float) -> None:
    async def backend(asked, running):
        return asked.deadline

    assert await Deadline(30.0, FakeTime(1000.0))(call("f", deadline=given), CallProgress(), backend) == deadline
