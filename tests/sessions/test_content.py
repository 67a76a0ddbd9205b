"""Pictures and files that people send: shown to the model, stored once, refused with words."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, ModelRequest, Text
from foliot.kernel.run.spec import digest
from foliot.sessions.chat_events import ChatEvent, EndEvent, InputEvent
from foliot.sessions.content import LONGEST_TEXT, MOST_FILES, check_parts
from foliot.store.sessions.base import Session
from tests.sessions.kit import place, quiet

ANN, BOB = Identity("ann"), Identity("bob")
PNG = b"\x89PNG\r\n\x1a\n" + b"a picture"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def user(*parts: Any) -> Message:
    return Message("user", parts)


PICTURE = Media("image/png", data=encoded(PNG), name="cat.png")


class Desk:
    """A runtime whose agent keeps the questions that it was asked."""

    def __init__(self, runtime: Runtime) -> None:
        self.rt = runtime
        self.asked: list[ModelRequest] = []
        runtime.inside.know(Agent("helper", model=ScriptedModel(self._answer)))

    def _answer(self, request: ModelRequest) -> str:
        self.asked.append(request)
        return "seen"

    async def session(self, who: Identity = ANN) -> Session:
        return await self.rt.inside.sessions.create(place(user=who.user), identity=who)

    async def chat(self, session: Session, message: Message, who: Identity = ANN, **more: Any) -> list[ChatEvent]:
        async with asyncio.timeout(60):
            return [event async for event in self.rt.inside.chat.chat(session.id, message, identity=who, **more)]

    def media(self) -> list[Media]:
        return [part for message in self.asked[-1].messages for part in message.parts if isinstance(part, Media)]

    def texts(self) -> str:
        return "\n".join(message.text for message in self.asked[-1].messages)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield Desk(opened)


async def test_a_picture_is_shown_to_the_model_with_every_question_and_stored_by_its_digest(desk: Desk) -> None:
    session = await desk.session()
    events = await desk.chat(session, user(Text("What is this?"), PICTURE))
    await desk.chat(session, user(Text("And again?")))
    assert desk.media() == [Media("image/png", data=encoded(PNG), name="cat.png")]
    runs = await desk.rt.inside.sessions.store.turns(session)
    for turn in runs:
        entries = await desk.rt.inside.runs.journal.read(turn.run_id)
        assert not any(encoded(PNG).encode() in entry.data for entry in entries), "only its digest is in a journal"
    (said,) = [event for event in events if isinstance(event, InputEvent)]
    assert (said.text, said.files) == ("What is this?", ("cat.png",))


async def test_a_file_that_no_model_reads_is_in_the_workspace_and_named_in_words(desk: Desk) -> None:
    session = await desk.session()
    await desk.chat(session, user(Text("Unpack this."), Media("application/zip", data=encoded(b"PK..."), name="a.zip")))
    path = f"assets/{digest(b'PK...').removeprefix('sha256:')[:16]}_a.zip"
    assert desk.media() == []
    assert path in desk.texts()
    done = await quiet(desk.rt, session.id)
    files = await desk.rt.inside.runs.load(done.head)
    assert files[1].workspace is not None


async def test_the_same_file_can_be_named_by_its_digest_in_its_own_session_only(desk: Desk) -> None:
    session, other = await desk.session(), await desk.session(BOB)
    await desk.chat(session, user(PICTURE))
    again = user(Text("Once more"), Media("image/png", blob=digest(PNG), name="cat.png"))
    await desk.chat(session, again)
    assert [media.data for media in desk.media()] == [encoded(PNG)] * 2
    with pytest.raises(NotFound, match="no file of this digest"):
        await desk.chat(other, again, BOB)
    with pytest.raises(NotFound):
        await desk.chat(session, user(Media("image/png", blob="../../etc/passwd")))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a\x00b\u202egnp.exe", "abgnp.exe"),
        ("$(rm -rf ~).png", "rm_-rf___.png"),
        ("." * 300, "file"),
    ],
)
async def test_evil_names_become_plain_ones(desk: Desk, name: str, kept: str) -> None:
    session = await desk.session()
    await desk.chat(session, user(Media("image/png", data=encoded(PNG), name=name)))
    (media,) = desk.media()
    assert media.name == kept


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((Text("  \n"),), "empty"),
        ((), "empty"),
        ((Text("x" * (LONGEST_TEXT + 1)),), "send it as a file"),
        ((Text("PK\x00\x01"),), "not text"),
        ((Text("".join(map(chr, range(1, 32)))),), "not text"),
        ((Text("half \ud83d a pair"),), "surrogate"),
        ((PICTURE,) * (MOST_FILES + 1), "20 may"),
        ((Media("image/png", data="no base64!"),), "base64"),
        ((Media("image/png", data=encoded(b"<html>")),), "no picture"),
        ((Media("image/png", data=""),), "one of them"),
        ((Media("image/png", data=encoded(PNG), url="https://a.example/b.png"),), "one of them"),
        ((Media("image/png", url="file:///etc/passwd"),), "no address"),
        ((Media("image/png", url="https://ann:pw@a.example/b.png"),), "no address"),
        ((Media("image/png", url="http://169.254.169.254/latest"),), "no address"),
        ((Media("text/\r\nX-Evil: 1", data=encoded(b"x")),), "media type"),
        ((Media("image/png", data=encoded(PNG), name="n" * 5000),), "longer"),
    ],
)  # fmt: skip
async def test_what_cannot_be_said_is_refused_with_words_and_leaves_nothing(desk: Desk, parts: Any, why: str) -> None:
    session = await desk.session()
    with pytest.raises(InvalidInput) as refused:
        await desk.chat(session, user(*parts))
    assert why in f"{refused.value.message} {refused.value.hint}"
    after = await desk.rt.inside.sessions.store.get(session.id)
    assert (after.arrivals, after.turns) == (0, 0)


def test_a_picture_that_is_called_by_another_type_gets_its_own() -> None:
    (found,) = check_parts(user(Media("image/jpeg", data=encoded(PNG), name="a.jpg")))
    assert getattr(found, "media_type", "") == "image/png"


async def test_a_file_of_a_message_that_steers_reaches_the_turn_at_work(desk: Desk) -> None:
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        desk.asked.append(request)
        looking.set()
        await go_on.wait()
        return "seen"

    desk.rt.inside.know(Agent("helper", model=ScriptedModel(answer)))
    session = await desk.session()
    first = asyncio.create_task(desk.chat(session, user(Text("go"))))
    await looking.wait()
    second = asyncio.create_task(desk.chat(session, user(PICTURE), mode="steer"))
    for _ in range(600):
        if (await desk.rt.inside.sessions.store.get(session.id)).arrivals == 2:
            break
        await desk.rt.inside.next_change()()
    go_on.set()
    await first
    assert isinstance((await second)[-1], EndEvent)
    assert [media.data for media in desk.media()] == [encoded(PNG)]
