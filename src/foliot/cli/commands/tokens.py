"""`foliot tokens`: who may call the server. On the store itself, so the first one needs no server and no token."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from foliot.cli.connect import run
from foliot.cli.invocation import current
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.store.base import Database
    from foliot.store.tokens import TokenInfo

EVERYWHERE: Final = "*"


@click.group()
def tokens() -> None:
    """Who may call the server, and what they may do there.

    A token is shown once, when it is made; the store keeps only a digest of it. While there is none, a server answers
    only this machine, and everybody on it.
    """


@tokens.command()
@click.argument("name", required=False)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help="reader, operator, approver, author or admin; may be given several times.  [default: reader]",
)
@click.option(
    "--in",
    "spaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Where it holds; may be given several times, `*` for all.  [default: the namespace of -n]",
)
@click.option("--admin", is_flag=True, help="All rights in all namespaces.")
@click.option("--expires", metavar="TIME", help="After so long it is worthless, such as 12h or 90d.")
@output_option("text", "json", default="text", help="text or json.")
def create(
    name: str | None, roles: tuple[str, ...], spaces: tuple[str, ...], admin: bool, expires: str | None, output: str
) -> int:
    """Make a token, and print it. It is shown this once: put it where the one who uses it keeps secrets.

    Every role includes reading. Roles hold in the namespaces of --in.
    """
    from foliot.cli.runtimes import whoami
    from foliot.server.identity import role_named

    if admin and (roles or spaces):
        raise UsageError("--admin is all rights everywhere", hint="leave out --role and --in, or --admin")
    held = ["admin"] if admin else [role_named(role) for role in roles] or ["reader"]
    where = [EVERYWHERE] if admin else [_namespace(space) for space in spaces] or [current().settings().namespace]
    return run(_create(name or f"{whoami() or 'token'}-{held[0]}", held, where, _seconds(expires), whoami(), output))


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


@asynccontextmanager
async def _opened() -> AsyncGenerator[Database]:
    from foliot.store.open import open_database

    database = await open_database(current().store_settings().store)
    try:
        yield database
    finally:
        await database.close()


async def _create(name: str, roles: list[str], spaces: list[str], seconds: float | None, by: str, output: str) -> int:
    from foliot.store.tokens import SqlTokens

    now = time.time()
    async with _opened() as database:
        info, text = await SqlTokens(database).create(
            name, namespaces=spaces, roles=roles, now=now, by=by, expires_at=now + seconds if seconds else None
        )
        await _record(database, "token_created", info, by)
    if output == "json":
        click.echo(as_json({**_as_data(info), "token": text}))
        return 0
    until = f" until {_time(info.expires_at)}" if info.expires_at else ""
    click.echo(f"Token {info.name}: {', '.join(info.roles)} in {_places(info)}{until}. It is shown only now:", err=True)
    click.echo(text)
    return 0


async def _list(everything: bool, output: str) -> int:
    from foliot.store.tokens import SqlTokens

    now = time.time()
    async with _opened() as database:
        found = [each for each in await SqlTokens(database).list() if everything or each.good(now)]
    if output == "json":
        click.echo(as_json([_as_data(each) for each in found]))
    elif found:
        headings = ("NAME", "ID", "ROLES", "NAMESPACES", "CREATED", "EXPIRES", "LAST USED", "STATE")
        click.echo(table(headings, [_row(each, now) for each in found]))
    else:
        click.echo("There are no tokens. `foliot tokens create --admin` makes the first one.", err=True)
    return 0


async def _revoke(word: str) -> int:
    from foliot.cli.runtimes import whoami
    from foliot.store.tokens import SqlTokens

    async with _opened() as database:
        info = await SqlTokens(database).revoke(word, now=time.time())
        await _record(database, "token_revoked", info, whoami())
    click.echo(f"Token {info.name} is revoked.", err=True)
    return 0


async def _record(database: Database, verb: str, info: TokenInfo, by: str) -> None:
    from foliot.server.acts import entry_of
    from foliot.store.audit import SqlAuditLog

    entry = entry_of(None, verb, "Token", "", info.name, id=info.id, roles=[*info.roles], where=[*info.namespaces])
    await SqlAuditLog(database).append(
        [{**entry, "caller": {"user": by, "known_by": "store"}, "decision": {"asks": [], "by": by}}]
    )


def _namespace(text: str) -> str:
    from foliot.settings import Given, as_namespace

    if text == EVERYWHERE:
        return text
    from pathlib import Path

    return as_namespace(Given(text, "flag --in", Path.cwd()))


def _seconds(text: str | None) -> float | None:
    from foliot.resources.durations import seconds

    if text is None:
        return None
    try:
        length = seconds(text)
    except ValueError:
        length = 0.0
    if length <= 0:
        raise UsageError(f"--expires: {text!r} is not a length of time", hint="such as 12h or 90d")
    return length


def _as_data(info: TokenInfo) -> dict[str, Any]:
    times = {name: _time(getattr(info, f"{name}_at")) for name in ("created", "expires", "revoked", "used")}
    return {
        "id": info.id,
        "name": info.name,
        "roles": [*info.roles],
        "namespaces": [*info.namespaces],
        "createdBy": info.created_by,
        **{f"{name}At": value for name, value in times.items() if value},
    }


def _row(info: TokenInfo, now: float) -> tuple[str, ...]:
    state = "good" if info.good(now) else "revoked" if info.revoked_at is not None else "expired"
    return (
        info.name,
        info.id,
        ",".join(info.roles),
        _places(info),
        _time(info.created_at),
        _time(info.expires_at) or "never",
        _time(info.used_at) or "never",
        state,
    )


def _places(info: TokenInfo) -> str:
    return "all namespaces" if EVERYWHERE in info.namespaces else ",".join(info.namespaces)


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
