"""What is said while a turn is at work: interrupts that end it, drops that leave nothing, words said again, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, FoliotError, InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import FULL, MOST_WAITING
from foliot.kernel.messages import Media, Message, Text
from foliot.sessions.base import NewTurn
from foliot.store.journal.base import JournalConflict, RunTaken
from foliot.store.journal.chain import JournalChanged
from foliot.store.sessions.assets import SqlAssets
from foliot.store.sessions.base import NONE_DROPPED, Session, SessionArchived
from tests.sessions.kit import MOST_LOOKS, Gate, place, quiet

ANN = Identity("ann")
FILE = Message("user", (Text("Use this"), Media("application/zip", data="UEsDBA==", name="a.zip")))
OTHER = Message("user", (Text("Use this"), Media("application/zip", data="UEsDBQ==", name="b.zip")))


class Talk:
    """A session of an agent that stays in its first tool call until the gate is opened."""

    def __init__(self, runtime: Runtime, session: Session, gate: Gate) -> None:
        self.runtime = runtime
        self.sessions = runtime.inside.sessions
        self.id, self.key = session.id, session.key
        self.gate = gate

    async def say(self, text: Message | str, mode: str = "followup", **more: Any) -> Any:
        return await self.sessions.say(self.id, text, identity=more.pop("identity", ANN), mode=mode, **more)

    async def begun(self) -> str:
        """Has a turn begin, and returns its run once it is in its tool."""
        await self.say("First")
        await self.gate.reached()
        return (await self.sessions.store.get(self.id)).turn

    async def turn_after(self, run_id: str) -> str:
        """Returns the run of the turn that follows this one, once it is at work."""
        for _ in range(MOST_LOOKS):
            turn = (await self.sessions.store.get(self.id)).turn
            if turn and turn != run_id:
                return turn
            await asyncio.wait({asyncio.ensure_future(self.runtime.inside.next_change()())}, timeout=0.1)
        raise AssertionError("no other turn began")

    async def statuses(self) -> list[str]:
        return [each.status for each in await self.sessions.inputs(self.id, identity=ANN, limit=1000)]

    async def files(self) -> list[str]:
        return [each.name for each in await SqlAssets(self.runtime.inside.tasking.database).list(self.key)]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    gate = Gate()

    @tool(effect="idempotent")
    async def work() -> str:
        """Works until the gate opens."""
        return await gate.passed()

    store = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    script: dict[str, Any] = {"turns": [{"call": {"work": {}}}, {"say": "Worked."}], "count": "input"}
    async with Runtime(store) as runtime:
        runtime.inside.know(Agent("helper", model=ScriptedModel(script), tools=[work]))
        yield Talk(runtime, await runtime.inside.sessions.create(place(), identity=ANN), gate)


# --- interrupts ----------------------------------------------------------------------------------------------------


async def test_an_interrupt_ends_the_turn_although_another_one_waits_behind_it(talk: Talk) -> None:
    first = await talk.begun()
    talk.gate.hold()
    for text in ("one", "two"):
        assert (await talk.say(text, "interrupt")).run_id == first
    talk.gate.release()
    second = await talk.turn_after(first)
    assert (await talk.say("this way", "steer")).act == "wake"
    said = await talk.say("three", "interrupt")
    assert (said.outcome, said.act, said.run_id) == ("interrupted", "wake", second)
    third = await talk.turn_after(second)
    talk.gate.open()
    await quiet(talk.runtime, talk.id)
    phases = {view.run_id: view.phase for view in await talk.sessions.history(talk.id, identity=ANN)}
    assert [phases[each] for each in (first, second, third)] == ["cancelled", "cancelled", "succeeded"]


# --- dropping ------------------------------------------------------------------------------------------------------


async def test_what_a_turn_was_offered_and_did_not_take_goes_with_it(talk: Talk) -> None:
    await talk.begun()
    await talk.say("delete everything", "steer")
    await talk.say("and then this", "steer-backlog")
    await talk.say("later")
    assert await talk.sessions.stop(talk.id, identity=ANN, drop=True)
    assert (await quiet(talk.runtime, talk.id)).turns == 1
    assert await talk.sessions.keeper.sweep(patience=0) == []
    assert await talk.statuses() == ["consumed", "dropped", "dropped", "dropped"]


async def test_no_line_of_what_had_made_room_is_left_either(talk: Talk) -> None:
    await talk.sessions.change(talk.id, identity=ANN, options={"inbox": {"cap": 1}})
    await talk.begun()
    for text in ("a", "b"):
        await talk.say(text)
    assert await talk.sessions.stop(talk.id, identity=ANN, drop=True)
    assert await talk.sessions.store.dropped(await talk.sessions.store.get(talk.id), "") == NONE_DROPPED


async def test_a_turn_that_began_just_now_is_stopped_as_well(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await talk.sessions.store.get(talk.id)
    turn = await talk.begun()

    async def outdated(*_: Any, **__: Any) -> Session:
        return before

    monkeypatch.setattr(talk.sessions, "get", outdated)
    assert await talk.sessions.stop(talk.id, identity=ANN, drop=True)
    assert (await talk.runtime.inside.runs.journal.get(turn)).phase == "cancelled"


async def test_no_turn_begins_with_what_was_dropped_meanwhile(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = talk.sessions._turns.begin  # pyright: ignore[reportPrivateUsage]

    async def late(turn: NewTurn) -> None:
        assert not await talk.sessions.stop(talk.id, identity=ANN, drop=True)
        await begin(turn)

    monkeypatch.setattr(talk.sessions._turns, "begin", late)  # pyright: ignore[reportPrivateUsage]
    await talk.say("First")
    assert (await quiet(talk.runtime, talk.id)).turns == 0
    assert await talk.statuses() == ["dropped"]


# --- said again ----------------------------------------------------------------------------------------------------


async def test_words_said_again_begin_the_turn_that_a_crash_kept_from_beginning(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(_: str, **__: Any) -> str:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(talk.sessions.keeper, "begin_next", dies)
        with pytest.raises(asyncio.CancelledError):
            await talk.say("Hello", key="once")
    again = await talk.say("Hello", key="once")
    assert (again.seq, again.again, again.problem) == (1, True, "")
    talk.gate.open()
    assert (await quiet(talk.runtime, talk.id)).turns == 1
    assert (await talk.say("Hello", key="once")).act == "wait"


async def test_words_said_again_wake_the_turn_that_has_not_heard_them(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []

    async def wake(run_id: str) -> None:
        woken.append(run_id)

    turn = await talk.begun()
    monkeypatch.setattr(talk.sessions._turns, "wake", wake)  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):
        await talk.say("No", "interrupt", key="no")
    assert woken == [turn, turn]
    monkeypatch.undo()
    talk.gate.open()
    await talk.say("No", "interrupt", key="no")
    await quiet(talk.runtime, talk.id)


async def test_the_same_words_and_key_are_one_input_whichever_way_they_came(talk: Talk) -> None:
    talk.gate.open()
    first = await talk.say("Hello", key="k", identity=Identity("ann", via="cli"))
    again = await talk.say("Hello", key="k", identity=Identity("ann", via="http"))
    assert (first.seq, again.seq, again.again) == (1, 1, True)
    with pytest.raises(Conflict, match="in other words"):
        await talk.say("Goodbye", key="k")
    await quiet(talk.runtime, talk.id)


# --- bounds --------------------------------------------------------------------------------------------------------


async def test_a_turn_is_offered_no_more_than_the_cap(talk: Talk) -> None:
    await talk.sessions.change(talk.id, identity=ANN, options={"inbox": {"cap": 2}})
    await talk.begun()
    for text in ("a", "b"):
        await talk.say(text, "steer")
    with pytest.raises(Conflict, match=FULL):
        await talk.say("c", "steer")
    talk.gate.open()
    await quiet(talk.runtime, talk.id)


async def test_what_is_queued_is_bounded_too(talk: Talk) -> None:
    await talk.begun()
    for number in range(MOST_WAITING):
        await talk.say(str(number), "queue")
    for mode in ("queue", "followup", "interrupt"):
        with pytest.raises(Conflict, match=FULL):
            await talk.say("one more", mode)
    assert await talk.sessions.stop(talk.id, identity=ANN, drop=True)
    assert set((await talk.statuses())[1:]) == {"dropped"}


@pytest.mark.parametrize("why", ["archived", "full", "key"])
async def test_no_file_is_kept_of_what_is_refused(talk: Talk, why: str) -> None:
    await talk.sessions.change(talk.id, identity=ANN, options={"inbox": {"cap": 1, "drop": "new"}})
    await talk.begun()
    await talk.say(FILE, key="k")
    if why == "archived":
        await talk.sessions.archive(talk.id, identity=ANN)
    with pytest.raises(SessionArchived if why == "archived" else Conflict):
        await talk.say(OTHER, key="k" if why == "key" else None)
    assert await talk.files() == ["a.zip"]
    assert (await talk.say(FILE, key="k")).again
    await talk.sessions.stop(talk.id, identity=ANN, drop=True)


# --- what keeps a turn from beginning ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lambda: JournalChanged("it was changed in the store"), True),
        (lambda: Conflict("it cannot be so"), True),
        (lambda: InvalidInput("it makes no sense"), True),
        (lambda: JournalConflict("somebody else wrote"), False),
        (lambda: RunTaken("somebody else began"), False),
    ],
)
async def test_only_what_passes_by_itself_is_passed_over(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, error: Callable[[], FoliotError], told: bool
) -> None:
    async def fails(_: NewTurn) -> None:
        raise error()

    with monkeypatch.context() as patched:
        patched.setattr(talk.sessions._turns, "begin", fails)  # pyright: ignore[reportPrivateUsage]
        said = await talk.say("Hello")
        assert said.problem == (error().message if told else "")
        # What was told rests for a while; anything else is tried at the next look.
        assert await talk.sessions.keeper.sweep(patience=0) == ([] if told else [talk.id])
    talk.gate.open()
    assert await talk.sessions.keeper.begin_next(talk.id) == ""
    assert (await quiet(talk.runtime, talk.id)).turns == 1
