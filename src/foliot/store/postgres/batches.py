"""Bodies of several callers in one transaction, without breaking the order in which rows are locked.

A body keeps to the order of locks (`LOCK_ORDER`) by itself; two of them one after the other do not: the second begins
again at the top while everything of the first is still locked. So they are not run one after the other but level by
level. Each goes on until its next statement locks something, and waits there; of those that wait, the lowest lock is
next. The heads that all share, the revision and the audit log, are therefore taken last, and for the shortest time.

Between two locks bodies go abreast, and those that have come to the same statement do it as one, over arrays (sets.py):
a hundred runs that end cost the round trips of one.

What cannot be done in order is left out and comes again: a body that wants a row which another has locked and not done
with, or one that was passed by. A body that has changed something by then cannot be left out; then nothing of the whole
transaction is kept. That it is the rare case is a matter of speed, not of truth. A body that refuses (a conflict, most
often) before it has changed anything is answered so, and the others go on.

The heads are moved once for all of them (store/heads.py): that of the audit log, for which every writer of every
process waits, is locked for three round trips however many bodies there are.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import msgspec

from foliot.errors import FoliotError
from foliot.store.heads import Heads
from foliot.store.postgres.sets import adds_in_order
from foliot.store.queries import FREE, Locks, load_for_postgres, locks_of
from foliot.store.transaction import LOCK_ORDER, Statement, Tx

Key: TypeAlias = tuple[Any, ...]
# Levels of which a body is done with its rows as soon as it goes on to the next: others of the transaction may have
# them then. Of a task or a run a body may still change what it has read.
PASSING: Final = frozenset(map(LOCK_ORDER.index, ("limit", "content", "definition", "pin", "revision", "audit")))
# Those of them whose rows are only ever added: bodies that bring the same row add it together, and it is there once.
ADDED: Final = frozenset(map(LOCK_ORDER.index, ("content", "definition", "pin")))


_CHANGE: Final = re.compile(r"(?<!FOR )\b(INSERT|UPDATE|DELETE)\b")


class OutOfOrder(Exception):
    """A body that has changed something wants a lock that has been passed by. Never leaves the database."""


class LeftOut:
    """The result of a body that was not run. `alone`: it does not declare its locks."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class RefusedBody:
    """The result of a body that raised before it had changed anything."""

    def __init__(self, error: FoliotError) -> None:
        self.error = error


class Part:
    """One body in a batch: where it stands, how far it has come, and whether it has locked or changed anything."""

    __slots__ = ("body", "changed", "number", "outcome", "statement", "steps", "touched")

    def __init__(self, number: int, body: Tx[Any]) -> None:
        self.number = number
        self.body = body
        self.statement: Statement | None = None
        self.steps = 0
        self.touched = False
        self.changed = False
        self.outcome: Any = None

    def go_on(self, result: Any) -> None:
        self.steps += 1
        try:
            self.statement = self.body.send(result)
        except StopIteration as end:
            self.statement, self.outcome = None, end.value
        except FoliotError as error:
            if self.changed:
                raise
            self.statement, self.outcome = None, RefusedBody(error)


class BodyBatch:
    """The bodies of one transaction. `execute` does statements of one name, each for one of the parts or, without
    parts, for all together; it returns their results.
    """

    def __init__(self, execute: Callable[[Sequence[Part], Sequence[Statement]], Awaitable[Sequence[Any]]]) -> None:
        self._execute = execute
        self._heads = Heads()
        self._level = -1
        self._highest: Key | None = None  # of this level; None while nothing is locked
        self._untold = False  # something of this level is locked, and nobody knows what
        self._owners: dict[tuple[int, Key], Part] = {}
        self._waiting: list[tuple[int, bool, list[Key], int, Part]] = []
        self._abreast: list[Part] = []  # those that go on together now

    async def run(self, bodies: Sequence[Tx[Any]]) -> list[Any]:
        """Returns for each body its result, `RefusedBody` or `LeftOut`. Raises `OutOfOrder`, and what a body raises."""
        parts = [Part(number, body) for number, body in enumerate(bodies)]
        for part in parts:
            part.go_on(None)
        await self._drive(parts)
        while self._waiting:
            await self._drive(self._next())
        for statement in self._heads.rest():
            await self._execute((), (statement,))
        return [part.outcome for part in parts]

    def _next(self) -> list[Part]:
        """Returns the part that waits for the lowest lock, and those behind it with the same statement."""
        level, untold, keys, _, part = heappop(self._waiting)
        if level > self._level:
            self._level, self._highest, self._untold = level, None, False
        found, taken = [part], set(keys)
        name = _name(part)
        while self._waiting and not untold:
            next_level, next_untold, next_keys, _, other = self._waiting[0]
            if next_level != level or next_untold or _name(other) != name:
                break
            if not taken.isdisjoint(next_keys) and not _may_meet(name[0], level):
                break
            heappop(self._waiting)
            found.append(other)
            taken.update(next_keys)
        return found

    async def _drive(self, parts: Sequence[Part]) -> None:
        """Drives bodies abreast, until each ends, or wants a lock of a level that has not come yet."""
        self._abreast = list(parts)
        while True:
            self._abreast = [part for part in self._abreast if not self._stops(part)]
            if not self._abreast:
                return
            # Who has come least far goes first, so that those which do the same do it together.
            name = _name(min(self._abreast, key=_steps))
            chosen = [part for part in self._abreast if _name(part) == name]
            if len(chosen) > 1 and (locks := locks_of(name[0])) is not None and locks.level >= 0:
                chosen = [
                    part for _, _, part in sorted((self._wanted(part, locks), part.number, part) for part in chosen)
                ]
            await self._step(self._taking(chosen))

    async def _step(self, parts: Sequence[Part]) -> None:
        """Has parts that have come to the same statement do it, and go on with its result."""
        statements = [part.statement for part in parts if part.statement is not None]
        if not statements:
            return
        name = statements[0].name
        for part in parts:
            part.touched = part.touched or locks_of(name) is not FREE or not _is_read(name)
            part.changed = part.changed or _changes(name)
        results: Sequence[Any] | None = self._heads.answers(statements)
        if results is None:
            for statement in self._heads.due(name):
                await self._execute((), (statement,))
            results = await self._execute(parts, statements)
            self._heads.done(statements)
        for part, result in zip(parts, results, strict=True):
            part.go_on(result)

    def _stops(self, part: Part) -> bool:
        """Whether a body has ended, is left out, or waits for a lock of a higher level."""
        if (statement := part.statement) is None:
            return True
        if (locks := locks_of(statement.name)) is None:
            self._leave_out(part, alone=True)
            return True
        if locks.level > self._level and (locks.untold or self._wanted(part, locks)):
            self._wait(part, locks)
            return True
        return False

    def _taking(self, parts: Sequence[Part]) -> list[Part]:
        """Has bodies take what their statements of one name lock, all that is below having been taken.

        Returns those that may go on. Rows that one statement adds for all of them come in the order of their keys, so
        these only have to be above what was locked before.
        """
        name, want = _name(parts[0])
        below = self._highest
        in_order = len(parts) > 1 and adds_in_order(name, want)
        return [part for part in parts if self._takes(part, below if in_order else self._highest)]

    def _takes(self, part: Part, below: Key | None) -> bool:
        """Has a body take what its statement locks, above the key `below`; else it goes no further."""
        statement = part.statement
        assert statement is not None
        locks = locks_of(statement.name)
        if locks is None or locks.level < 0:
            return True
        keys = self._wanted(part, locks)
        if not keys and not locks.untold:
            return True
        if locks.level in PASSING and any(self._is_held(part, locks, key) for key in keys):
            self._wait(part, locks)  # for whoever is abreast of it to go on
            return False
        if not self._may_take(locks, keys, below):
            self._leave_out(part, alone=False)
            return False
        self._take(part, locks, keys)
        return True

    def _is_held(self, part: Part, locks: Locks, key: Key) -> bool:
        owner = self._owners.get((locks.level, key))
        assert part.statement is not None
        return owner in self._abreast and not _may_meet(part.statement.name, locks.level)

    def _wait(self, part: Part, locks: Locks) -> None:
        if part in self._abreast:
            self._abreast = [each for each in self._abreast if each is not part]
        heappush(self._waiting, (locks.level, locks.untold, self._wanted(part, locks), part.number, part))

    def _wanted(self, part: Part, locks: Locks) -> list[Key]:
        """The rows that the statement of a body locks, and that the body has not locked yet."""
        assert part.statement is not None
        return [key for key in keys_of(part.statement, locks) if self._owners.get((locks.level, key)) is not part]

    def _may_take(self, locks: Locks, keys: Sequence[Key], below: Key | None) -> bool:
        if locks.level < self._level or self._untold:
            return False
        if locks.untold:
            return self._highest is None
        for key in keys:
            owner = self._owners.get((locks.level, key))
            if owner is None:
                if below is not None and key < below:
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


def _name(part: Part) -> tuple[str, str]:
    assert part.statement is not None
    return part.statement.name, part.statement.want


def _steps(part: Part) -> int:
    return part.steps


def _may_meet(name: str, level: int) -> bool:
    """Whether several may do a statement to the same row at once: to delete or to add it, as only the first does."""
    return level in ADDED or (level in PASSING and load_for_postgres(name)[0].startswith("DELETE"))


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


@cache
def _changes(name: str) -> bool:
    """Whether a statement changes something; to lock is no change."""
    return _CHANGE.search(load_for_postgres(name)[0]) is not None


def _is_read(name: str) -> bool:
    return load_for_postgres(name)[0].startswith(("SELECT", "WITH"))
