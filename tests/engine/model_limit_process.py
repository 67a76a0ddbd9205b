"""A process that asks a limited model, for tests that run several.

Run as: model_limit_process.py URL FILE NAME CALLS REQUESTS PER
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from foliot.engine.limiting.models import SharedTurns
from foliot.resources.rates import Limits
from foliot.store.model_limits import SqlModelLimits
from foliot.store.open import open_database


async def main(url: str, file: int, name: str, calls: int, limits: Limits) -> None:
    database = await open_database(url)
    turns = SharedTurns(SqlModelLimits(database), clock=time.time)
    for number in range(calls):
        while (turn := await turns.take("k", f"{name}{number}", limits, 0, queue=True)).wait > 0:
            await asyncio.sleep(turn.wait)
        os.write(file, f"{turn.at}\n".encode())
    await turns.close()
    await database.close()


if __name__ == "__main__":
    url, path, name, calls, requests, per = sys.argv[1:]
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(main(url, out, name, int(calls), Limits(int(requests), per=float(per))))
