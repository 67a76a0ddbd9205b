"""Guessing is slow: for a name wherever it comes from, for a place whatever it tries, for all servers together."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.logins import WrongLogin
from foliot.server.auth.passwords import Passwords
from foliot.server.errors import TooMany
from foliot.store.access.logins import LoginPace, SqlLoginAttempts
from tests.server.login.conftest import CHEAP, PASSWORD, LogIn, Site


def login(name: str = "ada", password: str = PASSWORD) -> dict[str, str]:
    return {"username": name, "password": password}


async def test_wrong_attempts_are_slowed_down_for_the_name_and_keep_its_owner_out_nowhere_else(site: Site) -> None:
    await site.user()
    answers: list[httpx.Response] = []
    async with site.browser(peer="203.0.113.1") as http:
        for number in range(12):
            header = {"X-Forwarded-For": f"198.51.100.{number}"}
            answers.append(await http.post("/v1/auth/login", json=login(password="wrong"), headers=header))

        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        assert answers[-1].json()["code"] == "too_many_requests"
        assert int(answers[-1].headers["retry-after"]) == 7
        assert (await http.post("/v1/auth/login", json=login())).status_code == 429, "also for the right one"
        async with site.browser() as owner:
            assert (await owner.post("/v1/auth/login", json=login())).status_code == 200
        site.clock.now += 6
        assert (await http.post("/v1/auth/login", json=login())).status_code == 200


async def test_wrong_attempts_for_a_name_from_many_places_are_slowed_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.server.auth.logins.PER_NAME_ANYWHERE", LoginPace(3, 1.0))
    await site.user()
    statuses: list[int] = []
    for number in range(4):
        async with site.browser(peer=f"203.0.113.{number}") as http:
            statuses.append((await http.post("/v1/auth/login", json=login(password="wrong"))).status_code)

    assert statuses == [401] * 3 + [429]


async def test_wrong_attempts_are_slowed_down_for_the_place_whatever_name_they_try(site: Site) -> None:
    await site.user()
    async with site.browser(peer="2001:db8::1") as http, site.browser(peer="2001:db8::2") as neighbour:
        tried = [
            await each.post("/v1/auth/login", json=login(f"name{n}"), headers={"X-Forwarded-For": f"198.51.100.{n}"})
            for n, each in enumerate([http, neighbour] * 11)
        ]
    assert [answer.status_code for answer in tried] == [401] * 20 + [429] * 2

    async with site.browser(peer="2001:db8:0:1::1") as elsewhere:
        assert (await elsewhere.post("/v1/auth/login", json=login())).status_code == 200


async def test_logins_that_succeed_do_not_count(site: Site, http: httpx.AsyncClient, log_in: LogIn) -> None:
    await site.user()

    for _ in range(25):
        await log_in(http)


async def test_attempts_are_counted_for_all_servers_on_a_store(site: Site) -> None:
    await site.user()
    other = TokenAuth(site.runtime.inside.tasking.database, local=True, passwords=Passwords(**CHEAP), clock=site.clock)
    for logins in [site.auth.logins, other.logins] * 5:
        with pytest.raises(WrongLogin):
            await logins.log_in("ada", "wrong", "203.0.113.1")

    with pytest.raises(TooMany):
        await other.logins.log_in("ada", PASSWORD, "203.0.113.1")


async def test_names_that_strangers_make_up_do_not_pile_up(
    site: Site, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.server.auth.logins.SWEPT_EVERY", 5)
    await site.user()
    for number in range(10):
        await http.post("/v1/auth/login", json=login(f"name{number}"))
        site.clock.now += 60

    assert await SqlLoginAttempts(site.runtime.inside.tasking.database).prune(now=site.clock.now) <= 6
