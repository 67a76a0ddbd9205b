"""`foliot tokens`: who may call the server. On the store itself, so the first one needs no server and no token; with
`--server` those that the caller is an admin of."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from urllib.parse import quote

import click
import msgspec

from foliot.cli.grants import EVERYWHERE, granted, granting, length, opened_store, record, shown_time
from foliot.cli.invocation import current
from foliot.cli.reach import run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.client.open import server_of
from foliot.engine.audit.words import Act
from foliot.errors import NotFound

if TYPE_CHECKING:
    from foliot.client.http import Http
    from foliot.store.access.tokens import TokenInfo
    from foliot.store.base import Database


@click.group()
def tokens() -> None:
    """Create, list and revoke the tokens by which callers use the server.

    A token is shown once, when it is made; the store keeps only a digest of it. Commands of the user who started a
    server, on its machine and with its FOLIOT_HOME, need none.
    """


@tokens.command()
@click.argument("name", required=False)
@granting
@click.option("--expires", metavar="TIME", help="After so long it is worthless, such as 12h or 90d.")
@output_option("text", "json", default="text", help="text or json.")
def create(
    name: str | None, roles: tuple[str, ...], spaces: tuple[str, ...], admin: bool, expires: str | None, output: str
) -> int:
    """Make a token, and print it. It is shown this once: put it where the one who uses it keeps secrets.

    Every role includes reading. Roles hold in the namespaces of --in.
    """
    from foliot.cli.runtimes import whoami

    held, where = granted(roles, spaces, admin=admin)
    length(expires, "--expires")
    return run(_create(name or f"{whoami() or 'token'}-{held[0]}", held, where, expires, output))


@tokens.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are revoked or expired.")
@output_option("table", "json", default="table", help="table or json.")
def list_tokens(everything: bool, output: str) -> int:
    """List tokens, oldest first: their roles, when they expire, and when they were last used."""
    return run(_list(everything, output))


@tokens.command()
@click.argument("token", metavar="NAME")
def revoke(token: str) -> int:
    """Revoke a token by its name or id. Servers refuse it within a second."""
    return run(_revoke(token))


async def _create(name: str, roles: list[str], spaces: list[str], expires: str | None, output: str) -> int:

    async with token_place() as place:
        made, text = await place.create(name, roles, spaces, expires)
    if output == "json":
        out(as_json({**made, "token": text}))
        return 0
    until = f" until {made['expiresAt']}" if "expiresAt" in made else ""
    told = f"Token {made['name']}: {', '.join(made['roles'])} in {_places(made)}{until}."
    out(f"{told} It is shown only now:", err=True)
    out(text)
    return 0


async def _list(everything: bool, output: str) -> int:

    now = shown_time(time.time())
    async with token_place() as place:
        found = [each for each in await place.list() if everything or _state(each, now) == "good"]
    if output == "json":
        out(as_json(found))
    elif found:
        headings = ("NAME", "ID", "ROLES", "NAMESPACES", "CREATED", "EXPIRES", "LAST USED", "STATE")
        out(table(headings, [_row(each, now) for each in found]))
    else:
        out("There are no tokens. `foliot tokens create --admin` makes the first one.", err=True)
    return 0


async def _revoke(word: str) -> int:

    async with token_place() as place:
        name = await place.revoke(word)
    out(f"Token {name} is revoked.", err=True)
    return 0


def _row(data: TokenData, now: str) -> tuple[str, ...]:
    return (
        data["name"],
        data["id"],
        ",".join(data["roles"]),
        _places(data),
        data["createdAt"],
        data.get("expiresAt", "never"),
        data.get("usedAt", "never"),
        _state(data, now),
    )


def _state(data: TokenData, now: str) -> str:
    if "revokedAt" in data:
        return "revoked"
    if "ownerDisabledAt" in data:
        return "disabled"
    return "expired" if data.get("expiresAt", "9") <= now else "good"  # times are written so that they sort


def _places(data: dict[str, Any]) -> str:
    return "all namespaces" if EVERYWHERE in data["namespaces"] else ",".join(data["namespaces"])


# --- tokens places ---------------------------------------------------------------------------------------------------

# Where tokens are kept, for `foliot tokens`: the store itself, or a server that asks who wants to know.

# As the API writes a token.
TokenData: TypeAlias = dict[str, Any]


class TokenPlace(Protocol):
    async def create(
        self, name: str, roles: list[str], spaces: list[str], expires: str | None
    ) -> tuple[TokenData, str]:
        """The new token and its text. Raises `Conflict` for a name in use."""
        ...

    async def list(self) -> list[TokenData]:
        """Lists all tokens, oldest first, also those that are revoked."""
        ...

    async def revoke(self, word: str) -> str:
        """Make the token of this name or id worthless; its name. Raises `NotFound`."""
        ...


@asynccontextmanager
async def token_place() -> AsyncGenerator[TokenPlace]:
    """The server that the settings name, else the store."""
    settings = current().settings()
    if settings.server is None:  # the first token can only be made on the store: a server asks for one
        async with opened_store() as database:
            yield OnStore(database)
        return
    from foliot.client.http import Http

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
        """Creates a token in the store; see `TokenPlace`."""
        from foliot.cli.runtimes import whoami

        now, seconds = time.time(), length(expires, "--expires")
        info, text = await self._tokens.create(
            name, namespaces=spaces, roles=roles, now=now, by=whoami(), expires_at=now + seconds if seconds else None
        )
        await self._record("token_created", info)
        return _as_data(info), text

    async def list(self) -> list[TokenData]:
        """Lists the tokens in the store; see `TokenPlace`."""
        return [_as_data(info) for info in await self._tokens.list()]

    async def revoke(self, word: str) -> str:
        """Revokes a token in the store; see `TokenPlace`."""
        info = await self._tokens.revoke(word, now=time.time())
        await self._record("token_revoked", info)
        return info.name

    async def _record(self, verb: Act, info: TokenInfo) -> None:
        roles, where = [*info.roles], [*info.namespaces]
        await record(self._database, verb, "Token", info.name, id=info.id, roles=roles, where=where)


class OnServer:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self, name: str, roles: list[str], spaces: list[str], expires: str | None
    ) -> tuple[TokenData, str]:
        """Creates a token on the server; see `TokenPlace`."""

        order = {"name": name, "roles": roles, "namespaces": spaces, "expires": expires}
        answer = await self._http.ask("POST", "/v1/tokens", body=msgspec.json.encode(order))
        made = cast("TokenData", answer.json())
        text = made.pop("token")
        return _shown(made), text

    async def list(self) -> list[TokenData]:
        """Lists the tokens of the server; see `TokenPlace`."""
        found = cast("list[TokenData]", (await self._http.ask("GET", "/v1/tokens")).json()["items"])
        return [_shown(each) for each in found]

    async def revoke(self, word: str) -> str:
        """Revokes a token on the server; see `TokenPlace`."""
        good = [each for each in await self.list() if "revokedAt" not in each and word in (each["id"], each["name"])]
        if not good:
            raise NotFound(
                f"there is no token that can be used called {word!r}", hint="`foliot tokens list` shows them"
            )
        await self._http.ask("DELETE", f"/v1/tokens/{quote(good[0]['id'], safe='')}")
        return good[0]["name"]


def _shown(data: TokenData) -> TokenData:
    """Shortens times for people: to the second."""
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
