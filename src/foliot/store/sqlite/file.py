"""One SQLite file: made privately, opened as it must be, brought up to date, and its errors told in words.

Called by database.py only. Every connection of a process to the file comes from `connect`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast

import apsw

from foliot.common.waits import Waits
from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.store import schema
from foliot.store.causes import SQLITE, UNLISTED
from foliot.store.database_clock import boot, steady

# How long a writer waits for the other processes, and a reader for a recovery after a crash (readers never wait for
# writers). A reader waits on the event loop, so it gives up sooner. Bringing a file up to date may take longer.
WRITE_PATIENCE = Waits().answer
READ_PATIENCE = 5.0
PREPARE_PATIENCE = 60.0
PAGES_AT_ONCE = 2000
# So many rows of an index say enough about it.
LOOKED_AT = 400
# Of a table with fewer rows nothing is noted. Where a table was small when it was counted, SQLite goes through all of
# it rather than look anything up, and still does when it has grown a hundredfold before it is counted again.
FEWEST_COUNTED = 10_000

# SQLite's own back-off grows up to 100 ms a nap, so that whoever has waited longest asks least often: with several
# writing processes it starves. Short random naps give every process the same chance at each release of the lock.
_SHORTEST_NAP, _LONGEST_NAP = 0.000_3, 0.003

# Commits that follow one another so closely need not look at every file again.
_MOMENT = 0.05

_CODES: Final[Mapping[type[Exception], str]] = {
    apsw.BusyError: "SQLITE_BUSY",
    apsw.LockedError: "SQLITE_LOCKED",
    apsw.ProtocolError: "SQLITE_PROTOCOL",
    apsw.CantOpenError: "SQLITE_CANTOPEN",
    apsw.ConstraintError: "SQLITE_CONSTRAINT",
    apsw.CorruptError: "SQLITE_CORRUPT",
    apsw.NotADBError: "SQLITE_NOTADB",
    apsw.FullError: "SQLITE_FULL",
    apsw.IOError: "SQLITE_IOERR",
    apsw.NoMemError: "SQLITE_NOMEM",
    apsw.PermissionsError: "SQLITE_PERM",
    apsw.ReadOnlyError: "SQLITE_READONLY",
    apsw.TooBigError: "SQLITE_TOOBIG",
    PermissionError: "SQLITE_PERM",
    OSError: "SQLITE_CANTOPEN",
}
_OPEN = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


class Cursor(Protocol):
    """The part of the driver's cursor that is used here. Its own annotations leave the types of values unknown."""

    def execute(self, statements: str, bindings: Any = None, /) -> Cursor: ...
    def executemany(self, statements: str, bindings: Any, /) -> Cursor: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...
    def get_description(self) -> tuple[tuple[str, str], ...]: ...


class SqliteConnection(Protocol):
    """The part of the driver's connection that is used here."""

    in_transaction: bool

    def cursor(self) -> Cursor: ...
    def execute(self, statements: str, bindings: Any = None, /) -> Cursor: ...
    def changes(self) -> int: ...
    def total_changes(self) -> int: ...
    def data_version(self) -> int: ...
    def table_exists(self, database: str, name: str, /) -> bool: ...
    def config(self, option: int, value: int, /) -> int: ...
    def set_progress_handler(self, handler: Callable[[], bool] | None, steps: int = ..., /) -> None: ...
    def set_busy_handler(self, handler: Callable[[int], bool], /) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> SqliteConnection: ...
    def __exit__(self, *error: object) -> bool | None: ...


def resolve(path: str | os.PathLike[str]) -> Path:
    """The file that `path` names, whatever the current folder will be later."""
    return Path(path).expanduser().absolute()


def prepare(path: Path) -> SqliteConnection:
    """Make the file (0600, in a folder of 0700) or bring an older one up to date; return a connection for reading.

    Any number of processes may call this at once. Raises `InvalidInput`, `Unavailable`.
    """
    with told_in_words(path):
        if path.exists():
            connection = connect(path, patience=READ_PATIENCE, read_only=True)
            if _is_current(connection, path):
                if _is_of_this_boot(connection):
                    return connection
                connection.close()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(path.parent):
            _create_private(path)
            connection = connect(path, patience=PREPARE_PATIENCE)
            try:
                # First of all: a file that has a table already cannot give pages back until it is compacted.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                _migrate(connection, path)
                with suppress(apsw.ReadOnlyError):  # whoever may only read goes by the clock of the machine
                    _set_boot(connection)
            finally:
                connection.close()
        return connect(path, patience=READ_PATIENCE, read_only=True)


def connect(path: Path, *, patience: float, read_only: bool = False) -> SqliteConnection:
    """A connection that waits fairly for a lock, at most `patience` seconds."""
    connection = cast("SqliteConnection", apsw.Connection(str(path), flags=_OPEN, statementcachesize=256))
    connection.set_busy_handler(_fair_wait(patience))
    connection.execute("PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


class OpenFiles:
    """The files of a store as this process has them open, to be told from others that took their names.

    A process goes on writing to a file that was deleted or replaced, and all of it is lost with the last descriptor.
    The log and its index stay for as long as anybody has the store open, so they are always the same too.
    """

    __slots__ = ("_all_at", "_known", "_path", "_paths")

    def __init__(self, path: Path) -> None:
        """Remembers the files of a store from which something was read: its log exists."""
        self._path = path
        self._paths = (str(path), f"{path}-wal", f"{path}-shm")
        self._known = [_which(each) for each in self._paths]
        self._all_at = 0.0

    def check(self) -> None:
        """Raises `Unavailable` when the file or its log is not what it was. One system call each."""
        self._check(0)
        self._check(1)

    def check_all(self) -> None:
        """Checks all open files, also the index of the log, unless it did so a moment ago (between busy commits)."""
        now = time.monotonic()
        if now - self._all_at > _MOMENT:
            self.check()
            self._check(2)
            self._all_at = now

    def _check(self, number: int) -> None:
        found = _which(self._paths[number])
        if found == self._known[number]:
            return
        if self._known[number] is None:
            self._known[number] = found  # it was not there before
            return
        self._all_at = 0.0
        raise Unavailable(
            f"the store {self._path} was {'replaced' if found else 'deleted'} while this process had it open "
            f"({Path(self._paths[number]).name} is {'another file' if found else 'gone'}): nothing is stored any more",
            hint="stop this process, put the store back (`foliot backup restore`), and start again",
            retryable=False,
            place=str(self._path),
        )


def leave_log(connection: SqliteConnection) -> None:
    """Have the connection leave the log alone when it is closed: by that name there may be the log of another store."""
    with suppress(apsw.Error):  # another thread is using it: whoever closes it asks again
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _which(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _fair_wait(patience: float) -> Callable[[int], bool]:
    deadline = 0.0

    def wait(calls: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        if calls == 0:
            deadline = now + patience
        time.sleep(random.uniform(_SHORTEST_NAP, _LONGEST_NAP))
        return now < deadline

    return wait


def _is_current(connection: SqliteConnection, path: Path) -> bool:
    try:
        current = not schema.pending(_version(connection), "sqlite", str(path))
    except BaseException:
        connection.close()
        raise
    if not current:
        connection.close()
    return current


def lease_offset(connection: SqliteConnection) -> float | None:
    """Returns the offset from `database_clock.steady` to the time of leases; None to use the machine's own clock."""
    found = connection.execute("SELECT boot, boot_offset FROM store_life").fetchall()
    return float(found[0][1]) if found and found[0][0] and found[0][0] == boot() else None


def _is_of_this_boot(connection: SqliteConnection) -> bool:
    return not boot() or lease_offset(connection) is not None


def _set_boot(connection: SqliteConnection) -> None:
    """Fix by what clock leases are judged until the machine is booted again: the first process says, for all."""
    if (this := boot()) and connection.table_exists("main", "store_life"):
        offset = time.time() - steady()
        connection.execute(
            "UPDATE store_life SET boot = ?, boot_offset = ? WHERE boot <> ?", (this, offset, this)
        ).fetchall()


def _version(connection: SqliteConnection) -> int:
    if not connection.table_exists("main", "schema_version"):
        return 0
    (version,) = connection.execute(schema.READ_VERSION).fetchall()[0]
    return int(version)


def _migrate(connection: SqliteConnection, path: Path) -> None:
    connection.execute(schema.CREATE_VERSIONS)
    with connection:  # one commit for all: a new store is made by every first command, and waits for the disk once
        for migration in schema.pending(_version(connection), "sqlite", str(path)):
            try:
                connection.execute(migration.script)
            except (apsw.ConstraintError, apsw.SQLError) as error:
                raise schema.failure(migration, str(path), error) from error


def shrink(path: Path) -> None:
    """Cut free pages off the file, some at a time, so that writers wait for a moment at most. Raises `Unavailable`."""
    with told_in_words(path):
        connection = connect(path, patience=READ_PATIENCE)
        try:
            while connection.execute("PRAGMA freelist_count").fetchall()[0][0]:
                before = connection.execute("PRAGMA page_count").fetchall()[0][0]
                connection.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
                if connection.execute("PRAGMA page_count").fetchall()[0][0] == before:
                    return
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            connection.close()


def refresh_statistics(path: Path) -> None:
    """Count how tables have changed: of each that has, a few hundred rows are looked at. Raises `Unavailable`."""
    with told_in_words(path):
        connection = connect(path, patience=READ_PATIENCE)
        try:
            # 0x10000: also tables that this connection has not read from, which are all of them.
            count_rows(connection, "PRAGMA optimize = 0x10002")
        finally:
            connection.close()


def count_rows(connection: SqliteConnection, optimize: str = "PRAGMA optimize") -> None:
    """Have SQLite count the rows of tables that have changed much, and forget what it found of small ones."""
    connection.execute(f"PRAGMA analysis_limit = {LOOKED_AT}; {optimize}").fetchall()
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'").fetchall():
        connection.execute(
            "DELETE FROM sqlite_stat1 WHERE tbl IN "
            "(SELECT tbl FROM sqlite_stat1 GROUP BY tbl HAVING MAX(CAST(stat AS INTEGER)) < :fewest)",
            {"fewest": FEWEST_COUNTED},
        ).fetchall()


def compact(path: Path) -> int:
    """Write the file anew without free pages, able to give back later ones; its new size. Others wait meanwhile.

    Raises `Unavailable` when others are at work on it.
    """
    with told_in_words(path):
        connection = connect(path, patience=PREPARE_PATIENCE)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
            connection.execute("VACUUM").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
        return path.stat().st_size


def _create_private(path: Path) -> None:
    # -wal and -shm take their permissions from the main file. O_EXCL: closing a second descriptor of a file that this
    # process has open elsewhere would drop SQLite's locks on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Hold the folder against other processes: switching to WAL is the one step that SQLite's busy handler skips."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + PREPARE_PATIENCE
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"another process has been preparing a store in {folder} for too long",
                        hint="see which process holds the folder, and try again",
                    ) from None
                time.sleep(_LONGEST_NAP)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def told_in_words(path: Path) -> Generator[None]:
    """Turn what the driver or the file system raises inside the block into an error of the tree."""
    try:
        yield
    except apsw.NotADBError as error:
        # Of the file that somebody names. One that was a store, and is none any more, is the store's trouble.
        raise InvalidInput(
            f"{path} is not a store, or it is damaged", hint="name another file, or restore this one from a backup"
        ) from error
    except (apsw.Error, OSError) as error:
        raise explain(error, path) from error


def explain(error: Exception, path: Path) -> FoliotError:
    """The error of the tree that says what `error` means for the store at `path`, by the table of causes."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput(
            f"{error.object[:80]!a} is not text that can be stored or looked up",
            hint="it holds half of a character; see where it was cut",
        )
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    cause = SQLITE.get(code, UNLISTED)
    if code in ("SQLITE_CANTOPEN", "SQLITE_IOERR") and (wrong := _wrong_path(path)) is not None:
        return wrong
    if cause.error is Conflict:
        return Conflict("the change breaks a rule of the store", rule=str(error))
    if cause.error is InvalidInput:
        return InvalidInput(f"the store {cause.means}")
    more = f": {error}" if cause is UNLISTED or code in ("SQLITE_CANTOPEN", "SQLITE_IOERR") else ""
    return Unavailable(
        f"the store {path} {cause.means}{more}", hint=cause.hint, retryable=cause.retryable, place=str(path)
    )


def _wrong_path(path: Path) -> InvalidInput | None:
    if path.is_dir():
        return InvalidInput(f"{path} is a folder, not a store", hint=f"name a file in it, such as {path / 'foliot.db'}")
    if any(parent.exists() and not parent.is_dir() for parent in path.parents):
        return InvalidInput(f"the store {path} cannot be made: a part of its path is not a folder", hint="name another")
    return None
