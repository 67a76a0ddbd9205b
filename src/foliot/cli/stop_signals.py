"""Commands that stay: from their first moment SIGINT and SIGTERM end them in order, whatever they wait for."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from foliot.cli.reach import run
from foliot.cli.terminal import out
from foliot.common.cancellation import stop_tasks

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """SIGINT and SIGTERM of this process while `with` lasts: they cancel its task until `told` names something else.

    A service that starts waits for a store that may be silent, where nobody would look at an event.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._told: Callable[[], None] | None = None
        self.early = False

    def __enter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError, ValueError):  # elsewhere Ctrl-C cancels the task
                loop.add_signal_handler(number, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.remove_signal_handler(number)

    def told(self, call: Callable[[], None]) -> None:
        """From now on each signal calls this."""
        self._told = call

    async def wait(self, *work: asyncio.Future[Any]) -> None:
        """Return at the next signal; raise what ends one of these before, or return when one has ended."""
        asked = asyncio.Event()
        self.told(asked.set)
        waiting = asyncio.create_task(asked.wait())
        try:
            done, _ = await asyncio.wait({waiting, *work}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                await each
        finally:
            await stop_tasks(waiting)

    async def wait_beside(self, *work: Coroutine[Any, Any, None]) -> None:
        """`wait` while this is done; it is cancelled at the end."""
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await self.wait(*tasks)
        finally:
            await stop_tasks(*tasks)

    def _come(self) -> None:
        if self._told is not None:
            self._told()
        elif not self.early and self._task is not None:
            self.early = True
            self._task.cancel()


def serve_until_told(work: Callable[[StopSignals], Coroutine[Any, Any, int]]) -> int:
    """Run a service until it ends, which it does at a signal; one that is still starting ends as well, and in order."""
    return run(_served(work))


async def _served(work: Callable[[StopSignals], Coroutine[Any, Any, int]]) -> int:
    with StopSignals() as signals:
        try:
            return await work(signals)
        except asyncio.CancelledError:
            if not signals.early:
                raise
            out("Stopped before it had started.", err=True)
            return 0
