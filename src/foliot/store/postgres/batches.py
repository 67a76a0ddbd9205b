"""Bodies of several callers in one transaction, without breaking the order in which rows are locked.

A body keeps to the order of locks (`LOCK_ORDER`) by itself; two of them one after the other do not: the second begins
again at the top while everything of the first is still locked. So they are not run one after the other but level by
level. Each goes on until its next statement locks something, and waits there; of those that wait, the lowest lock is
next. The heads that all share, the revision and the audit log, are therefore taken last, and for the shortest time.

What cannot be done in order is left out and comes again: a body that wants a row which another has locked and not done
with, or one that was passed by. A body that has changed something by then cannot be left out; then nothing of the whole
transaction is kept. That it is the rare case is a matter of speed, not of truth. A body that refuses (a conflict, most
often) before it has changed anything is answered so, and the others go on.

A head is read once for all bodies of the transaction: who comes second goes on from where the first has left it. And
records of the audit log, which no body reads again, are added at the end, all in two statements: so its head, for which
every writer of every process waits, is locked for three round trips however many bodies there are.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import msgspec

from foliot.errors import FoliotError
from foliot.store.postgres.driver import PostgresConnection
from foliot.store.queries import FREE, Locks, load_for_postgres, locks_of
from foliot.store.transaction import LOCK_ORDER, Guarded, GuardFailed, Planned, Statement, Tx

Key: TypeAlias = tuple[Any, ...]
# Levels of which a body is done with its rows as soon as it goes on to the next: others of the transaction may have
# them then. Of a task or a run a body may still change what it has read.
PASSING: Final = frozenset(map(LOCK_ORDER.index, ("limit", "revision", "audit")))


ASK: Final = object()
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


class Heads:
    """The heads that the bodies of one transaction share, as the last of them has left them.

    A head is locked by the first who asks, and changed by this transaction alone until its end.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._records: list[Any] = []
        self._advance: Statement | None = None

    def answer(self, statement: Statement) -> Any:
        """The result of a statement that need not be done now, or `ASK`."""
        params: Any = statement.params
        match statement.name:
            case "revision_lock" | "audit_turn":
                return self._known.get(statement.name, ASK)
            case "audit_add":
                self._records.extend(params)
                return None
            case "audit_advance":
                self._known["audit_turn"] = [{"seq": params["seq"], "hash": params["hash"]}]
                self._advance = statement
                return 1
            case _:
                return ASK

    def done(self, statement: Statement) -> None:
        """Notice where a statement that was done has left a head."""
        if statement.name == "revision_set":
            params: Any = statement.params
            self._known["revision_lock"] = [{"revision": params["revision"]}]

    @property
    def rest(self) -> list[Statement]:
        """The statements that are left for the end of the transaction."""
        added = [Statement("audit_add", self._records, "many")] if self._records else []
        return added if self._advance is None else [*added, self._advance]


class Part:
    """One body in a batch: where it stands, and whether it has locked or changed anything."""

    __slots__ = ("body", "changed", "outcome", "statement", "touched")

    def __init__(self, body: Tx[Any]) -> None:
        self.body = body
        self.statement: Statement | None = None
        self.touched = False
        self.changed = False
        self.outcome: Any = None

    def go_on(self, result: Any) -> None:
        try:
            self.statement = self.body.send(result)
        except StopIteration as end:
            self.statement, self.outcome = None, end.value
        except FoliotError as error:
            if self.changed:
                raise
            self.statement, self.outcome = None, RefusedBody(error)


class BodyBatch:
    """The bodies of one transaction; `execute` does a statement for one of them, or (None) for all together."""

    def __init__(self, execute: Callable[[Part | None, Statement], Awaitable[Any]]) -> None:
        self._execute = execute
        self._heads = Heads()
        self._level = -1
        self._highest: Key | None = None  # of this level; None while nothing is locked
        self._untold = False  # something of this level is locked, and nobody knows what
        self._owners: dict[tuple[int, Key], Part] = {}
        self._waiting: list[tuple[int, bool, list[Key], int, Part]] = []

    async def run(self, bodies: Sequence[Tx[Any]]) -> list[Any]:
        """Returns for each body its result, `RefusedBody` or `LeftOut`. Raises `OutOfOrder`, and what a body raises."""
        parts = [Part(body) for body in bodies]
        for number, part in enumerate(parts):
            part.go_on(None)
            await self._drive(number, part)
        while self._waiting:
            level, _, _, number, part = heappop(self._waiting)
            if level > self._level:
                self._level, self._highest, self._untold = level, None, False
            await self._drive(number, part)
        for statement in self._heads.rest:
            await self._execute(None, statement)
        return [part.outcome for part in parts]

    async def _drive(self, number: int, part: Part) -> None:
        """Drives the body until it ends, or wants a lock of a level that has not come yet."""
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
            part.changed = part.changed or _changes(statement.name)
            if (result := self._heads.answer(statement)) is ASK:
                result = await self._execute(part, statement)
                self._heads.done(statement)
            part.go_on(result)
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


@cache
def _changes(name: str) -> bool:
    """Whether a statement changes something; to lock is no change."""
    return _CHANGE.search(load_for_postgres(name)[0]) is not None


def _is_read(name: str) -> bool:
    return load_for_postgres(name)[0].startswith(("SELECT", "WITH"))


# --- postgres sets ---------------------------------------------------------------------------------------------------

# Many executions of one query as one statement over arrays, for bodies that are done together (`Guarded`).
#
#     INSERT INTO t (a, b) VALUES ($1, $2)      -> INSERT INTO t (a, b) SELECT * FROM unnest($1::int8[], $2::text[])
#     UPDATE t SET a = $1 WHERE key = $2        -> UPDATE t SET a = given.p1
#                                                    FROM (SELECT each.*
#                                                            FROM unnest($1::int8[], $2::int8[]) AS each(p1, p2)
#                                                            JOIN t AS locked ON locked.key = each.p2
#                                                           ORDER BY locked.key FOR UPDATE OF locked) AS given
#                                                   WHERE key = given.p2
#
# The rows are locked in the order of their keys, as everywhere: an UPDATE by itself takes them in the order of its
# plan. A row of its own costs the server about 20 microseconds to bind and execute; a row of an array about 3.

_VALUES = re.compile(r"\bVALUES\s*\([^()]*\)\s*$")
_WHERE = re.compile(r"\bWHERE\b")
_KEYED = re.compile(r"UPDATE (?P<table>\w+) .*?\bWHERE (?P<column>\w+) = \$(?P<number>\d+)", re.DOTALL)
_NUMBER = re.compile(r"\$(\d+)")
_known: dict[str, str] = {}


async def run_together(connection: PostgresConnection, body: Guarded, planned: Sequence[Planned]) -> None:
    """All guards in one statement, then all rows in one. Raises `GuardFailed` when a guard did not change its row."""
    guards = [each.guard for each in planned]
    status = await connection.execute(await _text(connection, body.guard), *_columns(guards))
    if status != f"UPDATE {len(guards)}":
        raise GuardFailed
    rows = [row for each in planned for row in each.rows]
    await connection.execute(await _text(connection, body.add), *_columns(rows))


def over_arrays(text: str, types: Sequence[str]) -> str:
    """The query with an array in the place of each parameter. Raises `FoliotError` for one of another form."""
    arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, 1))
    if _VALUES.search(text):
        return _VALUES.sub(f"SELECT * FROM unnest({arrays})", text)
    key = _KEYED.match(text)
    if key is None or len(_WHERE.findall(text)) != 1:
        raise FoliotError(f"this query cannot be run over arrays: {text}")
    names = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    start, end = _WHERE.split(_NUMBER.sub(r"given.p\1", text))
    each = f"SELECT each.* FROM unnest({arrays}) AS each({names})"
    turn = f"JOIN {key['table']} AS locked ON locked.{key['column']} = each.p{key['number']}"
    order = f"ORDER BY locked.{key['column']} FOR UPDATE OF locked"
    return f"{start}FROM ({each} {turn} {order}) AS given WHERE{end}"


async def _text(connection: PostgresConnection, name: str) -> str:
    if (text := _known.get(name)) is None:
        single, _ = load_for_postgres(name)
        prepared = await connection.prepare(single)
        text = _known[name] = over_arrays(single, [each.name for each in prepared.get_parameters()])
    return text


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
