"""What errors of PostgreSQL and its driver mean, in words. The password of a URL never gets here."""

from __future__ import annotations

from urllib.parse import urlsplit

from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.store.postgres_driver import ServerError


def place(url: str) -> str:
    """Where the database is, without user and password. Raises `InvalidInput` when the URL cannot be read."""
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
    """The error of the tree for what the driver raised."""
    if isinstance(error, ServerError):
        return _explain_server(error, where)
    return Unavailable(
        f"PostgreSQL at {where} does not answer ({type(error).__name__})",
        hint="see that the server runs and can be reached; Foliot reconnects by itself",
        place=where,
    )


def _explain_server(error: Exception, where: str) -> FoliotError:
    state = str(getattr(error, "sqlstate", "") or "")
    match state[:2], state:
        case "23", _:
            return Conflict("the change breaks a rule of the store", rule=str(getattr(error, "constraint_name", state)))
        case "40", _:
            return Unavailable(
                f"PostgreSQL at {where} kept undoing the change for the sake of others", hint="try again", place=where
            )
        case "22", _:
            # The driver's own text quotes the value, which may be nobody's business.
            return InvalidInput("the store cannot keep this value", sqlstate=state)
        case "28", _:
            return Unavailable(
                f"PostgreSQL at {where} refused the login", hint="check user and password", retryable=False, place=where
            )
        case _, "3D000":
            return InvalidInput(f"there is no database at {where}", hint="make it first, with createdb")
        case _, "42501" | "25006":
            return Unavailable(
                f"this user may not write to PostgreSQL at {where}",
                hint="grant the user CREATE and all table rights on the schema",
                retryable=False,
                place=where,
            )
        case _, "53100":
            return Unavailable(
                f"the disk of PostgreSQL at {where} is full", hint="free some space and try again", place=where
            )
        case (("08" | "53" | "57" | "58"), _):
            return Unavailable(
                f"PostgreSQL at {where} does not answer ({type(error).__name__})",
                hint="see that the server runs and can be reached; Foliot reconnects by itself",
                place=where,
            )
        case _:
            return FoliotError(f"PostgreSQL at {where} could not run a query: {error}", sqlstate=state)
