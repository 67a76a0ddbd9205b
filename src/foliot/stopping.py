"""How tasks are ended: cancelled, and again, until they are over.

Asking once is not enough. A cancellation that meets the very moment in which a result arrives can get lost on its way:
before Python 3.12 `asyncio.wait_for` drops it, and clients of servers are full of `wait_for`. Who then waited for the
task would wait for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

# Long enough for what a cancelled task may still have to put in order: asking again interrupts that.
AGAIN: Final = 5.0


async def stop_tasks(*tasks: asyncio.Future[Any] | None, again: float = AGAIN) -> None:
    """Cancel these tasks and return when all have ended, however they ended; whoever lost the cancellation is asked
    again after `again` seconds. Tasks that are None, or over, are none to wait for."""
    given = [task for task in tasks if task is not None]
    left = {task for task in given if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again)
    for task in given:
        if not task.cancelled():
            task.exception()  # looked at, or the loop would report it as forgotten
