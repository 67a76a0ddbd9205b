"""A server's part that keeps channels, as a process that a test kills: STORE HOME, until it is told to stop."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.channels.kit import kept, opened


async def main(store: str, home: str) -> None:
    async with opened(store, Path(home), {"helper": [{"say": "Done."}] * 500}) as runtime, kept(runtime):
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
