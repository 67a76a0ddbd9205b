"""Readers of sessions in which nothing happens: one look at the store for all that wait in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from foliot.store.base import NextChange
from foliot.store.sessions.base import Session, SessionMark


class Marks(Protocol):
    """The store of sessions, as far as it is looked at here."""

    async def marks(self, ids: Iterable[str]) -> Mapping[str, SessionMark]: ...


class IdleReaders:
    """Wakes a reader when something has happened to its session, and not when something happened to others.

    `next_change` is that of the store.
    """

    def __init__(self, store: Marks, next_change: NextChange) -> None:
        self._store = store
        self._next_change = next_change
        self._waiting: dict[str, dict[asyncio.Future[None], SessionMark]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def changed(self, seen: Session, *, within: float) -> None:
        """Returns when the session is not any more as it was `seen`, or after so many seconds."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(seen.id, {})[woken] = seen.mark
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait((woken,), timeout=within)
        finally:
            self._leave(seen.id, woken)

    def _leave(self, id: str, woken: asyncio.Future[None]) -> None:
        readers = self._waiting[id]
        del readers[woken]
        if not readers:
            del self._waiting[id]
        if not self._waiting and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        """Looks until it is cancelled. Where that fails all are woken: each finds out what is wrong when it reads."""
        try:
            while True:
                next_change = self._next_change()
                ids = list(self._waiting)
                self._wake(ids, await self._store.marks(ids))
                await next_change()
        except Exception:
            self._wake(self._waiting, {})

    def _wake(self, ids: Iterable[str], marks: Mapping[str, SessionMark]) -> None:
        for id in ids:
            for woken, seen in self._waiting.get(id, {}).items():
                if marks.get(id) != seen and not woken.done():
                    woken.set_result(None)
