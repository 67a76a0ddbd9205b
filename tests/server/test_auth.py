from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens

Make = Callable[..., Awaitable[dict[str, str]]]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(runtime: Runtime) -> SqlTokens:
    return SqlTokens(runtime.inside.tasking.database)


@pytest.fixture
async def auth(runtime: Runtime, clock: Clock) -> AsyncIterator[TokenAuth]:
    auth = TokenAuth(runtime.inside.tasking.database, local=True, clock=clock)
    yield auth
    await auth.close()


@pytest.fixture
async def app(runtime: Runtime, settings: Settings, auth: TokenAuth) -> Starlette:
    return create_app(runtime, settings=settings, auth=auth)


@pytest.fixture
def make(tokens: SqlTokens, clock: Clock) -> Make:
    async def make(*roles: str, spaces: tuple[str, ...] = ("*",), expires_at: float | None = None) -> dict[str, str]:
        name = "-".join((*roles, *spaces)).replace("*", "all")
        _, text = await tokens.create(name, namespaces=spaces, roles=roles, now=clock.now, expires_at=expires_at)
        return {"Authorization": f"Bearer {text}"}

    return make


async def test_without_any_token_nobody_is_let_in_and_is_told_what_to_do(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/auth/me")

    assert answer.status_code == 401
    assert "foliot tokens create" in answer.json()["hint"]
    assert "local.key" in answer.json()["hint"]


async def test_a_token_says_who_one_is_and_where(http: httpx.AsyncClient, make: Make) -> None:
    known = await make("reader", spaces=("team-a", "team-b"))

    assert (await http.get("/v1/auth/me", headers=known)).json()["roles"] == {
        "team-a": ["reader"],
        "team-b": ["reader"],
    }


async def test_a_revoked_token_is_worthless_at_once_and_the_door_stays_shut(
    http: httpx.AsyncClient, make: Make, tokens: SqlTokens, clock: Clock
) -> None:
    known = await make("reader")
    assert (await http.get("/v1/auth/me", headers=known)).status_code == 200

    await tokens.revoke("reader-all", now=clock.now)

    assert (await http.get("/v1/auth/me", headers=known)).status_code == 401
    assert (await http.get("/v1/auth/me")).status_code == 401


async def test_an_expired_token_is_worthless_although_nothing_was_written(
    http: httpx.AsyncClient, make: Make, clock: Clock
) -> None:
    known = await make("reader", expires_at=clock.now + 10)
    assert (await http.get("/v1/auth/me", headers=known)).status_code == 200

    clock.now += 10

    assert (await http.get("/v1/auth/me", headers=known)).status_code == 401


async def test_a_forged_token_with_a_real_id_is_nobody(http: httpx.AsyncClient, make: Make) -> None:
    known = await make("admin")
    forged = known["Authorization"][:-4] + ("AAAA" if not known["Authorization"].endswith("AAAA") else "BBBB")

    answer = await http.get("/v1/auth/me", headers={"Authorization": forged})

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_two_tokens_in_one_request_are_nobody(http: httpx.AsyncClient, make: Make) -> None:
    known = await make("admin")

    answer = await http.get("/v1/auth/me", headers=[*known.items(), ("Authorization", "Bearer other")])

    assert answer.status_code == 400


async def test_of_a_token_the_store_keeps_only_a_digest_and_its_last_use(
    http: httpx.AsyncClient, make: Make, tokens: SqlTokens, auth: TokenAuth, runtime: Runtime, clock: Clock
) -> None:
    known = await make("reader")
    secret = known["Authorization"].split("_", 2)[2]

    await http.get("/v1/auth/me", headers=known)
    await auth.close()

    rows = await runtime.inside.tasking.database.read("token_list")
    assert secret not in str([dict(row) for row in rows])
    assert [each.used_at for each in await tokens.list()] == [clock.now]


async def test_where_others_can_reach_the_server_nobody_is_let_in_without_a_token(
    runtime: Runtime, settings: Settings
) -> None:
    auth = TokenAuth(runtime.inside.tasking.database, local=False)
    app = create_app(runtime, settings=settings, auth=auth)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        assert (await http.get("/v1/auth/me")).status_code == 401
    assert "nobody is let in" in await auth.describe()


async def test_many_requests_at_once_with_one_token_are_one_caller(http: httpx.AsyncClient, make: Make) -> None:
    known = await make("operator", spaces=("team-a",))

    answers = await asyncio.gather(*(http.get("/v1/auth/me", headers=known) for _ in range(50)))

    assert {answer.json()["username"] for answer in answers} == {"operator-team-a"}
