"""A cancel that another process stores right before an append: at each append of a run in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foliot import tool
from foliot.engine.driver.journal import Specs, load_state, signal
from foliot.engine.driver.runs import user_message
from foliot.kernel.messages import Message, ModelResponse, ToolCall
from foliot.kernel.run.events import CancelRequested, InputReceived, RunCancelled, StepStarted, ToolStarted
from foliot.kernel.run.state import State
from foliot.store.journal.base import CancelPending, Entry, Lease
from foliot.store.journal.memory import MemoryJournal
from tests.engine.kit import Engine, in_turn, says


def pays(step: int, *people: str) -> ModelResponse:
    parts = tuple(ToolCall(f"s{step}{to}", "pay", f'{{"to":"{to}"}}') for to in people)
    return ModelResponse(Message("assistant", parts), stop="tool_calls")


def till() -> tuple[Any, list[str]]:
    paid: list[str] = []

    @tool(effect="once", timeout=None)
    async def pay(to: str) -> str:
        paid.append(to)
        await asyncio.sleep(0)
        return f"paid {to}"

    return pay, paid


class CancelledAt(MemoryJournal):
    """Somebody else's cancel is stored right before the append of this number. `refused` counts what that held up."""

    def __init__(self, number: int, *, said: bool) -> None:
        super().__init__()
        self.number = number
        self.said = said
        self.appends = self.refused = 0
        self.known = -1

    async def append(self, lease: Lease, entries: Sequence[Entry], **kwargs: Any) -> None:
        self.appends += 1
        if self.appends == self.number and kwargs.get("phase") is None:
            self.known = len(await self.read(lease.run_id))
            if self.said:
                said = InputReceived("hurry", user_message("hurry"), "steer", "ann")
                await self.signal(signal(lease.run_id, said, 1000.0, signal_id="hurry"))
            await self.signal(signal(lease.run_id, CancelRequested("ann", "enough"), 1000.0))
        try:
            await super().append(lease, entries, **kwargs)
        except CancelPending:
            self.refused += 1
            raise


@pytest.mark.parametrize("said", [False, True], ids=["alone", "behind-an-input"])
async def test_nothing_begins_behind_it_and_nothing_that_came_back_is_lost(said: bool) -> None:
    number, refused = 0, 0
    while True:
        number += 1
        pay, paid = till()
        journal = CancelledAt(number, said=said)
        answers = in_turn(pays(1, "a"), pays(2, "b", "c"), pays(3, "d"), says("done"))
        engine = Engine(answers, [pay], journal=journal)
        state = await engine.run()
        await engine.close()
        if journal.known < 0:
            break
        facts = [event for _, event in await engine.runs.facts("r1")]
        assert isinstance(facts[-1], RunCancelled)
        assert not [each for each in facts[journal.known :] if isinstance(each, ToolStarted | StepStarted)]
        assert len(paid) == sum(isinstance(each, ToolStarted) for each in facts)
        again = await load_state(journal, Specs(), "r1")  # which also follows the chain
        assert {name: getattr(state, name) for name in compared(state)} == {
            name: getattr(again, name) for name in compared(state)
        }
        assert await journal.signals(["r1"]) == []
        refused += journal.refused
    assert number > 5
    assert refused >= number - 2


def compared(state: State) -> list[str]:
    return ["seq", "link", "asking", "asks", "inputs", "taken", "effects", "tools_done", "transcript", "phase", "ended"]
