"""A scheduler that a test can kill. Run as: schedule_process.py URL FILE BEGAN, where a minute takes MINUTE seconds."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.work.triggers.scheduler import Scheduler

FIRST = 1_780_300_800.0  # 2026-06-01T08:00:00Z
MINUTE = 0.5
RING = keyring_from_text("00" * 32)


def clock(began: float) -> float:
    """The time of the test: it goes on for everybody alike, and much faster than the real one."""
    return FIRST + (time.time() - began) * 60 / MINUTE


async def main(url: str, path: str, began: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: RING)
    async with Runtime(settings=load_settings({"store": url})) as runtime:
        scheduler = Scheduler(
            database, store, runtime.inside.tasking.tasks, clock=lambda: clock(float(began)), takeover=120.0
        )
        while True:
            await scheduler.tick(clock(float(began)))
            os.write(file, b".")
            await asyncio.sleep(MINUTE / 20)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
