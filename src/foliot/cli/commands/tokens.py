"""`foliot tokens`: who may call the server. On the store itself, so the first one needs no server and no token; with
`--server` those that the caller is an admin of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from foliot.cli.access import EVERYWHERE, granted, granting, length, shown_time
from foliot.cli.connect import run
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.cli.terminal import out

if TYPE_CHECKING:
    from foliot.cli.commands.tokens_places import TokenData


@click.group()
def tokens() -> None:
    """Who may call the server, and what they may do there.

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
    """Tokens, oldest first: what they may do, until when, and when they were last used."""
    return run(_list(everything, output))


@tokens.command()
@click.argument("token", metavar="NAME")
def revoke(token: str) -> int:
    """Make a token worthless, by its name or id. Servers hear of it within a second."""
    return run(_revoke(token))


async def _create(name: str, roles: list[str], spaces: list[str], expires: str | None, output: str) -> int:
    from foliot.cli.commands.tokens_places import token_place

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
    from foliot.cli.commands.tokens_places import token_place

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
    from foliot.cli.commands.tokens_places import token_place

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
