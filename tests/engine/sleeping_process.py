"""A process that drives one run and is put to sleep in the middle. Run as: sleeping_process.py STORE FILE TOOL.

The tool says that it has begun, waits, and pays; each is a line in FILE. The function waits until FILE.go is there.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import FoliotError

LEASE = 2.0


def clerk(path: str, which: str) -> Agent:
    def write(what: str) -> None:
        with open(path, "a") as file:
            file.write(f"{what} {os.getpid()}\n")

    @tool(name="pay", effect="once", timeout=None)
    async def by_coroutine() -> str:
        write("begun")
        time.sleep(1.5)  # in which the process is stopped; it is due to go on before the loop looks at its timers
        await asyncio.sleep(0)
        write("paid")
        return "paid"

    @tool(name="pay", effect="once", timeout=None)
    def by_function() -> str:
        write("begun")
        while not Path(f"{path}.go").exists():
            pass
        write("paid")
        return "paid"

    pay = by_coroutine if which == "coroutine" else by_function
    return Agent("clerk", model=ScriptedModel([{"call": {"pay": {}}}, {"say": "done"}]), tools=[pay], prompt="Pay.")


async def drive(store: str, path: str, which: str) -> None:
    async with Runtime(store, lease_seconds=LEASE) as runtime:
        await runtime.run(clerk(path, which), "go", run_id="r1", check=False)


if __name__ == "__main__":
    try:
        asyncio.run(drive(*sys.argv[1:]))
    except FoliotError as error:
        sys.exit(f"gave up: {error}")
