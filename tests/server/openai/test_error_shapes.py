"""Whatever goes wrong at an address of OpenAI's API, the official client reads the error as OpenAI's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2 as httpx
import openai
import pytest
from starlette.applications import Starlette

from foliot.errors import Unavailable
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.envelope import RequestLimits
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens

Serve = Callable[[Starlette], AbstractAsyncContextManager[str]]
CHAT = "/v1/chat/completions"
ASKED = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def site(runtime: Runtime, settings: Settings, serve: Serve) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A server that takes small bodies; tokens by role."""
    database = runtime.inside.tasking.database
    auth, tokens = TokenAuth(database, local=False), SqlTokens(database)
    limits = RequestLimits(body=2_000, media_body=3_000)
    app = create_app(runtime, settings=settings, auth=auth, limits=limits)
    given: dict[str, str] = {}
    for role in ("reader", "operator"):
        _, given[role] = await tokens.create(role, namespaces=["default"], roles=[role], now=time.time())
    async with serve(app) as url:
        yield url, given
    await auth.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "role", "status", "code"),
    [
        ("POST", CHAT, ASKED, "", 401, "unauthenticated"),
        ("POST", CHAT, ASKED, "reader", 403, "denied"),
        ("POST", CHAT, {**ASKED, "model": "nobody"}, "operator", 404, "model_not_found"),
        ("GET", "/v1/responses/resp_x", None, "operator", 404, "response_not_found"),
        ("POST", "/v1/embeddings", {}, "operator", 404, "unknown_url"),
        ("DELETE", "/v1/chat/completions/x", None, "operator", 404, "unknown_url"),
        ("PUT", CHAT, ASKED, "operator", 405, "method_not_allowed"),
        ("GET", CHAT, None, "operator", 404, "unknown_url"),
        ("GET", f"{CHAT}/chatcmpl-x", None, "operator", 404, "unknown_url"),
        ("POST", "/v1/responses/compact", {}, "operator", 404, "unknown_url"),
        ("POST", "/v1/responses/input_tokens", {"model": "nobody", "input": "x"}, "operator", 404, "model_not_found"),
        ("POST", "/v1/responses/input_tokens", {"model": "echo", "input": "x"}, "reader", 403, "denied"),
        ("POST", CHAT, {**ASKED, "user": "x" * 4_000}, "operator", 413, "too_large"),
        ("POST", "/v1/responses", {"model": "echo", "input": "x" * 4_000}, "operator", 413, "too_large"),
        ("POST", f"{CHAT}?x=%zz", ASKED, "operator", 400, "malformed"),
        ("GET", "/v1/responses/resp_x/input_items?limit=x", None, "operator", 400, "invalid_request"),
    ],
)
async def test_errors_have_the_shape_of_openai(
    site: Any, method: str, path: str, body: Any, role: str, status: int, code: str
) -> None:
    url, tokens = site
    headers = {"Authorization": f"Bearer {tokens[role]}"} if role else {}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        answer = await http.request(method, path, json=body)

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code


async def test_other_addresses_answer_with_problems(site: Any) -> None:
    url, tokens = site
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {tokens['operator']}"}) as http:
        missing, large = await http.get("/v1/agents/x"), await http.post("/v1/bundles", json={"x": "x" * 3_000})

    assert {each.headers["content-type"] for each in (missing, large)} == {"application/problem+json"}


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [(ZeroDivisionError("at /root/secret"), 500, "internal"), (Unavailable("away at pg://h", place="pg://h"), 503, "")],
)
async def test_what_breaks_inside_is_told_without_its_place(
    site: Any, monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int, code: str
) -> None:
    url, tokens = site

    async def broken(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("foliot.server.routes.openai.begin", broken)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=tokens["operator"], max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "x"}])

    assert (failed.value.status_code, failed.value.type) == (status, "server_error")
    assert failed.value.code == code or not code
    assert "secret" not in str(failed.value)
    assert "pg://" not in str(failed.value)


async def test_a_server_without_tokens_says_how_to_get_one(runtime: Runtime, settings: Settings, serve: Serve) -> None:
    told: list[str] = []
    for local in (True, False):
        auth = TokenAuth(runtime.inside.tasking.database, local=local)
        async with (
            serve(create_app(runtime, settings=settings, auth=auth)) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        ):
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
            told.append(str(refused.value))
        await auth.close()

    assert "`foliot tokens create NAME --role operator`" in told[0]
    assert "no tokens" not in told[1], "others need not know"
