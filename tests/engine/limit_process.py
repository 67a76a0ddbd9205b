"""A process that calls a limited tool, for tests that run several and kill some.

Run as: limit_process.py URL FILE rate CALLS | limit_process.py URL FILE hold 0
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from foliot.engine.limits.shared import SharedLimiter
from foliot.store.ledger.tool_limits import SqlLimits
from foliot.store.open import open_database
from foliot.tools.base import RateLimit

KEY = "default/search"
RATE = RateLimit(requests=50, per=1.0, burst=10)
ONE = RateLimit(concurrency=1)


async def main(url: str, file: int, role: str, calls: int) -> None:
    database = await open_database(url)
    limiter = SharedLimiter(SqlLimits(database))
    if role == "hold":
        await limiter.enter(KEY, ONE, within=30.0)
        os.write(file, b"in\n")
        await asyncio.Event().wait()
    os.write(file, f"{time.time()}\n".encode())
    for _ in range(calls):
        await limiter.enter(KEY, RATE, within=60.0)
        await limiter.leave(KEY, RATE)
    os.write(file, f"{time.time()}\n".encode())
    await limiter.close()
    await database.close()


if __name__ == "__main__":
    url, path, role, calls = sys.argv[1:]
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(main(url, out, role, int(calls)))
