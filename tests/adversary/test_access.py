"""Somebody without a right tries to get in: a stranger, a proxy, another user of the machine, a page in a browser, a
program that listens where the server was, an account that was withdrawn, an identity provider's odd tokens."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot import Client
from foliot.client.http import Http, Server
from foliot.client.local_access import LocalAccess
from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, UsageError
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.oidc import Reading
from foliot.server.auth.passwords import Passwords
from foliot.server.http.serve import HttpServer, Listen
from foliot.server.route_table import ROUTES
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.access.users import SqlUsers
from foliot.store.base import Filter
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.secrets.local_key import FILE, LocalKey
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
async def app(runtime: Runtime, settings: Settings) -> AsyncIterator[Starlette]:
    """The application as `foliot up` makes it."""
    key = LocalKey.made(settings.home)
    auth = TokenAuth(runtime.inside.tasking.database, local=True, local_key=key, settings=settings)
    yield create_app(runtime, settings=settings, auth=auth)
    await auth.close()


@pytest.fixture
async def url(app: Starlette) -> AsyncIterator[str]:
    """The same behind a real socket on loopback."""
    async with HttpServer(app, Listen("127.0.0.1", 0), grace=5) as server:
        yield server.url


# --- a stranger, and a proxy that adds nothing -------------------------------------------------------------------


def _filled(path: str) -> str:
    for hole, value in (("{kind}", "agents"), ("{model:path}", "m"), ("{request_id:path}", "r"), ("{number}", "1")):
        path = path.replace(hole, value)
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


PRIVATE = sorted((method, path) for (method, path), row in ROUTES.items() if row.rule.where != "public")


async def test_no_route_that_is_not_public_answers_somebody_without_a_credential(app: Starlette) -> None:
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
async def test_where_a_request_says_it_comes_from_lets_nobody_in(app: Starlette, headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        answer = await http.get("/v1/agents", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


# --- whoever owns the home ---------------------------------------------------------------------------------------


async def test_the_client_of_the_same_home_is_let_in_without_a_token(url: str, settings: Settings) -> None:
    async with Client(url, home=settings.home) as client:
        assert (await client.resources.list(Filter("Agent"))).items == []
    async with Client(url.replace("127.0.0.1", "localhost"), home=settings.home) as client:
        assert (await client.resources.list(Filter("Agent"))).items == []


async def test_a_client_of_another_home_is_nobody(url: str, tmp_path: Path) -> None:
    LocalKey.made(tmp_path / "other")
    for home in (tmp_path / "other", tmp_path / "none"):
        async with Client(url, home=home) as client:
            with pytest.raises(FoliotError, match="no credentials"):
                await client.resources.list(Filter("Agent"))


async def test_the_client_is_known_again_after_the_server_was_started_anew(
    runtime: Runtime, settings: Settings
) -> None:
    key, port, names = LocalKey.made(settings.home), 0, []
    client: Http | None = None
    for _ in range(2):
        auth = TokenAuth(runtime.inside.tasking.database, local=True, local_key=key, settings=settings)
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
    auth = TokenAuth(
        runtime.inside.tasking.database, local=True, local_key=LocalKey.made(settings.home), settings=settings
    )
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


# --- accounts that were withdrawn, and names that mean two people --------------------------------------------------

PASSWORD = "a few words in a row"


class People:
    """Accounts and tokens over HTTP, as an admin and as each of them."""

    def __init__(self, app: Starlette, runtime: Runtime) -> None:
        self.runtime = runtime
        self._app = app

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://localhost", headers=headers)

    async def root(self) -> httpx.AsyncClient:
        made = SqlTokens(self.runtime.inside.tasking.database).create(
            "root", namespaces=["*"], roles=["admin"], now=1.0
        )
        return self.client((await made)[1])

    async def account(self, admin: httpx.AsyncClient, name: str, **roles: list[str]) -> httpx.AsyncClient:
        """A browser that is logged in as a new account."""
        granted = {"*" if space == "everywhere" else space.replace("_", "-"): held for space, held in roles.items()}
        body = {"username": name, "password": PASSWORD, "roles": granted}
        made = await admin.post("/v1/users", json=body)
        assert made.status_code == 201, made.text
        browser = self.client()
        login = await browser.post("/v1/auth/login", json={"username": name, "password": PASSWORD})
        assert login.status_code == 200, login.text
        browser.headers["X-CSRF-Token"] = login.json()["csrf_token"]
        return browser

    async def token(self, maker: httpx.AsyncClient, name: str, *roles: str, spaces: tuple[str, ...] = ("*",)) -> str:
        made = await maker.post("/v1/tokens", json={"name": name, "roles": [*roles], "namespaces": [*spaces]})
        assert made.status_code == 201, made.text
        return made.json()["token"]


@pytest.fixture
def people(runtime: Runtime, settings: Settings) -> People:
    auth = TokenAuth(
        runtime.inside.tasking.database, local=True, settings=settings, passwords=Passwords(rounds=1, memory=8, lanes=1)
    )
    return People(create_app(runtime, settings=settings, auth=auth), runtime)


async def test_the_tokens_of_an_account_end_with_it_and_so_do_those_made_with_them(people: People) -> None:
    root = await people.root()
    ada = await people.account(root, "ada", everywhere=["admin"])
    first = await people.token(ada, "first", "admin")
    second = await people.token(people.client(first), "second", "reader")
    for token in (first, second):
        assert (await people.client(token).get("/v1/agents")).status_code == 200

    assert (await root.post("/v1/users/ada/disable")).status_code == 200

    for token in (first, second):
        assert (await people.client(token).get("/v1/agents")).status_code == 401
    assert (await ada.get("/v1/agents")).status_code == 401
    listed = {each["name"]: each for each in (await root.get("/v1/tokens")).json()["items"]}
    assert {name: each.get("owner") for name, each in listed.items()} == {"root": None, "first": "ada", "second": "ada"}


async def test_a_token_can_do_no_more_than_the_account_that_made_it_now_may(people: People) -> None:
    root = await people.root()
    ada = await people.account(root, "ada", everywhere=["admin"])
    token = people.client(await people.token(ada, "mine", "admin"))
    assert (await token.get("/v1/users")).status_code == 200

    changed = await root.put("/v1/users/ada/roles", json={"roles": {"team-a": ["operator"]}})

    assert changed.status_code == 200
    assert (await token.get("/v1/auth/me")).json()["roles"] == {"team-a": ["operator"]}
    assert (await token.get("/v1/users")).status_code in (403, 404)
    assert (await token.get("/v1/agents/x", params={"namespace": "team-b"})).status_code == 404


async def test_a_role_that_no_other_includes_is_given_only_by_its_holders_and_the_operator(people: People) -> None:
    root = await people.root()
    ada = await people.account(root, "ada", everywhere=["admin"])
    bob = await people.account(root, "bob", team_a=["admin", "impersonator"])
    local = people.client(await people.token(root, "local", "admin", spaces=("team-a",)))
    wanted = {"roles": ["impersonator", "operator"], "namespaces": ["team-a"]}

    for admin in (ada, local):
        refused = await admin.post("/v1/tokens", json={"name": "proxy", **wanted})
        assert refused.status_code == 403, refused.text
        assert "impersonator" in refused.text
    assert (await root.post("/v1/tokens", json={"name": "by-root", **wanted})).status_code == 201
    assert (await bob.post("/v1/tokens", json={"name": "by-bob", **wanted})).status_code == 201


async def test_a_session_does_not_become_its_account_without_the_password(people: People) -> None:
    root = await people.root()
    ada = await people.account(root, "ada", everywhere=["admin"])
    token = people.client(await people.token(ada, "helper", "admin"))
    for thief in (ada, token):
        for body in ({"username": "ada", "new_password": "somebody else's words"}, {"new_password": "other words 123"}):
            answer = await thief.post("/v1/auth/admin/reset-password", json=body)
            assert answer.status_code == 409, answer.text
        for act in ("disable", "enable"):
            assert (await thief.post(f"/v1/users/ada/{act}")).status_code == 409
        assert (await thief.put("/v1/users/ada/roles", json={"roles": {"*": ["admin"]}})).status_code == 409
    wrong = {"current_password": "not the old one", "new_password": "somebody else's words"}
    assert (await ada.post("/v1/auth/change-password", json=wrong)).status_code == 401
    assert (await people.client().post("/v1/auth/login", json={"username": "ada", "password": PASSWORD})).is_success


async def test_a_name_is_of_one_sort_of_caller(people: People) -> None:
    root = await people.root()
    await people.account(root, "ada", everywhere=["admin"])
    await people.token(root, "ci", "reader")

    for name in ("ada", "Ada", "ADA"):
        assert (await root.post("/v1/tokens", json={"name": name})).status_code == 409, name
    for name in ("ci", "CI", "root"):
        body = {"username": name, "password": PASSWORD, "roles": {"*": ["reader"]}}
        assert (await root.post("/v1/users", json=body)).status_code == 409, name
    for name in ("oidc:ada", "local:root", "token:ada", "webhook:x", "ada/ci", "", " ada"):
        assert (await root.post("/v1/tokens", json={"name": name})).status_code == 422, name
        with pytest.raises(InvalidInput):
            await SqlTokens(people.runtime.inside.tasking.database).create(
                name, namespaces=["*"], roles=["admin"], now=1.0
            )
    assert (await root.delete("/v1/tokens/ci")).status_code == 200
    body = {"username": "ci", "password": PASSWORD, "roles": {"*": ["reader"]}}
    assert (await root.post("/v1/users", json=body)).status_code == 409, (
        "what was said of the token is not of the account"
    )


def test_two_people_of_an_identity_provider_have_two_names() -> None:
    reading = Reading("name", "groups", ())
    names = ("bob", "Bob", "bob/ci", "bob%2Fci", "bob%252Fci", "a/b", "a%b")
    assert len({reading.name_of({"name": name}) for name in names}) == len(names)
    assert not any("/" in reading.name_of({"name": name}) for name in names)
    for odd in (" bob", "bob ", "bob\u202e", "bob\n", "", None, 7):
        with pytest.raises(Denied):
            reading.name_of({"name": odd})


# --- a page in a browser -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "refused"),
    [
        ("https://evil.example", True),
        ("http://rebound.example", True),  # the name of the server, after DNS rebinding
        ("http://127.0.0.1.evil.example", True),
        ("null", True),
        ("https://console.example", False),
        ("http://127.0.0.1:5173", False),
    ],
)
async def test_over_mcp_a_page_that_is_not_known_is_refused_also_with_a_good_token(
    runtime: Runtime, tmp_path: Path, origin: str, refused: bool
) -> None:
    settings = load_settings({"home": str(tmp_path / "home"), "cors_origins": "https://console.example"}, {})
    app = create_app(runtime, settings=settings, auth=TokenAuth(runtime.inside.tasking.database, local=True))
    root = await People(app, runtime).root()
    headers = {"Origin": origin, "Host": "rebound.example", "Accept": "application/json, text/event-stream"}

    answer = await root.delete("/mcp", headers=headers)

    assert (answer.status_code == 403 and answer.json()["code"] == "cross_site") is refused, answer.text


async def test_over_tls_a_browser_is_told_to_stay_with_it(app: Starlette) -> None:
    seen: dict[str, bool] = {}
    for url in ("https://foliot.example", "http://foliot.example"):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url) as http:
            seen[url] = "max-age=" in (await http.get("/v1/version")).headers.get("strict-transport-security", "")

    assert seen == {"https://foliot.example": True, "http://foliot.example": False}


@pytest.mark.parametrize("first", ["account", "token"])
async def test_two_servers_at_once_do_not_give_one_name_to_an_account_and_a_token(
    postgres_url: str, first: str
) -> None:
    """Both have looked whether the name is free before either writes it: as far as each can go is waited for."""
    async with AsyncExitStack() as stack:
        databases = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
        for each in databases:
            stack.push_async_callback(each.close)
        watcher = await asyncpg.connect(postgres_url)
        stack.push_async_callback(watcher.close)
        holder = await asyncpg.connect(postgres_url)
        stack.push_async_callback(holder.close)

        async def account() -> str:
            await SqlUsers(databases[0]).create("ada", password="x", grants={}, now=1.0)
            return "account"

        async def token() -> str:
            await SqlTokens(databases[1]).create("Ada", namespaces=["*"], roles=["reader"], now=1.0)
            return "token"

        async def waiting(count: int) -> None:
            # Of this database only: the server is shared with tests that run at the same time.
            asked = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            async with asyncio.timeout(60):
                while await watcher.fetchval(asked) < count:
                    await asyncio.sleep(0)

        order = [account, token] if first == "account" else [token, account]
        async with holder.transaction():
            await holder.execute("LOCK TABLE user_account, api_token IN EXCLUSIVE MODE")  # read on, write later
            doing: list[asyncio.Task[str]] = []
            for count, each in enumerate(order, 1):
                doing.append(asyncio.create_task(each()))
                await waiting(count)
        ended = await asyncio.gather(*doing, return_exceptions=True)

        assert ended[0] == first
        assert isinstance(ended[1], Conflict), ended
        names = await watcher.fetch("SELECT name FROM user_account UNION ALL SELECT name FROM api_token")
        assert len(names) == 1
