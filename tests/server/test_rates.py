from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import FoliotError
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.errors import TooMany
from foliot.server.http.envelope import RequestLimits
from foliot.server.http.rates import Rates, peer_of
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.secrets.local_key import Introduction, LocalKey


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (("203.0.113.7", 1), "203.0.113.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::"),
        (("2001:db8:1:2:ffff::1", 1), "2001:db8:1:2::"),
        (("fe80::1%eth0", 1), "fe80::"),
        (("::ffff:203.0.113.7", 1), "203.0.113.7"),
        (("not:an:address", 1), "not:an:address"),
        (None, ""),
    ],
)
def test_a_peer_is_an_address_or_what_a_household_is_given(client: Any, name: str) -> None:
    assert peer_of({"client": client, "headers": [(b"x-forwarded-for", b"198.51.100.1")]}) == name


def scope(token: str, *, peer: str = "203.0.113.7", **more: str) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    headers += [(name.encode(), value.encode()) for name, value in more.items()]
    return {"client": (peer, 1), "headers": headers}


class TestGuessing:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def rates(self, clock: Clock) -> Rates:
        rates = Rates(failures=3, clock=clock)
        rates.succeeded(scope("good"))
        for number in range(3):
            rates.check_peer(scope(f"wrong{number}"))
            rates.failed(scope(f"wrong{number}"))
        return rates

    def test_after_some_wrong_ones_no_other_is_looked_at_for_a_while(self, rates: Rates, clock: Clock) -> None:
        with pytest.raises(TooMany) as refused:
            rates.check_peer(scope("perhaps-right"))
        assert 1 <= refused.value.details["retry_after"] <= 21

        clock.now += 21
        rates.check_peer(scope("perhaps-right"))

    def test_who_was_let_in_before_does_not_suffer(self, rates: Rates) -> None:
        rates.check_peer(scope("good"))

    def test_a_guess_cannot_hide_behind_something_good(self, rates: Rates) -> None:
        for guess in (scope("guess", cookie="foliot=good"), scope("good", cookie="foliot_session=guess")):
            with pytest.raises(TooMany):
                rates.check_peer(guess)

    def test_other_places_are_not_meant(self, rates: Rates) -> None:
        rates.check_peer(scope("new", peer="198.51.100.1"))

    def test_to_send_nothing_is_no_guess(self, rates: Rates) -> None:
        for _ in range(10):
            rates.failed(scope("", peer="198.51.100.1"))
            rates.failed(scope("", peer="198.51.100.1", cookie="theme=dark"))
        rates.check_peer(scope("new", peer="198.51.100.1"))
        rates.check_peer(scope(""))


class TestOverHttp:
    @pytest.fixture
    def limits(self) -> RequestLimits:
        return RequestLimits(rate=0.01, burst=3, auth_failures=2)

    @pytest.fixture
    async def auth(self, runtime: Runtime, settings: Settings) -> AsyncIterator[TokenAuth]:
        auth = TokenAuth(runtime.inside.tasking.database, local=True, local_key=LocalKey.made(settings.home))
        yield auth
        await auth.close()

    @pytest.fixture
    async def app(self, runtime: Runtime, settings: Settings, auth: TokenAuth, limits: RequestLimits) -> Starlette:
        return create_app(runtime, settings=settings, auth=auth, limits=limits)

    @pytest.fixture
    async def tokens(self, runtime: Runtime) -> list[dict[str, str]]:
        store = SqlTokens(runtime.inside.tasking.database)
        made = [await store.create(name, namespaces=["*"], roles=["reader"], now=0.0) for name in ("a", "b")]
        return [{"Authorization": f"Bearer {text}"} for _, text in made]

    async def test_who_asks_too_often_is_told_when_to_come_back(
        self, http: httpx.AsyncClient, tokens: list[dict[str, str]]
    ) -> None:
        first, second = tokens
        answers = [await http.get("/v1/auth/me", headers=first) for _ in range(4)]

        assert [each.status_code for each in answers] == [200, 200, 200, 429]
        assert answers[3].json()["code"] == "too_many_requests"
        assert 1 <= int(answers[3].headers["retry-after"]) <= 101
        assert (await http.get("/v1/auth/me", headers=second)).status_code == 200
        # What somebody says about where they come from changes nothing.
        spoofed = {**first, "X-Forwarded-For": "198.51.100.1", "X-Real-IP": "198.51.100.1"}
        assert (await http.get("/v1/auth/me", headers=spoofed)).status_code == 429

    async def test_who_is_not_asked_for_a_name_is_counted_by_address(self, http: httpx.AsyncClient) -> None:
        statuses = [(await http.get("/v1/version")).status_code for _ in range(4)]

        assert statuses == [200, 200, 200, 429]

    async def test_who_is_not_let_in_is_counted_by_address(
        self, http: httpx.AsyncClient, tokens: list[dict[str, str]]
    ) -> None:
        statuses = [(await http.get("/v1/agents")).status_code for _ in range(4)]

        assert statuses == [401, 401, 401, 429]
        assert (await http.get("/v1/auth/me", headers=tokens[0])).status_code == 200

    async def test_health_is_told_as_often_as_somebody_asks(self, http: httpx.AsyncClient) -> None:
        statuses = {(await http.get(path)).status_code for _ in range(5) for path in ("/livez", "/readyz", "/healthz")}

        assert statuses == {200}

    async def test_whoever_knows_the_local_key_is_not_counted(self, app: Starlette, settings: Settings) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            nonce = "0" * 32
            offer = (await http.get("/v1/auth/local", params={"nonce": nonce})).json()
            about = Introduction("127.0.0.1 8080", nonce, offer["boot"], offer["expires_at"])
            known = {"Authorization": f"Bearer {LocalKey.made(settings.home).bearer(about)}"}

            assert {(await http.get("/v1/auth/me", headers=known)).status_code for _ in range(6)} == {200}

    async def test_guessing_is_stopped_and_those_who_are_known_go_on(
        self, http: httpx.AsyncClient, tokens: list[dict[str, str]]
    ) -> None:
        known, late = tokens
        assert (await http.get("/v1/auth/me", headers=known)).status_code == 200
        guesses = [await http.get("/v1/auth/me", headers={"Authorization": f"Bearer fol_{n}"}) for n in range(3)]

        assert [each.status_code for each in guesses] == [401, 401, 429]
        assert guesses[2].headers["retry-after"]
        assert (await http.get("/v1/auth/me", headers=late)).status_code == 429, "even the right one is not looked at"
        assert (await http.get("/v1/auth/me", headers=known)).status_code == 200
        assert (await http.get("/livez")).status_code == 200


def test_no_limit_is_no_limit() -> None:
    rates = Rates()
    for _ in range(10_000):
        rates.count("a")
        rates.failed(scope("x"))
        rates.check_peer(scope("y"))


def test_too_many_is_a_problem_that_passes() -> None:
    error = TooMany("too many", retry_after=3)

    assert isinstance(error, FoliotError)
    assert error.retryable
