"""Accounts over HTTP: for whoever administers the whole installation, and never against themselves."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import apsw
import httpx2 as httpx
import pytest

from foliot.settings.settings import Settings
from tests.server.login.conftest import PASSWORD, LogIn, Site

BOB: dict[str, Any] = {"username": "Bob", "password": PASSWORD, "roles": {"team-a": ["operator", "reader"]}}


async def test_an_account_is_made_given_other_roles_disabled_and_enabled(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user("ada")
    csrf = await log_in(http, "ada")

    made = await http.post("/v1/users", json=BOB, headers={**csrf, "X-Request-ID": "r1"})
    assert made.status_code == 201, made.text
    assert (made.json()["username"], made.json()["roles"]) == ("bob", {"team-a": ["operator", "reader"]})
    assert made.json()["createdBy"] == "ada"
    async with site.browser() as bobs:
        await log_in(bobs, "bob")
        assert (await bobs.get("/v1/agents?namespace=team-b")).json()["items"] == []

        other = await http.put("/v1/users/BOB/roles", json={"roles": {"team-b": ["author"]}}, headers=csrf)
        assert other.json()["roles"] == {"team-b": ["author"]}
        assert (await bobs.get("/v1/auth/me")).json()["roles"] == {"team-b": ["author"]}, "at once"

        disabled = await http.post("/v1/users/bob/disable", headers=csrf)
        assert disabled.json()["disabledAt"]
        assert (await bobs.get("/v1/auth/me")).status_code == 401, "the session has ended"
        login = {"username": "bob", "password": PASSWORD}
        assert (await bobs.post("/v1/auth/login", json=login)).status_code == 401
        assert "disabledAt" not in (await http.post("/v1/users/bob/enable", headers=csrf)).json()
        assert (await bobs.post("/v1/auth/login", json=login)).status_code == 200

    listed = (await http.get("/v1/users")).json()["items"]
    assert [each["username"] for each in listed] == ["ada", "bob"]
    assert PASSWORD not in str(listed)
    assert "argon" not in str(listed)
    acts = [each for each in await site.acts() if each["moment"] == "act" and each["resource"]["name"] == "bob"]
    assert [each["outcome"] for each in acts if each["outcome"].startswith("user_")] == [
        "user_created",
        "user_granted",
        "user_disabled",
        "user_enabled",
    ]
    assert (acts[0]["request"], acts[0]["caller"]["user"]) == ("r1", "ada")
    assert acts[0]["resource"]["roles"] == {"team-a": ["operator", "reader"]}


async def test_what_changes_nothing_is_not_recorded(site: Site, http: httpx.AsyncClient) -> None:
    await site.user("bob", "reader")
    root = await site.token()

    first = await http.post("/v1/users/bob/disable", headers=root)
    again = await http.post("/v1/users/bob/disable", headers=root)

    assert first.json() == again.json()
    assert [each["outcome"] for each in await site.acts()].count("user_disabled") == 1


@pytest.mark.parametrize("space", ["team-a", "*"])
async def test_only_an_admin_of_everything_may(space: str, site: Site, http: httpx.AsyncClient) -> None:
    await site.user("bob", "reader")
    callers = [await site.token("admin", space="team-a", name="local"), await site.token("author", name="writer")]

    for caller in callers:
        answers = [
            await http.get("/v1/users", headers=caller),
            await http.post("/v1/users", json={**BOB, "username": "eve", "roles": {space: ["admin"]}}, headers=caller),
            await http.put("/v1/users/bob/roles", json={"roles": {space: ["admin"]}}, headers=caller),
            await http.post("/v1/users/bob/disable", headers=caller),
            await http.post("/v1/users/bob/enable", headers=caller),
        ]
        assert {answer.status_code for answer in answers} <= {403, 404}
    (only,) = await site.users.list()
    assert (only.name, only.grants, only.disabled_at) == ("bob", {"*": ("reader",)}, None)


async def test_writes_of_a_session_need_its_csrf_token(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user("ada")
    await site.user("bob", "reader")
    await log_in(http, "ada")

    for method, path, body in (
        ("POST", "/v1/users", {**BOB, "username": "eve"}),
        ("PUT", "/v1/users/bob/roles", {"roles": {"*": ["admin"]}}),
        ("POST", "/v1/users/bob/disable", None),
    ):
        answer = await http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    assert [(each.name, each.disabled_at) for each in await site.users.list()] == [("ada", None), ("bob", None)]


async def test_nobody_shuts_themselves_out(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user("ada")
    csrf = await log_in(http, "ada")

    for answer in (
        await http.post("/v1/users/Ada/disable", headers=csrf),
        await http.put("/v1/users/ada/roles", json={"roles": {"*": ["reader"]}}, headers=csrf),
    ):
        assert (answer.status_code, "logged in with" in answer.json()["detail"]) == (409, True)
    assert (await http.get("/v1/users")).status_code == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"username": "a b"}, 422),
        ({"username": "ada"}, 409),
        ({"password": "short"}, 422),
        ({"roles": {}}, 422),
        ({"roles": {"team-a": []}}, 422),
        ({"roles": {"team-a": ["king"]}}, 422),
        ({"roles": {"../": ["reader"]}}, 422),
        ({"roles": ["reader"]}, 422),
        ({"extra": 1}, 422),
    ],
)
async def test_an_account_that_cannot_be_is_refused(
    change: dict[str, Any], status: int, site: Site, http: httpx.AsyncClient
) -> None:
    await site.user("ada")
    answer = await http.post("/v1/users", json={**BOB, **change}, headers=await site.token())

    assert answer.status_code == status, answer.text
    assert PASSWORD not in answer.text
    assert [each.name for each in await site.users.list()] == ["ada"]


async def test_what_is_not_there_is_missing(site: Site, http: httpx.AsyncClient) -> None:
    root = await site.token()
    for name in ("nobody", "-", "a%00b", "%20"):
        for verb in ("disable", "enable"):
            answer = await http.post(f"/v1/users/{name}/{verb}", headers=root)
            assert answer.status_code in (400, 404), (name, answer.text)


async def test_an_account_that_cannot_be_recorded_is_not_made(
    site: Site, http: httpx.AsyncClient, settings: Settings
) -> None:
    root = await site.token()
    with closing(apsw.Connection(str(settings.home / "foliot.db"))) as file:
        file.execute("DELETE FROM audit_head")

    assert (await http.post("/v1/users", json=BOB, headers=root)).status_code == 503
    assert await site.users.list() == []
