"""Somebody without a right tries to get in: a stranger, a proxy, another user of the machine, a page in a browser, a
program that listens where the server was, an account that was withdrawn, an identity provider's odd tokens."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from foliot import Client
from foliot.client.http import Http, Server
from foliot.client.local_access import LocalAccess
from foliot.errors import FoliotError, UsageError
from foliot.runtime import Runtime
from foliot.server.access.auth import TokenAuth
from foliot.server.access.permissions import RULES
from foliot.server.app import create_app
from foliot.server.edge.serving import HttpServer, Listen
from foliot.settings import Settings, load_settings
from foliot.store.base import Filter
from foliot.store.local_key import FILE, LocalKey
from foliot.testing.served import local_headers

SEED = 20261116


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path / "home")}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        yield runtime


@pytest.fixture
async def app(runtime: Runtime, settings: Settings) -> AsyncIterator[FastAPI]:
    """The application as `foliot up` makes it."""
    key = LocalKey.made(settings.home)
    auth = TokenAuth(runtime.tasking.database, local=True, local_key=key, settings=settings)
    yield create_app(runtime, settings=settings, auth=auth)
    await auth.close()


@pytest.fixture
async def url(app: FastAPI) -> AsyncIterator[str]:
    """The same behind a real socket on loopback."""
    async with HttpServer(app, Listen("127.0.0.1", 0), grace=5) as server:
        yield server.url


# --- a stranger, and a proxy that adds nothing -------------------------------------------------------------------


def _filled(path: str) -> str:
    for hole, value in (("{kind}", "agents"), ("{model:path}", "m"), ("{request_id:path}", "r"), ("{number}", "1")):
        path = path.replace(hole, value)
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


PRIVATE = sorted((method, path) for (method, path), rule in RULES.items() if rule.where != "public")


async def test_no_route_that_is_not_public_answers_somebody_without_a_credential(app: FastAPI) -> None:
    """Through a proxy without X-Forwarded-For each request looks like this: from loopback, with any Host."""
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        for method, path in PRIVATE:
            for headers in ({}, {"Host": "foliot.example"}, {"Host": "localhost"}):
                answer = await http.request(method, _filled(path), headers=headers)
                assert answer.status_code == 401, (method, path, answer.text)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example", "Origin": "http://rebound.example"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "::1"},
        {"Authorization": "Basic cm9vdDo="},
        {"Authorization": "Bearer fok_"},
        {"Authorization": f"Bearer fok_{'0' * 32}_{'0' * 32}_99999999999_{'0' * 64}"},
        {"X-Forwarded-User": "root"},
        {"X-Remote-User": "root"},
    ],
)
async def test_where_a_request_says_it_comes_from_lets_nobody_in(app: FastAPI, headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        answer = await http.get("/v1/agents", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


# --- whoever owns the home ---------------------------------------------------------------------------------------


async def test_the_client_of_the_same_home_is_let_in_without_a_token(url: str, settings: Settings) -> None:
    async with Client(url, home=settings.home) as client:
        assert (await client.list(Filter("Agent"))).items == []
    async with Client(url.replace("127.0.0.1", "localhost"), home=settings.home) as client:
        assert (await client.list(Filter("Agent"))).items == []


async def test_a_client_of_another_home_is_nobody(url: str, tmp_path: Path) -> None:
    LocalKey.made(tmp_path / "other")
    for home in (tmp_path / "other", tmp_path / "none"):
        async with Client(url, home=home) as client:
            with pytest.raises(FoliotError, match="who are you"):
                await client.list(Filter("Agent"))


async def test_the_client_is_known_again_after_the_server_was_started_anew(
    runtime: Runtime, settings: Settings
) -> None:
    key, port, names = LocalKey.made(settings.home), 0, []
    client: Http | None = None
    for _ in range(2):
        auth = TokenAuth(runtime.tasking.database, local=True, local_key=key, settings=settings)
        listen = Listen("127.0.0.1", port)
        async with HttpServer(create_app(runtime, settings=settings, auth=auth), listen, grace=5) as server:
            port = int(server.url.rpartition(":")[2])
            client = client or Http(Server(server.url, home=settings.home))
            names.append((await client.ask("GET", "/v1/auth/me")).json()["username"])
        await auth.close()
    assert client is not None
    await client.close()

    assert names[0] == names[1]
    assert names[0].startswith("local:")


def test_the_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Whatever the umask is, and however many servers start at once."""
    from concurrent.futures import ThreadPoolExecutor

    home, before = tmp_path / "home", os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = [*pool.map(lambda _: LocalKey.made(home), range(16))]
    finally:
        os.umask(before)

    assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    text = (home / FILE).read_text().split()[-1]
    assert text not in repr(made)
    assert len({each._key for each in made}) == 1  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o666, 0o620])
def test_a_key_that_others_may_touch_is_used_by_neither_side(tmp_path: Path, mode: int) -> None:
    LocalKey.made(tmp_path)
    (tmp_path / FILE).chmod(mode)

    for use in (LocalKey.made, LocalKey.of):
        with pytest.raises(UsageError, match="open to other users"):
            use(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to somebody else")
def test_a_key_that_somebody_else_has_put_there_is_used_by_neither_side(tmp_path: Path) -> None:
    LocalKey.made(tmp_path)
    os.chown(tmp_path / FILE, 65534, 65534)

    for use in (LocalKey.made, LocalKey.of):
        with pytest.raises(UsageError, match="belongs to another user"):
            use(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff" * 32, b"0" * 63])
def test_a_key_file_that_is_no_key_is_used_by_neither_side(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    (tmp_path / FILE).chmod(0o600)

    for use in (LocalKey.made, LocalKey.of):
        with pytest.raises(UsageError):
            use(tmp_path)


# --- somebody listens where the server was expected --------------------------------------------------------------

Answer = Callable[[str], Awaitable[bytes] | bytes]


@asynccontextmanager
async def listener(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A program on loopback that answers each request head with `answer`; what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heard.append(head)
                made = answer(head.split()[1].decode())
                body = made if isinstance(made, bytes) else await made
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ")
                writer.write(str(len(body)).encode() + b"\r\n\r\n" + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


def _said(heard: list[bytes]) -> bytes:
    return b"".join(heard).lower()


async def test_a_listener_in_place_of_the_server_is_sent_nothing_that_opens_anything(settings: Settings) -> None:
    chance = random.Random(SEED)
    LocalKey.made(settings.home)
    secret = (settings.home / FILE).read_text().split()[-1].encode()

    def lies(path: str) -> bytes:
        kinds: list[Any] = [
            {"boot": "0" * 32, "expires_at": 99999999999, "proof": chance.randbytes(32).hex()},
            {"boot": "0" * 32, "expires_at": 99999999999, "proof": ""},
            {"boot": 1, "expires_at": "x"},
            [],
            "é" * 5000,
        ]
        import json

        return json.dumps(chance.choice(kinds)).encode() if "/auth/local" in path else b'{"items": []}'

    for _ in range(12):
        async with listener(lies) as (url, heard), Http(Server(url, home=settings.home)) as http:
            await http.ask("GET", "/v1/agents")

            assert b"authorization" not in _said(heard)
            assert secret.lower() not in _said(heard)


async def test_a_listener_that_passes_the_question_on_to_the_real_server_gains_nothing(
    url: str, settings: Settings
) -> None:
    async with httpx.AsyncClient(base_url=url) as real:

        async def relay(path: str) -> bytes:
            return (await real.get(path)).content

        async with listener(relay) as (place, heard), Http(Server(place, home=settings.home)) as http:
            answered = await http.ask("GET", "/v1/agents")

    assert answered.json()["code"] == "unauthenticated"
    assert b"authorization" not in _said(heard)


async def test_what_one_server_accepts_another_does_not(url: str, runtime: Runtime, settings: Settings) -> None:
    """Not on another port, not after a restart: it is about one place and one process."""
    known = await local_headers(url, settings.home)
    auth = TokenAuth(runtime.tasking.database, local=True, local_key=LocalKey.made(settings.home), settings=settings)
    other = create_app(runtime, settings=settings, auth=auth)
    transport = httpx.ASGITransport(other)
    async with httpx.AsyncClient() as http, httpx.AsyncClient(transport=transport, base_url=url) as restarted:
        assert (await http.get(f"{url}/v1/agents", headers=known)).status_code == 200
        assert (await restarted.get("/v1/agents", headers=known)).status_code == 401
        async with HttpServer(other, Listen("127.0.0.1", 0), grace=5) as second:
            assert (await http.get(f"{second.url}/v1/agents", headers=known)).status_code == 401
    await auth.close()


async def test_a_proof_changed_anywhere_is_worth_nothing(url: str, settings: Settings) -> None:
    chance = random.Random(SEED)
    known = (await local_headers(url, settings.home))["Authorization"]
    async with httpx.AsyncClient(base_url=url) as http:
        for _ in range(20):  # more guesses from one address are refused unread
            at = chance.randrange(len("Bearer fok_"), len(known))
            other = chance.choice([each for each in "0123456789abcdef_" if each != known[at]])
            forged = known[:at] + other + known[at + 1 :]
            assert (await http.get("/v1/agents", headers={"Authorization": forged})).status_code == 401, forged


@pytest.mark.parametrize(
    "address",
    [
        "http://foliot.example",
        "https://10.0.0.7:8080",
        "http://localhost.evil.example:8080",
        "http://127.0.0.1.evil.example",
        "http://0.0.0.0:8080",
    ],
)
def test_nothing_is_proved_to_a_server_elsewhere(settings: Settings, address: str) -> None:
    assert LocalAccess.to(address, settings.home) is None
