"""Streams of runs and tasks are stirred when something happened to theirs, and only then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foliot.models.scripted.model import ScriptedModel
from foliot.runtime.agent import Agent
from foliot.runtime.runtime import Runtime
from foliot.server.streams.streams import Signs
from foliot.store.base import Put

SOON = 60.0


class Stirred:
    def __init__(self) -> None:
        self.times = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._event.set()

    async def again(self) -> None:
        async with asyncio.timeout(SOON):
            await self._event.wait()
        self._event.clear()


def agent() -> Agent:
    return Agent("clerk", model=ScriptedModel(lambda _: "done"))


async def other_commits(runtime: Runtime, count: int) -> None:
    for number in range(count):
        metadata = {"name": f"m{number}", "namespace": "default"}
        await runtime.inside.resources.write(
            [Put({"apiVersion": "foliot.dev/v1", "kind": "Memory", "metadata": metadata, "spec": {}})]
        )


async def test_only_what_happens_to_the_run_stirs_its_stream(runtime: Runtime) -> None:
    signs = Signs(runtime.inside.tasking.database)
    first, other = (await runtime.run(agent(), "go")).run_id, (await runtime.run(agent(), "go")).run_id
    stirred = Stirred()
    async with signs.of_run(first, stirred) as sign:
        await stirred.again()  # it is looked at once, in any case
        before = sign.mark
        quiet = stirred.times
        later = Stirred()
        await other_commits(runtime, 20)
        async with signs.of_run(other, later):
            await later.again()
        assert (stirred.times, sign.mark) == (quiet, before)


async def test_every_step_of_a_run_is_told_to_all_who_follow_it(runtime: Runtime) -> None:
    signs = Signs(runtime.inside.tasking.database)
    run_id = runtime.inside.new_run_id()
    one, two = Stirred(), Stirred()
    async with signs.of_run(run_id, one) as sign, signs.of_run(run_id, two):
        await one.again()
        assert sign.mark == (), "it is not there yet"
        await runtime.run(agent(), "go", run_id=run_id)
        for stirred in (one, two):
            await stirred.again()
        while sign.mark == () or (await runtime.inside.runs.journal.get(run_id)).phase not in str(sign.mark):
            await one.again()


async def test_a_stream_that_comes_while_others_are_quiet_is_looked_at_soon(runtime: Runtime) -> None:
    signs = Signs(runtime.inside.tasking.database)
    run_id = (await runtime.run(agent(), "go")).run_id
    first: Any = Stirred()
    async with signs.of_run(run_id, first):
        await first.again()
        for _ in range(3):
            late = Stirred()
            async with signs.of_run(run_id, late) as sign:
                await late.again()
                assert sign.mark


async def test_a_mistake_is_logged_and_does_not_end_the_looking(
    runtime: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.server.streams.streams.LOOK_EVERY", 0.01)
    signs = Signs(runtime.inside.tasking.database)
    compare, failures = signs._compare, [1, 2]  # pyright: ignore[reportPrivateUsage]  # made to fail

    async def failing() -> bool:
        if failures:
            raise ValueError(f"number {failures.pop()}")
        return await compare()

    monkeypatch.setattr(signs, "_compare", failing)
    stirred = Stirred()
    async with signs.of_run("nobody", stirred):
        await stirred.again()
    assert caplog.text.count("it is tried again") == 2
