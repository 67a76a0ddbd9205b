"""Sessions over HTTP: found, spoken to once by a key, read, stopped; the same verbs as in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2 as httpx
import pytest

from foliot import Client
from foliot.errors import Denied, InvalidInput, NotFound, UsageError
from foliot.runtime.groups.groups import Groups
from foliot.runtime.runtime import Runtime
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import EndEvent, TextEvent
from foliot.store.sessions.base import SessionArchived, SessionBusy
from tests.client.conftest import Site, settings, site  # noqa: F401 - fixtures

TEAM = [
    {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": "brain", "namespace": "default"},
        "spec": {
            "provider": "scripted",
            "script": {
                "count": "input",
                "turns": [{"when": {"input": "slow"}, "after": "1h", "say": "late"}],
                "otherwise": "You said: {input}",
            },
        },
    },
    {
        "apiVersion": "foliot.dev/v1",
        "kind": "Agent",
        "metadata": {"name": "helper", "namespace": "default"},
        "spec": {"model_ref": "brain", "prompt": "Help."},
    },
]


@pytest.fixture
async def team(site: Site) -> Site:  # noqa: F811
    await site.runtime.resources.apply(TEAM)
    return site


@pytest.fixture(params=["here", "there"])
async def groups(request: pytest.FixtureRequest, team: Site) -> AsyncIterator[Groups]:
    """The verbs in this process, and over HTTP."""
    if request.param == "here":
        yield team.runtime
        return
    async with Client(team.url, token=await team.token()) as client:
        yield client


async def ended(groups: Groups, id: str, *, turns: int = 1) -> list[Any]:
    """Waits until a session has so many turns, and none at work."""
    async with asyncio.timeout(60):
        while (found := await groups.sessions.get(id)).turn or found.turns < turns:
            if found.turn:
                await groups.runs.wait(found.turn)
            await asyncio.sleep(0)
    return await groups.sessions.history(id)


async def test_all_who_resolve_at_once_get_the_same_session(groups: Groups) -> None:
    found = await asyncio.gather(*(groups.sessions.resolve("helper", user="ann", channel="c") for _ in range(8)))

    assert len({each.id for each in found}) == 1
    active = await groups.sessions.active("helper", user="ann", channel="c")
    assert active is not None
    assert active.id == found[0].id
    assert await groups.sessions.active("helper", user="ann", channel="elsewhere") is None


async def test_what_is_said_is_answered_and_read_again(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann", title="Talk")
    said = await groups.sessions.say(session.id, "hello")
    assert said.outcome == "direct"
    turns = await ended(groups, session.id)

    assert [turn.number for turn in turns] == [1]
    (heard,) = await groups.sessions.inputs(session.id)
    assert (heard.seq, heard.status, heard.run_id) == (1, "consumed", turns[0].run_id)
    assert (await groups.runs.get(turns[0].run_id)).result.output == "You said: hello"


async def test_a_key_says_something_once(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    first = await groups.sessions.say(session.id, "hello", key="k")
    again = await groups.sessions.say(session.id, "hello", key="k")

    assert (first.again, again.again, again.outcome) == (False, True, first.outcome)
    await ended(groups, session.id)
    assert len(await groups.sessions.inputs(session.id)) == 1


async def test_stop_ends_the_turn_at_work_and_says_whether_there_was_one(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    assert not await groups.sessions.stop(session.id)
    await groups.sessions.say(session.id, "slow")
    with pytest.raises(SessionBusy):
        await groups.sessions.delete(session.id)

    assert await groups.sessions.stop(session.id)

    assert (await groups.sessions.get(session.id)).turn == ""
    await groups.sessions.delete(session.id)
    with pytest.raises(NotFound):
        await groups.sessions.get(session.id)


async def test_an_archived_session_is_read_and_takes_nothing(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    other = await groups.sessions.rotate("helper", user="ann")
    assert (await groups.sessions.get(session.id)).archived_at is not None

    with pytest.raises(SessionArchived):
        await groups.sessions.say(session.id, "hello")
    assert [each.id for each in (await groups.sessions.list())[0]] == [other.id]
    assert {each.id for each in (await groups.sessions.list(archived=True))[0]} >= {session.id}


async def test_an_operator_can_list_only_their_own(team: Site) -> None:
    await team.runtime.sessions.create("helper", user="bob")
    async with Client(team.url, token=await team.token("ann")) as client:
        own = await client.sessions.create("helper")
        assert [each.id for each in (await client.sessions.list(mine=True))[0]] == [own.id]
        assert (await client.sessions.list(mine=True, user="bob"))[0] == []
        assert len((await client.sessions.list())[0]) == 2


async def test_a_list_comes_in_pages(groups: Groups) -> None:
    made = [(await groups.sessions.create("helper", user="ann", channel=str(number))).id for number in range(5)]
    first, cursor = await groups.sessions.list(limit=3)
    rest, end = await groups.sessions.list(limit=3, cursor=cursor)

    assert [each.id for each in (*first, *rest)] == made[::-1]
    assert end is None


async def test_title_and_model_are_changed(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    changed = await groups.sessions.change(session.id, title="Clocks", model="brain")
    assert (changed.title, changed.model) == ("Clocks", "brain")


@pytest.mark.parametrize("text", ["", " \n"])
async def test_nothing_is_not_said(groups: Groups, text: str) -> None:
    session = await groups.sessions.create("helper", user="ann")
    with pytest.raises(InvalidInput):
        await groups.sessions.say(session.id, text)
    with pytest.raises(InvalidInput, match="not supported"):
        await groups.sessions.say(session.id, "hello", mode="shout")


# --- the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def http(team: Site) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {await team.token()}"}
    async with httpx.AsyncClient(base_url=team.url, headers=headers, timeout=60) as client:
        yield client


async def test_errors_have_their_codes(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={"agent": "helper"})).json()["id"]
    await http.post(f"/v1/sessions/{session}/archive")

    refused = await http.post(f"/v1/sessions/{session}/say", json={"message": "hello"})

    assert (refused.status_code, refused.json()["code"]) == (409, "session_archived")
    assert (await http.get("/v1/sessions/none")).status_code == 404
    taken = await http.post("/v1/sessions", json={"agent": "helper", "id": session})
    assert taken.status_code == 409


async def test_a_request_key_says_something_once(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={"agent": "helper"})).json()["id"]
    body, key = {"message": "hello"}, {"Idempotency-Key": "once"}
    first = await http.post(f"/v1/sessions/{session}/say", json=body, headers=key)
    again = await http.post(f"/v1/sessions/{session}/say", json=body, headers=key)

    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert len((await http.get(f"/v1/sessions/{session}/inputs")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"message": "a", "message": "b"}', {}, 400),
        (b'{"message": "a", "key": "k"}', {"Idempotency-Key": "l"}, 400),
        (b'{"message": "a", "mode": "followup", "Mode": "interrupt"}', {}, 422),
        (b'{"message": {"role": "assistant", "parts": []}}', {}, 422),
        (b'{"message": {"parts": [{"type": "text", "text": 7}]}}', {}, 422),
        (b'{"message": "a", "key": "two words"}', {}, 422),
        (b'{"message": "a", "options": {"max_seconds": "x"}}', {}, 422),
    ],
)
async def test_what_has_two_readings_or_none_is_refused_and_nothing_is_said(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    session = (await http.post("/v1/sessions", json={"agent": "helper"})).json()["id"]

    refused = await http.post(f"/v1/sessions/{session}/say", content=body, headers=headers)

    assert refused.status_code == status, refused.text
    assert (await http.get(f"/v1/sessions/{session}/inputs")).json()["items"] == []


async def test_another_model_or_prompt_is_for_authors(team: Site) -> None:
    async with Client(team.url, token=await team.token("op", ("operator",), "default")) as client:
        session = await client.sessions.create("helper")
        for options in (TurnOptions(model="brain"), TurnOptions(system="Obey.")):
            with pytest.raises(Denied):
                await client.sessions.say(session.id, "hello", options=options)
        with pytest.raises(Denied):
            await client.sessions.change(session.id, model="brain")
        with pytest.raises(Denied):
            await client.sessions.create("helper", model="anthropic:claude")
        assert await client.sessions.inputs(session.id) == []


async def test_acts_in_sessions_are_recorded(team: Site) -> None:
    async with Client(team.url, token=await team.token()) as client:
        session = await client.sessions.create("helper")
        await client.sessions.archive(session.id)
        told = {each.body["outcome"] for each in await client.audit.list()}
    assert {"session_created", "session_archived"} <= told


async def test_what_is_warm_for_a_user_is_invalidated_and_recorded(groups: Groups, team: Site) -> None:
    store = team.runtime.inside.sessions.store
    await groups.sessions.invalidate(user="zoe")
    await groups.sessions.invalidate(user="zoe")
    assert [await store.staleness("default", user) for user in ("zoe", "ann")] == [2, 0]
    found = [each.body for each in await groups.audit.list() if each.body["outcome"] == "sessions_invalidated"]
    assert [each["resource"] for each in found] == [{"kind": "User", "name": "zoe"}] * 2
    with pytest.raises(InvalidInput):
        await groups.sessions.invalidate(user="a\nb")


async def test_only_an_admin_invalidates_what_is_of_others(team: Site) -> None:
    store = team.runtime.inside.sessions.store
    async with Client(team.url, token=await team.token("op", ("operator",), "default")) as client:
        await client.sessions.invalidate()
        await client.sessions.invalidate(user="op")
        with pytest.raises(Denied):
            await client.sessions.invalidate(user="ann")
        with pytest.raises(NotFound):  # what somebody may not see does not exist for them
            await client.sessions.invalidate(namespace="elsewhere")
    async with Client(team.url, token=await team.token("eve", ("reader",), "default")) as client:
        with pytest.raises(Denied):
            await client.sessions.invalidate()
    assert [await store.staleness("default", user) for user in ("op", "ann", "eve")] == [2, 0, 0]


async def test_a_runtime_in_memory_says_that_it_keeps_no_sessions() -> None:
    async with Runtime("memory:") as runtime:
        with pytest.raises(UsageError, match="keeps no sessions"):
            await runtime.sessions.list()


# --- streams -----------------------------------------------------------------------------------------------------


async def test_a_chat_ends_with_one_end_and_the_whole_text(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    events = [event async for event in groups.sessions.chat(session.id, "hello")]

    assert [type(event) for event in events].count(EndEvent) == 1
    assert isinstance(events[-1], EndEvent)
    assert (events[-1].status, events[-1].text) == ("answered", "You said: hello")
    assert [event.text for event in events if isinstance(event, TextEvent) and not event.piece] == ["You said: hello"]


async def test_whoever_reads_along_gets_each_turn_with_one_end(groups: Groups) -> None:
    session = await groups.sessions.create("helper", user="ann")
    for text in ("one", "two", "three"):
        await groups.sessions.say(session.id, text)
    first = (await groups.sessions.inputs(session.id, limit=1))[0].run_id
    ends: list[str] = []
    async with asyncio.timeout(60), aclosing(groups.sessions.watch(session.id, after=f"{first}/1.0")) as events:
        async for event in events:
            if isinstance(event, EndEvent):
                ends.append(event.text)
            if len(ends) == 3:
                break
    assert ends == ["You said: one", "You said: two", "You said: three"]


async def frames(http: httpx.AsyncClient, session: str, *, last: str = "", **params: Any) -> list[dict[str, Any]]:
    """The chat events of a stream that ends by itself, each with the id of its frame."""
    headers = {"Last-Event-ID": last} if last else {}
    answer = await http.get(f"/v1/sessions/{session}/stream", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = []
    for text in answer.text.split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in text.split("\n") if not line.startswith(":"))
        if lines.get("event") == "chat":
            found.append({**json.loads(lines["data"]), "frame": lines.get("id", "")})
    return found


async def test_a_client_that_comes_back_reads_what_follows_its_last_event_and_nothing_twice(
    http: httpx.AsyncClient,
) -> None:
    session = (await http.post("/v1/sessions", json={"agent": "helper"})).json()["id"]
    seq = (await http.post(f"/v1/sessions/{session}/say", json={"message": "hello"})).json()["seq"]
    whole = [event for event in await frames(http, session, input=seq) if event["frame"]]
    assert [event["frame"] for event in whole] == [event["place"] for event in whole]
    assert [event["type"] for event in whole].count("end") == 1

    for place, event in enumerate(whole):
        rest = await frames(http, session, last=event["frame"], input=seq)
        assert [each for each in rest if each["frame"]] == whole[place + 1 :]


async def test_a_client_that_leaves_does_not_stop_the_turn(http: httpx.AsyncClient, team: Site) -> None:
    session = (await http.post("/v1/sessions", json={"agent": "helper"})).json()["id"]
    await http.post(f"/v1/sessions/{session}/say", json={"message": "slow"})
    async with http.stream("GET", f"/v1/sessions/{session}/stream") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: chat"):
                break

    standing = (await http.get(f"/v1/sessions/{session}")).json()
    assert (await team.runtime.runs.get(standing["turn"])).result.phase == "running"
    assert (await http.post(f"/v1/sessions/{session}/stop")).json() == {"stopped": True}


async def test_a_place_of_another_session_is_no_place(http: httpx.AsyncClient) -> None:
    sessions = [(await http.post("/v1/sessions", json={"agent": "helper", "channel": str(n)})).json() for n in (1, 2)]
    await http.post(f"/v1/sessions/{sessions[0]['id']}/say", json={"message": "hello"})
    run = (await http.get(f"/v1/sessions/{sessions[0]['id']}/inputs")).json()["items"][0]["run_id"]

    answer = await http.get(f"/v1/sessions/{sessions[1]['id']}/stream", params={"after": f"{run}/1"})

    assert "You said" not in answer.text
    assert '"code":"not_found"' in answer.text
    assert (await http.get(f"/v1/sessions/{sessions[1]['id']}/stream", params={"after": "nowhere"})).status_code == 400
