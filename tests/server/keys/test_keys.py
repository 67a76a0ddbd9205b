"""A POST with an `Idempotency-Key` is done once: by two servers, after a restart, and after a crash in the middle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import NotFound
from foliot.kernel.run.events import InputReceived
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller, granted
from foliot.server.context import CALLER
from foliot.server.http.request_keys import answer_once
from foliot.server.openapi.document import ROWS
from foliot.server.route_table import ROUTES, KeyRule
from foliot.store.access.request_keys import HELD, KEPT, ClaimedKey, KeptAnswer, OtherRequest, SqlRequestKeys, UnderWay
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.open import open_database
from foliot.store.portions import FORGOTTEN_AT_ONCE
from tests.server.keys.conftest import Server

REPLAYED = "idempotency-replayed"


def keyed(key: str = "k1") -> dict[str, str]:
    return {"Idempotency-Key": key}


async def said(runtime: Runtime, run_id: str) -> list[str]:
    return [
        event.message.text for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, InputReceived)
    ]


def kept(path: str) -> bool:
    """Whether the POST of a path, as it is declared or as it is described, keeps its answers."""
    row = ROWS.get(("POST", re.sub(r":\w+}", "}", path))) or ROWS["POST", "/v1/{kind}"]
    return row.key is not None and row.key.kept


def posts() -> list[str]:
    return [path for method, path in ROUTES if method == "POST"]


# --- every route ---------------------------------------------------------------------------------------------------


async def test_every_post_takes_a_key_or_says_why_not(http: httpx.AsyncClient, runtime: Runtime) -> None:
    """Each is sent with a key that was used for something else: whoever looks at keys refuses it."""
    keys = SqlRequestKeys(runtime.inside.tasking.database)
    caller = (await http.get("/v1/auth/me")).json()["username"]
    await keys.claim(f"anonymous:{caller}", "used", "something else", now=time.time())

    silent: list[str] = []
    for path in posts():
        if not kept(path):
            continue
        address = path.replace("{kind}", "agents").replace(":path}", "}")
        for word in ("name", "namespace", "run_id", "session_id", "id", "response_id", "username", "agent"):
            address = address.replace(f"{{{word}}}", "x")
        address = address.replace("{key}", "1")
        assert "{" not in address, f"say what stands for the words of {path}"
        answer = await http.post(address, json={}, headers=keyed("used"))
        if answer.status_code != 409 or "was used for another request" not in answer.text:
            silent.append(f"{path}: {answer.status_code} {answer.text[:100]}")
    assert silent == []


def test_a_route_that_keeps_no_answers_says_why() -> None:
    rules = [row.key for row in ROUTES.values() if row.key is not None]

    assert all((len(rule.why) > 10) == (not rule.kept) for rule in rules)
    assert all(rule.kept for rule in rules if rule.again)


def test_the_description_tells_of_the_key_wherever_there_is_one() -> None:
    from foliot.server.app import described

    for path, item in described()["paths"].items():
        if "post" not in item or path in ("/v1/tasks", "/v1/tasks/submit", "/v1/chat/completions", "/v1/responses"):
            continue
        told = [each["name"] for each in item["post"]["parameters"]]
        assert told.count("Idempotency-Key") == int(kept(path)), path
        if kept(path):
            assert "409" in item["post"]["responses"], path


# --- what is said to a run -----------------------------------------------------------------------------------------


async def test_what_is_said_again_is_heard_once_and_answered_the_same(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str
) -> None:
    first = await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())
    again = await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())

    assert (first.status_code, again.status_code) == (202, 202)
    assert (first.content, first.headers["content-type"]) == (again.content, again.headers["content-type"])
    assert REPLAYED not in first.headers
    assert again.headers[REPLAYED] == "true"
    assert await said(runtime, waiting) == ["hurry"]


async def test_another_body_or_another_run_under_the_key_is_a_conflict(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str
) -> None:
    await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())

    other = await http.post(f"/v1/runs/{waiting}/input", json={"message": "wait"}, headers=keyed())
    elsewhere = await http.post(f"/v1/runs/{waiting}/cancel", json={"message": "hurry"}, headers=keyed())

    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert elsewhere.status_code == 409
    assert await said(runtime, waiting) == ["hurry"]


async def test_without_a_key_everything_is_heard(http: httpx.AsyncClient, runtime: Runtime, waiting: str) -> None:
    for key in ({}, {}, keyed("a"), keyed("b")):
        await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=key)

    assert await said(runtime, waiting) == ["hurry"] * 4


async def test_keys_hold_over_two_servers_and_a_restart(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str, another: Server
) -> None:
    body: dict[str, Any] = {"message": "hurry"}
    first = await http.post(f"/v1/runs/{waiting}/input", json=body, headers=keyed())
    for _ in range(2):
        async with another() as other:
            again = await other.post(f"/v1/runs/{waiting}/input", json=body, headers=keyed())
            assert (again.status_code, again.content) == (202, first.content)
            assert (await other.post(f"/v1/runs/{waiting}/input", json={}, headers=keyed())).status_code == 409
    assert await said(runtime, waiting) == ["hurry"]


async def test_of_many_at_once_on_two_servers_one_is_done(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str, another: Server
) -> None:
    async with another() as other:
        answers = await asyncio.gather(
            *(
                client.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())
                for client in (http, other) * 4
            )
        )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert await said(runtime, waiting) == ["hurry"]


async def test_what_was_said_before_a_crash_is_not_said_again(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("the power goes")

    with monkeypatch.context() as patch:
        patch.setattr(SqlRequestKeys, "answer", crash)
        patch.setattr(SqlRequestKeys, "hold", crash)
        broken = await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())
        assert broken.status_code == 500
    assert await said(runtime, waiting) == ["hurry"]
    later = runtime.inside.tasking.database.lease_clock() + HELD + 1
    monkeypatch.setattr(SqlRequestKeys, "clock", lambda _: later)

    again = await http.post(f"/v1/runs/{waiting}/input", json={"message": "hurry"}, headers=keyed())

    assert again.status_code == 202
    assert await said(runtime, waiting) == ["hurry"]


# --- decisions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["approve", "deny", "edit"])
async def test_a_decision_that_is_sent_again_is_answered_as_the_first(
    verb: str, http: httpx.AsyncClient, waiting: str
) -> None:
    name = (await http.get("/v1/tool-approvals")).json()["items"][0]["metadata"]["name"]
    body: dict[str, Any] = {"arguments": {"amount": 6}} if verb == "edit" else {"reason": "fine"}
    path = f"/v1/tool-approvals/{name}/{verb}"

    first = await http.post(path, json=body, headers=keyed())
    again = await http.post(path, json=body, headers=keyed())

    assert (first.status_code, again.status_code) == (200, 200), first.text
    assert (first.content, first.headers["etag"]) == (again.content, again.headers["etag"])
    assert (await http.post(path, json=body)).status_code == 409, "without the key it was decided before"
    assert (await http.post(path, json=body, headers=keyed("k2"))).status_code == 409


async def test_what_was_refused_leaves_its_key_free(http: httpx.AsyncClient, runtime: Runtime, waiting: str) -> None:
    path = f"/v1/runs/{waiting}/input"
    assert (await http.post(path, json={"massage": "x"}, headers=keyed())).status_code == 422
    assert (await http.post("/v1/runs/nothing/input", json={"message": "x"}, headers=keyed())).status_code == 404

    assert (await http.post(path, json={"message": "hurry"}, headers=keyed())).status_code == 202
    assert await said(runtime, waiting) == ["hurry"]


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\u00e4"])
async def test_what_cannot_be_a_key_is_refused(key: str, http: httpx.AsyncClient, waiting: str) -> None:
    raw = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await http.post(f"/v1/runs/{waiting}/input", json={"message": "x"}, headers=raw)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


async def test_two_keys_are_none(http: httpx.AsyncClient, waiting: str) -> None:
    two = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert (await http.post(f"/v1/runs/{waiting}/input", json={"message": "x"}, headers=two)).status_code == 400


# --- what is broken off --------------------------------------------------------------------------------------------


async def test_a_request_that_may_have_been_done_is_not_done_again_where_that_would_be_twice(
    http: httpx.AsyncClient, runtime: Runtime, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/task-schedules/nightly/run"

    async def crash(*_: object) -> None:
        raise RuntimeError("the power goes")

    with monkeypatch.context() as patch:
        patch.setattr(SqlRequestKeys, "answer", crash)
        assert (await http.post(path, json={}, headers=keyed())).status_code == 500
    later = runtime.inside.tasking.database.lease_clock() + HELD + 1
    monkeypatch.setattr(SqlRequestKeys, "clock", lambda _: later)

    again = await http.post(path, json={}, headers=keyed())

    assert again.status_code == 409
    assert "is not known" in again.json()["detail"]
    acts = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="act", outcome="fired"))
    assert len(acts) == 1


async def test_whoever_asks_while_it_is_under_way_waits_for_the_answer(app: Starlette) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        done.append(len((await receive())["body"]))
        begun.set()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"once"})

    async def ask() -> bytes:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"body", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "app": app,
            "method": "POST",
            "path": "/v1/slow",
            "query_string": b"",
            "headers": [(b"idempotency-key", b"k")],
            CALLER: Caller("ann", "token", granted(("*",), ("operator",))),
        }
        await answer_once(KeyRule(kept=True), slow, scope, receive, send)
        return sent[-1]["body"]

    async with asyncio.timeout(60):
        first = asyncio.create_task(ask())
        await begun.wait()
        second = asyncio.create_task(ask())
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(first, second) == [b"once", b"once"]
    assert done == [4]


async def test_an_answer_is_given_again_only_to_who_still_has_the_roles_that_it_needed(app: Starlette) -> None:
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        scope[CALLER].require("operator", "a")
        assert not scope[CALLER].may("admin", "a")
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-kind", b"session")]})
        await send({"type": "http.response.body", "body": b"done"})

    async def ask(*spaces: str) -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "app": app,
            "method": "POST",
            "path": "/v1/inside",
            "query_string": b"",
            "headers": [(b"idempotency-key", b"k")],
            CALLER: Caller("ann", "token", granted(spaces, ("operator",))),
        }
        await answer_once(KeyRule(kept=True), inside, scope, receive, send)
        return sent

    first, again = await ask("a", "c"), await ask("a")
    assert [message["body"] for message in (first[-1], again[-1])] == [b"done", b"done"]
    assert first[0]["headers"] == again[0]["headers"][: len(first[0]["headers"])]
    with pytest.raises(NotFound):
        await ask("c")


# --- the store -----------------------------------------------------------------------------------------------------


class TestKeys:
    @pytest.fixture
    def keys(self, runtime: Runtime) -> SqlRequestKeys:
        return SqlRequestKeys(runtime.inside.tasking.database)

    async def test_a_key_is_free_after_its_day_however_many_older_ones_are_still_there(
        self, keys: SqlRequestKeys
    ) -> None:
        for number in range(3 * FORGOTTEN_AT_ONCE):
            claimed = await keys.claim("ann", f"k{number}", "r", now=float(number))
            assert isinstance(claimed, ClaimedKey)
            await keys.answer(claimed, KeptAnswer(201, [], b"yesterday"))
        last = f"k{3 * FORGOTTEN_AT_ONCE - 1}"

        again = await keys.claim("ann", last, "another request", now=KEPT + 3600)

        assert isinstance(again, ClaimedKey)
        assert not again.broken

    async def test_a_claim_is_held_by_one_and_lapses(self, keys: SqlRequestKeys) -> None:
        first = await keys.claim("ann", "k", "r", now=0.0)
        assert isinstance(first, ClaimedKey)
        assert not first.broken
        assert await keys.claim("ann", "k", "r", now=HELD - 1) == UnderWay()
        assert await keys.claim("ann", "k", "other", now=0.0) == OtherRequest()
        assert isinstance(await keys.claim("bob", "k", "r", now=0.0), ClaimedKey), "keys are each caller's own"

        assert await keys.hold(first, until=2 * HELD)
        assert await keys.claim("ann", "k", "r", now=HELD + 1) == UnderWay()
        second = await keys.claim("ann", "k", "r", now=2 * HELD)
        assert isinstance(second, ClaimedKey)
        assert second.broken
        assert not await keys.hold(first, until=1e9), "somebody else has it"

    async def test_an_answer_is_kept_by_whoever_holds_the_claim_and_forgotten(self, keys: SqlRequestKeys) -> None:
        first = await keys.claim("ann", "k", "r", now=0.0)
        second = await keys.claim("ann", "k", "r", now=HELD)
        assert isinstance(first, ClaimedKey)
        assert isinstance(second, ClaimedKey)
        kept = KeptAnswer(201, [("content-type", "application/json")], b'{"a": "\xc3\xa4"}')

        await keys.answer(first, KeptAnswer(200, [], b"late"))
        await keys.answer(second, kept)
        await keys.drop(second)

        assert await keys.claim("ann", "k", "r", now=HELD + 1) == kept
        assert isinstance(await keys.claim("ann", "k", "r", now=KEPT + HELD), ClaimedKey)

    async def test_a_key_that_is_dropped_is_free(self, keys: SqlRequestKeys) -> None:
        first = await keys.claim("ann", "k", "r", now=0.0)
        assert isinstance(first, ClaimedKey)
        await keys.drop(first)

        again = await keys.claim("ann", "k", "other", now=0.0)
        assert isinstance(again, ClaimedKey)
        assert not again.broken


class TestKeysOnPostgres(TestKeys):
    @pytest.fixture
    async def keys(self, postgres_url: str) -> AsyncIterator[SqlRequestKeys]:  # type: ignore[override]  # of another database
        database = await open_database(postgres_url)
        yield SqlRequestKeys(database)
        await database.close()

    async def test_of_many_who_claim_at_once_one_does(self, keys: SqlRequestKeys) -> None:
        found = await asyncio.gather(*(keys.claim("ann", "k", "r", now=0.0) for _ in range(8)))

        assert sum(isinstance(each, ClaimedKey) for each in found) == 1
        assert found.count(UnderWay()) == 7
