"""A database by its URL."""

from __future__ import annotations

from foliot.errors import UsageError
from foliot.store.base import Database
from foliot.waits import Waits

_EXAMPLES = "use a path, sqlite:///folder/foliot.db, or postgresql://user@host/database"


async def open_database(url: str, waits: Waits | None = None) -> Database:
    """Open the database that `url` names, made or brought up to date when needed; `waits` bounds what it may take.

    `sqlite:///relative/path`, `sqlite:////absolute/path` or a plain path is a SQLite file; `postgresql://…` (or
    `postgres://…`) a PostgreSQL database. Raises `UsageError`, `InvalidInput`, `Unavailable`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "sqlite", "/" + url
    match scheme:
        case "sqlite":
            from foliot.store.sqlite import SqliteDatabase

            path = rest.removeprefix("/")
            if not rest.startswith("/") or not path or path == ":memory:":
                raise UsageError("the store needs a file: the SQLite URL names none", hint=_EXAMPLES)
            return await SqliteDatabase.open(path)
        case "postgresql" | "postgres":
            from foliot.store.postgres import PostgresDatabase

            return await PostgresDatabase.open(url, waits)
        case _:
            raise UsageError(f"there is no store of the type {scheme!r}", hint=_EXAMPLES)
