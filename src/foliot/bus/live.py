"""Pieces of runs while they go on, from the process that works to those that show it.

What is sent here is for show and kept nowhere: text as a model writes it, output as a tool prints it. Everything that
counts is an event in the journal. So publishing never waits and never fails, and what is too much, too large or on a
connection that is away is dropped. Pieces of one run come in their order; a reader is told how many it missed.

A run's pieces are numbered by who sends them. A gap in the numbers is what was lost on the way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from msgspec import Struct

MOST_WAITING: Final = 1024
# Of so many runs a reader remembers how far it is; only the counting of losses depends on it.
_MOST_RUNS: Final = 4096


class Piece(Struct, frozen=True):
    """`seq` grows by one with each piece of a run from the process that `sender` names."""

    namespace: str
    run_id: str
    data: bytes
    seq: int = 0
    sender: str = ""


class LiveBus(Protocol):
    def publish(self, namespace: str, run_id: str, data: bytes) -> None:
        """Show it to whoever reads that run or namespace now. Never waits, never raises."""
        ...

    def subscribe(self, namespace: str, run_id: str | None = None) -> Subscription:
        """Subscribes to messages from now on, of one run or of a whole namespace. Unsubscribe with its `close`."""
        ...

    async def close(self) -> None:
        """Readers come to their end."""
        ...


class Numbers:
    """The next number of each run. Of runs that were silent for long it is forgotten, and never used again."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._floor = 0

    def next(self, namespace: str, run_id: str) -> int:
        number = self._last.pop((namespace, run_id), self._floor) + 1
        self._last[namespace, run_id] = number
        if len(self._last) > _MOST_RUNS:
            self._floor = max(self._floor, self._last.popitem(last=False)[1])
        return number


class Subscription:
    """One reader: `async for piece in subscription`. It holds so many pieces at most; a slow one misses the oldest."""

    def __init__(self, namespace: str, run_id: str | None, leave: Callable[[Subscription], None]) -> None:
        self.namespace = namespace
        self.run_id = run_id
        self.missed = 0
        """Pieces that were lost on the way, or that this reader was too slow for."""
        self._leave = leave
        self._waiting: deque[Piece] = deque()
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._alarm = asyncio.Event()
        self._closed = False
        self._begun: Callable[[], None] | None = None

    def when_heard(self, begun: Callable[[], None]) -> None:
        """Call this whenever hearing begins, or begins again after a break: what was said before may be missed, and
        what others say in answer to something that is published here from now on is heard.

        Within one process that is so from the beginning, and nothing is called.
        """
        self._begun = begun

    def hears(self) -> None:
        """Marks this reader as receiving from now on. Called by the bus."""
        if self._begun is not None and not self._closed:
            self._begun()

    def put(self, piece: Piece) -> None:
        """Adds a piece, except of other runs and repeated ones. Called by the bus."""
        if self._closed or piece.namespace != self.namespace or self.run_id not in (None, piece.run_id):
            return
        key = (piece.run_id, piece.sender)
        last = self._seen.pop(key, 0)
        self._seen[key] = max(last, piece.seq)
        if len(self._seen) > _MOST_RUNS:
            self._seen.popitem(last=False)
        if piece.seq <= last:
            return
        if last:  # otherwise the run was under way before this reader came
            self.missed += piece.seq - last - 1
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.missed += 1
        self._waiting.append(piece)
        self._alarm.set()

    def close(self) -> None:
        """Ends the subscription; pieces that have arrived can still be read."""
        if not self._closed:
            self._closed = True
            self._leave(self)
            self._alarm.set()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._closed:
                return
            self._alarm.clear()
            await self._alarm.wait()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Readers:
    """The subscriptions of this process. `changed` is called when one came or left."""

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self._by_namespace: dict[str, list[Subscription]] = {}
        self._changed = changed

    def add(self, namespace: str, run_id: str | None) -> Subscription:
        reader = Subscription(namespace, run_id, self._remove)
        self._by_namespace.setdefault(namespace, []).append(reader)
        if self._changed is not None:
            self._changed()
        return reader

    def put(self, piece: Piece) -> None:
        for reader in tuple(self._by_namespace.get(piece.namespace, ())):
            reader.put(piece)

    def hear(self, namespace: str) -> None:
        """Marks the subscriptions of this namespace as receiving."""
        for reader in tuple(self._by_namespace.get(namespace, ())):
            reader.hears()

    def any_of(self, namespace: str) -> bool:
        return namespace in self._by_namespace

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(self._by_namespace)

    def __iter__(self) -> Iterator[Subscription]:
        return iter([reader for readers in self._by_namespace.values() for reader in readers])

    def close(self) -> None:
        for reader in self:
            reader.close()

    def _remove(self, reader: Subscription) -> None:
        readers = self._by_namespace[reader.namespace]
        readers.remove(reader)
        if not readers:
            del self._by_namespace[reader.namespace]
        if self._changed is not None:
            self._changed()


class LocalLive:
    """Within one process."""

    def __init__(self) -> None:
        self._readers = Readers()
        self._numbers = Numbers()

    def publish(self, namespace: str, run_id: str, data: bytes) -> None:
        if self._readers.any_of(namespace):
            self._readers.put(Piece(namespace, run_id, data, self._numbers.next(namespace, run_id)))

    def subscribe(self, namespace: str, run_id: str | None = None) -> Subscription:
        return self._readers.add(namespace, run_id)

    async def close(self) -> None:
        self._readers.close()
