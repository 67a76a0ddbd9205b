"""Sessions of browsers: 256 random bits in a cookie, of which only the SHA-256 is kept.

Whose session it is decides about roles at every request: an account that is disabled, or has other roles, has them in
all its sessions at once.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final, NamedTuple

from msgspec import Struct

from foliot.errors import Denied
from foliot.store.access.users import Grants, UserAccount, decoded, digest_of, encoded
from foliot.store.base import Database
from foliot.store.portions import FORGOTTEN_AT_ONCE, forget_old
from foliot.store.transaction import Row, Tx, one, rows, run

NOBODY: Final = ""


class Lifetime(Struct, frozen=True):
    """How long a session may rest, and how long it may last at all, in seconds."""

    idle: float
    whole: float


class LoginSession(Struct, frozen=True):
    """A session that is good. A blank `user_id` is somebody whom an identity provider vouched for."""

    digest: str
    user_id: str
    name: str
    grants: dict[str, tuple[str, ...]]
    created_at: float
    idle_until: float
    ends_at: float

    def good(self, now: float) -> bool:
        return now < self.idle_until and now < self.ends_at


class SqlLoginSessions:
    """The login sessions, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def begin(self, account: UserAccount, *, lifetime: Lifetime, now: float) -> tuple[LoginSession, str]:
        """A session of an account whose password was found right, and the text for the cookie.

        Raises `Denied` when the password was changed or the account disabled since it was looked at.
        """
        info = account.info
        session, text = _new(info.id, info.name, info.grants, lifetime, now)

        def body() -> Tx[None]:
            row = yield from one("user_locked", name=info.name)
            if row is None or row["password"] != account.password or row["disabled_at"] is not None:
                raise Denied("the account was changed meanwhile", hint="log in again")
            yield from _add(session, "")
            yield from run("user_logged_in", id=info.id, now=now)

        await self._db.write(body)
        return session, text

    async def begin_vouched(
        self, name: str, grants: Grants, *, lifetime: Lifetime, now: float
    ) -> tuple[LoginSession, str]:
        """A session of somebody whom an identity provider vouched for, with the roles that follow from its word."""
        session, text = _new(NOBODY, name, grants, lifetime, now)
        await self._db.write(_add, session, encoded(grants))
        return session, text

    async def find(self, text: str, *, now: float) -> LoginSession | None:
        """The session of this cookie, if it is good now."""
        found = await self._db.read("login_session_get", digest=digest_of(text))
        session = _session(found[0]) if found else None
        return session if session is not None and session.good(now) else None

    async def seen(self, session: LoginSession, *, idle: float, now: float) -> None:
        """Extends a session that was used: it may rest for `idle` seconds again."""
        until = min(now + idle, session.ends_at)
        await self._db.write(run, "login_session_seen", digest=session.digest, idle_until=until)

    async def end(self, session: LoginSession) -> None:
        await self._db.write(run, "login_session_end", digest=session.digest)

    async def prune(self, *, now: float) -> int:
        """Forget those that are over; the number of them."""
        return await forget_old(self._db, "login_session_prune", now=now)


def _new(user_id: str, name: str, grants: Grants, lifetime: Lifetime, now: float) -> tuple[LoginSession, str]:
    text = secrets.token_urlsafe(32)
    held = {space: tuple(roles) for space, roles in grants.items()}
    ends_at = now + lifetime.whole
    return LoginSession(digest_of(text), user_id, name, held, now, min(now + lifetime.idle, ends_at), ends_at), text


def _add(session: LoginSession, grants: str) -> Tx[int]:
    return (
        yield from run(
            "login_session_add",
            digest=session.digest,
            user_id=session.user_id,
            name=session.name,
            grants=grants,
            now=session.created_at,
            idle_until=session.idle_until,
            ends_at=session.ends_at,
        )
    )


def _session(row: Row) -> LoginSession | None:
    grants: str | None = row["grants"]
    if row["user_id"] != NOBODY:
        grants = row["user_grants"]
        if grants is None or row["disabled_at"] is not None:
            return None
    assert grants is not None, "a session without an account has roles of its own"
    return LoginSession(
        row["digest"],
        row["user_id"],
        row["name"],
        decoded(grants),
        row["created_at"],
        row["idle_until"],
        row["ends_at"],
    )


# --- login attempts --------------------------------------------------------------------------------------------------

# How often somebody may try to log in, counted in the store: for all servers on it together.
#
# Each attempt pushes a subject's clock forward by an interval; who is too far ahead of the real one has to wait. One
# statement decides and counts, so attempts at the same moment cannot slip through together.


class LoginPace(NamedTuple):
    """So many attempts at once, then one for each `interval` seconds."""

    burst: int
    interval: float


class SqlLoginAttempts:
    """The counted login attempts, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def charge(self, subject: str, pace: LoginPace, *, now: float) -> float:
        """Count an attempt. 0 when it may be made; else the seconds to wait, and nothing is counted."""
        allowed = now + (pace.burst - 1) * pace.interval
        counted = await self._db.write(
            run,
            "attempt_charge",
            subject=subject,
            now=now,
            fresh=now + pace.interval,
            interval=pace.interval,
            allowed=allowed,
        )
        if counted:
            return 0.0
        found = await self._db.read("attempt_get", subject=subject)
        return max(found[0]["busy_until"] - allowed, 0.001) if found else pace.interval

    async def refund(self, subject: str, pace: LoginPace) -> None:
        """The attempt was a good one: it does not count."""
        await self._db.write(run, "attempt_refund", subject=subject, interval=pace.interval)

    async def prune(self, *, now: float) -> int:
        """Forget subjects that need not wait; the number of them."""
        return await forget_old(self._db, "attempt_prune", now=now)


# --- login flows -----------------------------------------------------------------------------------------------------

# Who was sent to an identity provider and is expected back: once, within minutes, in the same browser.
#
# Nothing that is kept here lets anybody in: of the state and of what the browser holds there are only digests.


class SqlLoginFlows:
    """The logins in progress at an identity provider, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def begin(self, state: str, browser: str, return_to: str, *, now: float, seconds: float) -> None:
        """Expect the browser that holds `browser` back with `state`. Forgets who did not come back in time."""

        def body() -> Tx[None]:
            yield from run("flow_prune", now=now, count=FORGOTTEN_AT_ONCE)
            yield from run(
                "flow_add",
                state=digest_of(state),
                browser=digest_of(browser),
                return_to=return_to,
                expires_at=now + seconds,
            )

        await self._db.write(body)

    async def take(self, state: str, browser: str, *, now: float) -> str | None:
        """Takes the login in progress of an expected browser; None otherwise. A state is good for one attempt."""

        def body() -> Tx[list[Row]]:
            return (yield from rows("flow_take", state=digest_of(state)))

        found = await self._db.write(body)
        same = hmac.compare_digest(found[0]["browser"] if found else digest_of(""), digest_of(browser))
        if not found or not same or now >= found[0]["expires_at"]:
            return None
        return found[0]["return_to"]
