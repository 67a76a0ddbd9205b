"""A worker that is killed in the middle of a payment. Run as: family_process.py URL FILE"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from foliot import tool
from foliot.runtime.runtime import Runtime
from foliot.store.queue.placement import Offer
from foliot.tools.base import Invocation

FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


@tool(effect="once")
async def pay(amount: int, call: Invocation) -> str:
    """Pay, and die of it."""
    await _both_are_there()
    with FILE.open("a") as file:
        file.write(f"paid {amount} {call.idempotency_key}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@tool(effect="read", timeout=None)
async def hesitate(call: Invocation) -> str:
    """Wait for the end."""
    _waiting.set()
    return (await asyncio.Event().wait() and "") or ""


_waiting = asyncio.Event()


async def _both_are_there() -> None:
    await _waiting.wait()


async def main() -> None:
    async with Runtime(sys.argv[1], tools=[pay, hesitate]) as runtime:
        offer = Offer("doomed", runtime.inside.runs.worker, capacity=8)
        await runtime.inside.tasking.worker(offer).run()


if __name__ == "__main__":
    asyncio.run(main())
