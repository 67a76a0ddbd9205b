"""The process that is killed: drives several runs at once on a real store, with tools that leave traces on disk.

    python child.py <store> <effects file> <run id> …

Prints `ready` when it is about to work, and one JSON line (`{run: phase}`) if it lives to see the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeAlias

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.tools.base import Invocation, Tool

# What every run does: reads, repeatable writes and charges, alone and side by side.
STEPS = [
    {"call": {"look": {}}},
    {"call": [{"charge": {"amount": 1}}, {"save": {"version": 1}}, {"look": {}}]},
    {"call": {"charge": {"amount": 2}}},
    {"call": [{"charge": {"amount": 3}}, {"charge": {"amount": 4}}]},
    {"call": {"save": {"version": 2}}},
    {"call": [{"look": {}}, {"charge": {"amount": 5}}]},
    {"say": "all done"},
]
CHARGES, SAVES = 5, 2
# How long a refund may take at most, and how often it does.
SLOW, SLOW_ONES = 1.0, 0.02
chance = Random()


Act: TypeAlias = Callable[[str, Invocation], None]


def writing_to(effects: Path) -> Act:
    def act(kind: str, call: Invocation) -> None:
        line = f"{kind} {call.idempotency_key}\n".encode()
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    return act


def tools(act: Act) -> list[Tool]:
    """`act` is what they do to the world: it writes down that they did."""

    async def a_moment() -> None:
        await asyncio.sleep(chance.expovariate(200.0))

    @tool(effect="read")
    async def look(call: Invocation) -> str:
        await a_moment()
        return "nothing new"

    @tool(effect="idempotent")
    async def save(version: int, call: Invocation) -> str:
        await a_moment()
        act("save", call)
        await a_moment()
        return f"saved {version}"

    @tool(effect="once")
    async def charge(amount: int, call: Invocation) -> str:
        await a_moment()
        act("charge", call)
        await a_moment()
        return f"charged {amount}"

    @tool(effect="once")
    def bill(amount: int, call: Invocation) -> str:
        time.sleep(chance.expovariate(200.0))
        act("bill", call)
        time.sleep(chance.expovariate(200.0))
        return f"billed {amount}"

    @tool(effect="once", timeout=SLOW / 2)
    async def refund(call: Invocation, to: str = "") -> str:
        """Sometimes longer than it may take, and then it has acted or not."""
        await (asyncio.sleep(chance.uniform(0.0, SLOW)) if chance.random() < SLOW_ONES else a_moment())
        act("refund", call)
        await (asyncio.sleep(chance.uniform(0.0, SLOW)) if chance.random() < SLOW_ONES else a_moment())
        return "refunded"

    return [look, save, charge, bill, refund]


def clerk(effects: Path) -> Agent:
    script = {"turns": STEPS, "after": "3ms"}
    return Agent(
        "clerk", model=ScriptedModel(script), tools=tools(writing_to(effects)), prompt="You charge cards, once."
    )


async def work(store: str, effects: Path, run_ids: list[str]) -> None:
    agent = clerk(effects)
    async with Runtime(store) as runtime:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        results = await asyncio.gather(*(runtime.run(agent, "go", run_id=run, check=False) for run in run_ids))
    sys.stdout.write(json.dumps({result.run_id: result.phase for result in results}) + "\n")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
