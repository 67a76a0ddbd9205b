"""The PostgreSQL driver, an extra, with types for what is used of it (it ships none)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable, UsageError
from foliot.store.causes import LOST, UNLISTED, FailureCause, of_sqlstate
from foliot.version import install_command

try:
    asyncpg: Any = import_module("asyncpg")
except ImportError:
    raise UsageError(
        "PostgreSQL needs the package asyncpg, which is not installed", hint=install_command("postgres")
    ) from None

Retryable: tuple[type[Exception], ...] = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
Lost: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,
)
# The driver refuses by itself, such as on a connection that was lost meanwhile: the server has heard nothing.
NotSent: type[Exception] = asyncpg.InterfaceError
ServerError: type[Exception] = asyncpg.PostgresError
# What rows, not circumstances, are the cause of.
RowErrors: tuple[type[Exception], ...] = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
)
DriverErrors: tuple[type[Exception], ...] = (ServerError, *Lost)


class TypeName(Protocol):
    @property
    def name(self) -> str: ...


class Prepared(Protocol):
    def get_parameters(self) -> Sequence[TypeName]: ...


class PostgresConnection(Protocol):
    async def fetch(self, query: str, /, *arguments: Any) -> Sequence[Mapping[str, Any]]: ...
    async def fetchval(self, query: str, /, *arguments: Any) -> Any: ...
    async def execute(self, query: str, /, *arguments: Any) -> str: ...
    async def executemany(self, query: str, arguments: Iterable[Sequence[Any]], /) -> None: ...
    async def prepare(self, query: str, /) -> Prepared: ...
    async def add_listener(self, channel: str, callback: Callable[..., None], /) -> None: ...
    async def remove_listener(self, channel: str, callback: Callable[..., None], /) -> None: ...
    def add_termination_listener(self, callback: Callable[[Any], None], /) -> None: ...
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that nothing more can be said or undone on it."""
    return isinstance(error, Lost)


def is_too_long(error: BaseException) -> bool:
    """Whether the server has stopped the statement at its time limit."""
    return str(getattr(error, "sqlstate", "")) == "57014"


async def connect(url: str, *, within: float) -> PostgresConnection:
    """Raises `TimeoutError` after `within` seconds."""
    return await asyncpg.connect(url, timeout=within, statement_cache_size=512)


# --- errors ----------------------------------------------------------------------------------------------------------

# Explanations of the errors of PostgreSQL and its driver. The password of a URL never gets here.


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


def _told(cause: FailureCause, where: str, more: str, state: str = "") -> Unavailable:
    return Unavailable(
        f"PostgreSQL at {where} {cause.means}{more}",
        hint=cause.hint,
        retryable=cause.retryable,
        place=where,
        away=cause.away,
        **({"sqlstate": state} if state else {}),
    )
