"""The service of sessions: turns begin and end, one after the other, for the user of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import NotFound
from foliot.kernel.identity import Identity
from tests.sessions.kit import conversation, place, quiet

ANN, BOB = Identity("ann"), Identity("bob")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        opened.inside.know(Agent("helper", model=ScriptedModel([{"say": "one"}])))
        yield opened


async def test_what_is_said_begins_a_turn_and_the_next_goes_on_after_it(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    said = await sessions.say(session.id, "First", identity=ANN)
    assert (said.seq, said.outcome, said.problem) == (1, "direct", "")
    first = await quiet(runtime, session.id)
    await sessions.say(session.id, "Second", identity=ANN)
    second = await quiet(runtime, session.id)
    assert (first.turns, second.turns, second.title) == (1, 2, "First")
    assert [text for role, text in await conversation(runtime, session.id) if role == "user"] == ["First", "Second"]


async def test_a_session_of_another_user_does_not_exist(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    with pytest.raises(NotFound):
        await sessions.say(session.id, "Hello", identity=BOB)
