"""What is kept: a session with all its turns as long as it lives, an archived one as long as the retention says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import Conflict, NotFound
from foliot.kernel.identity import Identity
from foliot.store.sessions.base import Session
from foliot.work.housekeeping import Forgotten, Housekeeper, Retention
from tests.sessions.kit import conversation, place, quiet

ANN = Identity("ann")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    store = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(store) as opened:
        opened.inside.know(Agent("helper", model=ScriptedModel({"turns": [{"say": "Yes."}], "loop": True})))
        yield opened


async def talked(runtime: Runtime) -> Session:
    session = await runtime.inside.sessions.create(place(), identity=ANN)
    for text in ("One", "Two"):
        await runtime.inside.sessions.say(session.id, text, identity=ANN)
        await quiet(runtime, session.id)
    return await runtime.inside.sessions.get(session.id, identity=ANN)


async def purged(runtime: Runtime) -> Forgotten:
    found, inside = Forgotten(), runtime.inside
    rules = Retention(runs=0.0, audit=None, size=None)
    await Housekeeper(inside.database, inside.resources, rules).forget(found, inside.clock() + 1.0)
    return found


async def test_a_session_that_lives_keeps_all_its_turns(runtime: Runtime) -> None:
    session = await talked(runtime)
    found = await purged(runtime)
    assert (found.sessions, found.runs) == (0, 0)
    assert len(await conversation(runtime, session.id)) == 4


async def test_an_archived_session_goes_with_its_runs_and_words(runtime: Runtime) -> None:
    session = await talked(runtime)
    await runtime.inside.sessions.archive(session.id, identity=ANN)
    found = await purged(runtime)
    assert (found.sessions, found.runs) == (1, 2)
    with pytest.raises(NotFound):
        await runtime.inside.sessions.get(session.id, identity=ANN)
    assert await runtime.inside.sessions.store.search("default", "one") == []


async def test_a_turn_is_not_deleted_from_under_its_session(runtime: Runtime) -> None:
    session = await talked(runtime)
    with pytest.raises(Conflict, match="turn of session"):
        await runtime.inside.runs.journal.forget(session.head)
    await runtime.inside.sessions.delete(session.id, identity=ANN)
    await runtime.inside.runs.journal.forget(session.head)
