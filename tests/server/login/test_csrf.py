"""What a page of another site can have a browser send with its cookie: nothing comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest

from foliot.server.auth.sessions import csrf_token
from tests.server.login.conftest import PASSWORD, LogIn, Site

AGENT = {"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}}
PATH = "/v1/model-endpoints"


@pytest.fixture
async def inside(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that is logged in, without the token on its requests."""
    await site.user()
    await log_in(http)
    yield http
    bearer = await site.token()
    http.cookies.clear()
    assert (await http.get(PATH, headers=bearer)).json()["items"] == [], "something was let through"


def token_of(http: httpx.AsyncClient) -> str:
    return csrf_token(http.cookies["foliot_session"])


async def refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")


async def test_a_write_with_the_token_is_done(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user()
    headers = await log_in(http)

    assert (await http.post(PATH, json=AGENT, headers=headers)).status_code == 201
    own = {**headers, "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert (await http.delete(f"{PATH}/x", headers=own)).status_code == 204
    assert (await http.get(PATH)).status_code == 200, "reading needs none"


async def test_a_form_of_another_site_changes_nothing(inside: httpx.AsyncClient) -> None:
    answer = await inside.post(
        PATH,
        data={"kind": "Agent"},
        headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    )

    await refused(answer)


async def test_json_that_pretends_to_be_plain_text_changes_nothing(inside: httpx.AsyncClient) -> None:
    content = b'{"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}}'

    await refused(await inside.post(PATH, content=content, headers={"Content-Type": "text/plain"}))


async def test_a_wrong_token_changes_nothing(inside: httpx.AsyncClient) -> None:
    for token in ("", "wrong", "A" * 43, inside.cookies["foliot_session"]):
        await refused(await inside.post(PATH, json=AGENT, headers={"X-CSRF-Token": token}))


async def test_a_missing_token_changes_nothing_whatever_the_method(inside: httpx.AsyncClient) -> None:
    for method, path in (("POST", PATH), ("PUT", f"{PATH}/x"), ("PATCH", f"{PATH}/x"), ("DELETE", f"{PATH}/x")):
        await refused(await inside.request(method, path, json=AGENT))
    await refused(await inside.post("/mcp", json={}))
    await refused(await inside.post("/v1/auth/logout"))
    await refused(await inside.post("/v1/auth/change-password", json={}))
    assert (await inside.get("/v1/auth/me")).status_code == 200


async def test_two_tokens_of_which_one_is_right_change_nothing(inside: httpx.AsyncClient) -> None:
    both = [("X-CSRF-Token", token_of(inside)), ("X-CSRF-Token", "wrong")]

    answer = await inside.post(PATH, json=AGENT, headers=both)

    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert (await inside.get(f"{PATH}/{AGENT['metadata']['name']}")).status_code == 404


async def test_the_token_of_another_session_changes_nothing(
    site: Site, inside: httpx.AsyncClient, log_in: LogIn
) -> None:
    async with site.browser() as other:
        theirs = await log_in(other)

    await refused(await inside.post(PATH, json=AGENT, headers=theirs))


async def test_even_with_the_token_another_site_changes_nothing(inside: httpx.AsyncClient) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:8081"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        await refused(await inside.post(PATH, json=AGENT, headers={"X-CSRF-Token": token_of(inside), **headers}))


async def test_a_method_cannot_be_disguised(inside: httpx.AsyncClient) -> None:
    disguised = {"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "POST"}

    assert (await inside.get(PATH, headers=disguised)).status_code == 200


async def test_a_bearer_needs_no_token_also_beside_a_cookie(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user()
    await log_in(http)
    bearer = await site.token()

    answer = await http.post(PATH, json=AGENT, headers={**bearer, "Origin": "https://elsewhere.example"})

    assert answer.status_code == 201


async def test_nobody_is_logged_in_by_a_page_of_another_site(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()
    content = f'{{"username": "ada", "password": "{PASSWORD}"}}'.encode()
    json_type = {"Content-Type": "application/json"}

    for headers, status in (
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({**json_type, "Origin": "https://evil.example"}, 403),
        ({**json_type, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ):
        answer = await http.post("/v1/auth/login", content=content, headers=headers)
        assert answer.status_code == status, headers
        assert ("set-cookie" in answer.headers) == (status == 200)


async def test_an_attempt_of_another_site_is_in_the_audit_log(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    await log_in(http)

    await refused(await http.post(PATH, json=AGENT, headers={"Origin": "https://evil.example"}))

    (denied,) = [act for act in await site.acts() if act["outcome"] == "denied"]
    assert (denied["caller"]["user"], denied["resource"]["code"]) == ("ada", "cross_site")


async def test_behind_a_proxy_the_public_address_is_the_own_one(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()
    site.auth.logins.public_url = "https://foliot.example"
    body = {"username": "ada", "password": PASSWORD}

    through = await http.post("/v1/auth/login", json=body, headers={"Origin": "https://foliot.example"})
    other = await http.post("/v1/auth/login", json=body, headers={"Origin": "https://foliot.example.evil"})

    assert (through.status_code, other.status_code) == (200, 403)
