"""A process that spends from a budget, for tests that run several and kill some.

Run as: budget_process.py URL FILE NAME LIMIT ACTS
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from foliot.common.process import identity
from foliot.store.ledger.budgets import HOLD_SECONDS, Amount, BudgetAccount, Ceiling, PaidAct, SqlBudgetLedger
from foliot.store.open import open_database

TEAM = BudgetAccount("default", "team", "total")
DAY = BudgetAccount("default", "day", "2026-11-16")


async def spend(url: str, file: int, name: str, limit: int, acts: int) -> None:
    """Reserve, then settle for at most as much, from several lanes; say what was really spent."""
    database = await open_database(url)
    ledger = SqlBudgetLedger(database)
    dice = random.Random(name)
    ceilings = [Ceiling(TEAM, limit, None), Ceiling(DAY, 2 * limit, None)]

    async def lane(number: int) -> None:
        for n in range(acts):
            act, estimate = PaidAct(f"{name}-{number}", f"step/{n}/1"), dice.randrange(1, 50)
            now = time.time()
            short = await ledger.reserve(
                act, ceilings, Amount(estimate, 1), holder=identity(), now=now, until=now + HOLD_SECONDS
            )
            if short:
                continue
            if dice.random() < 0.2:
                await ledger.release(act, now=time.time())
                continue
            actual = dice.randrange(0, estimate + 1)
            await ledger.settle(act, Amount(actual, 1), now=time.time())
            os.write(file, f"{actual}\n".encode())

    await asyncio.gather(*(lane(number) for number in range(4)))
    await database.close()


async def hold(url: str, file: int, name: str, limit: int) -> None:
    """Reserve everything, say so, and never let go."""
    database = await open_database(url)
    now = time.time()
    await SqlBudgetLedger(database).reserve(
        PaidAct(name, "step/1/1"),
        [Ceiling(TEAM, limit, None)],
        Amount(limit, 1),
        holder=identity(),
        now=now,
        until=now + HOLD_SECONDS,
    )
    os.write(file, b"held\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    url, path, name, limit, acts = sys.argv[1:]
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(spend(url, out, name, int(limit), int(acts)) if int(acts) else hold(url, out, name, int(limit)))
