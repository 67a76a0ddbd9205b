"""Tokens by client credentials, against a real token server that counts its exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from foliot.tools.base import ToolSecretMissing
from foliot.tools.outbound.guard import Outbound
from foliot.tools.secrets.auth import TokenCache
from foliot.tools.secrets.masking import MASK, Masker
from tests.tools.web_service import Service, serving, way_out


class TokenServer:
    """Gives out `token-1`, `token-2` …; `grant` is what else it says, `status` how."""

    def __init__(self) -> None:
        self.grant: dict[str, Any] = {"expires_in": 3600, "token_type": "Bearer"}
        self.status = 200
        self.forms: list[dict[str, list[str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: web.Request) -> web.Response:
        form = parse_qs((await request.read()).decode())
        self.forms.append(form)
        number = len(self.forms)
        await self.gate.wait()
        return web.json_response({"access_token": f"token-{number}-abc", **self.grant}, status=self.status)


@asynccontextmanager
async def tokens(
    server: TokenServer, now: list[float] | None = None, **options: Any
) -> AsyncGenerator[tuple[TokenCache, Service, Masker]]:
    async with serving(server) as service, way_out() as out:
        masker = Masker()
        yield TokenCache(out.client, masker, clock=lambda: now[0] if now else 0.0, **options), service, masker


async def test_an_exchange_sends_the_form_and_the_token_is_kept() -> None:
    server = TokenServer()
    async with tokens(server) as (cache, service, masker):
        first = await cache.token(service.url, "me", "s3cret&=", ["b", "a"])
        again = await cache.token(service.url, "me", "s3cret&=", ["a", "b"])

        assert (first, again) == ("token-1-abc", "token-1-abc")
        assert server.forms == [
            {"grant_type": ["client_credentials"], "client_id": ["me"], "client_secret": ["s3cret&="], "scope": ["a b"]}
        ]
        assert service.requests[0].content_type == "application/x-www-form-urlencoded"
        assert masker.mask(first) == MASK


@pytest.mark.parametrize(
    ("expires_in", "good_at", "over_at"),
    [
        (3600, 3569.0, 3571.0),
        (31, 0.9, 1.1),
        (30, 29.0, 31.0),
        (1, 0.9, 1.1),
        (0, 3569.0, 3571.0),
        (-5, 3569.0, 3571.0),
        ("60", 29.0, 31.0),
        (None, 3569.0, 3571.0),
        ("soon", 3569.0, 3571.0),
        (0.5, 0.9, 1.1),
    ],
)
async def test_a_token_is_used_until_shortly_before_it_ends(expires_in: Any, good_at: float, over_at: float) -> None:
    server, now = TokenServer(), [0.0]
    server.grant = {"expires_in": expires_in}
    async with tokens(server, now) as (cache, service, _):
        await cache.token(service.url, "me", "s")
        now[0] = good_at
        await cache.token(service.url, "me", "s")
        assert len(server.forms) == 1
        now[0] = over_at
        assert await cache.token(service.url, "me", "s") == "token-2-abc"


async def test_callers_at_the_same_time_share_one_exchange() -> None:
    server = TokenServer()
    server.gate.clear()
    async with tokens(server) as (cache, service, _):
        callers = [asyncio.create_task(cache.token(service.url, "me", "s")) for _ in range(20)]
        while not server.forms:
            await asyncio.sleep(0)
        callers[0].cancel()  # who gives up does not take the token away from the others
        server.gate.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == ["token-1-abc"] * 19
        assert len(server.forms) == 1


async def test_clients_scopes_and_secrets_do_not_share_tokens() -> None:
    server = TokenServer()
    async with tokens(server) as (cache, service, _):
        asked = [("me", "s", ()), ("you", "s", ()), ("me", "s", ("a",)), ("me", "other", ())]
        found = {await cache.token(service.url, *one) for one in asked}
        assert len(found) == 4


async def test_an_evicted_token_is_fetched_anew_unless_it_was_replaced_already() -> None:
    server = TokenServer()
    async with tokens(server) as (cache, service, _):
        first = await cache.token(service.url, "me", "s")
        cache.evict(service.url, "me", token=first)
        second = await cache.token(service.url, "me", "s")
        cache.evict(service.url, "me", token=first)
        assert await cache.token(service.url, "me", "s") == second == "token-2-abc"
        cache.evict(service.url, "me", ["other"])
        assert await cache.token(service.url, "me", "s") == second
        cache.evict(service.url, "me")
        assert await cache.token(service.url, "me", "s") == "token-3-abc"


@pytest.mark.parametrize(
    ("status", "grant", "words"),
    [
        (401, {"error": "invalid_client"}, "HTTP 401"),
        (201, {}, "HTTP 201"),
        (500, {}, "HTTP 500"),
        (200, {"access_token": " "}, "no access_token"),
        (200, {"access_token": 5}, "not the JSON of a token"),
        (200, {"token_type": "mac"}, "another type than bearer"),
    ],
)
async def test_a_failed_exchange_may_be_tried_again(status: int, grant: dict[str, Any], words: str) -> None:
    server = TokenServer()
    server.status, server.grant = status, grant
    async with tokens(server) as (cache, service, _):
        with pytest.raises(ToolSecretMissing, match=words) as caught:
            await cache.token(f"{service.url}/token?key=x", "me", "hush-hush")
        error = caught.value
        assert (error.code, error.retryable) == ("secret_resolution_failed", True)
        assert error.details == {"token_url": f"{service.url}/token"}
        assert "hush-hush" not in error.message
        server.status, server.grant = 200, {}
        assert await cache.token(f"{service.url}/token?key=x", "me", "hush-hush") == "token-2-abc"


async def test_an_answer_that_repeats_the_secret_does_not_show_it() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=400, text=f"bad request: {(await request.read()).decode()}")

    async with serving(answer) as service, way_out() as out:
        masker = Masker()
        masker.add("hush hush")
        with pytest.raises(ToolSecretMissing) as caught:
            await TokenCache(out.client, masker).token(service.url, "me", "hush hush")
        assert "hush" not in caught.value.message


async def test_a_redirect_is_not_followed_with_the_secret() -> None:
    async def answer(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with serving(answer) as service, way_out() as out:
        with pytest.raises(ToolSecretMissing, match="redirects"):
            await TokenCache(out.client, Masker()).token(service.url, "me", "s")
        assert len(service.requests) == 1


async def test_a_server_that_hangs_is_given_up() -> None:
    server = TokenServer()
    server.gate.clear()
    async with tokens(server, timeout=0.05) as (cache, service, _):
        with pytest.raises(ToolSecretMissing, match=r"no answer within 0\.05 s"):
            await cache.token(service.url, "me", "s")


async def test_token_servers_are_guarded_too() -> None:
    server = TokenServer()
    async with serving(server) as service, way_out(policy=Outbound()) as out:
        with pytest.raises(ToolSecretMissing, match="loopback") as caught:
            await TokenCache(out.client, Masker()).token(service.url, "me", "s")
        assert (caught.value.retryable, server.forms) == (False, [])


async def test_a_flood_is_not_read() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * (1024 * 1024 + 1))

    async with serving(answer) as service, way_out() as out:
        with pytest.raises(ToolSecretMissing, match="more than 1,048,576 bytes"):
            await TokenCache(out.client, Masker()).token(service.url, "me", "s")
