"""An idempotency key belongs to one caller: the same key of somebody else is another key, whatever their names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.identity import Caller, granted
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.work.tasks.base import Command
from tests.server.keys.conftest import MANIFEST

Ann = Callable[[], Awaitable[httpx.AsyncClient]]
KEYED = {"Idempotency-Key": "k"}


def asked(path: str, name: str, topic: str = "pay") -> dict[str, Any]:
    if path == "/v1/tasks":
        return {"metadata": {"name": name}, "spec": {"agent": "desk", "input": {"topic": topic}}}
    return {"target_kind": "agent", "target": "desk", "name": name, "input": {"topic": topic}}


@pytest.fixture
async def ann(runtime: Runtime, settings: Settings) -> AsyncIterator[Ann]:
    """Each is a new holder of a token called `ann`; that of the one before is revoked."""
    tokens = SqlTokens(runtime.inside.tasking.database)
    auth = TokenAuth(runtime.inside.tasking.database, local=True)
    app = create_app(runtime, settings=settings, auth=auth)
    async with AsyncExitStack() as stack:
        made: list[str] = []

        async def enter() -> httpx.AsyncClient:
            if made:
                await tokens.revoke(made[-1], now=1.0)
                auth.forget()
            info, secret = await tokens.create("ann", namespaces=("*",), roles=("admin", "impersonator"), now=0.0)
            made.append(info.id)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://localhost",
                headers={"Authorization": f"Bearer {secret}"},
            )
            await stack.enter_async_context(client)
            assert (await client.post("/v1/apply", content=MANIFEST)).status_code == 200
            return client

        yield enter
    await auth.close()


def test_credentials_of_one_name_are_different_principals() -> None:
    grants = granted(("*",), ("reader",))
    callers = [
        Caller("ann", "token", grants, "t1"),
        Caller("ann", "token", grants, "t2"),
        Caller("ann", "session", grants, "u1"),
        Caller("ann", "session", grants, "oidc ann"),
        Caller("ann", "oidc", grants, "sub"),
        Caller("ann", "anonymous", grants),
    ]

    assert len({caller.principal for caller in callers}) == len(callers)


async def test_an_answer_is_not_told_to_somebody_else_of_the_same_name(ann: Ann) -> None:
    first = await ann()
    body = {"tool": "pay", "seconds": 60, "scope": {"comment": "secret of the first"}}
    granted = await first.post("/v1/tool-approvals/grants", json=body, headers=KEYED)
    again = await first.post("/v1/tool-approvals/grants", json=body, headers=KEYED)
    second = await ann()

    other = await second.post("/v1/tool-approvals/grants", json=body, headers=KEYED)
    unlike = await second.post("/v1/tasks/no-such/cancel", json={}, headers=KEYED)

    assert (granted.status_code, again.json()) == (201, granted.json())
    assert other.status_code == 201
    assert "idempotency-replayed" not in other.headers
    assert other.json()["metadata"]["name"] != granted.json()["metadata"]["name"]
    assert unlike.status_code in (404, 409)
    assert (unlike.status_code == 404) or "another request" in unlike.json()["detail"], "a key that is one's own"


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/tasks/submit"])
async def test_a_task_is_not_found_by_the_key_of_somebody_else(ann: Ann, path: str) -> None:
    first = await ann()
    made = await first.post(path, json=asked(path, "a"), headers=KEYED)
    found = await first.post(path, json=asked(path, "a"), headers=KEYED)
    second = await ann()
    other = await second.post(path, json=asked(path, "b"), headers=KEYED)
    third = await ann()
    different = await third.post(path, json=asked(path, "c", "something else"), headers=KEYED)

    assert (made.status_code, found.status_code) == (201, 200)
    assert (other.status_code, different.status_code) == (201, 201), different.text
    for name in ("a", "b", "c"):
        assert (await third.get(f"/v1/tasks/{name}")).status_code == 200


@pytest.mark.parametrize("key", [{}, {"headers": KEYED}])
async def test_a_key_of_one_who_acts_for_others_is_for_one_of_them(
    ann: Ann, runtime: Runtime, key: dict[str, Any]
) -> None:
    client = await ann()
    body = {"target_kind": "agent", "target": "desk", "message": "pay", "idempotency_key": "k"}

    first = await client.post("/v1/tasks/submit", json={**body, "user": "carl"}, **key)
    again = await client.post("/v1/tasks/submit", json={**body, "user": "carl"}, **key)
    others = [await client.post("/v1/tasks/submit", json={**body, **user}, **key) for user in ({"user": "bob"}, {})]

    assert (first.status_code, again.status_code) == (201, 200), again.text
    assert [answer.status_code for answer in others] == [409, 409], others[0].text


async def test_the_key_of_a_schedule_cannot_be_taken_before_it(ann: Ann, runtime: Runtime) -> None:
    client = await ann()
    planted = await client.post("/v1/tasks", json=asked("/v1/tasks", "a"), headers=KEYED)

    own = await runtime.inside.tasking.tasks.accept(
        Command("agent", "desk", input={"topic": "pay"}, idempotency_key="k")
    )

    assert planted.status_code == 201
    assert not own.duplicate


async def test_two_keys_in_one_request_have_two_readings(ann: Ann) -> None:
    client = await ann()

    for path in ("/v1/tasks/submit", "/v1/tasks"):
        body = asked(path, f"t{len(path)}")
        body.get("spec", body)["idempotency_key"] = path
        assert (await client.post(path, json=body, headers=KEYED)).status_code == 400, path
        assert (await client.post(path, json=body, headers={"Idempotency-Key": path})).status_code == 201
