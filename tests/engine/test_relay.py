"""Pieces of runs between processes: sent when somebody reads, gathered, bounded; events are none of its business."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.bus.live import LocalLive, Piece
from foliot.engine.live import relay as relay_module
from foliot.engine.live.hub import Output, Reader, RunHub, Streamed
from foliot.engine.live.relay import LARGEST, Relay
from foliot.kernel.messages import ReasoningDelta, RestartDelta, TextDelta, ToolCallDelta
from foliot.kernel.run.events import StepStarted

SOON = 60.0


class Bus(LocalLive):
    """One bus for two relays, as PostgreSQL is for two processes. Counts what is published."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[tuple[str, str, bytes]] = []

    def publish(self, namespace: str, run_id: str, data: bytes) -> None:
        self.published.append((namespace, run_id, data))
        super().publish(namespace, run_id, data)

    @property
    def pieces(self) -> list[tuple[str, str, bytes]]:
        return [each for each in self.published if each[0] != relay_module.WISHES]


class Side:
    """One process."""

    def __init__(self, bus: Bus, clock: Any) -> None:
        self.hub = RunHub()

        async def opening() -> Bus:
            return bus

        self.relay = Relay(self.hub, opening, clock=clock, gathered=0.001)


class Both:
    def __init__(self) -> None:
        self.now = 1000.0
        self.bus = Bus()
        self.worker = Side(self.bus, lambda: self.now)
        self.server = Side(self.bus, lambda: self.now)
        self._stack = ExitStack()

    async def reads(self, run_id: str) -> Reader:
        """Somebody reads along on the server, and the worker knows."""
        reader = self._stack.enter_context(self.server.hub.read(run_id))
        self._stack.enter_context(self.server.relay.reading(run_id))
        await self.until(lambda: self.worker.hub.wanted(run_id))
        return reader

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.001)

    def leave(self) -> None:
        self._stack.close()

    async def close(self) -> None:
        self.leave()
        await self.worker.relay.close()
        await self.server.relay.close()


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    made = Both()
    made.worker.relay.start()
    yield made
    await made.close()


async def came(reader: Reader, count: int) -> list[Any]:
    got: list[Any] = []
    async with asyncio.timeout(SOON):
        async for item in reader:
            got.append(item)
            if len(got) >= count:
                break
    return got


async def test_nobody_reads_and_nothing_is_sent(both: Both) -> None:
    await both.reads("other")
    for _ in range(100):
        both.worker.hub.streamed("r", 1, TextDelta("word "))
        both.worker.hub.output("r", "c", "line\n")
    await asyncio.sleep(0.01)
    assert both.bus.pieces == []


async def test_pieces_arrive_where_the_run_is_read_in_their_order_and_gathered(both: Both) -> None:
    reader = await both.reads("r")
    hub = both.worker.hub
    hub.streamed("r", 1, ReasoningDelta("Let me "))
    hub.streamed("r", 1, ReasoningDelta("see."))
    for word in ("Hello ", "there", "."):
        hub.streamed("r", 1, TextDelta(word))
    hub.streamed("r", 1, ToolCallDelta(0, "c1", "search", "{"))
    hub.streamed("r", 1, ToolCallDelta(0, "", "", "}"))
    hub.output("r", "c1", "found")
    hub.streamed("r", 2, RestartDelta("again"))
    hub.streamed("r", 2, TextDelta("Bye"))

    assert await came(reader, 7) == [
        Streamed("r", 1, ReasoningDelta("Let me see.")),
        Streamed("r", 1, TextDelta("Hello there.")),
        Streamed("r", 1, ToolCallDelta(0, "c1", "search", "{")),
        Streamed("r", 1, ToolCallDelta(0, "", "", "}")),
        Output("r", "c1", "found"),
        Streamed("r", 2, RestartDelta("again")),
        Streamed("r", 2, TextDelta("Bye")),
    ]
    assert len(both.bus.pieces) == 1
    assert reader.missed == 0


async def test_what_was_written_goes_out_before_an_event_is_recorded(both: Both) -> None:
    await both.reads("r")
    both.worker.hub.streamed("r", 1, TextDelta("whole"))
    assert both.bus.pieces == []
    both.worker.hub.recorded("r", 7, 0.0, StepStarted(2))
    assert len(both.bus.pieces) == 1


async def test_what_no_encoding_has_does_not_stop_a_run_or_its_pieces(both: Both) -> None:
    reader = await both.reads("r")
    both.worker.hub.output("r", "c1", "x\udcff.txt")
    both.worker.hub.recorded("r", 7, 0.0, StepStarted(2))
    both.worker.hub.streamed("r", 2, TextDelta("on"))
    assert await came(reader, 2) == [Output("r", "c1", "x\ufffd.txt"), Streamed("r", 2, TextDelta("on"))]


async def test_a_process_does_not_hear_itself(both: Both) -> None:
    with both.worker.hub.read("r") as here:
        await both.reads("r")
        both.worker.hub.streamed("r", 1, TextDelta("once"))
        await both.until(lambda: both.bus.pieces)
        await asyncio.sleep(0.01)
        assert here.taken() == [Streamed("r", 1, TextDelta("once"))]


async def test_who_has_left_is_not_sent_anything_after_a_while(both: Both) -> None:
    await both.reads("r")
    both.leave()
    both.now += relay_module.WISH_LASTS + 1
    both.worker.hub.streamed("r", 1, TextDelta("to nobody"))
    await both.until(lambda: not both.worker.hub.wanted("r"))
    assert both.bus.pieces == []


async def test_a_worker_that_comes_later_asks_who_reads(both: Both) -> None:
    reader = await both.reads("r")
    late = Side(both.bus, lambda: both.now)
    late.relay.start()
    await both.until(lambda: late.hub.wanted("r"))
    late.hub.streamed("r", 1, TextDelta("from the new one"))
    assert await came(reader, 1) == [Streamed("r", 1, TextDelta("from the new one"))]
    await late.relay.close()


async def test_whoever_begins_to_hear_asks_again_and_says_again_what_it_wants(both: Both) -> None:
    await both.reads("r")
    late = Side(both.bus, lambda: both.now)
    late.relay.start()
    await both.until(lambda: late.hub.wanted("r"))
    said = len(both.bus.published)
    for heard in both.bus._readers:  # pyright: ignore[reportPrivateUsage]  # as a bus that lost its connection
        heard.hears()
    await both.until(lambda: len(both.bus.published) >= said + 4)  # each asks, and the one that reads says so
    await late.relay.close()


async def test_readers_are_told_how_many_pieces_were_lost(both: Both) -> None:
    reader = await both.reads("r")
    both.worker.hub.streamed("r", 1, TextDelta("a"))
    await came(reader, 1)
    # What another process has sent, of which some did not arrive.
    (subscription,) = both.server.relay._heard.values()  # pyright: ignore[reportPrivateUsage]  # the way in
    data = both.bus.pieces[0][2]
    for seq in (3, 7):
        subscription.put(Piece(subscription.namespace, "r", data, seq, "lossy"))
    await came(reader, 2)
    await both.until(lambda: reader.missed == 3)


async def test_messages_that_are_not_ours_change_nothing(both: Both) -> None:
    reader = await both.reads("r")
    for junk in (b"", b"\xc1", b"[]", b"\x93\x01\x02\x03", b"\x91" * 5000):
        both.bus.publish(relay_module.WISHES, "all", junk)
        both.bus.publish(both.server.relay._name, "r", junk)  # pyright: ignore[reportPrivateUsage]  # its address
    both.worker.hub.streamed("r", 1, TextDelta("still"))
    assert await came(reader, 1) == [Streamed("r", 1, TextDelta("still"))]


async def test_wishes_are_bounded(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MOST_WISHES", 10)
    with ExitStack() as stack:
        for number in range(30):
            stack.enter_context(both.server.relay.reading(f"r{number}"))
        await both.until(lambda: sum(both.worker.hub.wanted(f"r{number}") for number in range(30)) >= 10)
        await asyncio.sleep(0.01)
        assert sum(both.worker.hub.wanted(f"r{number}") for number in range(30)) == 10
    both.now += relay_module.WISH_LASTS + 1
    with both.server.relay.reading("later"):
        await both.until(lambda: both.worker.hub.wanted("later"))


async def test_closing_sends_what_was_gathered_and_a_relay_that_was_never_used_closes(both: Both) -> None:
    reader = await both.reads("r")
    both.worker.hub.streamed("r", 1, TextDelta("last words"))
    await both.worker.relay.close()
    assert await came(reader, 1) == [Streamed("r", 1, TextDelta("last words"))]
    await Side(both.bus, lambda: 0.0).relay.close()


DELTAS = st.one_of(
    st.text(max_size=20).map(TextDelta),
    st.text(max_size=20).map(ReasoningDelta),
    st.text(max_size=5).map(RestartDelta),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.tuples(st.integers(1, 2), DELTAS), max_size=30))
def test_gathering_changes_no_text(pieces: list[tuple[int, Any]]) -> None:
    sent = _carried(pieces)

    def flat(items: list[tuple[int, Any]]) -> list[Any]:
        """Texts by character, in order; what is no text as it is."""
        out: list[Any] = []
        for step, delta in items:
            if isinstance(delta, RestartDelta):
                out.append((step, delta))
            else:
                out += [(step, type(delta), letter) for letter in delta.text]
        return out

    assert flat(sent) == flat(pieces)


async def test_large_output_travels_in_messages_that_fit(both: Both) -> None:
    reader = await both.reads("r")
    text = "ü€😀" * 40_000
    both.worker.hub.output("r", "c", text)
    both.worker.hub.streamed("r", 1, TextDelta(text))
    got: list[Any] = []
    async with asyncio.timeout(SOON):
        async for item in reader:
            got.append(item)
            if "".join(each.delta.text for each in got if isinstance(each, Streamed)) == text:
                break
    assert "".join(each.text for each in got if isinstance(each, Output)) == text
    assert max(len(data) for _, _, data in both.bus.pieces) <= LARGEST


def _carried(pieces: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """What comes out at the other end, without a loop in between."""
    items = [relay_module._Text(step, delta) for step, delta in pieces]  # pyright: ignore[reportPrivateUsage]  # pure
    hub = RunHub()
    got: list[tuple[int, Any]] = []
    with hub.read("r") as reader:
        for message in relay_module._packed(items):  # pyright: ignore[reportPrivateUsage]  # pure
            for item in relay_module._items.decode(message):  # pyright: ignore[reportPrivateUsage]  # pure
                hub.show(relay_module._shown("r", item))  # pyright: ignore[reportPrivateUsage]  # pure
        got += [(item.step, item.delta) for item in reader.taken() if isinstance(item, Streamed)]
    return got
