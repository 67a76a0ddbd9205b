"""How callers are known: by a token, or while none was ever made, and only on this machine, not at all.

Without tokens everybody at the machine may do everything. A page in a browser on it is not somebody at the machine:
requests that another site makes a browser send are refused, whatever name they reached the machine by.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final, NamedTuple

from foliot.errors import FoliotError
from foliot.server.errors import Unauthenticated
from foliot.server.identity import EVERYWHERE, Caller, granted, role_named
from foliot.store.base import Database
from foliot.store.tokens import SqlTokens, TokenInfo

log = logging.getLogger(__name__)

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
ANONYMOUS: Final = Caller("anonymous", "anonymous", granted([EVERYWHERE], ["admin"]))
# Where the store cannot tell for nothing whether anything changed, a token is believed for so long without asking.
BELIEVED: Final = 1.0
MOST_KNOWN: Final = 4096
# The time of the last use is for people: it is written at most so often.
NOTED_EVERY: Final = 60.0
_SEND_ONE: Final = "send a token: `Authorization: Bearer fol_…`; `foliot tokens create` makes one"


class _Known(NamedTuple):
    version: object | None
    at: float
    caller: Caller
    info: TokenInfo


class TokenAuth:
    """An `Authenticator` on the tokens of a store. `local` says whether only this machine can reach the server."""

    def __init__(self, database: Database, *, local: bool, clock: Callable[[], float] = time.time) -> None:
        self._db = database
        self._tokens = SqlTokens(database)
        self._local = local
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._closed_door = False

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """See `Authenticator`."""
        given = _bearer(scope)
        if given is not None:
            return await self._of_token(given)
        if not self._local or await self._has_tokens() or not _sits_here(scope):
            raise Unauthenticated("who are you?", hint=_SEND_ONE)
        return ANONYMOUS

    async def describe(self) -> str:
        """See `Authenticator`."""
        if await self._has_tokens():
            return "callers need a token"
        if self._local:
            return "no token exists: everybody on this machine may do everything (`foliot tokens create` ends that)"
        return "no token exists, and nobody is let in: make one with `foliot tokens create --admin`"

    async def close(self) -> None:
        """Wait for the notes of the last uses."""
        await asyncio.gather(*self._notes)

    async def _of_token(self, text: str) -> Caller:
        now = self._clock()
        version = self._db.version()
        known = self._known.get(text)
        if known is None or not _still(known, version, now):
            info = await self._tokens.verify(text, now=now)
            if info is None:
                self._known.pop(text, None)
                raise Unauthenticated("this token is not good", hint="it may be wrong, expired or revoked")
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[text] = _Known(version, now, _caller(info), info)
        self._note(known.info.id, now)
        return known.caller

    async def _has_tokens(self) -> bool:
        # Once there is one, there is one for ever: rows are never deleted.
        if not self._closed_door:
            self._closed_door = await self._tokens.any()
        return self._closed_door

    def _note(self, token_id: str, now: float) -> None:
        if now - self._noted.get(token_id, 0.0) < NOTED_EVERY:
            return
        self._noted[token_id] = now
        task = asyncio.create_task(self._used(token_id, now))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _used(self, token_id: str, now: float) -> None:
        try:
            await self._tokens.used(token_id, now=now)
        except FoliotError as error:  # nobody waits for this
            log.warning("the use of a token was not noted: %s", error.message)


class Anonymous:
    """Lets in everybody who sits at this machine, with all rights: for tests, and to embed a server."""

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """See `Authenticator`."""
        if not _sits_here(scope):
            raise Unauthenticated("who are you?", hint=_SEND_ONE)
        return ANONYMOUS

    async def describe(self) -> str:
        """See `Authenticator`."""
        return "everybody on this machine may do everything"


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine only."""
    bare = host.strip("[]").lower()
    if bare in LOOPBACK:
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _still(known: _Known, version: object | None, now: float) -> bool:
    if not known.info.good(now):
        return False
    return known.version == version if version is not None else now - known.at < BELIEVED


def _caller(info: TokenInfo) -> Caller:
    return Caller(info.name, "token", granted(info.namespaces, [role_named(role) for role in info.roles]))


def _bearer(scope: MutableMapping[str, Any]) -> str | None:
    """The token of the request; a second one, or something else than a token, is nobody."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        return None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the Authorization header cannot be used", hint=_SEND_ONE)
    return token.strip()


def _sits_here(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request came from a program on this machine that was not sent by a page of another site."""
    client = scope.get("client")
    if client is not None and not is_loopback(client[0]):
        return False
    host = ""
    origin = site = b""
    for name, value in scope["headers"]:
        if name in (b"x-forwarded-for", b"forwarded", b"x-real-ip"):
            return False  # somebody passes on what comes from elsewhere
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value
        elif name == b"sec-fetch-site":
            site = value
    if not is_loopback(host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host):
        return False
    if origin and origin.decode("latin-1").partition("://")[2] != host:
        return False
    return site in (b"", b"same-origin", b"none")
