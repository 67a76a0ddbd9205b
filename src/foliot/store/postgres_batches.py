"""Bodies of several callers in one transaction, without breaking the order in which rows are locked.

A body keeps to the order of locks (`LOCK_ORDER`) by itself; two of them one after the other do not: the second begins
again at the top while everything of the first is still locked. So they are not run one after the other but level by
level. Each goes on until its next statement locks something, and waits there; of those that wait, the lowest lock is
next. The heads that all share, the revision and the audit log, are therefore taken last, and for the shortest time.

What cannot be done in order is left out and comes again: a body that wants a row which another has locked and not done
with, or one that was passed by. A body that has changed something by then cannot be left out; then nothing of the whole
transaction is kept. That it is the rare case is a matter of speed, not of truth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import msgspec

from foliot.store.queries import FREE, Locks, load_for_postgres, locks_of
from foliot.store.transaction import LOCK_ORDER, Statement, Tx

Key: TypeAlias = tuple[Any, ...]
# Levels of which a body is done with its rows as soon as it goes on to the next: others of the transaction may have
# them then. Of a task or a run a body may still change what it has read.
PASSING: Final = frozenset(map(LOCK_ORDER.index, ("limit", "revision", "audit")))


class OutOfOrder(Exception):
    """A body that has changed something wants a lock that has been passed by. Never leaves the database."""


class LeftOut:
    """In the place of the result of a body that was not run. `alone`: it does not say what it locks."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class Part:
    """One body in a batch: where it stands, and whether it has locked or changed anything."""

    __slots__ = ("body", "outcome", "statement", "touched")

    def __init__(self, body: Tx[Any]) -> None:
        self.body = body
        self.statement: Statement | None = None
        self.touched = False
        self.outcome: Any = None

    def go_on(self, result: Any) -> None:
        try:
            self.statement = self.body.send(result)
        except StopIteration as end:
            self.statement, self.outcome = None, end.value


class Batch:
    """The bodies of one transaction; `execute` does a statement for one of them on its connection."""

    def __init__(self, execute: Callable[[Part, Statement], Awaitable[Any]]) -> None:
        self._execute = execute
        self._level = -1
        self._highest: Key | None = None  # of this level; None while nothing is locked
        self._untold = False  # something of this level is locked, and nobody knows what
        self._owners: dict[tuple[int, Key], Part] = {}
        self._waiting: list[tuple[int, bool, list[Key], int, Part]] = []

    async def run(self, bodies: Sequence[Tx[Any]]) -> list[Any]:
        """What each body returned, or `LeftOut`. Raises what a body raises, and `OutOfOrder`."""
        parts = [Part(body) for body in bodies]
        for number, part in enumerate(parts):
            part.go_on(None)
            await self._drive(number, part)
        while self._waiting:
            level, _, _, number, part = heappop(self._waiting)
            if level > self._level:
                self._level, self._highest, self._untold = level, None, False
            await self._drive(number, part)
        return [part.outcome for part in parts]

    async def _drive(self, number: int, part: Part) -> None:
        """Until the body ends, or wants a lock of a level that has not come yet."""
        while (statement := part.statement) is not None:
            locks = locks_of(statement.name)
            if locks is None:
                return self._leave_out(part, alone=True)
            keys: list[Key] = []
            if locks.level >= 0:
                keys = [key for key in keys_of(statement, locks) if self._owners.get((locks.level, key)) is not part]
                if (keys or locks.untold) and locks.level > self._level:
                    return heappush(self._waiting, (locks.level, locks.untold, keys, number, part))
                if (keys or locks.untold) and not self._may_take(locks, keys):
                    return self._leave_out(part, alone=False)
                self._take(part, locks, keys)
            part.touched = part.touched or locks is not FREE or not _is_read(statement.name)
            part.go_on(await self._execute(part, statement))
        return None

    def _may_take(self, locks: Locks, keys: Sequence[Key]) -> bool:
        if locks.level < self._level or self._untold:
            return False
        if locks.untold:
            return self._highest is None
        for key in keys:
            owner = self._owners.get((locks.level, key))
            if owner is None:
                if self._highest is not None and key < self._highest:
                    return False
            elif owner.statement is not None and locks.level not in PASSING:
                return False
        return True

    def _take(self, part: Part, locks: Locks, keys: Sequence[Key]) -> None:
        self._untold = self._untold or locks.untold
        for key in keys:
            self._owners[locks.level, key] = part
            if self._highest is None or key > self._highest:
                self._highest = key

    def _leave_out(self, part: Part, *, alone: bool) -> None:
        if part.touched:
            raise OutOfOrder
        part.body.close()
        part.statement, part.outcome = None, LeftOut(alone=alone)


def keys_of(statement: Statement, locks: Locks) -> list[Key]:
    """The rows that a statement locks, in order; none when the parameters do not tell."""
    if locks.untold:
        return []
    if statement.want != "many":
        return sorted(_keys(statement.params, locks))
    names = load_for_postgres(statement.name)[1]
    sets = (dict(zip(names, each, strict=True)) if isinstance(each, tuple) else each for each in statement.params)
    return sorted({key for each in sets for key in _keys(each, locks)})


def _keys(params: Any, locks: Locks) -> list[Key]:
    values = [params[name] for name in locks.params]
    if locks.array:
        return [(locks.table, each) for each in set(msgspec.json.decode(values[0], type=list[int | str]))]
    return [(locks.table, *values)]


def _is_read(name: str) -> bool:
    return load_for_postgres(name)[0].startswith(("SELECT", "WITH"))
