"""Copies of the embedded store: taken while it is in use, and put back when nothing uses it.

A backup is one tar file that any tool can open: `manifest.json` (what it is, of which schema, its SHA-256), then
`foliot.db`, a whole SQLite file without a log beside it.

Invariant:   a backup is the state at one moment: every transaction is in it whole, or not at all. It holds secrets as
             the store does, sealed; the key that opens them is never in it. Nothing that is there already is written
             over: a store in the way is refused, or set aside under another name.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import apsw
import msgspec
from msgspec import Struct

from foliot.errors import Conflict, InvalidInput, NotFound, Unavailable, UsageError
from foliot.store import schema
from foliot.store.incarnation import begin_in_file
from foliot.store.sqlite.file import READ_PATIENCE, SqliteConnection, connect, told_in_words
from foliot.version import __version__

FORMAT: Final = "foliot-backup"
FORMAT_VERSION: Final = 1
MANIFEST, CONTENT = "manifest.json", "foliot.db"
_MANIFEST_BYTES: Final = 64 * 1024
_CHUNK: Final = 1024 * 1024
_SEALED: Final = re.compile(r"enc:v1:([0-9a-f]{8}):")
_COUNTED: Final = {"resources": "resource", "runs": "run", "events": "event", "tasks": "task"}


class Manifest(Struct, frozen=True):
    """The description of a backup inside it. `keys` are the ids of the keys that open its secrets."""

    format: str
    format_version: int
    foliot: str
    schema: int
    created_at: str
    bytes: int
    sha256: str
    contains: dict[str, int] = {}
    keys: tuple[str, ...] = ()


def back_up(store: Path, file: Path) -> Manifest:
    """Copy the store, which may be in use, into `file`. Blocks; writers go on meanwhile.

    Raises `NotFound` when there is no store, `Conflict` when `file` is there, `InvalidInput`, `Unavailable`.
    """
    if not store.is_file():
        raise NotFound(f"there is no store at {store}", hint="name the store with --store or FOLIOT_STORE")
    if file.exists():
        raise Conflict(f"{file} is there already, and is not written over", hint="name another file")
    with _beside(file, "the backup") as folder:
        copy = folder / CONTENT
        _copy(store, copy)
        manifest = _described(copy)
        packed = folder / "backup.tar"
        _pack(packed, manifest, copy)
        _place(packed, file)
    return manifest


def verify(file: Path) -> Manifest:
    """Read a backup through, unpack it beside itself, and look at it. Raises as `restore`."""
    with _beside(file, "the unpacked backup") as folder:
        return _unpacked(file, folder / CONTENT)


def restore(file: Path, store: Path, *, replace: bool = False) -> tuple[Manifest, Path | None]:
    """Put the store of a backup at `store`; what the backup says, and where the store went that was there.

    Raises `NotFound` (no such backup), `InvalidInput` (it is none, is damaged, or of a newer Foliot), `Conflict` when
    there is a store and not `replace`, `Unavailable` when a process has it open.
    """
    if store.exists() and not replace:
        raise Conflict(
            f"there is a store at {store}, and it is not written over",
            hint="--force sets it aside under another name, or name another place with --store",
        )
    with told_in_words(store):
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _beside(store, "the restored store") as folder:
        fresh = folder / CONTENT
        manifest = _unpacked(file, fresh)
        _put_in_use(fresh, beyond=_newest_revision(store))
        aside = _set_aside(store) if store.exists() else None
        _refuse_leftovers(store)
        _place(fresh, store)
    return manifest, aside


# --- taking ------------------------------------------------------------------------------------------------------


def _copy(store: Path, copy: Path) -> None:
    """Copies the store in one step: it reads one snapshot, so that writers neither wait nor restart it."""
    with told_in_words(store):
        source = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            source.set_busy_timeout(int(READ_PATIENCE * 1000))
            target = apsw.Connection(str(copy))
            try:
                with target.backup("main", source, "main") as under_way:
                    under_way.step(-1)
                # Without a log beside it: one file is the whole of it.
                cast("SqliteConnection", target).execute("PRAGMA journal_mode = DELETE").fetchall()
            finally:
                target.close()
        finally:
            source.close()


def _described(copy: Path) -> Manifest:
    with told_in_words(copy), _reading(copy) as connection:
        _look_through(connection, copy)
        version = _schema_of(connection, copy)
        found = {name: table for name, table in _COUNTED.items() if connection.table_exists("main", table)}
        contains = {
            name: int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])  # a name from this file
            for name, table in found.items()
        }
        rows = connection.execute("SELECT document FROM resource WHERE kind = 'Secret'").fetchall()
    keys = sorted({key for (document,) in rows for key in _SEALED.findall(str(document))})
    return Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        foliot=__version__,
        schema=version,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        bytes=copy.stat().st_size,
        sha256=_digest(copy),
        contains=contains,
        keys=tuple(keys),
    )


def _pack(packed: Path, manifest: Manifest, copy: Path) -> None:
    with told_in_words(packed), tarfile.open(packed, "w", format=tarfile.USTAR_FORMAT) as archive:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        archive.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
        with copy.open("rb") as content:
            archive.addfile(_member(CONTENT, manifest.bytes), content)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


# --- putting back ------------------------------------------------------------------------------------------------


def _unpacked(file: Path, copy: Path) -> Manifest:
    """Checked in every way, before anything is changed. Members are read by their names, never extracted by path."""
    if not file.is_file():
        raise NotFound(f"there is no backup at {file}")
    try:
        with tarfile.open(file, "r:") as archive:
            manifest = _manifest_of(_open_member(archive, archive.next(), MANIFEST, file), file)
            _check_understood(manifest, file)
            _write_checked(_open_member(archive, archive.next(), CONTENT, file), copy, manifest, file)
    except tarfile.TarError as error:
        raise InvalidInput(
            f"{file} is not a backup of Foliot: {error}", hint="`foliot backup FILE` makes one"
        ) from None
    except OSError as error:
        raise Unavailable(f"{file} cannot be read or unpacked: {error.strerror}", retryable=False) from error
    with told_in_words(copy), _reading(copy) as connection:
        _look_through(connection, file)
        if (found := _schema_of(connection, file)) != manifest.schema:
            raise InvalidInput(f"{file} says it is of schema {manifest.schema}, but holds schema {found}")
    return manifest


def _open_member(archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str, file: Path) -> Any:
    if member is None or member.name != name or not member.isreg():
        raise InvalidInput(f"{file} is not a backup of Foliot: {name} is not where it belongs")
    return archive.extractfile(member)


def _manifest_of(stream: Any, file: Path) -> Manifest:
    try:
        return msgspec.json.decode(stream.read(_MANIFEST_BYTES), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} is not a backup of Foliot: its manifest cannot be read ({error})") from None


def _check_understood(manifest: Manifest, file: Path) -> None:
    if manifest.format != FORMAT or manifest.format_version != FORMAT_VERSION:
        raise InvalidInput(
            f"{file} has the form {manifest.format} {manifest.format_version}, which this Foliot cannot read",
            hint=f"it was made by foliot {manifest.foliot}",
        )
    schema.pending(manifest.schema, "sqlite", str(file))


def _write_checked(stream: Any, copy: Path, manifest: Manifest, file: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    if size != manifest.bytes or digest.hexdigest() != manifest.sha256:
        raise InvalidInput(f"{file} is damaged: what it holds is not what its manifest says", hint="use another backup")


def _newest_revision(store: Path) -> int:
    """Returns the newest revision of the existing store; 0 when there is none, or it cannot be read any more."""
    with suppress(apsw.Error), _reading(store) as connection:
        return int(connection.execute("SELECT value FROM counter WHERE name = 'revision'").fetchall()[0][0])
    return 0


def _put_in_use(fresh: Path, *, beyond: int) -> None:
    """Prepare the file for a store: with a log for writing, and as another incarnation than the one it was later."""
    with told_in_words(fresh):
        connection = connect(fresh, patience=READ_PATIENCE)
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            begin_in_file(connection, time.time(), beyond=beyond)
            if connection.table_exists("main", "store_life"):
                connection.execute("UPDATE store_life SET boot = ''")  # its leases go by the clock of who opens it
        finally:
            connection.close()


def _set_aside(store: Path) -> Path:
    """Move the store that is there away, as one file. Raises `Unavailable` when anybody has it open.

    Every connection holds a shared lock for as long as it is open, and leaving the log behind needs the file alone.
    """
    aside = store.with_name(f"{store.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    with told_in_words(store):
        connection = cast("SqliteConnection", apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READWRITE))
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("BEGIN EXCLUSIVE")
            os.rename(store, aside)
        except apsw.BusyError:
            raise Unavailable(
                f"a process has the store {store} open",
                hint="stop every foliot that uses it (`foliot workers` lists the workers), then restore again",
            ) from None
        except (apsw.NotADBError, apsw.CorruptError):
            os.rename(store, aside)  # damaged: nobody can use it, and a restore is what helps
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.rename(f"{store}{suffix}", f"{aside}{suffix}")
        finally:
            connection.close()
    return aside


def _refuse_leftovers(store: Path) -> None:
    for suffix in ("-wal", "-journal"):
        if (left := Path(f"{store}{suffix}")).exists():
            raise Conflict(
                f"{left} is the log of a store that is gone, and would be taken for one of the restored store",
                hint="move it away, then restore again",
            )


# --- both --------------------------------------------------------------------------------------------------------


@contextmanager
def _beside(file: Path, what: str) -> Generator[Path]:
    """A private folder on the same disk as `file`, gone afterwards: what is half done is never seen."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{file.name}.", dir=file.parent))
    except OSError as error:
        hint = "name another place, or make the folder first"
        message = f"{what} cannot be written in {file.parent}: {error.strerror}"
        if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
            raise UsageError(message, hint=hint) from error
        raise Unavailable(message, hint=hint, retryable=False) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _reading(path: Path) -> Generator[SqliteConnection]:
    connection = cast("SqliteConnection", apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY))
    try:
        yield connection
    finally:
        connection.close()


def _look_through(connection: SqliteConnection, file: Path) -> None:
    said = connection.execute("PRAGMA quick_check(1)").fetchall()[0][0]
    if said != "ok":
        raise InvalidInput(f"the store in {file} is damaged: {said}")


def _schema_of(connection: SqliteConnection, file: Path) -> int:
    if not connection.table_exists("main", "schema_version"):
        raise InvalidInput(f"{file} holds no store of Foliot")
    return int(connection.execute(schema.READ_VERSION).fetchall()[0][0])


def _place(ready: Path, file: Path) -> None:
    """Give a finished file its name, durably, and only if the name is free: a link never replaces."""
    with told_in_words(file):
        os.chmod(ready, 0o600)
        descriptor = os.open(ready, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(ready, file)
        except FileExistsError:
            raise Conflict(f"{file} has been made meanwhile, and is not written over") from None
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
