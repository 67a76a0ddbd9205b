"""A conversation that is read turn by turn is the one that each turn was given, whatever happened in its turns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.journal import Conversation as Read
from foliot.engine.driver.journal import Conversations, Specs, followed_by, told_by
from foliot.kernel.run.events import RunCreated
from foliot.kernel.run.loop import fold
from foliot.kernel.run.past import CallIds, Past


class Begun:
    """The event that a payment has begun, of the turn that is had."""

    event: asyncio.Event


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


@tool(effect="read")
async def fail() -> str:
    """Fails."""
    raise ValueError("it is broken")


@tool(effect="once")
async def pay(amount: int = 1) -> str:
    """Pays, and does not come back where it is told 2."""
    Begun.event.set()
    if amount == 2:
        await asyncio.Event().wait()
    return "paid"


def agent(*turns: object) -> Agent:
    script = {"turns": [*turns, {"say": "the answer to {input}"}], "count": "input"}
    return Agent("clerk", model=ScriptedModel(script), tools=[look, fail, pay])


PLAIN, LOOKS, TWICE = agent(), agent({"call": {"look": {}}}), agent({"call": {"look": {}}}, {"call": {"look": {}}})
FAILS, PAYS, HANGS = (
    agent({"call": {"fail": {}}}),
    agent({"call": {"pay": {}}}),
    agent({"call": {"pay": {"amount": 2}}}),
)


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(str(tmp_path / "foliot.db")) as made:
        yield made


async def have_turn(rt: Runtime, kind: Agent | str, words: str, after: str) -> str:
    if isinstance(kind, str):
        return (await rt.inside.compact(PLAIN, after=after, check=False)).run_id
    Begun.event = asyncio.Event()
    run_id = rt.inside.new_run_id()
    turn = asyncio.create_task(rt.inside.run(kind, words, run_id=run_id, after=after, check=False))
    if kind is HANGS:
        waits = asyncio.create_task(Begun.event.wait())
        await asyncio.wait((waits, turn), return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if not turn.done():
            await rt.inside.cancel(run_id, by="ann")
    if (await turn).waiting is not None:  # the same call may have acted before: a person is asked
        await rt.inside.cancel(run_id, by="ann")
    return run_id


async def read_as_given(rt: Runtime, chain: list[str]) -> Read:
    """Reads each turn with all that was said before it, as it was driven."""
    journal, conversation = rt.inside.runs.journal, Read()
    for run_id in chain:
        told = await told_by(run_id, await journal.read(run_id))
        created = told.facts[0][1]
        assert isinstance(created, RunCreated)
        spec = await Specs().get(journal, created.spec)
        conversation = followed_by(conversation, fold(spec, run_id, told.facts, conversation.messages))
    return conversation


@pytest.mark.parametrize("seed", range(6))
async def test_a_conversation_read_turn_by_turn_is_the_one_that_each_turn_was_given(rt: Runtime, seed: int) -> None:
    chance = random.Random(seed)
    kinds: list[Agent | str] = [PLAIN, LOOKS, TWICE, FAILS, PAYS, HANGS, *(["compact"] if seed % 2 else [])]
    chain = [await have_turn(rt, PLAIN, "begin", "")]
    for number in range(12):
        chain.append(await have_turn(rt, chance.choice(kinds), f"question {number}", chain[-1]))

    cold = await Conversations(rt.inside.runs.journal).read(chain[-1])
    given = await read_as_given(rt, chain)

    assert cold.messages == given.messages
    assert (cold.turns, cold.summarised, cold.sized, cold.size) == (
        given.turns,
        given.summarised,
        given.sized,
        given.size,
    )


async def test_reading_turns_looks_at_each_message_a_bounded_number_of_times(rt: Runtime) -> None:
    chain = [await have_turn(rt, LOOKS, "begin", "")]
    for number in range(20):
        chain.append(await have_turn(rt, LOOKS, f"question {number}", chain[-1]))
    Counting.looks = 0
    conversations = Conversations(rt.inside.runs.journal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Past, "_take_outcome", Counting.take_outcome)
        results = len(chain)
        await conversations.read(chain[-1])

    assert 0 < Counting.looks <= results


async def test_a_conversation_is_kept_once_however_many_turns_it_has(rt: Runtime) -> None:
    last = ""
    for number in range(5):
        last = await have_turn(rt, PLAIN, f"question {number}", last)
    kept = rt.inside.runs.conversations
    assert list(kept._kept) == [last]
    assert kept._size == kept._kept[last].size


class Counting:
    """Counts the results that are looked at."""

    looks = 0

    @staticmethod
    def take_outcome(past: Past, *outcome: object) -> None:
        Counting.looks += 1


def test_a_free_id_is_the_first_one_that_no_call_has() -> None:
    ids = CallIds(["a", "a-2", "a-4"])

    assert (ids.take("b"), ids.take("a"), ids.take("a")) == ("b", "a-3", "a-5")
    ids.add("a-6")
    ids.add("a")
    assert (ids.take("a"), ids.take("b")) == ("a-7", "b-2")
