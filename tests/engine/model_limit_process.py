"""A process that asks a limited model, for tests that run several.

Run as: model_limit_process.py URL FILE NAME CALLS REQUESTS PER; with 0 REQUESTS it declares no limit of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from foliot.engine.limits.shared import SharedTurns
from foliot.resources.rates import NO_LIMITS, Declarer, RateLimits
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.open import open_database


async def main(url: str, file: int, name: str, calls: int, limits: RateLimits) -> None:
    database = await open_database(url)
    turns = SharedTurns(SqlModelLimits(database), clock=time.time)
    by = Declarer(f"default/{name}", "m", "1")
    for number in range(calls):
        while (turn := await turns.take("k", f"{name}{number}", limits, 0, queue=True, by=by)).wait > 0:
            await asyncio.sleep(turn.wait)
        os.write(file, f"{turn.at}\n".encode())
    await turns.close()
    await database.close()


if __name__ == "__main__":
    url, path, name, calls, requests, per = sys.argv[1:]
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    declared = RateLimits(int(requests), per=float(per)) if int(requests) else NO_LIMITS
    asyncio.run(main(url, out, name, int(calls), declared))
