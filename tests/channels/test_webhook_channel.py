"""Signed HTTP as a channel, through the server: who may speak, what comes twice, and answers that are posted."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.channels.webhook import LARGEST_BODY, SCHEME
from foliot.kernel.messages import Text
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.work.triggers.signatures import lowered, sign, verify
from tests.channels.kit import KEY, declare, opened

PATH = "/v1/channel-messages/default/desk"


class Receiver:
    """The other side: it takes answers, and fails as often as a test says."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[int] = []
        self.key = KEY
        self._came = asyncio.Condition()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        verify(SCHEME, lowered(request.headers.items()), body, [self.key.encode()], time.time())
        async with self._came:
            self.taken.append((request.headers["Idempotency-Key"], json.loads(body)))
            self._came.notify_all()
        return web.Response(status=self.failures.pop(0) if self.failures else 200)

    async def answers(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        async with asyncio.timeout(60), self._came:
            await self._came.wait_for(lambda: len(self.taken) >= count)
        return self.taken


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/answers", receiver.take)
    server = TestServer(app)
    await server.start_server()
    receiver.url = f"http://127.0.0.1:{server.port}/answers"  # type: ignore[attr-defined]
    yield receiver
    await server.close()


class Desk:
    def __init__(self, runtime: Runtime, http: httpx.AsyncClient) -> None:
        self.runtime = runtime
        self._http = http

    async def post(
        self,
        body: dict[str, Any] | bytes,
        *,
        id: str = "m1",
        key: str = KEY,
        now: float | None = None,
        path: str = PATH,
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        signed = sign(SCHEME, key.encode(), content, now=time.time() if now is None else now, event_id=id)
        return await self._http.post(path, content=content, headers=signed)


@pytest.fixture
async def desk(store_url: str, tmp_path: Path, receiver: Any) -> AsyncIterator[Desk]:
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}] * 20}) as runtime:
        await declare(runtime, "Secret", "desk", {"data": {"value": base64.b64encode(KEY.encode()).decode()}})
        spec = {
            "type": "webhook",
            "agent": "helper",
            "endpoint": receiver.url,
            "auth": {"secretRef": "desk"},
            "users": [{"id": "zoe", "user": "ann"}],
            "mode": "followup",
        }
        await declare(runtime, "Channel", "desk", spec)
        settings = runtime.inside.settings
        app = create_app(runtime, settings=settings, auth=TokenAuth(runtime.inside.database, local=False))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://foliot.test") as http:
                yield Desk(runtime, http)


async def test_a_signed_message_is_said_and_its_answer_is_posted_signed(desk: Desk, receiver: Receiver) -> None:
    answer = await desk.post({"user": "zoe", "text": "Hello"})
    assert answer.status_code == 202
    assert answer.json()["outcome"] == "direct"
    ((key, posted),) = await receiver.answers(1)
    assert (posted["user"], posted["text"], posted["id"]) == ("zoe", "Done.", key)


async def test_a_changed_secret_holds_for_the_next_message_and_the_next_answer(desk: Desk, receiver: Receiver) -> None:
    assert (await desk.post({"user": "zoe", "text": "Hello"})).status_code == 202
    await receiver.answers(1)
    receiver.key = KEY[::-1]
    changed = base64.b64encode(receiver.key.encode()).decode()
    await declare(desk.runtime, "Secret", "desk", {"data": {"value": changed}})
    assert (await desk.post({"user": "zoe", "text": "Again"}, id="m2")).status_code == 401
    assert (await desk.post({"user": "zoe", "text": "Again"}, id="m2", key=receiver.key)).status_code == 202
    assert len(await receiver.answers(2)) == 2  # it checks the signature


async def test_the_run_of_a_message_says_where_it_came_from(desk: Desk, receiver: Receiver) -> None:
    await desk.post({"user": "zoe", "text": "Hello"})
    ((_, posted),) = await receiver.answers(1)
    labels = (await desk.runtime.inside.runs.journal.get(posted["run"])).labels
    assert (labels["foliot.dev/source"], labels["foliot.dev/channel"]) == ("webhook", "desk")
    assert labels["foliot.dev/correlation"] == "m1"


async def test_a_message_that_comes_twice_is_said_once(desk: Desk, receiver: Receiver) -> None:
    first, second = [(await desk.post({"user": "zoe", "text": "Hello"})).json() for _ in range(2)]
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert first["session"] == second["session"]
    await receiver.answers(1)
    (session,) = (await desk.runtime.inside.sessions.list("default", identity=None)).items
    assert session.arrivals == 1


async def test_the_same_id_with_other_words_is_a_conflict(desk: Desk) -> None:
    await desk.post({"user": "zoe", "text": "Hello"})
    answer = await desk.post({"user": "zoe", "text": "Goodbye"})
    assert answer.status_code == 409
    assert "'m1'" in answer.json()["error"]


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_an_empty_text_is_refused_in_words(desk: Desk, text: str) -> None:
    answer = await desk.post({"user": "zoe", "text": text})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "the text is empty: there is nothing to say to the agent",
    )


@pytest.mark.parametrize("path", [PATH, "/v1/channel-messages/default/none", "/v1/channel-messages/other/desk"])
async def test_who_cannot_sign_learns_nothing(desk: Desk, path: str) -> None:
    wrong = "whsec_" + base64.b64encode(b"another key of some length").decode()
    answer = await desk.post({"user": "zoe", "text": "Hello"}, key=wrong, path=path)
    assert (answer.status_code, answer.json()["error"]) == (401, "signature verification failed")
    assert (await desk.runtime.inside.sessions.list("default", identity=None)).items == []


async def test_an_old_recording_is_refused(desk: Desk) -> None:
    assert (await desk.post({"user": "zoe", "text": "Hello"}, now=time.time() - 3600)).status_code == 401


async def test_somebody_who_is_not_listed_is_refused(desk: Desk) -> None:
    answer = await desk.post({"user": "mallory", "text": "Hello"})
    assert (answer.status_code, answer.json()["accepted"]) == (403, False)
    assert "foliot channels link" in answer.json()["reply"]
    assert (await desk.post({"user": "zoe", "group": "all", "text": "Hello"})).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"user": "zoe", "admin": true}',
        b'{"user": 7}',
        b"null",
        b'{"user":"mallory","text":"x","user":"zoe"}',
        b'{"user":"zoe","text":"x","attachments":[{"a":1,"a":2}]}',
    ],
)
async def test_a_body_that_is_no_message_is_refused(desk: Desk, body: bytes) -> None:
    assert (await desk.post(body)).status_code == 400


async def test_a_huge_body_is_refused(desk: Desk) -> None:
    assert (await desk.post(b"x" * (LARGEST_BODY + 1))).status_code == 413


async def test_too_many_attachments_are_refused_in_words(desk: Desk, receiver: Receiver) -> None:
    many = [{"type": "file", "ref": str(number)} for number in range(21)]
    answer = await desk.post({"user": "zoe", "text": "Hello", "attachments": many})
    assert "at most 20 attachments" in answer.json()["reply"]


async def test_an_agent_reads_what_was_attached_as_a_line_of_the_message(desk: Desk, receiver: Receiver) -> None:
    await desk.post({"user": "zoe", "text": "Look", "attachments": [{"url": "http://127.0.0.1:1/x.png", "n": 1}]})
    ((_, posted),) = await receiver.answers(1)
    _, state = await desk.runtime.inside.runs.load(posted["run"])
    assert [part.text for part in state.transcript[0].parts if isinstance(part, Text)] == [
        "Look",
        '[attachment: {"url":"http://127.0.0.1:1/x.png","n":1}]',
    ]


async def test_the_answer_to_a_command_is_of_no_run(desk: Desk, receiver: Receiver) -> None:
    answer = await desk.post({"user": "zoe", "text": "/whoami"})
    ((_, posted),) = await receiver.answers(1)
    assert answer.json()["reply"] == posted["text"]
    assert posted["run"] == ""


async def test_people_are_told_once_that_an_answer_waits_for_an_approval(desk: Desk, receiver: Receiver) -> None:
    @tool(effect="idempotent")
    async def pay() -> str:
        """Pay."""
        return "paid"

    runtime = desk.runtime
    rules = [{"operation_class": "*", "verdict": "approval_required"}]
    await declare(runtime, "ToolPermission", "asked", {"tool_ref": "pay", "operation_rules": rules})
    runtime.inside.know(
        Agent("helper", model=ScriptedModel([{"call": "pay"}, {"say": "It is paid."}, {"say": "Yes."}]), tools=[pay])
    )

    assert (await desk.post({"user": "zoe", "text": "Pay it."})).status_code == 202
    ((_, told),) = await receiver.answers(1)
    assert told["text"].startswith("An approval is needed before I can go on.")
    assert told["run"] == ""
    assert (await desk.post({"user": "zoe", "text": "And?"}, id="m2")).json()["outcome"] == "queued"

    (request,) = await runtime.approvals.list()
    await runtime.approvals.approve(request["metadata"]["name"])
    texts = [posted["text"] for _, posted in await receiver.answers(3)]
    assert texts[1] == "It is paid."


async def test_a_question_is_posted_and_the_next_message_is_its_answer(desk: Desk, receiver: Receiver) -> None:
    ask = {"call": {"ask_user": {"question": "Which city?"}}}
    desk.runtime.inside.know(Agent("helper", model=ScriptedModel([ask, {"say": "Booked."}]), tools=["ask_user"]))
    assert (await desk.post({"user": "zoe", "text": "Book it."})).status_code == 202
    ((_, told),) = await receiver.answers(1)
    assert told["text"] == "Your next message is the answer.\nWhich city?"
    answers = [(await desk.post({"user": "zoe", "text": "Turin"}, id="m2")).json() for _ in range(2)]
    assert [(each["outcome"], each["duplicate"]) for each in answers] == [("direct", False), ("direct", True)]
    assert (await receiver.answers(2))[1][1]["text"] == "Booked."
    (session,) = (await desk.runtime.inside.sessions.list("default", identity=None)).items
    assert (session.turns, session.arrivals) == (1, 2)


async def test_an_answer_that_was_not_taken_is_posted_again_under_its_key(desk: Desk, receiver: Receiver) -> None:
    receiver.failures = [500]
    await desk.post({"user": "zoe", "text": "Hello"})
    (first, _), (second, _) = await receiver.answers(2)
    assert first == second
