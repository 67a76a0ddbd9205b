"""Tokens over HTTP: nobody gives more than they hold, nor sees what is not theirs."""

from __future__ import annotations

import json

import httpx2 as httpx

from tests.server.login.conftest import LogIn, Site


async def test_an_admin_makes_lists_and_revokes_and_the_text_is_shown_once(site: Site, http: httpx.AsyncClient) -> None:
    root = await site.token("admin", name="root")

    made = await http.post(
        "/v1/tokens",
        json={"name": "ci", "roles": ["author", "operator"], "namespaces": ["team-a"], "expires": "90d"},
        headers=root,
    )
    assert made.status_code == 201
    info = made.json()
    text = info.pop("token")
    assert (info["name"], info["createdBy"], info["roles"]) == ("ci", "root", ["author", "operator"])
    assert info["expiresAt"] > info["createdAt"]
    listed = await http.get("/v1/tokens", headers=root)
    assert [each["name"] for each in listed.json()["items"]] == ["root", "ci"]
    assert text.split("_", 2)[2] not in listed.text
    known = {"Authorization": f"Bearer {text}"}
    assert (await http.get("/v1/auth/me", headers=known)).json()["roles"] == {"team-a": ["author", "operator"]}

    revoked = await http.delete(f"/v1/tokens/{info['id']}", headers=root)

    assert revoked.json()["revokedAt"]
    assert (await http.get("/v1/auth/me", headers=known)).status_code == 401
    assert (await http.delete(f"/v1/tokens/{info['id']}", headers=root)).status_code == 404
    told = [(act["outcome"], act["resource"]["name"], act["caller"]["user"]) for act in await site.acts()]
    assert told == [("token_created", "ci", "root"), ("token_revoked", "ci", "root")]
    assert text.split("_", 2)[2] not in json.dumps(await site.acts())


async def test_who_is_no_admin_anywhere_has_nothing_to_do_with_tokens(site: Site, http: httpx.AsyncClient) -> None:
    for role in ("reader", "operator", "approver", "author"):
        known = await site.token(role, name=role)
        for answer in (
            await http.get("/v1/tokens", headers=known),
            await http.post("/v1/tokens", json={"name": "x"}, headers=known),
            await http.delete("/v1/tokens/reader", headers=known),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "denied")


async def test_an_admin_of_a_namespace_gives_what_is_theirs_and_no_more(site: Site, http: httpx.AsyncClient) -> None:
    known = await site.token("admin", space="team-a", name="ada")

    for spaces in (["*"], ["team-b"], ["team-a", "team-b"], ["team-a", "*"]):
        order = {"name": "x", "roles": ["admin"], "namespaces": spaces}
        assert (await http.post("/v1/tokens", json=order, headers=known)).status_code == 404, spaces
    assert len((await http.get("/v1/tokens", headers=known)).json()["items"]) == 1
    order = {"name": "x", "roles": ["admin"], "namespaces": ["team-a"]}
    assert (await http.post("/v1/tokens", json=order, headers=known)).json()["name"] == "ada/x"


async def test_an_author_of_one_place_and_admin_of_another_does_not_mix_them(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user("ada", "admin", space="team-a")
    await site.users.grant("ada", {"team-a": ["admin"], "team-b": ["author"]})
    headers = await log_in(http)

    answer = await http.post("/v1/tokens", json={"name": "x", "namespaces": ["team-b"]}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "denied")


async def test_tokens_of_other_namespaces_do_not_exist_for_an_admin_of_one(site: Site, http: httpx.AsyncClient) -> None:
    ada = await site.token("admin", space="team-a", name="ada")
    await site.token("reader", space="team-b", name="secret-project")
    root = await site.token("admin", name="root")

    listed = (await http.get("/v1/tokens", headers=ada)).json()["items"]
    theirs = await http.delete("/v1/tokens/secret-project", headers=ada)
    nobodys = await http.delete("/v1/tokens/never-was-here", headers=ada)
    # A name that is taken elsewhere is free here, and what comes of it cannot pass for the other one.
    same = await http.post("/v1/tokens", json={"name": "root", "namespaces": ["team-a"]}, headers=ada)

    assert [each["name"] for each in listed] == ["ada"]
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.json()["detail"].replace("secret-project", "") == nobodys.json()["detail"].replace(
        "never-was-here", ""
    )
    assert (same.status_code, same.json()["name"]) == (201, "ada/root")
    assert len((await http.get("/v1/tokens", headers=root)).json()["items"]) == 4


async def test_a_name_is_taken_once(site: Site, http: httpx.AsyncClient) -> None:
    root = await site.token("admin", name="root")

    answer = await http.post("/v1/tokens", json={"name": "root"}, headers=root)

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


NONSENSE = [
    {},
    {"name": ""},
    {"name": "a/b"},
    {"name": "a\nb"},
    {"name": "a" * 101},
    {"name": "x", "roles": ["king"]},
    {"name": "x", "roles": []},
    {"name": "x", "namespaces": []},
    {"name": "x", "namespaces": ["a b"]},
    {"name": "x", "expires": "soon"},
    {"name": "x", "expires": "0s"},
    {"name": "x", "expires": "-1h"},
    {"name": "x", "roles": "admin"},
]


async def test_what_cannot_be_meant_is_said_and_nothing_is_made(site: Site, http: httpx.AsyncClient) -> None:
    root = await site.token("admin", name="root")

    for body in NONSENSE:
        answer = await http.post("/v1/tokens", json=body, headers=root)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), body

    assert len((await http.get("/v1/tokens", headers=root)).json()["items"]) == 1
