"""A process that takes runs, for tests that let many loose or kill them. Run as: worker_process.py ROLE URL FILE …"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from foliot.bus.local import LocalTransport
from foliot.common.process import identity
from foliot.store.journal.base import Lease
from foliot.store.journal.database import SqlJournal
from foliot.store.open import open_database
from foliot.store.queue.claims import claim
from foliot.store.queue.placement import Offer
from foliot.work.worker.worker import Worker

LEASE = 3600.0  # nothing here is found by waiting for a lease to end


def append(file: int, *words: object) -> None:
    """One line, in one system call: it is there whole or not at all when the process is killed."""
    os.write(file, (" ".join(map(str, words)) + "\n").encode())


async def storm(url: str, file: int, name: str) -> None:
    """Claim and finish until there is nothing left, as fast as it goes."""
    database = await open_database(url)
    journal = SqlJournal(database)
    offer = Offer(name, identity(), capacity=8)
    append(file, "ready", name)
    while True:
        now = time.time()
        found = await claim(database, offer, want=random.randint(1, 8), now=now, until=now + LEASE)
        for lease in found.leases:
            append(file, "claimed", lease.run_id, lease.epoch)
        await asyncio.gather(*(journal.append(lease, [], phase="succeeded") for lease in found.leases))
        if not found.leases and not found.refused:
            break
    append(file, "done", name)
    await database.close()


class Holding:
    """Holds every run until this process is killed."""

    def __init__(self, file: int) -> None:
        self._file = file

    async def prepare(self, leases: Sequence[Lease]) -> None: ...

    async def perform(self, lease: Lease) -> None:
        append(self._file, "holds", lease.run_id, lease.epoch)
        await asyncio.Event().wait()


class Finishing:
    """Ends every run at once."""

    def __init__(self, file: int, journal: SqlJournal) -> None:
        self._file = file
        self._journal = journal

    async def prepare(self, leases: Sequence[Lease]) -> None: ...

    async def perform(self, lease: Lease) -> None:
        await self._journal.append(lease, [], phase="succeeded")
        append(self._file, "finished", lease.run_id, lease.epoch)


async def work(url: str, file: int, name: str, performer: str) -> None:
    database = await open_database(url)
    doing = Holding(file) if performer == "hold" else Finishing(file, SqlJournal(database))
    offer = Offer(name, identity(), capacity=8)
    worker = Worker(database, LocalTransport(), doing, offer, lease_seconds=LEASE, heartbeat=0.2)
    await worker.run()


async def main(role: str, url: str, path: str, *words: str) -> None:
    file = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await {"storm": storm, "work": work}[role](url, file, *words)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
