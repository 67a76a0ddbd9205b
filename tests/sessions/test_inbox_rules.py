"""The rules of inboxes: those that an agent declares hold as it is declared now, and a session's own go before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, Text
from foliot.resources.problems import ManifestError
from foliot.runtime.turns import SessionTurns
from foliot.store.base import Delete, Key
from foliot.store.sessions.base import Session
from tests.sessions.kit import Gate, place, quiet

ANN = Identity("ann")
BRAIN = {
    "kind": "ModelEndpoint",
    "metadata": {"name": "brain"},
    "spec": {"provider": "scripted", "script": {"turns": [{"call": "work"}], "otherwise": "Worked."}},
}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "foliot.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def rt(store: str, gate: Gate) -> AsyncIterator[Runtime]:
    @tool(effect="idempotent")
    async def work() -> str:
        """Works until the gate opens."""
        return await gate.passed()

    async with Runtime(store, tools=[work]) as opened:
        await opened.resources.apply([BRAIN])
        yield opened


async def declare(rt: Runtime, **inbox: Any) -> None:
    spec: dict[str, Any] = {"model_ref": "brain", "tools": ["work"]}
    if inbox:
        spec["inbox"] = inbox
    await rt.resources.apply([{"kind": "Agent", "metadata": {"name": "helper"}, "spec": spec}], allow_missing=True)


async def at_work(rt: Runtime, gate: Gate, **options: Any) -> Session:
    """Returns a session whose turn is in a call until the gate opens."""
    session = await rt.inside.sessions.create(place(), identity=ANN, options={"inbox": options} if options else None)
    await rt.inside.sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    return session


async def say(rt: Runtime, session: Session, *texts: str, mode: str = "followup") -> None:
    for text in texts:
        await rt.inside.sessions.say(session.id, text, identity=ANN, mode=mode)


async def waiting(rt: Runtime, session: Session) -> list[str]:
    rows = await rt.inside.sessions.store.waiting(await rt.inside.sessions.store.get(session.id))
    return [each.message.text for each in rows if each.message is not None]


async def rules(rt: Runtime, session: Session) -> tuple[float, int, str]:
    found = await rt.inside.sessions.store.rules(session, SessionTurns(rt.inside).agent_object(session.place))
    return found.debounce, found.cap, found.drop


async def test_a_session_without_rules_follows_its_agent(rt: Runtime, gate: Gate) -> None:
    await declare(rt, cap=2, drop="new")
    session = await at_work(rt, gate)
    await say(rt, session, "a", "b")
    with pytest.raises(Conflict, match="full"):
        await say(rt, session, "c")
    assert await waiting(rt, session) == ["a", "b"]
    gate.open()
    await quiet(rt, session.id)


async def test_a_changed_agent_changes_the_next_decision_and_no_turn_at_work(rt: Runtime, gate: Gate) -> None:
    await declare(rt, cap=1, drop="old")
    session = await at_work(rt, gate)
    await say(rt, session, "a", "b")
    assert await waiting(rt, session) == ["b"]
    turn = (await rt.inside.sessions.store.get(session.id)).turn
    await declare(rt, cap=3, drop="new")
    await say(rt, session, "c", "d")
    with pytest.raises(Conflict, match="full"):
        await say(rt, session, "e")
    await declare(rt)
    await say(rt, session, "f")
    assert await waiting(rt, session) == ["b", "c", "d", "f"]
    assert (await rt.inside.sessions.store.get(session.id)).turn == turn
    gate.open()
    assert (await quiet(rt, session.id)).turns == 5


async def test_each_field_of_a_session_goes_before_that_of_its_agent(rt: Runtime, gate: Gate) -> None:
    await declare(rt, debounce="2s", cap=3, drop="new")
    session = await at_work(rt, gate, cap=1)
    assert await rules(rt, session) == (2.0, 1, "new")
    await say(rt, session, "a")
    with pytest.raises(Conflict, match="full"):
        await say(rt, session, "b")
    whole = await rt.inside.sessions.create(
        place(), identity=ANN, options={"inbox": {"debounce": 1, "cap": 7, "drop": "old"}}
    )
    assert await rules(rt, whole) == (1.0, 7, "old")
    changed = await rt.inside.sessions.change(session.id, identity=ANN, options={})
    assert await rules(rt, changed) == (2.0, 3, "new")
    await rt.inside.resources.write([Delete(Key("Agent", "default", "helper"))])
    assert await rules(rt, changed) == (0.5, 20, "summarize")
    gate.open()
    await rt.inside.sessions.stop(session.id, identity=ANN, drop=True)


async def test_another_process_that_has_no_tools_decides_by_the_same_rules(rt: Runtime, gate: Gate, store: str) -> None:
    await declare(rt, cap=1, drop="new")
    session = await at_work(rt, gate)
    async with Runtime(store) as other:
        await say(other, session, "a")
        with pytest.raises(Conflict, match="full"):
            await say(rt, session, "b")
        await declare(other, cap=2, drop="new")
        await say(rt, session, "b")
        with pytest.raises(Conflict, match="full"):
            await say(other, session, "c")
    gate.open()
    await quiet(rt, session.id)


async def test_a_silence_that_became_shorter_is_not_waited_for_any_longer(rt: Runtime, gate: Gate) -> None:
    gate.open()
    await declare(rt, debounce="1h")
    session = await rt.inside.sessions.create(place(), identity=ANN)
    await say(rt, session, "a", "b", mode="collect")
    keeper = rt.inside.sessions.keeper
    await keeper.sweep(patience=0.0)
    assert await waiting(rt, session) == ["a", "b"]
    await declare(rt, debounce="0s")
    assert await keeper.sweep(patience=0.0) == [session.id]
    assert (await quiet(rt, session.id)).turns == 1


async def test_a_full_agent_refuses_a_file_before_it_is_stored(rt: Runtime, gate: Gate) -> None:
    await declare(rt, cap=1, drop="new")
    session = await at_work(rt, gate)
    await say(rt, session, "a")
    sent = Message("user", (Text("look"), Media("application/zip", data="UEsDBA==", name="a.zip")))
    with pytest.raises(Conflict, match="full"):
        await rt.inside.sessions.say(session.id, sent, identity=ANN)
    stored = await rt.inside.database.read("asset_list", session=session.key)
    assert stored == []
    gate.open()
    await quiet(rt, session.id)


async def test_an_agent_of_python_says_the_same_in_its_arguments(rt: Runtime, gate: Gate) -> None:
    @tool(effect="idempotent")
    async def wait() -> str:
        """Waits."""
        return await gate.passed()

    def helper(**inbox: Any) -> Agent[Any]:
        return Agent("helper", model=ScriptedModel([{"call": "wait"}] + ["ok"] * 9), tools=[wait], inbox=inbox)

    await declare(rt, cap=9)  # the object replaces what is declared under its name, here
    rt.inside.know(helper(cap=1, drop="new", debounce="3s"))
    session = await at_work(rt, gate)
    assert await rules(rt, session) == (3.0, 1, "new")
    await say(rt, session, "a")
    with pytest.raises(Conflict, match="full"):
        await say(rt, session, "b")
    rt.inside.know(helper())
    await say(rt, session, "b")
    gate.open()
    await quiet(rt, session.id)


async def test_an_agent_of_python_without_objects_counts_until_one_is_declared(rt: Runtime) -> None:
    rt.inside.know(Agent("helper", model="brain", inbox={"cap": 4}))
    session = await rt.inside.sessions.create(place(), identity=ANN)
    assert (await rules(rt, session))[1] == 4
    await declare(rt, cap=5)
    assert (await rules(rt, session))[1] == 5


@pytest.mark.parametrize(
    ("inbox", "says"),
    [
        ({"cap": 0}, "inbox.cap"),
        ({"cap": 10_001}, "inbox.cap"),
        ({"drop": "all"}, "inbox.drop"),
        ({"debounce": 3}, "a duration needs a unit"),
        ({"debounce": "2h"}, "inbox.debounce must be at most 1h"),
        ({"kap": 1}, "kap"),
        (3, "inbox"),
    ],
)
def test_rules_that_are_none_are_refused_by_name(inbox: Any, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        Agent("helper", model="brain", inbox=inbox)


async def test_a_session_cannot_say_what_no_inbox_has(rt: Runtime) -> None:
    await declare(rt)
    with pytest.raises(InvalidInput, match="cap"):
        await rt.inside.sessions.create(place(), identity=ANN, options={"inbox": {"cap": 0}})
