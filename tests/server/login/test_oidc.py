"""Logging in with an identity provider: what is replayed, caught or too late, and a provider that misbehaves."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from foliot.errors import UsageError
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.passwords import Passwords
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.logins import LoginPace
from tests.server.login.conftest import CHEAP, Clock, Site
from tests.server.login.provider import FakeProvider

SECRET = "open-sesame & more"


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


@pytest.fixture
def more() -> dict[str, str]:
    """Other settings."""
    return {}


@pytest.fixture
def settings(tmp_path: Path, provider: FakeProvider, more: dict[str, str]) -> Settings:
    told = {
        "FOLIOT_OIDC_ISSUER": provider.issuer,
        "FOLIOT_OIDC_CLIENT_ID": "foliot",
        "FOLIOT_OIDC_CLIENT_SECRET": SECRET,
        "FOLIOT_OIDC_ROLES": "devs=author@team-a",
        "FOLIOT_OIDC_AUDIENCE": "foliot-api",
    }
    return load_settings({"home": str(tmp_path)}, {**told, **more})


@pytest.fixture
async def site(runtime: Runtime, settings: Settings, clock: Clock) -> AsyncIterator[Site]:
    clock.now = time.time()  # the provider has the real time
    auth = TokenAuth(
        runtime.inside.tasking.database, local=True, settings=settings, passwords=Passwords(**CHEAP), clock=clock
    )
    yield Site(runtime, auth, create_app(runtime, settings=settings, auth=auth), clock)
    await auth.close()


async def began(http: httpx.AsyncClient, provider: FakeProvider, **query: str) -> str:
    """Sent to the provider, and agreed there: the address to come back to."""
    sent = await http.get("/v1/auth/oidc/login", params=query)
    assert sent.status_code == 303, sent.text
    assert sent.headers["location"].startswith(f"{provider.issuer}/authorize?")
    return provider.authorize(sent.headers["location"])


async def refused(http: httpx.AsyncClient, address: str, status: int = 401) -> None:
    answer = await http.get(address)
    assert answer.status_code == status, answer.text
    assert "foliot_session" not in http.cookies


async def test_who_comes_back_has_a_session_and_the_state_is_spent(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    address = await began(http, provider)
    flow = http.cookies["foliot_login"]

    answer = await http.get(address)

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert (await http.get("/v1/auth/me")).json()["roles"] == {"team-a": ["author"]}
    assert "foliot_login" not in http.cookies
    http.cookies.clear()
    replayed = await http.get(address, headers={"Cookie": f"foliot_login={flow}"})
    assert replayed.status_code == 401
    assert provider.asked.count("token") == 1, "the provider was not even asked"


async def test_the_secret_of_the_client_goes_to_the_provider_and_nowhere_else(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await http.get(await began(http, provider))
    provider.sign = lambda payload: "not.a.token"
    address = await began(http, provider)
    await http.get(address)

    expected = base64.b64encode(b"foliot:open-sesame%20%26%20more").decode()
    assert provider.headers == [f"Basic {expected}"] * 2
    assert "client_secret" not in provider.sent[0]
    told = caplog.text + json.dumps(await site.acts())
    for secret in (SECRET, expected, provider.sent[0]["code_verifier"], "not.a.token", http.cookies["foliot_session"]):
        assert secret not in told


async def test_a_provider_that_wants_the_secret_in_the_body_gets_it_there(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    provider.about["token_endpoint_auth_methods_supported"] = ["client_secret_post"]

    assert (await http.get(await began(http, provider))).status_code == 303

    assert provider.sent[0]["client_secret"] == SECRET
    assert provider.headers == [""]


async def test_another_browser_cannot_use_what_was_meant_for_this_one(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    address = await began(http, provider)
    async with site.browser() as victim:
        await refused(victim, address)
        assert (await victim.get("/v1/auth/oidc/login")).status_code == 303
        await refused(victim, await began(http, provider))
    await refused(http, address)


async def test_coming_back_without_having_been_sent_is_refused(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    await began(http, provider)

    for query in ("", "state=", "state=x", "code=x", "code=x&state=y&error=z"):
        await refused(http, f"/v1/auth/oidc/callback?{query}")


async def test_who_comes_back_too_late_is_refused(site: Site, http: httpx.AsyncClient, provider: FakeProvider) -> None:
    address = await began(http, provider)
    site.clock.now += 600

    await refused(http, address)


async def test_an_answer_in_the_name_of_another_issuer_is_refused(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    await refused(http, await began(http, provider) + "&iss=https%3A%2F%2Fevil.example")


async def test_a_code_of_another_flow_is_of_no_use(site: Site, http: httpx.AsyncClient, provider: FakeProvider) -> None:
    """A code that somebody caught does not fit the verifier of this browser."""
    async with site.browser() as attacker:
        caught = (await began(attacker, provider)).partition("code=")[2].partition("&")[0]
    own = await began(http, provider)

    await refused(http, own.replace(own.partition("code=")[2].partition("&")[0], caught))


async def test_a_token_that_is_not_good_lets_nobody_in(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    token = provider.signed(provider.payload(aud="somebody-else"))
    provider.sign = lambda _: token

    await refused(http, await began(http, provider))
    answer = await http.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"})

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_a_bearer_token_of_the_provider_is_a_caller_until_it_expires(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    provider.keys = {"one": ec.generate_private_key(ec.SECP256R1())}
    token = provider.signed(provider.payload(aud=["foliot-api", "other"], azp="foliot-api"), algorithm="ES256")
    headers = {"Authorization": f"Bearer {token}"}

    for _ in range(2):
        me = (await http.get("/v1/auth/me", headers=headers)).json()
        assert (me["username"], me["method"], me["roles"]) == ("oidc:ada", "bearer", {"team-a": ["author"]})
    body = {"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}}
    assert (await http.post("/v1/model-endpoints?namespace=team-a", json=body, headers=headers)).status_code == 201
    assert provider.asked == ["about", "keys"], "what was found out is remembered"
    # An ID token is for the browser's login: it is no key to the API.
    login = provider.signed(provider.payload(), algorithm="ES256")
    assert (await http.get("/v1/auth/me", headers={"Authorization": f"Bearer {login}"})).status_code == 401


async def test_while_the_provider_is_away_known_keys_do_and_logins_are_told_to_wait(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    token = provider.signed(provider.payload(aud="foliot-api"))
    other = provider.signed(provider.payload(aud="foliot-api", jti="2"))
    assert (await http.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"})).status_code == 200
    address = await began(http, provider)
    await provider.stop()

    assert (await http.get("/v1/auth/me", headers={"Authorization": f"Bearer {other}"})).status_code == 200
    answer = await http.get(address)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "foliot_session" not in http.cookies


@pytest.mark.parametrize("where", ["about", "keys", "token"])
async def test_a_provider_cannot_send_the_server_elsewhere(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider, where: str
) -> None:
    provider.redirects.add(where)

    sent = await http.get("/v1/auth/oidc/login")
    answer = sent if sent.status_code != 303 else await http.get(provider.authorize(sent.headers["location"]))

    assert answer.status_code == 503
    assert provider.asked.count("about") == 1
    assert provider.asked.count("keys") == (1 if where == "keys" else 0)


async def test_one_goes_on_at_this_server_only(site: Site, http: httpx.AsyncClient) -> None:
    for place in ("//evil.example", "https://evil.example", "/\\evil.example", "evil", "", "/a\nb", "/é", "/ b"):
        answer = await http.get("/v1/auth/oidc/login", params={"return_to": place})
        assert answer.status_code == 400, place


async def test_somebody_without_a_role_or_a_name_is_not_let_in(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    good, bad = provider.claims, ({"groups": []}, {"groups": None}, {"groups": {"devs": 1}}, {"groups": [1]})
    nameless = ({"preferred_username": name} for name in ("", None, 7, "a\nb"))

    for claims in (*bad, *nameless):
        provider.claims = {**good, **claims}
        await refused(http, await began(http, provider), 403)

    assert [act["outcome"] for act in await site.acts()] == ["login_failed"] * 8


@pytest.mark.parametrize("more", [{"FOLIOT_OIDC_NAME_CLAIM": "email", "FOLIOT_OIDC_ROLES_CLAIM": "realm.roles"}])
async def test_an_address_must_be_verified_and_roles_may_lie_deeper(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider, more: dict[str, str]
) -> None:
    provider.claims = {"sub": "1", "email": "ada@example.org", "email_verified": False, "realm": {"roles": "devs"}}
    await refused(http, await began(http, provider), 403)

    provider.claims["email_verified"] = True

    await http.get(await began(http, provider))
    assert (await http.get("/v1/auth/me")).json()["username"] == "oidc:ada@example.org"


@pytest.mark.parametrize("more", [{"FOLIOT_PUBLIC_URL": "https://foliot.example/"}])
async def test_behind_a_proxy_one_comes_back_to_the_public_address(
    site: Site, provider: FakeProvider, more: dict[str, str]
) -> None:
    async with site.browser("http://10.0.0.7:8080") as http:
        sent = await http.get("/v1/auth/oidc/login")

    assert "redirect_uri=https%3A%2F%2Ffoliot.example%2Fv1%2Fauth%2Foidc%2Fcallback" in sent.headers["location"]
    assert sent.headers["set-cookie"].startswith("__Host-foliot_login=")


async def test_nobody_is_told_to_come_back_to_a_name_that_the_request_made_up(site: Site) -> None:
    async with site.browser("http://evil.example") as http:
        answer = await http.get("/v1/auth/oidc/login")

    assert (answer.status_code, "public_url" in answer.json()["hint"]) == (400, True)


async def test_logins_that_are_begun_and_never_ended_are_slowed_down(site: Site, http: httpx.AsyncClient) -> None:
    answers = [await http.get("/v1/auth/oidc/login") for _ in range(301)]

    assert [answer.status_code for answer in answers] == [303] * 300 + [429]


async def test_logins_at_the_provider_that_succeed_do_not_count(
    site: Site, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy all browsers have one address."""
    monkeypatch.setattr("foliot.server.auth.logins.PER_VISITOR", LoginPace(2, 60.0))
    for _ in range(5):
        async with site.browser() as browser:
            assert (await browser.get(await began(browser, provider))).status_code == 303


async def test_strangers_who_begin_without_end_keep_nobody_out_who_has_begun(
    site: Site, http: httpx.AsyncClient, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.server.auth.logins.PER_VISITOR", LoginPace(3, 60.0))
    mine = await began(http, provider)
    async with site.browser() as stranger:
        assert [(await stranger.get("/v1/auth/oidc/login")).status_code for _ in range(4)][-1] == 429

        assert (await http.get(mine)).status_code == 303


@pytest.mark.parametrize("wrong", [{"FOLIOT_OIDC_ROLES": "devs=king@a"}, {"FOLIOT_OIDC_CLIENT_ID": ""}])
async def test_half_a_provider_keeps_the_server_from_starting(
    runtime: Runtime, tmp_path: Path, wrong: dict[str, str]
) -> None:
    told = {"FOLIOT_OIDC_ISSUER": "https://id.example", "FOLIOT_OIDC_CLIENT_ID": "foliot", **wrong}

    with pytest.raises(UsageError):
        TokenAuth(runtime.inside.tasking.database, local=True, settings=load_settings({"home": str(tmp_path)}, told))
