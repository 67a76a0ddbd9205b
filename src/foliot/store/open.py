"""A database by its URL."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from foliot.common.waits import Waits
from foliot.errors import Unavailable, UsageError
from foliot.store.base import Database
from foliot.store.causes import is_away

log = logging.getLogger(__name__)

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
            from foliot.store.sqlite.database import SqliteDatabase

            path = rest.removeprefix("/")
            if not rest.startswith("/") or not path or path == ":memory:":
                raise UsageError("the store needs a file: the SQLite URL names none", hint=_EXAMPLES)
            return await SqliteDatabase.open(path, waits)
        case "postgresql" | "postgres":
            from foliot.store.postgres.database import PostgresDatabase

            return await PostgresDatabase.open(url, waits)
        case _:
            raise UsageError(f"there is no store of the type {scheme!r}", hint=_EXAMPLES)


_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_TOLD_EVERY: Final = 30.0


async def open_when_there(url: str, waits: Waits | None = None, *, patience: float) -> Database:
    """Opens the database like `open_database`, but waits up to `patience` seconds for an absent server; `inf` is for
    ever.

    The log says what is waited for. What waiting cannot mend (a wrong password, no such database) is raised at once.
    """
    now = asyncio.get_running_loop().time
    began, told = now(), -_TOLD_EVERY
    failures = 0
    while True:
        try:
            database = await open_database(url, waits)
        except Unavailable as error:
            left = began + patience - now()
            if not is_away(error) or left <= 0:
                raise
            if now() - told >= _TOLD_EVERY:
                first, told = told < began, now()
                since = f"this is said every {_TOLD_EVERY:.0f} s" if first else f"since {now() - began:.0f} s"
                log.warning("%s; waiting for it (%s)", error.message, since)
            failures += 1
            from foliot.kernel.backoff import backoff  # only a store that is away needs it: see test_process.py

            await asyncio.sleep(min(backoff(failures, _FIRST_PAUSE, _LONGEST_PAUSE), left))
        else:
            if told >= began:
                log.warning("the store answers, after %.0f s", now() - began)
            return database
