"""How callers are known: by a token, by a session, or by knowing the local key of the server's home.

Where a request comes from says nothing about who sent it: a proxy, another user of the machine and a page in its
browser all come from loopback. A request without a credential is from nobody.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from foliot.errors import FoliotError
from foliot.server.auth.identity import EVERYWHERE, Caller, granted, granted_each, narrowed_to, role_named
from foliot.server.auth.logins import Logins
from foliot.server.auth.oidc import LEEWAY
from foliot.server.auth.passwords import Passwords
from foliot.server.auth.sessions import HELD, SAFE, SESSION, RequestSession, check_origin, check_token, csrf_token
from foliot.server.errors import Unauthenticated
from foliot.settings.settings import Settings
from foliot.store.access.logins import NOBODY, LoginSession
from foliot.store.access.tokens import SqlTokens, TokenInfo
from foliot.store.base import Database
from foliot.store.secrets.local_key import LIFE, PREFIX, Introduction, LocalKey, place_of

# --- believing -------------------------------------------------------------------------------------------------------

# What was found out about a credential, believed until the store may say something else.

# Where the store cannot tell for nothing whether anything changed, a credential is believed for so long without asking.
BELIEVED: Final = 1.0
MOST_KNOWN: Final = 4096


class Credential(Protocol):
    def good(self, now: float) -> bool:
        """Whether it lets anybody in at this time."""
        ...


C = TypeVar("C", bound=Credential)


class Holder(NamedTuple, Generic[C]):
    """A caller, and the credential that identifies it."""

    caller: Caller
    by: C


class _Known(NamedTuple, Generic[C]):
    version: object | None
    at: float
    holder: Holder[C]

    def still(self, version: object | None, now: float) -> bool:
        same = self.version == version if version is not None else now - self.at < BELIEVED
        return same and self.holder.by.good(now)


class CredentialCache(Generic[C]):
    """Asks `ask` about a text, and remembers what it said for as long as that holds."""

    def __init__(self, database: Database, ask: Callable[[str, float], Awaitable[Holder[C] | None]]) -> None:
        self._db = database
        self._ask = ask
        self._known: dict[str, _Known[C]] = {}
        # How often something was taken back: what was found out meanwhile may be of the time before.
        self._forgotten = 0

    def forget(self) -> None:
        """Forgets all known credentials after one was revoked here, also where the store does not notify at once."""
        self._forgotten += 1
        self._known.clear()

    async def of(self, text: str, now: float) -> Holder[C] | None:
        """Returns the holder of the credential with this text, if it is valid now."""
        version = self._db.version()
        known = self._known.get(text)
        if known is not None and known.still(version, now):
            return known.holder
        forgotten = self._forgotten
        holder = await self._ask(text, now)
        if holder is None:
            self._known.pop(text, None)
            return None
        if forgotten != self._forgotten:
            return holder
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[text] = _Known(version, now, holder)
        return holder


# --- auth ------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
ANONYMOUS: Final = Caller("anonymous", "anonymous", granted([EVERYWHERE], ["admin"]))
# The time of the last use is written at most so often; of a session that may rest only shortly, more often.
NOTED_EVERY: Final = 60.0
# For so long a token of the identity provider is believed without looking at its signature again.
VOUCHED: Final = 60.0
_SEND_ONE: Final = (
    "send a token: `Authorization: Bearer fol_…`; `foliot tokens create` makes one. On the server's own machine the "
    "command line needs none: whoever owns FOLIOT_HOME/local.key is let in"
)


class TokenAuth:
    """An `Authenticator` on the tokens and accounts of a store. `local`: only this machine can reach the server.

    `settings` say how long sessions last, and name an identity provider. Raises `UsageError` when half of that is
    missing. Whoever knows `local_key` may do everything.
    """

    def __init__(
        self,
        database: Database,
        *,
        local: bool,
        settings: Settings | None = None,
        local_key: LocalKey | None = None,
        passwords: Passwords | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.logins = Logins(database, settings, passwords=passwords, clock=clock)
        self._tokens = SqlTokens(database)
        self._local = local
        self._key = local_key
        self._boot = secrets.token_hex(16)
        self._clock = clock
        self._by_token = CredentialCache(database, self._ask_token)
        self._by_cookie = CredentialCache(database, self._ask_session)
        self._vouched: dict[str, tuple[float, Caller]] = {}
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._closed_door = False

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """Identifies the caller by token, local key or session; see `Authenticator`."""
        given = _bearer(scope)
        if given is not None:
            return self._of_local_key(given, scope) if given.startswith(PREFIX) else await self._of_bearer(given)
        held = await self.session(scope)
        if held is None:
            raise Unauthenticated("the request has no credentials", hint=_SEND_ONE)
        return held.caller

    def introduce(self, scope: MutableMapping[str, Any], nonce: str) -> tuple[Introduction, str] | None:
        """Returns the proof for a client on this machine that this server knows the local key; None without one, or
        elsewhere.
        """
        place = place_of(scope.get("server"))
        if self._key is None or not place:
            return None
        about = Introduction(place, nonce, self._boot, int(self._clock()) + LIFE)
        return about, self._key.vouch(about)

    async def session(self, scope: MutableMapping[str, Any]) -> RequestSession | None:
        """The session of a request, None without a good one.

        Raises `CrossSite` for a request that writes, when a page of another site may have sent it.
        """
        cookie = self.logins.cookies.read(scope, SESSION)
        if cookie is None:
            return None
        now = self._clock()
        holder = await self._by_cookie.of(cookie, now)
        if holder is None:
            return None
        held = scope[HELD] = RequestSession(holder.caller, holder.by, csrf_token(cookie))
        if scope["method"] not in SAFE:
            check_origin(scope, self.logins.public_url)
            check_token(scope, cookie)
        idle = self.logins.lifetime.idle
        if self._is_due(holder.by.digest, now, min(NOTED_EVERY, idle / 10)):
            self._note(self.logins.sessions.seen(holder.by, idle=idle, now=now))
        return held

    async def held(self, cookie: str) -> LoginSession | None:
        """The good session of a cookie, whoever sends it."""
        holder = await self._by_cookie.of(cookie, self._clock())
        return None if holder is None else holder.by

    def forget(self) -> None:
        """A token or session was taken back through this server: it holds here at once, elsewhere within a second."""
        self._by_token.forget()
        self._by_cookie.forget()

    async def configured(self) -> bool:
        """Whether anybody can be known who does not own the home of the server."""
        # Once there is a token or an account, there is one for ever: rows are never deleted.
        if not self._closed_door:
            self._closed_door = (
                self.logins.oidc is not None or await self._tokens.any() or await self.logins.users.any()
            )
        return self._closed_door

    async def describe(self) -> str:
        """Describes in words how callers are let in; see `Authenticator`."""
        mine = "the command line of this user on this machine is let in by its local key; " if self._key else ""
        if await self.configured():
            return f"{mine}other callers need a token, or log in"
        if mine and self._local:
            return f"{mine}other callers need a token (`foliot tokens create`)"
        return f"{mine}no token exists, and nobody is let in from elsewhere: `foliot tokens create --admin` makes one"

    async def close(self) -> None:
        """Wait for the notes of the last uses."""
        await asyncio.gather(*self._notes)

    def _of_local_key(self, text: str, scope: MutableMapping[str, Any]) -> Caller:
        key, place = self._key, place_of(scope.get("server"))
        if key is None or not place or not key.accepts(text, place=place, boot=self._boot, now=self._clock()):
            raise Unauthenticated("this is not from somebody who knows the local key", hint=_SEND_ONE)
        return Caller(f"local:{key.owner}", "local", granted([EVERYWHERE], ["admin"]))

    async def _of_bearer(self, text: str) -> Caller:
        now = self._clock()
        if text.count(".") == 2 and self.logins.oidc is not None and self.logins.oidc.audience is not None:
            return await self._of_provider(text, now)
        holder = await self._by_token.of(text, now)
        if holder is None:
            raise Unauthenticated("this token is not good", hint=await self._what_to_do())
        if self._is_due(holder.by.id, now, NOTED_EVERY):
            self._note(self._tokens.used(holder.by.id, now=now))
        return holder.caller

    async def _what_to_do(self) -> str:
        """Returns the hint for a wrong token. Only on the machine itself does it say that there are no tokens."""
        if self._local and not await self.configured():
            return (
                "this server has no tokens yet: `foliot tokens create NAME --role operator` prints one, the key "
                "of any client (OPENAI_API_KEY for those of OpenAI)"
            )
        return "it may be wrong, expired or revoked"

    async def _of_provider(self, text: str, now: float) -> Caller:
        """Returns the caller of an identity provider's token.

        It is verified again every minute: keys may be withdrawn.
        """
        known = self._vouched.get(text)
        if known is not None and now < known[0]:
            return known[1]
        assert self.logins.oidc is not None, "asked only where there is a provider"
        claims, name, grants = await self.logins.oidc.bearer(text)
        caller = Caller(name, "oidc", granted_each(grants), str(claims.get("sub") or ""))
        if len(self._vouched) >= MOST_KNOWN:
            self._vouched.clear()
        self._vouched[text] = (min(float(claims["exp"]) + LEEWAY, now + VOUCHED), caller)
        return caller

    async def _ask_token(self, text: str, now: float) -> Holder[TokenInfo] | None:
        info = await self._tokens.verify(text, now=now)
        return None if info is None else Holder(_caller(info), info)

    async def _ask_session(self, text: str, now: float) -> Holder[LoginSession] | None:
        session = await self.logins.sessions.find(text, now=now)
        if session is None:
            return None
        return Holder(session_caller(session), session)

    def _is_due(self, key: str, now: float, every: float) -> bool:
        """Whether the last use of something was noted so long ago that it is worth a write."""
        if now - self._noted.get(key, 0.0) < every:
            return False
        if len(self._noted) >= MOST_KNOWN:
            self._noted.clear()
        self._noted[key] = now
        return True

    def _note(self, write: Awaitable[None]) -> None:
        task = asyncio.create_task(_written(write))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)


async def _written(write: Awaitable[None]) -> None:
    try:
        await write
    except FoliotError as error:  # nobody waits for this
        log.warning("the use of a token or session was not noted: %s", error.message)


class Anonymous:
    """Lets in everybody who sits at this machine, with all rights: for tests alone. No command starts a server so."""

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """Accepts any caller on this machine, and no other; see `Authenticator`."""
        if not _sits_here(scope):
            raise Unauthenticated("the request has no credentials", hint=_SEND_ONE)
        return ANONYMOUS

    async def describe(self) -> str:
        """Describes in words how callers are let in; see `Authenticator`."""
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


def _caller(info: TokenInfo) -> Caller:
    grants = granted(info.namespaces, [role_named(role) for role in info.roles])
    if info.owner_grants is not None:
        grants = narrowed_to(grants, granted_each(info.owner_grants))
    return Caller(info.name, "token", grants, info.id, info.owner)


def session_caller(session: LoginSession) -> Caller:
    """Return whoever a session belongs to: an account, or somebody whom the identity provider vouched for."""
    account = session.name if session.user_id != NOBODY else ""
    id = session.user_id or f"oidc {session.name}"
    return Caller(session.name, "session", granted_each(session.grants), id, account)


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
