"""Accounts and sessions over HTTP: how one comes to them, how they end, and what strangers can find out."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from foliot.server.auth.logins import PER_PEER
from foliot.server.auth.passwords import Passwords
from foliot.store.access.logins import SqlLoginSessions
from tests.server.login.conftest import CHEAP, PASSWORD, LogIn, Site

NEW = "entirely different words"


def login(name: str = "ada", password: str = PASSWORD) -> dict[str, str]:
    return {"username": name, "password": password}


async def test_whoever_logs_in_has_a_session_with_the_roles_of_the_account(site: Site, http: httpx.AsyncClient) -> None:
    await site.user("ada", "author", space="team-a")

    answer = await http.post("/v1/auth/login", json=login())
    me = await http.get("/v1/auth/me")

    assert answer.status_code == 200
    assert me.json() == answer.json()
    assert (me.json()["authenticated"], me.json()["username"], me.json()["method"]) == (True, "ada", "session")
    assert me.json()["roles"] == {"team-a": ["author"]}


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()

    plain = (await http.post("/v1/auth/login", json=login())).headers["set-cookie"]
    async with site.browser("https://foliot.example") as browser:
        secure = (await browser.post("/v1/auth/login", json=login())).headers["set-cookie"]

    name, _, value = plain.partition(";")[0].partition("=")
    assert name == "foliot_session"
    assert len(value) == 43
    assert set(plain.split("; ")[1:]) == {"Max-Age=604800", "Path=/", "HttpOnly", "SameSite=Lax"}
    assert secure.startswith("__Host-foliot_session=")
    assert secure.endswith("; Secure")


async def test_over_tls_the_cookie_without_its_prefix_is_nobody(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()
    await http.post("/v1/auth/login", json=login())
    cookie = http.cookies["foliot_session"]

    async with site.browser("https://localhost") as browser:
        answer = await browser.get("/v1/auth/me", headers={"Cookie": f"foliot_session={cookie}"})

    assert answer.status_code == 401


async def test_of_two_different_cookies_none_is_believed(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()
    await http.post("/v1/auth/login", json=login())
    both = f"foliot_session={http.cookies['foliot_session']}; foliot_session=planted"
    http.cookies.clear()

    assert (await http.get("/v1/auth/me", headers={"Cookie": both})).status_code == 401


async def test_nobody_is_let_in_before_and_after_the_first_account(site: Site, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/auth/me")).status_code == 401

    await site.user()

    assert (await http.get("/v1/auth/me")).status_code == 401


async def test_the_session_before_the_login_is_never_the_one_after_it(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    http.cookies.set("foliot_session", "planted-by-somebody-else", domain="localhost.local")
    await log_in(http)
    first = http.cookies["foliot_session"]

    await log_in(http)

    assert first != "planted-by-somebody-else"
    assert http.cookies["foliot_session"] != first
    http.cookies.clear()
    assert (await http.get("/v1/auth/me", headers={"Cookie": f"foliot_session={first}"})).status_code == 401


async def test_unknown_wrong_and_disabled_are_told_the_same(site: Site, http: httpx.AsyncClient) -> None:
    await site.user("ada")
    await site.user("bob")
    await site.users.disable("bob", now=site.clock.now)

    answers = [
        await http.post("/v1/auth/login", json=login(name, word), headers={"X-Request-ID": "same"})
        for name, word in (("ada", "wrong"), ("nobody", PASSWORD), ("bob", PASSWORD), ("a\x00b", "x"), ("", ""))
    ]

    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert len({json.dumps(sorted(answer.headers.items())) for answer in answers}) == 1
    assert "set-cookie" not in answers[0].headers


async def test_unknown_wrong_and_disabled_take_the_same_work(
    site: Site, http: httpx.AsyncClient, passwords: Passwords
) -> None:
    await site.user("ada")
    await site.user("bob")
    await site.users.disable("bob", now=site.clock.now)
    engine = passwords._engine()
    compared: list[str] = []

    class Watching:
        def verify(self, kept: str, given: str) -> bool:
            compared.append(kept.split("$")[3])
            return engine.verify(kept, given)

    passwords._hasher = Watching()  # pyright: ignore[reportAttributeAccessIssue]

    for name, password in (("ada", "wrong"), ("nobody", PASSWORD), ("bob", PASSWORD), ("", "")):
        assert (await http.post("/v1/auth/login", json=login(name, password))).status_code == 401
    assert compared == ["m=8,t=1,p=1"] * 4, "one comparison each, at the same costs"


async def test_a_session_ends_when_it_rests_too_long_or_lasts_too_long(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    await log_in(http)
    began = site.clock.now

    while site.clock.now - began < 6.5 * 86400:
        site.clock.now += 11 * 3600
        assert (await http.get("/v1/auth/me")).status_code == 200
        await site.auth.close()  # the note of the use is written
    site.clock.now = began + 7 * 86400
    assert (await http.get("/v1/auth/me")).status_code == 401

    await log_in(http)
    site.clock.now += 12 * 3600
    assert (await http.get("/v1/auth/me")).status_code == 401


async def test_logging_out_ends_the_session_for_good(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user()
    token = await log_in(http)
    cookie = http.cookies["foliot_session"]

    answer = await http.post("/v1/auth/logout", headers=token)

    assert answer.status_code == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert "foliot_session" not in http.cookies
    assert (await http.get("/v1/auth/me", headers={"Cookie": f"foliot_session={cookie}"})).status_code == 401
    assert (await http.post("/v1/auth/logout")).status_code == 200, "once more does no harm"


async def test_a_new_password_ends_all_sessions_and_the_old_one_is_worthless(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    token = await log_in(http)
    async with site.browser() as other:
        await log_in(other)

        changed = await http.post(
            "/v1/auth/change-password", json={"current_password": PASSWORD, "new_password": NEW}, headers=token
        )

        assert changed.json() == {"username": "ada", "sessions_ended": 2}
        assert (await other.get("/v1/auth/me")).status_code == 401
    assert (await http.get("/v1/auth/me")).status_code == 401
    assert (await http.post("/v1/auth/login", json=login())).status_code == 401
    assert (await http.post("/v1/auth/login", json=login(password=NEW))).status_code == 200


@pytest.mark.parametrize(
    ("current", "new", "status"),
    [
        ("wrong", NEW, 401),
        (PASSWORD, "short", 422),
        (PASSWORD, "I am ada, hello", 422),
        (PASSWORD, "I am adamant, hello", 200),
    ],
)
async def test_a_password_is_changed_by_whoever_knows_it_to_one_that_is_good(
    site: Site, http: httpx.AsyncClient, log_in: LogIn, current: str, new: str, status: int
) -> None:
    await site.user()
    token = await log_in(http)

    answer = await http.post(
        "/v1/auth/change-password", json={"current_password": current, "new_password": new}, headers=token
    )

    assert answer.status_code == status
    assert (await http.get("/v1/auth/me")).status_code == (401 if status == 200 else 200)


async def test_a_token_has_no_password_to_change(site: Site, http: httpx.AsyncClient) -> None:
    bearer = await site.token()

    answer = await http.post(
        "/v1/auth/change-password", json={"current_password": "x", "new_password": NEW}, headers=bearer
    )

    assert (answer.status_code, answer.json()["code"]) == (400, "usage")


async def test_an_admin_gives_others_a_new_password_and_nobody_else_does(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user("ada", "reader")
    bob, root = await site.token("author", name="bob"), await site.token("admin", name="root")
    await log_in(http)
    order = {"username": "Ada", "new_password": NEW}
    async with site.browser() as other:
        assert (await other.post("/v1/auth/admin/reset-password", json=order, headers=bob)).status_code == 403
        done = await other.post("/v1/auth/admin/reset-password", json=order, headers=root)
        missing = await other.post(
            "/v1/auth/admin/reset-password", json={"username": "eve", "new_password": NEW}, headers=root
        )
        only = await other.post("/v1/auth/admin/reset-password", json={"new_password": NEW}, headers=root)

    assert done.json() == {"username": "ada", "sessions_ended": 1}
    assert missing.status_code == 404
    assert only.json() == {"username": "ada", "sessions_ended": 0}
    assert (await http.get("/v1/auth/me")).status_code == 401
    assert (await http.post("/v1/auth/login", json=login(password=NEW))).status_code == 200


async def test_the_first_account_is_made_once_by_whoever_has_the_setup_token(
    site: Site, http: httpx.AsyncClient
) -> None:
    config = (await http.get("/v1/auth/config")).json()
    assert config == {"mode": "native", "setup_required": True, "login_methods": ["password"]}
    assert (await http.post("/v1/auth/login", json=login())).status_code == 409
    token = await site.users.new_setup_token(now=site.clock.now, seconds=60.0)

    wrong = await http.post("/v1/auth/setup", json={**login("root"), "setup_token": token[:-1]})
    weak = await http.post("/v1/auth/setup", json={**login("root", "root"), "setup_token": token})
    made = await http.post("/v1/auth/setup", json={**login("root"), "setup_token": token})
    again = await http.post("/v1/auth/setup", json={**login("eve"), "setup_token": token})

    assert [answer.status_code for answer in (wrong, weak, made, again)] == [403, 422, 201, 409]
    entered = made.json()
    assert (entered["username"], entered["roles"], entered["method"]) == ("root", {"*": ["admin"]}, "session")
    assert (await http.get("/v1/auth/me")).json()["username"] == "root", "who set it up is logged in"
    assert (await http.get("/v1/auth/config")).json()["setup_required"] is False
    assert (await http.post("/v1/auth/login", json=login("root"))).json()["roles"] == {"*": ["admin"]}


async def test_setting_up_is_one_attempt_although_it_logs_in(site: Site, http: httpx.AsyncClient) -> None:
    token = await site.users.new_setup_token(now=site.clock.now, seconds=60.0)
    wrong = {**login("root"), "setup_token": token[:-1]}
    for _ in range(PER_PEER.burst - 1):
        assert (await http.post("/v1/auth/setup", json=wrong)).status_code == 403

    assert (await http.post("/v1/auth/setup", json={**login("root"), "setup_token": token})).status_code == 201
    assert (await http.post("/v1/auth/setup", json=wrong)).status_code == 429, "that was the last attempt"


async def test_a_hash_that_is_outdated_is_made_anew_at_the_next_login(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    old = await Passwords(**{**CHEAP, "rounds": 2}).hash(PASSWORD)
    await site.users.create("ada", password=old, grants={"*": ["admin"]}, now=0.0)

    await log_in(http)

    account = await site.users.find("ada")
    assert account is not None
    assert account.password != old
    assert not site.auth.logins.passwords.outdated(account.password)
    await log_in(http)


async def test_the_audit_log_knows_who_came_and_went_and_no_secret(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    await http.post("/v1/auth/login", json=login(password="wrong-secret"))
    await http.post("/v1/auth/login", json=login(name="my password in the wrong field"))
    token = await log_in(http)
    cookie = http.cookies["foliot_session"]
    await http.post("/v1/auth/change-password", json={"current_password": "no", "new_password": NEW}, headers=token)
    await http.post("/v1/auth/logout", headers=token)

    acts = await site.acts()

    told = [(act["outcome"], act["resource"]["name"], act["caller"]["user"]) for act in acts]
    assert told == [
        ("login_failed", "ada", ""),
        ("login_failed", "", ""),
        ("logged_in", "ada", "ada"),
        ("password_change_failed", "ada", "ada"),
        ("logged_out", "ada", "ada"),
    ]
    assert all(act["resource"]["peer"] == "127.0.0.1" for act in acts)
    assert all(act["request"] for act in acts)
    text = json.dumps(acts)
    for secret in ("wrong-secret", "wrong field", PASSWORD, NEW, cookie, token["X-CSRF-Token"]):
        assert secret not in text


async def test_what_is_refused_to_a_caller_is_in_the_audit_log_once_a_minute(
    site: Site, http: httpx.AsyncClient
) -> None:
    reader = await site.token("reader", name="eve")

    for _ in range(3):
        answer = await http.post("/v1/agents", json={"metadata": {"name": "x"}}, headers=reader)
        assert answer.status_code == 403
    other = await site.token("reader", name="bob")
    assert (await http.post("/v1/agents", json={"metadata": {"name": "x"}}, headers=other)).status_code == 403

    chat = {"model": "x", "messages": []}
    assert (await http.post("/v1/chat/completions", json=chat, headers=other)).status_code == 403

    first, second, third = [act for act in await site.acts() if act["outcome"] == "denied"]
    assert third["resource"]["name"] == "POST /v1/chat/completions"
    assert first["caller"] == {"user": "eve", "known_by": "token"}
    assert second["caller"]["user"] == "bob"
    assert first["resource"]["name"] == "POST /v1/{kind}"
    assert first["resource"]["role"] == "author"


async def test_a_body_that_cannot_be_used_is_said_so(site: Site, http: httpx.AsyncClient) -> None:
    await site.user()

    for body in (b"", b"{", b"[]", b'{"username": 1}', b'{"username": "a"}', b"\xff", b'{"username": "\xed\xa0\x80"}'):
        answer = await http.post("/v1/auth/login", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body


async def test_a_server_without_accounts_says_so(runtime, settings) -> None:
    from foliot.server.app import create_app
    from foliot.server.auth.authentication import Anonymous

    app = create_app(runtime, settings=settings, auth=Anonymous())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        assert (await http.get("/v1/auth/config")).json()["mode"] == "off"
        assert (await http.post("/v1/auth/logout")).status_code == 200
        for path in ("setup", "login", "change-password", "admin/reset-password"):
            assert (await http.post(f"/v1/auth/{path}", json={"new_password": NEW})).status_code in (400, 422)
        for path in ("login", "callback"):
            assert (await http.get(f"/v1/auth/oidc/{path}")).status_code == 400


async def test_what_is_kept_of_sessions_is_swept_by_whoever_logs_in(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    await site.user()
    await log_in(http)
    http.cookies.clear()
    site.clock.now += 13 * 3600

    await log_in(http)

    assert await SqlLoginSessions(site.runtime.inside.tasking.database).prune(now=site.clock.now) == 0
