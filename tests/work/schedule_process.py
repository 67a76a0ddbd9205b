"""A scheduler that a test can kill. Run as: schedule_process.py URL FILE, where FILE gets a dot for each look."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.work.triggers.scheduler import Scheduler

FIRST = 1_780_300_800.0  # 2026-06-01T08:00:00Z
LOOKS_A_MINUTE = 60
RING = keyring_from_text("00" * 32)


def clock(folder: Path) -> float:
    """The time of the test, which the looks of all processes make go on: on a busy machine it is slow for everybody."""
    return FIRST + sum(file.stat().st_size for file in folder.glob("looks-*")) * 60 / LOOKS_A_MINUTE


async def main(url: str, path: str) -> None:
    folder, file = Path(path).parent, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: RING)
    async with Runtime(settings=load_settings({"store": url})) as runtime:
        scheduler = Scheduler(
            database, store, runtime.inside.tasking.tasks, clock=lambda: clock(folder), takeover=120.0
        )
        while True:
            await scheduler.tick(clock(folder))
            os.write(file, b".")
            await asyncio.sleep(0.025)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
