"""A process that asks a model and never hears from it, for a test that kills it. Run as: budget_process.py URL FILE"""

from __future__ import annotations

import asyncio
import os
import sys

from foliot.models.routing.pricing import Pricing
from foliot.runtime.agent import Agent
from foliot.runtime.runtime import Runtime


class Silent:
    """Says that it was asked, and no more."""

    pricing = Pricing(input=0, output=10)

    def __init__(self, file: int) -> None:
        self._file = file

    async def respond(self, request, *, on_delta=None):
        os.write(self._file, b"asked\n")
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def main(url: str, file: int) -> None:
    async with Runtime(url) as runtime:
        clerk = Agent("clerk", model=Silent(file), model_settings={"max_output_tokens": 2000})
        await runtime.run(clerk, "go", run_id="r1")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)))
