"""A real store on SQLite for the client, and the two ways to it: in this process, and over a real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from foliot.client.http import Http, Server
from foliot.client.remote import RemoteClient
from foliot.kernel.identity import Identity
from foliot.runtime.groups.groups import Groups
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    database = await open_database(settings.store)
    yield SqlResourceStore(database, lambda: load_keyring(settings))
    await database.close()


@dataclass(frozen=True)
class Site:
    """A runtime, the server in front of it, and how to be let in."""

    runtime: Runtime
    url: str

    async def token(self, name: str = "ann", roles: tuple[str, ...] = ("admin",), *namespaces: str) -> str:
        tokens = SqlTokens(self.runtime.inside.tasking.database)
        spaces = namespaces or ("*",)
        return (await tokens.create(name, namespaces=spaces, roles=roles, now=time.time()))[1]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path / "home")}, {})


@pytest.fixture
async def site(settings: Settings) -> AsyncIterator[Site]:
    async with Runtime(settings=settings) as runtime:
        auth = TokenAuth(runtime.inside.tasking.database, local=True)
        app = create_app(runtime, settings=settings, auth=auth)
        async with HttpServer(app, Listen("127.0.0.1", 0), grace=5) as server:
            yield Site(runtime, server.url)
        await auth.close()


@dataclass(frozen=True)
class Both:
    """The verbs on resources and on work, of one client, and the runtime where they take effect."""

    client: Groups
    work: Groups
    runtime: Runtime


@pytest.fixture(params=["local", "remote"])
async def both(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[Both]:
    """The same suite over both clients: what holds for one holds for the other."""
    if request.param == "local":
        local = LocalGroups(site.runtime.inside, caller=Identity("ann", via="cli"), wakes=False)
        yield Both(local, local, site.runtime)
        return
    remote = RemoteClient(Http(Server(site.url, await site.token())))
    yield Both(remote, remote, site.runtime)
    await remote.close()
