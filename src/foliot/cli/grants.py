"""Grants of tokens and accounts, changed directly in the store, with an audit record of each change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foliot.cli.invocation import current
from foliot.common.durations import seconds
from foliot.common.times import iso_seconds
from foliot.engine.audit.words import Act
from foliot.errors import UsageError
from foliot.settings.settings import Given, as_namespace
from foliot.store.audit.log import SqlAuditLog

if TYPE_CHECKING:
    from foliot.store.base import Database

F = TypeVar("F", bound=Callable[..., Any])
EVERYWHERE: Final = "*"


def granting(command: F) -> F:
    """Give a command `--role`, `--in` and `--admin`, as `roles`, `spaces` and `admin`."""
    for option in (
        click.option("--admin", is_flag=True, help="All rights in all namespaces."),
        click.option(
            "--in",
            "spaces",
            multiple=True,
            metavar="NAMESPACE",
            help="Where it holds; may be given several times, `*` for all.  [default: the namespace of -n]",
        ),
        click.option(
            "--role",
            "roles",
            multiple=True,
            metavar="ROLE",
            help="reader, operator, approver, author, admin or impersonator; may be repeated.  [default: reader]",
        ),
    ):
        command = option(command)
    return command


def granted(roles: tuple[str, ...], spaces: tuple[str, ...], *, admin: bool) -> tuple[list[str], list[str]]:
    """The roles, and the namespaces where they hold. Raises `UsageError`."""
    from foliot.server.auth.identity import role_named

    if admin and (roles or spaces):
        raise UsageError("--admin is all rights everywhere", hint="leave out --role and --in, or --admin")
    if admin:
        return ["admin"], [EVERYWHERE]
    held: list[str] = [role_named(role) for role in roles] or ["reader"]
    where = [_namespace(space) for space in spaces] or [current().settings().namespace]
    return [*dict.fromkeys(held)], [*dict.fromkeys(where)]


def length(text: str | None, flag: str) -> float | None:
    """The seconds of a length of time. Raises `UsageError`."""

    if text is None:
        return None
    try:
        found = seconds(text)
    except ValueError:
        found = 0.0
    if found <= 0:
        raise UsageError(f"{flag}: {text!r} is not a length of time", hint="such as 12h or 90d")
    return found


@asynccontextmanager
async def opened_store() -> AsyncGenerator[Database]:
    """The database of the settings. Raises `UsageError` when they name a server."""
    from foliot.store.open import open_database

    database = await open_database(current().store_settings().store)
    try:
        yield database
    finally:
        await database.close()


async def record(database: Database, verb: Act, kind: str, name: str, **more: Any) -> None:
    """Keep who did it, in the audit log."""
    from foliot.cli.runtimes import whoami
    from foliot.server.audit import entry_of

    by = whoami()
    entry = entry_of(None, verb, kind, "", name, **more)
    await SqlAuditLog(database).append(
        [{**entry, "caller": {"user": by, "known_by": "store"}, "decision": {"asks": [], "by": by}}]
    )


def shown_time(at: float | None) -> str:
    return "" if at is None else iso_seconds(at)


def _namespace(text: str) -> str:
    return text if text == EVERYWHERE else as_namespace(Given(text, "flag --in", Path.cwd()))
