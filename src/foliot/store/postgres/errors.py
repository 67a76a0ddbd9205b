"""Explanations of the errors of PostgreSQL and its driver. The password of a URL never gets here."""

from __future__ import annotations

from urllib.parse import urlsplit

from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.store.causes import LOST, UNLISTED, Cause, of_sqlstate
from foliot.store.postgres.driver import ServerError


def place(url: str) -> str:
    """Returns the address of the database, without user and password. Raises `InvalidInput` for an unreadable URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "localhost"
        return f"{host}:{parts.port or 5432}{parts.path}"
    except ValueError:
        raise InvalidInput(
            "the PostgreSQL URL cannot be read",
            hint="write postgresql://user:password@host:port/database, with special characters as %XX",
        ) from None


def explain(error: Exception, where: str) -> FoliotError:
    """The error of the tree for what the driver raised, by the table of causes."""
    if not isinstance(error, ServerError):
        return _told(LOST, where, f" ({type(error).__name__})")
    state = str(getattr(error, "sqlstate", "") or "")
    cause = of_sqlstate(state)
    if cause.error is Conflict:
        return Conflict("the change breaks a rule of the store", rule=str(getattr(error, "constraint_name", state)))
    if cause.error is InvalidInput:
        # The driver's own text quotes the value, which may be nobody's business.
        return InvalidInput(f"the store {cause.means}", sqlstate=state)
    return _told(cause, where, f" ({state}: {error})" if cause is UNLISTED else f" ({type(error).__name__})", state)


def _told(cause: Cause, where: str, more: str, state: str = "") -> Unavailable:
    return Unavailable(
        f"PostgreSQL at {where} {cause.means}{more}",
        hint=cause.hint,
        retryable=cause.retryable,
        place=where,
        away=cause.away,
        **({"sqlstate": state} if state else {}),
    )
