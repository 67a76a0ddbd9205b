"""Searching what was said: by words, within a namespace and an owner, whatever is searched for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import NotFound
from foliot.kernel.identity import Identity
from foliot.sessions.base import Found
from foliot.store.sessions.base import Session
from foliot.store.sessions.words import LONGEST_WORD, MOST_WORDS, asked, indexed, words_in
from tests.sessions.kit import place, quiet

ANN, BOB = Identity("ann"), Identity("bob")
EVIL = [
    '"',
    "'",
    "*",
    '" OR words MATCH "x',
    "'; DROP TABLE session; --",
    "NEAR(a b)",
    "AND OR NOT",
    "a:* & !b | (c",
    "words:secret",
    "^apple + -",
    "\\",
    "%_",
    "{a b} : x",
    "apple\x00pie",
    "\ud83d",
    "<->",
    "",
    " " * 5,
]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    store = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(store) as opened:
        script = ScriptedModel({"turns": [{"say": "I looked at: {input}. Zebra."}], "loop": True})
        for namespace in ("default", "other"):
            opened.inside.know(Agent("helper", namespace=namespace, model=script))
        yield opened


async def talked(runtime: Runtime, *texts: str, who: Identity = ANN, namespace: str = "default") -> Session:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(user=who.user, namespace=namespace), identity=who)
    for text in texts:
        await sessions.say(session.id, text, identity=who)
        await quiet(runtime, session.id)
    return session


async def found(runtime: Runtime, text: str, who: Identity | None = ANN, namespace: str = "default") -> list[Found]:
    return list(await runtime.inside.sessions.search(namespace, text, identity=who))


async def test_a_turn_is_found_by_words_of_either_side_and_by_beginnings(runtime: Runtime) -> None:
    session = await talked(runtime, "The Königsberg deployment failed", "Nothing else", "日本語の検索について")
    for text in ("konigsberg", "KÖNIGSBERG deploy", "failed the", "検索"):
        (one,) = await found(runtime, text)
        assert (one.session, one.role) == (session.id, "user"), text
    assert [each.turn for each in await found(runtime, "zebra")] == [3, 2, 1]
    assert {each.role for each in await found(runtime, "zebra")} == {"assistant"}
    assert await found(runtime, "deployment nothing") == []
    assert "Königsberg" in (await found(runtime, "königsberg"))[0].excerpt


async def test_nobody_finds_what_others_said(runtime: Runtime) -> None:
    mine = await talked(runtime, "the secret word is xylophone")
    await talked(runtime, "my own xylophone", who=BOB)
    await talked(runtime, "a xylophone elsewhere", namespace="other")
    assert [each.session for each in await found(runtime, "xylophone")] == [mine.id]
    assert len(await found(runtime, "xylophone", BOB)) == 1
    assert len(await found(runtime, "xylophone", ANN, "other")) == 1
    assert len(await found(runtime, "xylophone", None)) == 2
    assert await found(runtime, "xylophone", Identity()) == []
    with pytest.raises(NotFound):
        await runtime.inside.sessions.search("default", "xylophone", identity=BOB, session=mine.id)


async def test_a_search_within_one_session_finds_that_one(runtime: Runtime) -> None:
    first, second = await talked(runtime, "red apples"), await talked(runtime, "green apples")
    sessions = runtime.inside.sessions
    for session in (first, second):
        (one,) = await sessions.search("default", "apples", identity=ANN, session=session.id)
        assert one.session == session.id


@pytest.mark.parametrize("text", EVIL)
async def test_no_sign_in_a_search_means_anything_to_the_database(runtime: Runtime, text: str) -> None:
    assert await found(runtime, text) == []


async def test_evil_texts_are_found_by_their_words(runtime: Runtime) -> None:
    session = await talked(runtime, *(text for text in EVIL[:15] if words_in(text) and "\x00" not in text))
    assert [each.session for each in await found(runtime, "drop table session;--")] == [session.id]


async def test_what_is_deleted_is_not_found(runtime: Runtime) -> None:
    session = await talked(runtime, "gone tomorrow")
    await runtime.inside.sessions.delete(session.id, identity=ANN)
    assert await found(runtime, "gone") == []


async def test_a_scope_that_somebody_writes_opens_nothing(runtime: Runtime) -> None:
    """Whose words are whose is a word too; a text that contains it does not become somebody else's."""
    from foliot.store.sessions.words import scope_of

    await talked(runtime, f"plant {scope_of('default', 'bob')} {scope_of('other')}")
    assert await found(runtime, "plant", BOB) == []
    assert await found(runtime, f"plant {scope_of('default', 'ann')}", BOB) == []


@given(st.lists(st.text(max_size=60), max_size=4), st.text(max_size=40))
def test_words_are_plain_and_bounded(texts: list[str], wanted: str) -> None:
    stored = indexed(texts, ["xq0"]).split(" ")
    assert len(stored) <= MOST_WORDS
    for word in (*stored, *asked(wanted, "xq0").replace("*", "").split()):
        assert 0 < len(word) <= LONGEST_WORD
        assert word.isalnum()
