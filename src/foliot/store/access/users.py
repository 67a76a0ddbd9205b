"""Accounts of people who log in with a password, of which only a slow hash is kept.

The hash is made and compared above (see server/auth/passwords.py): it takes long on purpose, and no transaction waits
for it. Accounts are never deleted, only disabled: what the audit log says of a name stays true.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.store.base import Database
from foliot.store.journal.base import TransactionBody
from foliot.store.transaction import Row, Tx, one, rows, run, value

# Roles by namespace; `*` is all of them.
Grants: TypeAlias = Mapping[str, Sequence[str]]
SETUP_PREFIX: Final = "fos"
EVERYWHERE: Final = "*"
# Held by being named, never as a part of another role: whoever pays, and whose rules hold, would be a matter of choice.
NAMED_ONLY: Final = frozenset({"impersonator"})
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?")
_grants = msgspec.json.Decoder(dict[str, tuple[str, ...]])


def includes(roles: Collection[str] | None, role: str) -> bool:
    """Whether a role is among these or a part of one: every role includes reading, an admin may do nearly all."""
    if not roles:
        return False
    return role in roles or role == "reader" or ("admin" in roles and role not in NAMED_ONLY)


def holds(grants: Grants, role: str, namespace: str) -> bool:
    """Whether these grants include a role in a namespace."""
    return any(includes(grants.get(space), role) for space in (EVERYWHERE, namespace))


class UserInfo(Struct, frozen=True):
    """The public facts about an account.

    A blank `created_by` stands for an operator with direct access to the store.
    """

    id: str
    name: str
    grants: dict[str, tuple[str, ...]]
    created_at: float
    created_by: str = ""
    password_at: float = 0.0
    disabled_at: float | None = None
    login_at: float | None = None


class UserAccount(Struct, frozen=True):
    """An account with the hash of its password, for whoever compares."""

    info: UserInfo
    password: str

    def __repr__(self) -> str:
        return f"Account({self.info.name!r})"


def user_name(text: str) -> str:
    """The name as it is kept, in small letters. Raises `InvalidInput`."""
    name = text.strip().lower()
    if _NAME.fullmatch(name):
        return name
    raise InvalidInput(
        "this cannot be the name of a user",
        hint="up to 63 letters, digits, dots, dashes, underscores and @, with a letter or digit at both ends",
    )


class SqlUsers:
    """The accounts, on either database. What `in_transaction` writes is stored with the change, or not at all."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def create(
        self,
        name: str,
        *,
        password: str,
        grants: Grants,
        now: float,
        by: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> UserInfo:
        """A new account; `password` is a hash. Raises `Conflict` for a name in use, `InvalidInput`."""
        info = _new(name, grants, now, by)

        def body() -> Tx[None]:
            yield from take_name(info.name, "account")
            if not (yield from _add(info, password)):
                raise Conflict(f"there is already a user {info.name!r}", hint="choose another name")
            yield from _run_body(in_transaction)

        await self._db.write(body)
        return info

    async def set_up(self, token: str, name: str, *, password: str, grants: Grants, now: float) -> UserInfo:
        """The first account, for whoever holds the setup token, which is spent by it.

        Raises `Conflict` when there is an account already, `Denied` for a token that is not good, `InvalidInput`.
        """
        info = _new(name, grants, now, "setup")
        given = digest_of(token)

        def body() -> Tx[None]:
            kept = yield from one("setup_token_locked")
            if (yield from rows("user_any")):
                raise Conflict("this installation has been set up", hint="log in, or ask an admin for an account")
            if kept is None or now >= kept["expires_at"] or not hmac.compare_digest(kept["digest"], given):
                raise Denied("this setup token is not good", hint="`foliot users setup-token` makes one")
            yield from take_name(info.name, "account")
            yield from _add(info, password)
            yield from run("setup_token_spend")

        await self._db.write(body)
        return info

    async def new_setup_token(self, *, now: float, seconds: float) -> str:
        """A token for `set_up`; one that was made before is worthless. Raises `Conflict` when there is an account."""
        text = f"{SETUP_PREFIX}_{secrets.token_urlsafe(32)}"

        def body() -> Tx[None]:
            if (yield from rows("user_any")):
                raise Conflict("there are accounts already", hint="`foliot users create` makes another one")
            yield from run("setup_token_put", digest=digest_of(text), expires_at=now + seconds)

        await self._db.write(body)
        return text

    async def find(self, name: str) -> UserAccount | None:
        """The account of this name, disabled or not."""
        known = name.strip().lower()
        found = await self._db.read("user_find", name=known) if _NAME.fullmatch(known) else []
        return UserAccount(_info(found[0]), found[0]["password"]) if found else None

    async def any(self) -> bool:
        """Whether an account was ever made."""
        return bool(await self._db.read("user_any"))

    async def list(self) -> list[UserInfo]:
        """Lists all accounts by name, also those that are disabled."""
        return [_info(row) for row in await self._db.read("user_list")]

    async def set_password(self, name: str, password: str, *, now: float, instead_of: str | None = None) -> int:
        """Sets the password; all sessions end. Returns the number of sessions that ended. Raises `NotFound`.

        With `instead_of` only while that hash is the one that is kept; else `Conflict`.
        """

        def body() -> Tx[int]:
            row = yield from _locked(name)
            if instead_of is not None and row["password"] != instead_of:
                raise Conflict("the password was changed meanwhile", hint="log in again")
            yield from run("user_password", id=row["id"], password=password, now=now)
            return (yield from run("login_session_end_all", user_id=row["id"]))

        return await self._db.write(body)

    async def rehash(self, account: UserAccount, password: str) -> None:
        """The same password, hashed as is done now. Does nothing when it was changed meanwhile."""
        await self._db.write(run, "user_rehash", id=account.info.id, password=password, old=account.password)

    async def disable(self, name: str, *, now: float, in_transaction: TransactionBody | None = None) -> UserInfo:
        """Let nobody in by this account; its sessions end. Doing it again changes nothing. Raises `NotFound`."""

        def body() -> Tx[UserInfo]:
            row = yield from _locked(name)
            if row["disabled_at"] is not None:
                return _info(row)
            yield from run("user_disable", id=row["id"], now=now)
            yield from run("login_session_end_all", user_id=row["id"])
            yield from _run_body(in_transaction)
            return msgspec.structs.replace(_info(row), disabled_at=now)

        return await self._db.write(body)

    async def enable(self, name: str, *, in_transaction: TransactionBody | None = None) -> UserInfo:
        """Undo `disable`. Raises `NotFound`."""

        def body() -> Tx[UserInfo]:
            row = yield from _locked(name)
            if (yield from run("user_enable", id=row["id"])):
                yield from _run_body(in_transaction)
            return _info(row)

        return msgspec.structs.replace(await self._db.write(body), disabled_at=None)

    async def grant(self, name: str, grants: Grants, *, in_transaction: TransactionBody | None = None) -> UserInfo:
        """Other roles instead of those it had; sessions have them at once. Raises `NotFound`."""

        def body() -> Tx[UserInfo]:
            row = yield from _locked(name)
            yield from run("user_grant", id=row["id"], grants=encoded(grants))
            yield from _run_body(in_transaction)
            return _info(row)

        info = await self._db.write(body)
        return msgspec.structs.replace(info, grants={space: tuple(held) for space, held in grants.items()})


def take_name(name: str, sort: Literal["account", "token"]) -> Tx[None]:
    """Have the name belong to this sort of caller; revoked tokens and disabled accounts keep theirs. Raises `Conflict`.

    Records, budgets and approvers go by names: one is of an account or of a token, never of both.
    """
    held = yield from value("caller_name_take", name=name.lower(), sort=sort)
    if held != sort:
        whose = "an account" if held == "account" else "a token"
        raise Conflict(f"there is, or was, {whose} {name.lower()!r}", hint=f"choose another name for the {sort}")


def digest_of(text: str) -> str:
    """Returns the digest that is stored in place of a random secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def encoded(grants: Grants) -> str:
    return msgspec.json.encode(grants, order="sorted").decode()


def decoded(text: str) -> dict[str, tuple[str, ...]]:
    return _grants.decode(text)


def _new(name: str, grants: Grants, now: float, by: str) -> UserInfo:
    held = {space: tuple(roles) for space, roles in grants.items()}
    return UserInfo(secrets.token_hex(8), user_name(name), held, now, by, now)


def _add(info: UserInfo, password: str) -> Tx[int]:
    return (
        yield from run(
            "user_add",
            id=info.id,
            name=info.name,
            password=password,
            grants=encoded(info.grants),
            now=info.created_at,
            by=info.created_by,
        )
    )


def _run_body(in_transaction: TransactionBody | None) -> Tx[None]:
    if in_transaction is not None:
        yield from in_transaction()


def _locked(name: str) -> Tx[Row]:
    known = name.strip().lower()
    row = (yield from one("user_locked", name=known)) if _NAME.fullmatch(known) else None
    if row is None:
        raise NotFound(f"there is no user {name.strip()!r}", hint="`foliot users list` shows them")
    return row


def _info(row: Row) -> UserInfo:
    return UserInfo(
        row["id"],
        row["name"],
        decoded(row["grants"]),
        row["created_at"],
        row["created_by"],
        row["password_at"],
        row["disabled_at"],
        row["login_at"],
    )
