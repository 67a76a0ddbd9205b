"""Where tokens are kept, for `foliot tokens`: the store itself, or a server that asks who wants to know."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from urllib.parse import quote

from foliot.cli.access import length, opened_store, record, shown_time
from foliot.cli.invocation import current
from foliot.errors import NotFound

if TYPE_CHECKING:
    from foliot.client.http import Http
    from foliot.store.access.tokens import TokenInfo
    from foliot.store.base import Database

# As the API writes a token.
TokenData: TypeAlias = dict[str, Any]


class TokenPlace(Protocol):
    async def create(
        self, name: str, roles: list[str], spaces: list[str], expires: str | None
    ) -> tuple[TokenData, str]:
        """The new token and its text. Raises `Conflict` for a name in use."""
        ...

    async def list(self) -> list[TokenData]:
        """All of them, oldest first, also those that are revoked."""
        ...

    async def revoke(self, word: str) -> str:
        """Make the token of this name or id worthless; its name. Raises `NotFound`."""
        ...


@asynccontextmanager
async def token_place() -> AsyncGenerator[TokenPlace]:
    """The server that the settings name, else the store."""
    settings = current().settings()
    if settings.server is None:
        async with opened_store() as database:
            yield OnStore(database)
        return
    from foliot.client.http import Http
    from foliot.client.open import server_of

    async with Http(server_of(settings)) as http:
        yield OnServer(http)


class OnStore:
    def __init__(self, database: Database) -> None:
        from foliot.store.access.tokens import SqlTokens

        self._database = database
        self._tokens = SqlTokens(database)

    async def create(
        self, name: str, roles: list[str], spaces: list[str], expires: str | None
    ) -> tuple[TokenData, str]:
        """See `TokenPlace`."""
        from foliot.cli.runtimes import whoami

        now, seconds = time.time(), length(expires, "--expires")
        info, text = await self._tokens.create(
            name, namespaces=spaces, roles=roles, now=now, by=whoami(), expires_at=now + seconds if seconds else None
        )
        await self._record("token_created", info)
        return _as_data(info), text

    async def list(self) -> list[TokenData]:
        """See `TokenPlace`."""
        return [_as_data(info) for info in await self._tokens.list()]

    async def revoke(self, word: str) -> str:
        """See `TokenPlace`."""
        info = await self._tokens.revoke(word, now=time.time())
        await self._record("token_revoked", info)
        return info.name

    async def _record(self, verb: str, info: TokenInfo) -> None:
        roles, where = [*info.roles], [*info.namespaces]
        await record(self._database, verb, "Token", info.name, id=info.id, roles=roles, where=where)


class OnServer:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self, name: str, roles: list[str], spaces: list[str], expires: str | None
    ) -> tuple[TokenData, str]:
        """See `TokenPlace`."""
        import msgspec

        order = {"name": name, "roles": roles, "namespaces": spaces, "expires": expires}
        answer = await self._http.ask("POST", "/v1/tokens", body=msgspec.json.encode(order))
        made = cast("TokenData", answer.json())
        text = made.pop("token")
        return _shown(made), text

    async def list(self) -> list[TokenData]:
        """See `TokenPlace`."""
        found = cast("list[TokenData]", (await self._http.ask("GET", "/v1/tokens")).json()["items"])
        return [_shown(each) for each in found]

    async def revoke(self, word: str) -> str:
        """See `TokenPlace`."""
        good = [each for each in await self.list() if "revokedAt" not in each and word in (each["id"], each["name"])]
        if not good:
            raise NotFound(
                f"there is no token that can be used called {word!r}", hint="`foliot tokens list` shows them"
            )
        await self._http.ask("DELETE", f"/v1/tokens/{quote(good[0]['id'], safe='')}")
        return good[0]["name"]


def _shown(data: TokenData) -> TokenData:
    """With times as people read them: to the second."""
    return {name: f"{value[:19]}Z" if name.endswith("At") else value for name, value in data.items()}


def _as_data(info: TokenInfo) -> TokenData:
    times = {name: shown_time(getattr(info, f"{name}_at")) for name in ("created", "expires", "revoked", "used")}
    times["ownerDisabled"] = shown_time(info.owner_disabled_at)
    return {
        "id": info.id,
        "name": info.name,
        "roles": [*info.roles],
        "namespaces": [*info.namespaces],
        "createdBy": info.created_by,
        **({"owner": info.owner} if info.owner else {}),
        **{f"{name}At": value for name, value in times.items() if value},
    }
