"""How tasks are ended: cancelled, and again, until they are over.

Asking once is not enough. A cancellation that meets the very moment in which a result arrives can get lost on its way:
before Python 3.12 `asyncio.wait_for` drops it, and clients of servers are full of `wait_for`. Who then waited for the
task would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from foliot.common.threads import LeavingExecutor

log = logging.getLogger(__name__)

T = TypeVar("T")

# Long enough for what a cancelled task may still have to put in order: asking again interrupts that.
AGAIN: Final = 5.0
# How long tasks that are left at the end of a program may take to end.
LEAVE_WITHIN: Final = 2.0


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


async def ending_alone(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` for `asyncio.run`; tasks and threads that are left then do not keep the program from ending.

    `asyncio.run` waits without a bound for every task that does not listen, and for every thread of the loop.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(LeavingExecutor())
    try:
        return await work
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        deaf = (await asyncio.wait(left, timeout=LEAVE_WITHIN))[1] if left else ()
        for task in deaf:
            log.warning("a task does not listen and ends with the process: %s", task.get_name())
            asyncio._unregister_task(task)  # pyright: ignore - what is documented for who extends asyncio
