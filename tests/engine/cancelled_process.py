"""A process that does work which others cancel. Run as: cancelled_process.py URL BOOK; ids of runs come on stdin.

It drives those runs, and works on all tasks that are due. Each payment is written down when it begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from foliot import Runtime, tool
from foliot.store.queue.placement import Offer
from foliot.tools.base import Invocation

BOOK = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


@tool(effect="once", timeout=None)
async def pay(order: str, call: Invocation) -> str:
    """Pay."""
    with BOOK.open("a") as book:
        book.write(f"{call.idempotency_key}\n")
        book.flush()
        os.fsync(book.fileno())
    await asyncio.sleep(0.01)
    return f"paid {order}"


async def main() -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Runtime(sys.argv[1], tools=[pay]) as runtime:
        offer = Offer("elsewhere", runtime.inside.runs.worker, capacity=8)
        working = asyncio.create_task(runtime.inside.tasking.worker(offer).run())
        runs: list[asyncio.Task[object]] = []
        while line := await lines.readline():
            run_id = line.decode().strip()
            runs.append(asyncio.create_task(runtime.run("head", "go", run_id=run_id, check=False)))
        working.cancel()
        await asyncio.gather(working, *runs, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
