"""Logging in with a name and a password, and what belongs to it.

Somebody unknown, a wrong password and a disabled account get the same answer after the same work. Attempts are counted
by where they come from and by whom they name, in the store, so for all servers together; ones that succeed do not
count. Where they come from is the address of the connection: what a request says of itself can be made up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from foliot.common.text import one_line
from foliot.engine.audit.words import Act
from foliot.errors import Conflict, Denied, FoliotError, UsageError
from foliot.server.audit import LONGEST, entry_of
from foliot.server.auth.identity import Caller
from foliot.server.auth.oidc import OidcLogins, OidcProvider
from foliot.server.auth.passwords import Passwords, check_password
from foliot.server.auth.sessions import HELD, Cookies, RequestSession
from foliot.server.context import CALLER, Services
from foliot.server.errors import TooMany, Unauthenticated
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.query import NAMESPACE, query_of
from foliot.settings.settings import Settings
from foliot.store.access.logins import (
    NOBODY,
    Lifetime,
    LoginPace,
    LoginSession,
    SqlLoginAttempts,
    SqlLoginFlows,
    SqlLoginSessions,
)
from foliot.store.access.users import SqlUsers, digest_of
from foliot.store.base import Database

# Wrong ones: twenty in a row from one place, ten of them for one name; then one every six seconds. For one name from
# all places together more than one place can reach, so that nobody alone keeps the owner out.
PER_PEER: Final = LoginPace(20, 6.0)
PER_NAME: Final = LoginPace(10, 6.0)
PER_NAME_ANYWHERE: Final = LoginPace(100, 1.0)
# Who is sent to an identity provider and does not come back: each is a row for ten minutes, and guesses nothing.
PER_VISITOR: Final = LoginPace(300, 1.0)
SWEPT_EVERY: Final = 256
FIRST_ADMIN: Final = {"*": ("admin",)}
DEFAULT_IDLE: Final = 12 * 3600.0
DEFAULT_LIFE: Final = 7 * 86400.0


class WrongLogin(Unauthenticated):
    """The name or the password is wrong; which of them is not told, but for the log: `name` is a real one, or blank."""

    def __init__(self, name: str = "") -> None:
        super().__init__("the name or the password is wrong")
        self.name = name


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session that has begun, and the text for its cookie."""

    session: LoginSession
    cookie: str


class Logins:
    """Accounts, sessions, and how one comes to a session. `settings` may be left out for all defaults."""

    def __init__(
        self,
        database: Database,
        settings: Settings | None = None,
        *,
        passwords: Passwords | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.users = SqlUsers(database)
        self.sessions = SqlLoginSessions(database)
        self.public_url = settings.public_url if settings else None
        self.cookies = Cookies(self.public_url)
        self.lifetime = Lifetime(
            settings.session_idle if settings else DEFAULT_IDLE, settings.session_life if settings else DEFAULT_LIFE
        )
        self.passwords = passwords or Passwords()
        self._attempts = SqlLoginAttempts(database)
        self._charges = 0
        self._clock = clock
        provider = OidcProvider.of(settings) if settings else None
        self.oidc: OidcLogins | None = None
        if settings is not None and provider is not None:
            self.oidc = OidcLogins(provider, settings, SqlLoginFlows(database), self.sessions, self.lifetime, clock)

    async def log_in(self, name: str, password: str, peer: str) -> NewSession:
        """Raises `WrongLogin`, `TooMany` after too many of them, `Conflict` while there is no account at all."""
        now = self._clock()
        counted = _counted(name, peer)
        await self._charge(*counted)
        account = await self.users.find(name)
        right = await self.passwords.matches(account.password if account else None, password)
        if account is None or not right or account.info.disabled_at is not None:
            if account is None and not await self.users.any():
                raise Conflict("nobody can log in before the first account is made", hint="POST /v1/auth/setup")
            raise WrongLogin(account.info.name if account else "")
        session, cookie = await self.sessions.begin(account, lifetime=self.lifetime, now=now)
        await self._forgive(*counted)
        if self.passwords.outdated(account.password):
            await self.users.rehash(account, await self.passwords.hash(password))
        await self.sweep()
        return NewSession(session, cookie)

    async def set_up(self, token: str, name: str, password: str, peer: str) -> NewSession:
        """Makes the first account, an admin everywhere, and logs it in: the same attempt, which is counted once.

        Raises `Denied` for a wrong token, `Conflict` when there is an account.
        """
        await self._charge((_peer(peer), PER_PEER))
        if await self.users.any():
            raise Conflict("this installation has been set up", hint="log in, or ask an admin for an account")
        check_password(password, name)
        kept = await self.passwords.hash(password)
        now = self._clock()
        await self.users.set_up(token, name, password=kept, grants=FIRST_ADMIN, now=now)
        account = await self.users.find(name)
        assert account is not None, "it was made a moment ago"
        session, cookie = await self.sessions.begin(account, lifetime=self.lifetime, now=now)
        return NewSession(session, cookie)

    async def change_password(self, session: LoginSession, current: str, new: str, peer: str) -> int:
        """Changes the password of a logged-in user who knows the old one; all sessions end. Returns their number.

        Raises `WrongLogin`, `TooMany`, `InvalidInput` for a new one that is no good, `UsageError` without an account.
        """
        if session.user_id == NOBODY:
            raise UsageError("your password is kept by your identity provider", hint="change it there")
        await self._charge(*(counted := _counted(session.name, peer)))
        account = await self.users.find(session.name)
        if not await self.passwords.matches(account.password if account else None, current) or account is None:
            raise WrongLogin(session.name)
        check_password(new, session.name)
        await self._forgive(*counted)
        kept = await self.passwords.hash(new)
        return await self.users.set_password(session.name, kept, now=self._clock(), instead_of=account.password)

    async def reset_password(self, name: str, new: str) -> int:
        """Sets the password of an account for an admin; all its sessions end.

        Returns their number. Raises `NotFound`, `InvalidInput`.
        """
        check_password(new, name)
        return await self.users.set_password(name, await self.passwords.hash(new), now=self._clock())

    async def pass_by(self, peer: str) -> None:
        """Count a visit that costs something, though it guesses nothing. Raises `TooMany`."""
        await self._charge((f"visit {_peer(peer)}", PER_VISITOR))

    async def came_back(self, peer: str) -> None:
        """The visit ended in a login: it does not count."""
        await self._forgive((f"visit {_peer(peer)}", PER_VISITOR))

    async def sweep(self) -> None:
        """Forget what is over. Done by whoever comes in, and now and then by those who do not."""
        now = self._clock()
        await asyncio.gather(self.sessions.prune(now=now), self._attempts.prune(now=now))

    async def _charge(self, *subjects: tuple[str, LoginPace]) -> None:
        self._charges += 1
        if self._charges % SWEPT_EVERY == 0:
            await self.sweep()
        for subject, pace in subjects:
            wait = await self._attempts.charge(subject, pace, now=self._clock())
            if wait:
                raise TooMany("too many attempts", hint="wait a little", retry_after=int(wait) + 1)

    async def _forgive(self, *subjects: tuple[str, LoginPace]) -> None:
        await asyncio.gather(*(self._attempts.refund(subject, pace) for subject, pace in subjects))


def _peer(address: str) -> str:
    """An address, or for IPv6 the network that one household or machine has."""
    import ipaddress

    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "peer unknown"
    if found.version == 6 and found.ipv4_mapped is None:
        return f"peer {ipaddress.ip_network((found, 64), strict=False).network_address}"
    return f"peer {found.ipv4_mapped or found}" if found.version == 6 else f"peer {found}"


def _counted(name: str, peer: str) -> tuple[tuple[str, LoginPace], ...]:
    """Returns the counters of a login attempt. A stranger is stopped by the first two, which others do not share."""
    source, account = _peer(peer), _named(name)
    return (source, PER_PEER), (f"{source} {account}", PER_NAME), (account, PER_NAME_ANYWHERE)


def _named(name: str) -> str:
    # A digest, because people type their password here; and texts of any length and any letters.
    return f"name {digest_of(name.strip().lower())}"


# --- login records ---------------------------------------------------------------------------------------------------

# Logins, their failures, and what was refused, in the audit log: who, from where, by which request; never a secret.
#
# What a request says about who it comes from is not believed: of a failed login only the name of a real account is
# kept, because people type passwords where names belong.

log = logging.getLogger(__name__)

# Of the same refusal of the same caller one record is enough for so long, in seconds.
TOLD_EVERY: Final = 60.0
MOST_TOLD: Final = 4096
_TOLD: Final = "foliot_denials"


async def tell(
    request: Request, verb: Act, kind: str, name: str, *, caller: Caller | None = None, namespace: str = "", **more: Any
) -> None:
    """Keep the record of an act. It cannot be undone for want of a record, so this never raises."""
    services: Services = request.app.state.services
    entry = entry_of(
        caller, verb, kind, namespace, name, request=request.scope.get(REQUEST_ID, ""), peer=peer_of(request), **more
    )
    if caller is None:
        entry["caller"] = {"user": "", "known_by": "nobody"}
    try:
        await services.runtime.inside.audit.act(entry)
    except FoliotError as error:
        log.error("an act is not in the audit log: %s %s/%s: %s", verb, kind, name, error.message)


async def tell_denied(request: Request, error: FoliotError) -> None:
    """Records the refusal of a known caller; the same again within a minute is recorded once."""
    if not isinstance(error, Denied):
        return
    held: RequestSession | None = request.scope.get(HELD)
    caller: Caller | None = request.scope.get(CALLER) or (held.caller if held else None)
    if caller is None:
        return
    route = getattr(request.scope.get("route"), "path", "")
    namespace = _refused_in(request, caller, error)
    told: dict[tuple[str, str, str, str], float] = getattr(request.app.state, _TOLD, {})
    key, now = (caller.name, request.method, route, namespace), time.monotonic()
    if now - told.get(key, -TOLD_EVERY) < TOLD_EVERY:
        return
    if len(told) >= MOST_TOLD:
        told.clear()
    told[key] = now
    setattr(request.app.state, _TOLD, told)
    await tell(
        request,
        "denied",
        "Route",
        f"{request.method} {route}",
        caller=caller,
        namespace=namespace,
        path=one_line(request.url.path)[:LONGEST],
        code=error.code,
        role=str(error.details.get("role", "")),
    )


def _refused_in(request: Request, caller: Caller, error: FoliotError) -> str:
    """Returns the namespace that a refusal is about, so that its admins see it; blank for the installation."""
    namespace = str(error.details.get("namespace", "")) or query_of(request.scope).get(NAMESPACE, "")
    return namespace if namespace and caller.sees(namespace) else ""


def peer_of(request: Request) -> str:
    """The address that the connection comes from."""
    return request.client.host if request.client is not None else ""
