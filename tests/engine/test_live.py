"""Readers of a run that goes on: events always, pieces while they keep up."""

from __future__ import annotations

import asyncio

from foliot.engine.live import MOST_PIECES, Hub, Output, Recorded, Streamed
from foliot.kernel.events import StepStarted
from foliot.kernel.messages import TextDelta


async def everything(reader) -> list:
    return [item async for item in reader]


async def test_a_slow_reader_loses_pieces_and_never_events() -> None:
    hub = Hub()
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
    hub = Hub()
    with hub.read("r1") as reader:
        stream = reader.__aiter__()
        for number in range(MOST_PIECES + 1):
            hub.streamed("r1", 1, TextDelta(str(number)))
        await anext(stream)
        hub.output("r1", "c1", "heard")
        reader.close()
        rest = [item async for item in stream]
    assert rest[-1] == Output("r1", "c1", "heard")


async def test_readers_hear_only_their_run_each_in_full() -> None:
    hub = Hub()
    with hub.read("r1") as first, hub.read("r1") as second, hub.read("r2") as other:
        hub.recorded("r1", 1, 0.0, StepStarted(1))
        for reader in (first, second, other):
            reader.close()
        assert len(await everything(first)) == len(await everything(second)) == 1
        assert await everything(other) == []
    hub.recorded("r1", 2, 0.0, StepStarted(2))  # nobody listens any more
    assert hub._readers == {}


async def test_a_reader_waits_for_what_is_still_to_come() -> None:
    hub = Hub()
    with hub.read("r1") as reader:
        task = asyncio.create_task(everything(reader))
        await asyncio.sleep(0)
        hub.recorded("r1", 1, 0.0, StepStarted(1))
        await asyncio.sleep(0)
        reader.close()
        assert len(await asyncio.wait_for(task, 5)) == 1


async def test_a_run_is_attended_while_somebody_reads_it_or_observes_all() -> None:
    hub = Hub()
    assert not hub.attends("r1")
    with hub.read("r1"):
        assert (hub.attends("r1"), hub.attends("r2")) == (True, False)
    assert not hub.attends("r1")
    stop = hub.observe(lambda *heard: None)
    assert hub.attends("r1")
    stop()
    assert not hub.attends("r1")
