"""Readers of a run that goes on: events always, pieces while they keep up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foliot import tool
from foliot.engine.live.hub import MOST_PIECES, Interleaved, Output, Reader, Recorded, RunHub, Streamed
from foliot.kernel.messages import ReasoningDelta, RestartDelta, TextDelta, ToolCallDelta
from foliot.kernel.run.events import StepStarted
from foliot.models.scripted.model import ScriptedModel
from foliot.runtime.agent import Agent
from foliot.runtime.runtime import Runtime


async def everything(reader) -> list:
    return [item async for item in reader]


async def test_a_slow_reader_loses_pieces_and_never_events() -> None:
    hub = RunHub()
    with hub.read("r1") as reader:
        for number in range(MOST_PIECES + 10):
            hub.streamed("r1", 1, TextDelta(str(number)))
        hub.recorded("r1", 1, 0.0, StepStarted(1))
        hub.output("r1", "c1", "too much")
        reader.close()
        items = await everything(reader)

    assert reader.missed == 11
    assert sum(isinstance(item, Streamed) for item in items) == MOST_PIECES
    assert items[-1] == Recorded("r1", 1, 0.0, StepStarted(1))


async def test_a_reader_that_caught_up_gets_pieces_again() -> None:
    hub = RunHub()
    with hub.read("r1") as reader:
        stream = reader.__aiter__()
        for number in range(MOST_PIECES + 1):
            hub.streamed("r1", 1, TextDelta(str(number)))
        await anext(stream)
        hub.output("r1", "c1", "heard")
        reader.close()
        rest = [item async for item in stream]
    assert rest[-1] == Output("r1", "c1", "heard")


async def test_whatever_is_read_last_says_where_to_go_on_after_a_break(tmp_path: Path) -> None:
    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    turns = [{"say": "I look at it now.", "call": {"look": {}}}, {"say": "It is there, as I said."}]
    async with Runtime(tmp_path / "foliot.db") as runtime:
        agent = Agent("a", model=ScriptedModel(turns), tools=[look])
        run_id = (await runtime.runs.start(agent, "Go.")).id
        items = [item async for item in runtime.runs.watch(run_id)]
        numbers = [item.seq for item in items if isinstance(item, Recorded)]

    assert any(not isinstance(item, Recorded) for item in items)
    for place, item in enumerate(items):
        rest = [each.seq for each in items[place + 1 :] if isinstance(each, Recorded)]
        assert rest == [number for number in numbers if number > item.seq]


async def test_a_reader_s_pieces_have_the_number_of_the_event_before_them() -> None:
    hub = RunHub()
    with hub.read("r1") as reader:
        hub.recorded("r1", 7, 0.0, StepStarted(1))
        hub.output("r1", "c1", "heard")
        reader.close()
        assert [item.seq for item in await everything(reader)] == [7, 7]


def test_pieces_that_come_before_events_go_on_before_them() -> None:
    reader = Reader()
    reader.put(Output("r1", "c1", "heard"))
    reader.put(Streamed("r1", 2, TextDelta("later")))
    records = [Recorded("r1", 8, 0.0, StepStarted(2))]
    assert [item.seq for item in Interleaved(reader, 7).among(records)] == [7, 8, 8]


async def test_readers_hear_only_their_run_each_in_full() -> None:
    hub = RunHub()
    with hub.read("r1") as first, hub.read("r1") as second, hub.read("r2") as other:
        hub.recorded("r1", 1, 0.0, StepStarted(1))
        for reader in (first, second, other):
            reader.close()
        assert len(await everything(first)) == len(await everything(second)) == 1
        assert await everything(other) == []
    hub.recorded("r1", 2, 0.0, StepStarted(2))  # nobody listens any more
    assert hub._readers == {}


async def test_a_reader_waits_for_what_is_still_to_come() -> None:
    hub = RunHub()
    with hub.read("r1") as reader:
        task = asyncio.create_task(everything(reader))
        await asyncio.sleep(0)
        hub.recorded("r1", 1, 0.0, StepStarted(1))
        await asyncio.sleep(0)
        reader.close()
        assert len(await asyncio.wait_for(task, 60)) == 1


async def test_a_run_is_attended_while_somebody_reads_it_or_observes_all() -> None:
    hub = RunHub()
    assert not hub.attends("r1")
    with hub.read("r1"):
        assert (hub.attends("r1"), hub.attends("r2")) == (True, False)
    assert not hub.attends("r1")
    stop = hub.observe(lambda *heard: None)
    assert hub.attends("r1")
    stop()
    assert not hub.attends("r1")


async def test_who_looks_without_waiting_takes_all_and_is_called_when_there_is_more() -> None:
    hub, calls = RunHub(), []
    with hub.read("r") as reader:
        reader.call(lambda: calls.append(1))
        for number in range(MOST_PIECES + 3):
            hub.output("r", "c", str(number))
        assert len(reader.taken()) == MOST_PIECES
        assert (reader.missed, len(calls), reader.taken()) == (3, MOST_PIECES, [])
        hub.output("r", "c", "more")
        assert reader.taken() == [Output("r", "c", "more")]
        hub.missed("r", 4)
        assert reader.missed == 7


async def test_a_run_that_is_read_elsewhere_is_asked_for_pieces_although_nobody_here_wants_them() -> None:
    carried: list[str] = []

    class Carrier:
        def streamed(self, run_id: str, step: int, delta: Any) -> None:
            carried.append(f"{run_id}:{step}:{delta.text}")

        def output(self, run_id: str, call_id: str, text: str) -> None:
            carried.append(text)

        def flush(self, run_id: str) -> None:
            pass

    agent = Agent("clerk", model=ScriptedModel(["Hello there.", "Hello there."]))
    async with Runtime("memory:") as runtime:
        hub = runtime.inside.runs.watcher
        assert isinstance(hub, RunHub)
        hub.carry_to(Carrier(), {"wanted"})
        await runtime.run(agent, "go", run_id="unwanted")
        assert carried == []
        await runtime.run(agent, "go", run_id="wanted")
    assert "".join(each.removeprefix("wanted:1:") for each in carried) == "Hello there."


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("plain", "plain"),
        ("Zürich 😀", "Zürich 😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ud83d\ude00!", "😀!"),
        ("x\udcff.txt", "x\ufffd.txt"),
    ],
)
async def test_what_no_encoding_has_is_shown_as_what_can_be_sent(told: str, shown: str) -> None:
    hub = RunHub()
    with hub.read("r1") as reader:
        for delta in (TextDelta(told), ReasoningDelta(told), ToolCallDelta(0, "c1", "look", told), RestartDelta(told)):
            hub.streamed("r1", 1, delta)
        hub.output("r1", "c1", told)
        text, thought, call, again, printed = reader.taken()

    assert text == Streamed("r1", 1, TextDelta(shown))
    assert thought == Streamed("r1", 1, ReasoningDelta(shown))
    assert call == Streamed("r1", 1, ToolCallDelta(0, "c1", "look", shown))
    assert again == Streamed("r1", 1, RestartDelta(shown))
    assert printed == Output("r1", "c1", shown)
