"""New stores as copies of one that the migrations made: thousands of tests begin with a new store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import apsw

from foliot.dev.session import Model
from foliot.store import schema
from foliot.store.postgres.database import migrate
from foliot.store.postgres.driver import connect
from foliot.store.sqlite import file as sqlite_file


async def _migrate_postgres(url: str) -> None:
    connection = await connect(url, within=60)
    try:
        await migrate(connection, "the model of the tests")
    finally:
        await connection.close()


POSTGRES = Model(
    "store",
    _migrate_postgres,
    "UPDATE store_life SET incarnation = md5(random()::text || clock_timestamp()::text || txid_current()::text)",
)
"""It has never been opened, so it is of no place yet, and no copy is taken for a store that was put back."""


class NewFiles:
    """Takes the place of the migrations for a file without tables, and leaves every other file to them.

    A copy has an incarnation of its own and is of no boot yet, like a store that the migrations have just made.
    Processes that tests start go by the migrations.
    """

    def __init__(self) -> None:
        self.migrate_really = sqlite_file._migrate
        self._lock = threading.Lock()  # stores may be opened on any thread
        self._model: apsw.Connection | None = None
        self._made_by: tuple[schema.Migration, ...] = ()

    def migrate(self, connection: Any, path: Path) -> None:
        if connection.table_exists("main", "schema_version"):
            self.migrate_really(connection, path)
            return
        with self._lock, connection.backup("main", self._up_to_date(), "main") as copy:
            copy.step()
        connection.execute("UPDATE store_life SET incarnation = lower(hex(randomblob(16)))")

    def _up_to_date(self) -> apsw.Connection:
        """A store in memory, made anew when a test has put other migrations in the place of ours."""
        wanted = schema.migrations("sqlite")
        if self._model is None or self._made_by is not wanted:
            model: Any = apsw.Connection(":memory:")
            model.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.migrate_really(model, Path(":memory:"))
            self._model, self._made_by = model, wanted
        return self._model
