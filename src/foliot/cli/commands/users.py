"""`foliot users`: accounts of people who log in to a server with a browser. On the store itself."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from foliot.cli.grants import EVERYWHERE, granted, granting, length, opened_store, record, shown_time
from foliot.cli.invocation import current, is_terminal
from foliot.cli.reach import run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, prompt
from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.store.access.users import UserInfo

SETUP_WITHIN: Final = "1h"
_stdin_option = click.option(
    "--password-stdin", "from_stdin", is_flag=True, help="Read the password from the first line of standard input."
)


@click.group()
def users() -> None:
    """Create, list and disable accounts of people who log in to the server with a browser.

    A password is asked for, or read from standard input; it never stands on the command line. The store keeps a slow
    hash of it (Argon2id).
    """


@users.command()
@click.argument("name")
@granting
@_stdin_option
def create(name: str, roles: tuple[str, ...], spaces: tuple[str, ...], admin: bool, from_stdin: bool) -> int:
    """Make an account. Every role includes reading. Roles hold in the namespaces of --in."""
    from foliot.store.access.users import user_name

    held, where = granted(roles, spaces, admin=admin)
    return run(_create(user_name(name), held, where, _password(name, from_stdin=from_stdin)))


@users.command("list")
@output_option("table", "json", default="table", help="table or json.")
def list_users(output: str) -> int:
    """List accounts by name: their roles, and when they last logged in."""
    return run(_list(output))


@users.command()
@click.argument("name")
@_stdin_option
def reset(name: str, from_stdin: bool) -> int:
    """Give an account another password. All its sessions end."""
    return run(_reset(name, _password(name, from_stdin=from_stdin)))


@users.command()
@click.argument("name")
@granting
def grant(name: str, roles: tuple[str, ...], spaces: tuple[str, ...], admin: bool) -> int:
    """Give an account these roles instead of those it has; sessions have them at once."""
    held, where = granted(roles, spaces, admin=admin)
    return run(_grant(name, held, where))


@users.command()
@click.argument("name")
def disable(name: str) -> int:
    """Disable an account. All its sessions end."""
    return run(_switch(name, enable=False))


@users.command()
@click.argument("name")
def enable(name: str) -> int:
    """Enable a disabled account again."""
    return run(_switch(name, enable=True))


@users.command("setup-token")
@click.option("--expires", default=SETUP_WITHIN, show_default=True, metavar="TIME", help="Good for so long.")
def setup_token(expires: str) -> int:
    """Make and print a token with which the first account can be made over HTTP, once (POST /v1/auth/setup)."""
    return run(_setup_token(length(expires, "--expires") or 0.0))


def _password(name: str, *, from_stdin: bool) -> str:
    """Reads a password, typed twice or from stdin.

    Raises `UsageError` without a terminal, `InvalidInput` for a weak one.
    """
    from foliot.server.auth.passwords import check_password

    current().store_settings()  # a server is refused before anybody types a password
    if from_stdin:
        try:
            text = sys.stdin.readline().rstrip("\r\n")
            text.encode()
        except UnicodeError:
            raise UsageError("the password on standard input is not UTF-8") from None
    elif is_terminal(sys.stdin):
        text = prompt(f"Password for {name}", secret=True, twice=True)
    else:
        raise UsageError(
            "a password is typed on a terminal, and this is none", hint="give --password-stdin, and the password there"
        )
    check_password(text, name)
    return text


async def _create(name: str, roles: list[str], spaces: list[str], password: str) -> int:
    from foliot.cli.runtimes import whoami
    from foliot.server.auth.passwords import Passwords
    from foliot.store.access.users import SqlUsers

    async with opened_store() as database:
        kept = await Passwords().hash(password)
        grants = dict.fromkeys(spaces, roles)
        info = await SqlUsers(database).create(name, password=kept, grants=grants, now=time.time(), by=whoami())
        await record(database, "user_created", "User", info.name, roles=roles, where=spaces)
    out(f"User {info.name}: {_rights(info)}.", err=True)
    return 0


async def _list(output: str) -> int:
    from foliot.store.access.users import SqlUsers

    async with opened_store() as database:
        found = await SqlUsers(database).list()
    if output == "json":
        out(as_json([_as_data(each) for each in found]))
    elif found:
        out(table(("NAME", "RIGHTS", "CREATED", "LAST LOGIN", "STATE"), [_row(each) for each in found]))
    else:
        out("There are no users. `foliot users create NAME --admin` makes the first one.", err=True)
    return 0


async def _reset(name: str, password: str) -> int:
    from foliot.server.auth.passwords import Passwords
    from foliot.store.access.users import SqlUsers

    async with opened_store() as database:
        kept = await Passwords().hash(password)
        ended = await SqlUsers(database).set_password(name, kept, now=time.time())
        await record(database, "password_reset", "User", name.strip().lower())
    out(f"User {name.strip().lower()} has another password; sessions that ended: {ended}.", err=True)
    return 0


async def _grant(name: str, roles: list[str], spaces: list[str]) -> int:
    from foliot.store.access.users import SqlUsers

    async with opened_store() as database:
        info = await SqlUsers(database).grant(name, dict.fromkeys(spaces, roles))
        await record(database, "user_granted", "User", info.name, roles=roles, where=spaces)
    out(f"User {info.name}: {_rights(info)}.", err=True)
    return 0


async def _switch(name: str, *, enable: bool) -> int:
    from foliot.store.access.users import SqlUsers

    async with opened_store() as database:
        known = SqlUsers(database)
        info = await (known.enable(name) if enable else known.disable(name, now=time.time()))
        await record(database, "user_enabled" if enable else "user_disabled", "User", info.name)
    out(f"User {info.name} is {'enabled' if enable else 'disabled'}.", err=True)
    return 0


async def _setup_token(seconds: float) -> int:
    from foliot.store.access.users import SqlUsers

    now = time.time()
    async with opened_store() as database:
        text = await SqlUsers(database).new_setup_token(now=now, seconds=seconds)
        await record(database, "setup_token_created", "User", "")
    out(f"Good until {shown_time(now + seconds)}, for one account. It is shown only now:", err=True)
    out(text)
    return 0


def _as_data(info: UserInfo) -> dict[str, Any]:
    times = {"created": info.created_at, "disabled": info.disabled_at, "login": info.login_at}
    return {
        "name": info.name,
        "roles": {space: [*held] for space, held in info.grants.items()},
        "createdBy": info.created_by,
        **{f"{name}At": shown_time(at) for name, at in times.items() if at is not None},
    }


def _row(info: UserInfo) -> tuple[str, ...]:
    state = "good" if info.disabled_at is None else "disabled"
    return info.name, _rights(info), shown_time(info.created_at), shown_time(info.login_at) or "never", state


def _rights(info: UserInfo) -> str:
    return "; ".join(
        f"{', '.join(held)} in {'all namespaces' if space == EVERYWHERE else space}"
        for space, held in sorted(info.grants.items())
    )
