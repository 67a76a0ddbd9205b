"""Bounds of the reads behind a list whose filter no index answers.

Such a list goes on from page to page of the store until it has found enough, which may be to the end. So it has one
deadline for all of its reads, it ends when its client has gone, and a caller has few of them at work at once: the
others of that caller wait for their turn, within their own deadlines, and nobody else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from foliot.errors import ReadTooLong
from foliot.server.auth.identity import Caller
from foliot.server.errors import ClientGone

# Where a scope has a function that takes what is to be called when the client has gone, if its server notices that.
WHEN_GONE: Final = "foliot.when_gone"
# Fewer than there are threads for long reads, so that one caller does not have them all.
AT_ONCE: Final = 2
WhenGone: TypeAlias = Callable[[Callable[[], None] | None], None]


class ListReads:
    """Carries out the reads of lists within bounds. `seconds` is how long one may take."""

    def __init__(self, seconds: float, *, at_once: int = AT_ONCE) -> None:
        self._seconds = seconds
        self._at_once = at_once
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def within_bounds(
        self, caller: Caller, scope: MutableMapping[str, Any] | None = None, *, searched: bool = True
    ) -> AsyncGenerator[None]:
        """Bounds what is read inside. `scope` is that of the request, where a client can go.

        What an index answers is not `searched`: it waits for no turn.

        Raises `ReadTooLong` at the deadline, which is counted from here, and `ClientGone`.
        """
        places = self._places.setdefault(caller.principal, asyncio.Semaphore(self._at_once))
        when_gone: WhenGone = _never if scope is None else scope.get(WHEN_GONE, _never)
        limit, gone = asyncio.timeout(self._seconds), False

        def leave() -> None:
            nonlocal gone
            gone = True
            if not limit.expired():
                limit.reschedule(0.0)

        try:
            async with limit:
                when_gone(leave)
                try:
                    async with places if searched else nullcontext():
                        yield
                finally:
                    when_gone(None)
        except TimeoutError:
            if not limit.expired():
                raise
            if gone:
                raise ClientGone("the caller of the list has gone") from None
            raise ReadTooLong(
                f"the list has too much to look through: it was stopped after {self._seconds:.1f} s",
                hint="narrow the filter: name a namespace, an agent, a phase, or a label with its value",
            ) from None


def _never(do: Callable[[], None] | None) -> None:
    """Stands for a server that does not tell when a client goes."""
