"""Tokens of the server: 256 random bits behind a short id, of which only the SHA-256 is kept.

A token reads `fol_<id>_<secret>`. The id finds the row and is no secret; the rest is compared in constant time. A slow
hash would protect a guessable secret; this one cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.identity import Person
from foliot.store.access.users import holds, take_name
from foliot.store.base import Database, DeclaredBy
from foliot.store.transaction import Row, Tx, run

PREFIX: Final = "fol"
IMPERSONATOR: Final = "impersonator"
_FORM: Final = re.compile(r"fol_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_NOBODY: Final = "0" * 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_grants = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_texts = msgspec.json.Decoder(tuple[str, ...])


class TokenInfo(Struct, frozen=True):
    """The public facts about a token. A blank `created_by` stands for an operator with direct access to the store.

    `owner` is the account that made it, itself or with another token of its own: the token is good while the account
    is, and for no more than the account may do. `owner_grants` are what that is now.
    """

    id: str
    name: str
    namespaces: tuple[str, ...]
    roles: tuple[str, ...]
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None
    owner: str = ""
    owner_grants: dict[str, tuple[str, ...]] | None = None
    owner_disabled_at: float | None = None

    def good(self, now: float) -> bool:
        if self.owner and (self.owner_grants is None or self.owner_disabled_at is not None):
            return False
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class SqlTokens:
    """The tokens, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def create(
        self,
        name: str,
        *,
        namespaces: Sequence[str],
        roles: Sequence[str],
        now: float,
        by: str = "",
        under: str = "",
        owner: str = "",
        expires_at: float | None = None,
    ) -> tuple[TokenInfo, str]:
        """The new token and its text, which nobody can ask for again. `under` is the maker whose name stands before its
        own. Raises `Conflict` for a name in use, by an account too; `InvalidInput` for what cannot be a name.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                "name: this cannot be the name of a token", hint="letters, digits, dots, dashes, @ and _"
            )
        name = f"{under}/{name}" if under else name
        info = TokenInfo(_new_id(), name, tuple(namespaces), tuple(roles), now, by, expires_at, owner=owner)
        secret = secrets.token_urlsafe(32)

        def body() -> Tx[int]:
            yield from take_name(name, "token")
            return (
                yield from run(
                    "token_add",
                    id=info.id,
                    name=name,
                    digest=_digest(secret),
                    namespaces=msgspec.json.encode(info.namespaces).decode(),
                    roles=msgspec.json.encode(info.roles).decode(),
                    created_at=now,
                    created_by=by,
                    expires_at=expires_at,
                    owner=owner,
                )
            )

        if not await self._db.write(body):
            raise Conflict(f"there is already a token {name!r}", hint="revoke it first, or choose another name")
        return info, f"{PREFIX}_{info.id}_{secret}"

    async def verify(self, text: str, *, now: float) -> TokenInfo | None:
        """The token with this text, if it is good now."""
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        found = await self._db.read("token_get", id=form[1])
        # The comparison is made in any case: how long it takes must not tell which ids there are.
        same = hmac.compare_digest(found[0]["digest"] if found else _NOBODY, _digest(form[2]))
        if not found or not same:
            return None
        info = _info(found[0])
        return info if info.good(now) else None

    async def any(self) -> bool:
        """Whether a token was ever made. One that is revoked counts: whoever made it did not want open doors."""
        return bool(await self._db.read("token_any"))

    async def list(self) -> list[TokenInfo]:
        """Lists all tokens, oldest first, also those that are revoked."""
        return [_info(row) for row in await self._db.read("token_list")]

    async def find(self, word: str) -> TokenInfo | None:
        """The token of this name or id; a good one before those that are revoked."""
        found = await self._db.read("token_find", word=word)
        return _info(found[0]) if found else None

    async def person(self, name: str) -> Person:
        """Returns the person behind the name of an account, a token or anybody else, with all other names of theirs.

        A token is its owner's. One that no account made is of whoever's name stands before its own.
        """
        found = await self._db.read("token_owners", name=name.strip().lower())
        owners = {str(row["owner"]) for row in found if row["owner"]}
        if found and not owners and "/" in name:
            return Person(name, (await self.person(name.rpartition("/")[0])).others)
        owners = owners or {name.strip().lower()}
        others = {name.strip().casefold(), *owners}
        for owner in owners:
            others |= {str(row["name"]).casefold() for row in await self._db.read("token_names", owner=owner)}
        return Person(name, frozenset(others))

    async def withdrawn(self, name: str) -> str:
        """Says why nobody acts under this name any more: its account is disabled, or its token revoked; blank else.

        A name of neither an account nor a token, such as the identity provider gives, is never withdrawn.
        """
        account = await self._db.read("user_find", name=name.lower()) if name else []
        if account and account[0]["disabled_at"] is not None:
            return f"the account {name} is disabled"
        info = await self.find(name) if name and not account else None
        if info is not None and info.revoked_at is not None:
            return f"the token {name} is revoked"
        if info is not None and info.owner_disabled_at is not None:
            return f"the account {info.owner}, which made the token {name}, is disabled"
        return ""

    async def holds(self, name: str, role: str, namespace: str, *, now: float) -> bool | None:
        """Whether the account or token of this name has a role in a namespace now; a token no more than its owner.

        None for a name of neither: what an identity provider says of somebody is known only while they are here.
        """
        account = await self._db.read("user_find", name=name.lower()) if name else []
        if account:
            return account[0]["disabled_at"] is None and holds(_grants.decode(account[0]["grants"]), role, namespace)
        info = await self.find(name) if name else None
        if info is None:
            return None
        if not info.good(now):
            return False
        own = dict.fromkeys(info.namespaces, info.roles)
        return holds(own, role, namespace) and (info.owner_grants is None or holds(info.owner_grants, role, namespace))

    async def may_name(self, declarer: DeclaredBy, user: str, namespace: str, *, now: float) -> bool:
        """Whether work may be done for a user because this declarer has named them, by their rights of this moment."""
        if declarer.operator or user in ("", declarer.user):
            return True
        return bool(await self.holds(declarer.user, IMPERSONATOR, namespace, now=now))

    async def revoke(self, word: str, *, now: float) -> TokenInfo:
        """Make the token of this name or id worthless. Raises `NotFound`, also when it was revoked before."""
        found = await self._db.read("token_find", word=word)
        if not found or not await self._db.write(run, "token_revoke", id=found[0]["id"], now=now):
            raise NotFound(
                f"there is no token that can be used called {word!r}", hint="`foliot tokens list` shows them"
            )
        return msgspec.structs.replace(_info(found[0]), revoked_at=now)

    async def used(self, token_id: str, *, now: float) -> None:
        """Note that it was used."""
        await self._db.write(run, "token_used", id=token_id, now=now)


def _new_id() -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(12))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _info(row: Row) -> TokenInfo:
    return TokenInfo(
        row["id"],
        row["name"],
        _texts.decode(row["namespaces"]),
        _texts.decode(row["roles"]),
        row["created_at"],
        row["created_by"],
        row["expires_at"],
        row["revoked_at"],
        row["used_at"],
        row["owner"],
        None if row["owner_grants"] is None else _grants.decode(row["owner_grants"]),
        row["owner_disabled_at"],
    )
