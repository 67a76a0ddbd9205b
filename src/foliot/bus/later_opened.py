"""A transport that is opened when it is first needed: most processes that could use one never do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from foliot.bus.base import Delivery, Ticket, Transport


class OpenedLater:
    """A `Transport` in front of one that `opening` makes. What `opening` raises, the first use raises."""

    def __init__(self, opening: Callable[[], Awaitable[Transport]]) -> None:
        self._opening = opening
        self._opened: asyncio.Task[Transport] | None = None

    async def ready(self) -> Transport:
        """The transport itself, opened once however many ask. Raises as `open_transport`."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opened)

    @property
    def opened(self) -> Transport | None:
        """The transport itself, if it is open already."""
        task = self._opened
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def _open(self) -> Transport:
        return await self._opening()

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """See `Transport`."""
        if tickets:
            await (await self.ready()).publish(tickets)

    async def receive(self, *, want: int, timeout: float) -> Sequence[Delivery]:
        """See `Transport`."""
        return await (await self.ready()).receive(want=want, timeout=timeout)

    async def close(self) -> None:
        """See `Transport`. One that was never opened stays so."""
        if self._opened is not None:
            (opened,) = await asyncio.gather(self._opened, return_exceptions=True)
            if not isinstance(opened, BaseException):
                await opened.close()
