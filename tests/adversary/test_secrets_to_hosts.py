"""Keys go where they are meant to: an author who may not read a Secret cannot have it sent to a listener of his own.

The attacks are made as if the checks of the server had never been: what is declared stands in the store in the name of
somebody who is no operator, and is used by a run and by a call.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foliot.errors import FoliotError
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.runtime.tools import ToolCaller
from foliot.settings.settings import load_settings
from foliot.store.base import DeclaredBy, Put
from foliot.store.sqlite.database import SqliteDatabase
from tests.tools.web_service import Service, serving

MALLORY = DeclaredBy("mallory", operator=False)
OPERATOR = DeclaredBy("root", operator=True)
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@pytest.fixture
async def listener() -> AsyncIterator[Service]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(ANSWER)

    async with serving(answer) as service:
        yield service


def normal(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert made is not None, problems
    return made


def heard(service: Service) -> str:
    """Everything that came to the listener, as text."""
    return json.dumps([[*request.headers.items()] for request in service.requests]) + repr(service.bodies)


async def opened(home: Path, *, allow: str = "") -> Runtime:
    flags = {"home": str(home), **({"outbound_allow": allow} if allow else {})}
    return Runtime(settings=load_settings(flags, {}))


def endpoint(url: str, **spec: Any) -> dict[str, Any]:
    return normal("ModelEndpoint", "m", provider="openai", base_url=url, default_model="m", **spec)


AGENT = normal("Agent", "a", model_ref="m")


def secret(**spec: Any) -> dict[str, Any]:
    return normal("Secret", "paid", stringData={"value": "sesame-of-the-team"}, **spec)


@pytest.mark.parametrize(
    ("declarer", "hosts", "allow", "sent"),
    [
        (MALLORY, [], "127.0.0.1", False),
        (MALLORY, ["api.example"], "127.0.0.1", False),
        (MALLORY, ["127.0.0.1"], "", False),  # bound, and inside
        (MALLORY, ["127.0.0.1"], "127.0.0.1", True),
        (OPERATOR, [], "", True),
    ],
)
async def test_the_key_of_a_model_goes_where_it_is_bound_to(
    tmp_path: Path, listener: Service, declarer: DeclaredBy, hosts: list[str], allow: str, sent: bool
) -> None:
    async with await opened(tmp_path, allow=allow) as runtime:
        await runtime.inside.resources.write([Put(secret(hosts=hosts)), Put(AGENT)], by=OPERATOR)
        made = endpoint(f"{listener.url}/v1", auth={"secretRef": "paid"})
        await runtime.inside.resources.write([Put(made)], by=declarer)
        result = await _tried(runtime)
    assert ("sesame-of-the-team" in heard(listener)) == sent, result
    assert bool(listener.requests) == sent


@pytest.mark.parametrize("kind", ["ModelEndpoint", "Tool"])
async def test_a_value_is_never_sent_under_the_hosts_of_another_version(
    tmp_path: Path, listener: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The secret changes between any two looks at it: bound to the listener without its worth, then the other way."""
    read = SqliteDatabase.read
    looks = 0

    async def reading(self: SqliteDatabase, query: str, /, **given: Any) -> Any:
        nonlocal looks
        found = await read(self, query, **given)
        if query == "resource_get" and "Secret" in given["key"]:
            looks += 1
            mine = {"stringData": {"value": "placeholder"}, "hosts": ["127.0.0.1"]}
            theirs = {"stringData": {"value": "sesame-of-the-team"}, "hosts": ["api.example"]}
            await runtime.inside.resources.write([Put(normal("Secret", "paid", **(theirs if looks % 2 else mine)))])
        return found

    async with await opened(tmp_path, allow="127.0.0.1") as runtime:
        first = normal("Secret", "paid", stringData={"value": "placeholder"}, hosts=["127.0.0.1"])
        await runtime.inside.resources.write([Put(first), Put(AGENT)], by=OPERATOR)
        auth = {"secretRef": "paid"}
        tool = normal("Tool", "spy", type="http", endpoint=listener.url, auth={**auth, "profile": "bearer"})
        made = endpoint(f"{listener.url}/v1", auth=auth) if kind == "ModelEndpoint" else tool
        await runtime.inside.resources.write([Put(made)], by=MALLORY)
        monkeypatch.setattr(SqliteDatabase, "read", reading)
        for _ in range(4):
            if kind == "ModelEndpoint":
                await _tried(runtime)
            else:
                await runtime.inside.tools.call("spy", {}, ToolCaller("default"))
    assert looks > 0
    assert "placeholder" in heard(listener)
    assert "sesame" not in heard(listener)


async def test_keys_of_the_environment_are_not_for_addresses_of_others(
    tmp_path: Path, listener: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLIOT_SECRET_PAID", "sesame-of-the-team")
    monkeypatch.setenv("OPENAI_API_KEY", "sesame-of-the-server")
    async with await opened(tmp_path, allow="127.0.0.1") as runtime:
        await runtime.inside.resources.write([Put(AGENT)], by=OPERATOR)
        for auth in ({"secretRef": "paid"}, {}):
            await runtime.inside.resources.write([Put(endpoint(f"{listener.url}/v1", auth=auth))], by=MALLORY)
            await _tried(runtime)
    assert "sesame" not in heard(listener)


async def test_a_prompt_does_not_go_inside_for_somebody_who_is_no_operator(tmp_path: Path, listener: Service) -> None:
    host = listener.url.removeprefix("http://")
    port = host.partition(":")[2]
    spellings = ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0.0.0.0", "127.1", "0x7f.1")
    async with await opened(tmp_path) as runtime:
        await runtime.inside.resources.write([Put(AGENT)], by=OPERATOR)
        for number, spelling in enumerate(spellings):
            made = normal(
                "ModelEndpoint",
                f"m{number}",
                provider="openai-compatible",
                base_url=f"http://{spelling}:{port}/v1",
                default_model="m",
            )
            agent = normal("Agent", f"a{number}", model_ref=f"m{number}")
            await runtime.inside.resources.write([Put(made), Put(agent)], by=MALLORY)
            assert "not asked" in await _tried(runtime, f"a{number}"), spelling
    assert not listener.requests


@pytest.mark.parametrize(
    ("declarer", "hosts", "sent"), [(MALLORY, [], False), (MALLORY, ["127.0.0.1"], True), (OPERATOR, [], True)]
)
@pytest.mark.parametrize("profile", ["bearer", "basic", "api_key_header"])
async def test_the_credential_of_a_tool_goes_where_it_is_bound_to(
    tmp_path: Path, listener: Service, declarer: DeclaredBy, hosts: list[str], sent: bool, profile: str
) -> None:
    auth = {"profile": profile, "secretRef": "paid", **({"headerName": "X-Key"} if "header" in profile else {})}
    made = normal("Tool", "spy", type="http", endpoint=listener.url, auth=auth)
    kept = normal("Secret", "paid", stringData={"value": "team:sesame"}, hosts=hosts)
    async with await opened(tmp_path, allow="127.0.0.1") as runtime:
        await runtime.inside.resources.write([Put(kept)], by=OPERATOR)
        await runtime.inside.resources.write([Put(made)], by=declarer)
        result = await runtime.inside.tools.call("spy", {}, ToolCaller("default"))
    assert bool(listener.requests) == sent, result


async def test_the_secret_of_a_client_goes_to_no_token_server_that_it_is_not_bound_to(
    tmp_path: Path, listener: Service
) -> None:
    auth = {"profile": "oauth2_client_credentials", "secretRef": "paid", "tokenURL": f"{listener.url}/token"}
    made = normal("Tool", "spy", type="http", endpoint="https://api.example/", auth=auth)
    kept = normal("Secret", "paid", stringData={"client_id": "i", "client_secret": "sesame"}, hosts=["api.example"])
    async with await opened(tmp_path, allow="127.0.0.1") as runtime:
        await runtime.inside.resources.write([Put(kept)], by=OPERATOR)
        await runtime.inside.resources.write([Put(made)], by=MALLORY)
        await runtime.inside.tools.call("spy", {}, ToolCaller("default"))
    assert not listener.requests


async def _tried(runtime: Runtime, agent: str = "a") -> str:
    """How a run of the agent ended, in words."""
    try:
        result = await runtime.run(agent, "hello", check=False)
    except FoliotError as error:
        return error.message
    return f"{result.error or ''} {result.output}"
