"""Runs with words of a session in lists: of both databases, to their user alone."""

from __future__ import annotations

from pathlib import Path

from foliot.kernel.identity import Identity
from foliot.store.journal.base import CONVERSATION_LABEL
from foliot.store.sessions.base import Place
from tests.channels.kit import opened
from tests.sessions.kit import quiet

OTHERS = ("an", "%", '"', "", "bob")


async def test_private_runs_are_listed_to_their_user_alone(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}]}) as runtime:
        session = await runtime.inside.sessions.resolve(Place("default", "helper", "ann", "c"), identity=None)
        await runtime.inside.sessions.say(session.id, "hello", identity=Identity("ann"))
        await quiet(runtime, session.id)
        listed = runtime.inside.runs.journal.list
        (turn,) = await listed()

        assert turn.labels[CONVERSATION_LABEL] == session.id
        assert len(await listed(private_to="ann")) == 1
        assert [await listed(private_to=each) for each in OTHERS] == [[]] * len(OTHERS)
