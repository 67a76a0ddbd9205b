"""A server with accounts on a real store, hashes that cost next to nothing, and a clock that tests turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.passwords import Passwords
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.access.users import SqlUsers
from foliot.store.audit.log import AuditFilter, SqlAuditLog

PASSWORD = "correct horse battery"
CHEAP = {"rounds": 1, "memory": 8, "lanes": 1}


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Site:
    """The server, and what a test needs of it."""

    runtime: Runtime
    auth: TokenAuth
    app: Starlette
    clock: Clock

    @property
    def users(self) -> SqlUsers:
        return self.auth.logins.users

    async def user(self, name: str = "ada", *roles: str, space: str = "*") -> None:
        kept = await self.auth.logins.passwords.hash(PASSWORD)
        await self.users.create(name, password=kept, grants={space: roles or ("admin",)}, now=self.clock.now)

    async def token(self, *roles: str, space: str = "*", name: str = "ci") -> dict[str, str]:
        tokens = SqlTokens(self.runtime.inside.tasking.database)
        _, text = await tokens.create(name, namespaces=[space], roles=roles or ("admin",), now=self.clock.now)
        return {"Authorization": f"Bearer {text}"}

    def browser(self, base: str = "http://localhost", peer: str = "127.0.0.1") -> httpx.AsyncClient:
        """A client with cookies of its own."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True, client=(peer, 4711))
        return httpx.AsyncClient(transport=transport, base_url=base)

    async def acts(self) -> list[dict[str, Any]]:
        """The records of the audit log, oldest first."""
        await self.runtime.inside.audit.flush()
        found = await SqlAuditLog(self.runtime.inside.tasking.database).find(AuditFilter(), limit=500)
        return [record.body for record in reversed(found)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passwords() -> Passwords:
    return Passwords(**CHEAP)


@pytest.fixture
async def site(runtime: Runtime, settings: Settings, clock: Clock, passwords: Passwords) -> AsyncIterator[Site]:
    auth = TokenAuth(runtime.inside.tasking.database, local=True, settings=settings, passwords=passwords, clock=clock)
    yield Site(runtime, auth, create_app(runtime, settings=settings, auth=auth), clock)
    await auth.close()


@pytest.fixture
async def http(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with site.browser() as client:
        yield client


LogIn = Callable[..., Awaitable[dict[str, str]]]


@pytest.fixture
def log_in() -> LogIn:
    """Logs a client in; the headers that its writes must carry."""

    async def log_in(http: httpx.AsyncClient, name: str = "ada", password: str = PASSWORD) -> dict[str, str]:
        answer = await http.post("/v1/auth/login", json={"username": name, "password": password})
        assert answer.status_code == 200, answer.text
        return {"X-CSRF-Token": answer.json()["csrf_token"]}

    return log_in
