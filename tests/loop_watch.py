"""How long the steps of an event loop are, in time of the processor: a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Steps:
    longest: float = 0.0


@contextmanager
def watched_steps() -> Iterator[Steps]:
    """Measures each step of the loop that runs in this thread.

    What earlier tests left in memory is set aside: otherwise the garbage collector would look through all of it within
    some step here, and that step would seem long.
    """
    found = Steps()
    run = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    gc.freeze()

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        found.longest = max(found.longest, time.thread_time() - began)

    asyncio.Handle._run = measured  # pyright: ignore[reportPrivateUsage]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # pyright: ignore[reportPrivateUsage]
