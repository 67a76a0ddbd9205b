"""The store: there, of the right schema, writable, durable, with room to grow. Looking makes and changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foliot.cli.doctor.findings import Finding, Findings
from foliot.common.waits import Waits
from foliot.settings.settings import Settings, mask_password
from foliot.store import schema
from foliot.store.transaction import Tx, run

if TYPE_CHECKING:
    from foliot.store.base import Database
    from foliot.store.postgres.driver import PostgresConnection

AREA: Final = "store"
LITTLE, NONE_LEFT = 1024**3, 100 * 1024**2
SKEW: Final = 1.0
# File systems over a network do not keep the locks and the shared memory that SQLite's log needs.
NETWORKED: Final = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs", "ceph", "glusterfs", "lustre")
IN_MEMORY: Final = ("tmpfs", "ramfs")


def is_embedded(settings: Settings) -> bool:
    return settings.store.startswith("sqlite:")


def path_of(settings: Settings) -> Path:
    return Path(settings.store.partition(":///")[2])


async def look_before_opening(settings: Settings) -> Findings:
    """Checks the store without opening it, which would create or migrate it. An error here means: do not open."""
    if is_embedded(settings):
        for finding in _embedded(path_of(settings)):
            yield finding
    else:
        async for finding in _postgres(settings.store):
            yield finding


async def look_inside(database: Database, settings: Settings) -> Findings:
    """Checks the open store: whether it answers and takes a write."""
    began = time.perf_counter()
    await database.read("feed_bounds")
    read = time.perf_counter() - began
    began = time.perf_counter()
    await database.write(_touch)
    wrote = time.perf_counter() - began
    yield Finding(AREA, "store.write", "ok", f"reads in {read * 1000:.1f} ms, commits in {wrote * 1000:.1f} ms")
    yield await _size(database, settings)


async def _size(database: Database, settings: Settings) -> Finding:
    """How large the store is and how fast it grows, against what it may have."""
    from foliot.work.housekeeping import SIZES, growth_of, sizes_of

    size = await database.size()
    rows = await database.read("setting_get", name=SIZES)
    growth = growth_of(sizes_of(rows[0]["value"] if rows else ""), time.time(), size.used)
    told = f"the store has {_mib(size.used)} in use" + (
        f" and {_mib(size.total - size.used)} free" if size.shrinks else ""
    )
    if growth is not None:
        told += f", and grew by {_mib(growth)} a day" if growth > 0 else ", and does not grow"
    limit = settings.retention_size
    if size.shrinks and limit and size.used > limit * 0.8:
        hint = "a larger retention_size keeps more; at its limit what ended first is forgotten"
        return Finding(AREA, "store.size", "warning", f"{told}, of {_mib(limit)} that it may have", hint)
    if size.shrinks and size.total - size.used > max(size.used, LITTLE):
        return Finding(AREA, "store.size", "warning", told, "`foliot purge --compact` gives the free space back")
    if not settings.retention_runs:
        return Finding(AREA, "store.size", "note", f"{told}; ended runs are kept for ever", "set retention_runs")
    return Finding(AREA, "store.size", "ok", told)


def _mib(count: float) -> str:
    return f"{count / 1024**2:,.1f} MiB"


def _touch() -> Tx[int]:
    """A transaction that commits and changes nothing."""
    return (yield from run("setting_delete", name="doctor"))


# --- SQLite ------------------------------------------------------------------------------------------------------


def _embedded(path: Path) -> list[Finding]:
    if not path.exists():
        return [Finding(AREA, "store.exists", "note", f"there is no store at {path} yet", "`foliot apply` makes one")]
    return [
        *_schema_of_file(path),
        *_private(path),
        _durable(path),
        *_file_system(path),
        _space(path),
        Finding(AREA, "store.clock", "ok", "the store keeps time by this machine's clock"),
    ]


def _schema_of_file(path: Path) -> list[Finding]:
    from foliot.store.sqlite.file import READ_PATIENCE, connect, told_in_words

    with told_in_words(path):
        connection = connect(path, patience=READ_PATIENCE, read_only=True)
        try:
            found = 0
            if connection.table_exists("main", "schema_version"):
                found = int(connection.execute(schema.READ_VERSION).fetchall()[0][0])
        finally:
            connection.close()
    return [_version(found, len(schema.migrations("sqlite")), str(path))]


def _version(found: int, known: int, place: str) -> Finding:
    if found > known:
        return Finding(
            AREA,
            "store.schema",
            "error",
            f"{place} has schema {found}, and this Foliot knows {known}",
            "upgrade foliot",
        )
    if found < known:
        return Finding(
            AREA,
            "store.schema",
            "warning",
            f"{place} has schema {found} of {known}: the next command brings it up to date",
            "make a backup before, and upgrade every process together",
        )
    return Finding(AREA, "store.schema", "ok", f"{place} has the newest schema, {found}")


def _private(path: Path) -> list[Finding]:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return [
            Finding(AREA, "store.private", "warning", f"others may read {path} (mode {mode:04o})", f"chmod 600 {path}")
        ]
    return [Finding(AREA, "store.private", "ok", "only its owner may read it")]


def _durable(path: Path) -> Finding:
    """Checks that our connections ask for durable writes, and that nothing keeps them from the disk."""
    from foliot.store.sqlite.file import READ_PATIENCE, connect, told_in_words

    with told_in_words(path):
        connection = connect(path, patience=READ_PATIENCE, read_only=True)
        try:
            level = connection.execute("PRAGMA synchronous").fetchall()[0][0]
            journal = connection.execute("PRAGMA journal_mode").fetchall()[0][0]
        finally:
            connection.close()
    if "eatmydata" in os.environ.get("LD_PRELOAD", ""):
        return Finding(AREA, "store.fsync", "error", "eatmydata keeps every fsync from the disk", "unset LD_PRELOAD")
    if level < 2 or journal != "wal":
        return Finding(
            AREA,
            "store.fsync",
            "error",
            f"commits are not synced (synchronous {level}, journal {journal})",
            "report it",
        )
    return Finding(AREA, "store.fsync", "ok", "every commit is synced to disk before it counts (WAL, synchronous FULL)")


def _file_system(path: Path) -> list[Finding]:
    sort = _sort_of_file_system(path)
    if sort is None:
        return []
    if sort.startswith(NETWORKED):
        return [
            Finding(
                AREA,
                "store.disk",
                "error",
                f"{path} is on {sort}, where SQLite's locks cannot be trusted",
                "move it to a local disk, or use PostgreSQL",
            )
        ]
    if sort in IN_MEMORY:
        return [
            Finding(
                AREA, "store.disk", "warning", f"{path} is in memory ({sort}): gone at a restart", "use a real disk"
            )
        ]
    return []


def _sort_of_file_system(path: Path) -> str | None:
    """The type of the file system that holds the file, where the system tells (Linux)."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place = str(path.resolve())
    best, sort = "", None
    for line in lines:
        words = line.split(" ")
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        if (place == mount or place.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, sort = mount, words[2]
    return sort


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    told = f"{free / 1024**3:.1f} GiB free beside the store, which has {path.stat().st_size / 1024**2:.1f} MiB"
    if free < NONE_LEFT:
        return Finding(AREA, "store.space", "error", told, "free some space: a full disk refuses every write")
    if free < LITTLE:
        return Finding(AREA, "store.space", "warning", told, "free some space; `foliot purge` forgets old runs")
    return Finding(AREA, "store.space", "ok", told)


# --- PostgreSQL --------------------------------------------------------------------------------------------------


async def _postgres(url: str) -> Findings:
    from foliot.store.postgres.driver import DriverErrors, connect, explain, place

    where = place(url)
    try:
        connection = await connect(url, within=Waits().attempt)
        try:
            async with asyncio.timeout(Waits().answer):
                findings = await _asked(connection, mask_password(url))
        finally:
            connection.terminate()
        for finding in findings:
            yield finding
    except DriverErrors as error:
        raise explain(error, where) from None  # the driver may quote the URL


async def _asked(connection: PostgresConnection, where: str) -> list[Finding]:
    there = await connection.fetchval("SELECT to_regclass('schema_version') IS NOT NULL")
    found = int(await connection.fetchval(schema.READ_VERSION)) if there else 0
    findings = [_version(found, len(schema.migrations("postgres")), where)]
    off = [name for name in ("fsync", "full_page_writes") if await connection.fetchval(f"SHOW {name}") != "on"]
    commit = await connection.fetchval("SHOW synchronous_commit")
    if off or commit == "off":
        told = ", ".join(
            [*(f"{name} is off" for name in off), *(["synchronous_commit is off"] if commit == "off" else [])]
        )
        findings.append(Finding(AREA, "store.fsync", "error", f"what is committed may be lost: {told}", "turn it on"))
    else:
        findings.append(Finding(AREA, "store.fsync", "ok", "every commit is synced to disk before it counts"))
    findings.append(_skew(await _offset(connection)))
    return findings


async def _offset(connection: PostgresConnection) -> float:
    """How far the database's clock is ahead of ours, by the quickest of three questions."""
    best: tuple[float, float] | None = None
    for _ in range(3):
        before = time.time()
        theirs: Any = await connection.fetchval("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        after = time.time()
        if best is None or after - before < best[0]:
            best = after - before, float(theirs) - (before + after) / 2
    assert best is not None
    return best[1]


def _skew(offset: float) -> Finding:
    told = f"the database's clock is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(offset) > SKEW:
        return Finding(
            AREA,
            "store.clock",
            "warning",
            told,
            "set both by NTP: leases go by the database's, what you read here does not",
        )
    return Finding(AREA, "store.clock", "ok", told)
