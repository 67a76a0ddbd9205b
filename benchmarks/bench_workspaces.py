"""Snapshots of workspaces: a call has changed ten of a thousand files; how long until its result may be recorded?

Printed beside the floor: a bare walk over the same tree that asks for the status of each file, and the hashing of ten.
The aim is 20 ms. `python benchmarks/bench_workspaces.py`
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from verdict import Verdict

from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.kernel.run.spec import digest
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.database import SqlJournal
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.base import Caller
from foliot.tools.workspaces import CallFiles, FenceOwner, call_files

VERDICT = Verdict()

FILES = 1_000
CHANGES = 10
ROUNDS = 30
AIM_MS = 20.0
SPEC = b'{"agent":"bench","model":"m"}'


def place(folder: Path, number: int) -> Path:
    return folder / f"d{number % 50}" / f"f{number}.txt"


def fill(folder: Path) -> None:
    for number in range(FILES):
        file = place(folder, number)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(os.urandom(2_000))


def change(folder: Path, turn: int) -> None:
    for number in range(CHANGES):
        place(folder, (turn * CHANGES + number) % FILES).write_bytes(os.urandom(2_000))


def floor(folder: Path, turn: int) -> float:
    """Seconds for a bare walk, and for reading and hashing what changed."""
    began = time.perf_counter()
    left = [os.fspath(folder)]
    while left:
        with os.scandir(left.pop()) as found:
            for item in found:
                item.stat(follow_symlinks=False)
                if item.is_dir(follow_symlinks=False):
                    left.append(item.path)
    for number in range(CHANGES):
        hashlib.sha256(place(folder, (turn * CHANGES + number) % FILES).read_bytes()).hexdigest()
    return time.perf_counter() - began


async def measure(home: Path) -> tuple[list[float], list[float]]:
    database = await SqliteDatabase.open(home / "foliot.db")
    journal = SqlJournal(database)
    run = NewRun("bench", "default", "bench", digest(SPEC), time.time(), content={digest(SPEC): SPEC})
    first = Entry(1, time.time(), "run.created", b'{"type":"run.created","agent":"bench","spec":"sha256:00"}')
    await journal.create(run, [first], worker="bench", lease_until=time.time() + 3600)
    folders = RunWorkspaces(journal, home / "workspaces")
    at = None
    snapshots: list[float] = []
    floors: list[float] = []
    for turn in range(-1, ROUNDS):
        files = CallFiles("bench", 1, at, {})
        call_files.set(files)
        owner = FenceOwner("bash", Caller(), "bench", f"c{turn}")
        folder = await folders.folder(owner)
        assert folder is not None
        if turn < 0:
            fill(folder)
        else:
            change(folder, turn)
            floors.append(floor(folder, turn))
        began = time.perf_counter()
        await folders.changed(owner)
        if turn >= 0:
            snapshots.append(time.perf_counter() - began)
        assert files.kept is not None
        at = files.kept
        await asyncio.sleep(0.03)  # so that files of this turn are older than a tick of the clock at the next
    await folders.close()
    await database.close()
    return snapshots, floors


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        snapshots, floors = asyncio.run(measure(Path(home)))
    print(f"snapshot of {FILES:,} files, {CHANGES} changed, stored in SQLite; {ROUNDS} rounds")
    print(f"{'':12}{'median':>10}{'best':>10}")
    for name, found in (("snapshot", snapshots), ("floor", floors)):
        print(f"{name:12}{statistics.median(found) * 1e3:8.1f}ms{min(found) * 1e3:8.1f}ms")
    ratios = statistics.median(snapshots) / statistics.median(floors), min(snapshots) / min(floors)
    print(f"{'ratio':12}{ratios[0]:9.1f}x{ratios[1]:9.1f}x")
    VERDICT.hold("a snapshot, median", statistics.median(snapshots) * 1e3, "ms", most=AIM_MS)
    return VERDICT.end()


if __name__ == "__main__":
    sys.exit(main())
