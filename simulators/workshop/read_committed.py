"""READ COMMITTED on SQLite: transactions that are open at the same time, one statement after another.

The database itself holds what was committed, and nothing else. An open transaction is a changeset of its own (SQLite's
session extension). To run one of its statements, its changeset is laid over what is committed *now*, the statement is
run, what it changed is added to the changeset, and everything is taken back: so it sees what others committed before
this very statement, and what it did itself, as on PostgreSQL.

A row that an open transaction has changed, or read `FOR UPDATE`, is locked by it until its end. Who wants to change it,
or to insert a row that would share a unique key with it, waits and then runs the statement again. A circle of those who
wait is a deadlock: who closes it is undone and begins again.

Simpler than PostgreSQL, on purpose: after a wait the whole statement is run again, not only judged again for the row
that was waited for; an update that changes no value locks nothing; SKIP LOCKED passes over rows without looking for
others in their place. Each of these hides a wait, none of them shows what PostgreSQL would not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import apsw

from foliot.errors import FoliotError
from foliot.store import queries
from foliot.store.sqlite.file import SqliteConnection
from foliot.store.transaction import Row, Statement, Tx

_changeset: Final[Any] = apsw.Changeset  # its types are only partly told
Lock: TypeAlias = tuple[str, tuple[str, ...], tuple[Any, ...]]
Ask: TypeAlias = Callable[[Statement], Any]

_HEAD: Final = re.compile(r"^\s*SELECT\s+.*?\sFROM\s", re.DOTALL)
_SOURCE: Final = re.compile(r"(?:^|\bJOIN\s+|,\s*)([a-z_]+)(?:\s+AS\s+([a-z_]+))?")
_PARENTHESES: Final = re.compile(r"\([^()]*\)")
_INSERTED: Final = re.compile(r"^\s*INSERT INTO ([a-z_]+)")
SKIPS: Final = "/*skip_locked*/"
MARKS: Final = ("/*for_update*/", "/*for_share*/", SKIPS)


class Deadlock(Exception):
    """Two wait for each other. The one to whom this is raised is undone, and begins again."""


class Keys:
    """The primary and unique keys of every table, and which tables number their rows by themselves."""

    def __init__(self, connection: Any) -> None:
        self.unique: dict[str, list[tuple[str, ...]]] = {}
        self.columns: dict[str, list[str]] = {}
        self.numbered: dict[str, str] = {}
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            found = connection.execute(f"SELECT name, type, pk FROM pragma_table_info('{table}')").fetchall()
            self.columns[table] = [name for name, _, _ in found]
            primary = tuple(name for name, _, place in sorted(found, key=lambda each: each[2]) if place)
            others = connection.execute(
                f"SELECT name FROM pragma_index_list('{table}') WHERE \"unique\" = 1 AND origin <> 'pk'"
            ).fetchall()
            self.unique[table] = [primary] if primary else []
            for (index,) in others:
                named = connection.execute(f"SELECT name FROM pragma_index_info('{index}')").fetchall()
                self.unique[table].append(tuple(name for (name,) in named))
            if len(primary) == 1 and ("INTEGER" in {kind for name, kind, _ in found if name == primary[0]}):
                self.numbered[table] = primary[0]

    def locks(self, table: str, row: Sequence[Any]) -> Iterator[Lock]:
        """Yields the locks that stand for a row: each of its unique keys that has no NULL."""
        place = {name: number for number, name in enumerate(self.columns[table])}
        for key in self.unique[table]:
            values = tuple(row[place[name]] for name in key)
            if all(value is not None for value in values):
                yield table, key, values


def give_keys(connection: Any) -> None:
    """Make the first unique index of a table that has no primary key its primary key: changesets name rows by it."""
    for table, text in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
        if connection.execute(f"SELECT 1 FROM pragma_table_info('{table}') WHERE pk > 0").fetchall():
            continue
        found = connection.execute(f"SELECT name FROM pragma_index_list('{table}') WHERE \"unique\" = 1").fetchall()
        if not found:
            continue
        named = connection.execute(f"SELECT name FROM pragma_index_info('{found[0][0]}')").fetchall()
        indices = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (table,)
        ).fetchall()
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"{text.rstrip().removesuffix(')')}, PRIMARY KEY ({', '.join(name for (name,) in named)}))")
        for (index,) in indices:
            connection.execute(index)


class Weave:
    """The open transactions of one database. `ask` runs one statement on its connection."""

    def __init__(self, connection: SqliteConnection, ask: Ask) -> None:
        self._connection: Any = connection
        self._ask = ask
        give_keys(self._connection)
        self._keys = Keys(self._connection)
        self._texts = queries.load()
        self._held: dict[Lock, Transaction] = {}
        self._newest: dict[str, int] = {}
        self.deadlocks = 0
        self.waits = 0

    def begin(self, body: Callable[..., Tx[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transaction:
        return Transaction(self, lambda: body(*args, **kwargs))

    def run(self, transaction: Transaction, statement: Statement) -> Any:
        """One statement of it, or `Transaction` of another one that has what it wants. Raises `FoliotError`."""
        connection = self._connection
        text = self._texts[statement.name]
        taken: set[Lock] = set()
        connection.execute("SAVEPOINT woven")
        try:
            self._lay(transaction.changes)
            self._number(text)
            wanted = self._read_locks(statement, text)
            if SKIPS in text:
                taken = {lock for lock in wanted if self._other(transaction, lock)}
                wanted -= taken
            session = apsw.Session(connection, "main")
            session.attach()
            try:
                result = self._ask(statement)
                changes = session.changeset()
            finally:
                session.close()
        finally:
            connection.execute("ROLLBACK TO woven")
            connection.execute("RELEASE woven")
        if taken:
            result = _without(result, taken)
        for change in _changeset.iter(changes):
            wanted.update(self._change_locks(change))
        for lock in sorted(wanted, key=repr):
            if (other := self._other(transaction, lock)) is not None:
                self._wait(transaction, other)
                return other
        for lock in wanted:
            self._held[lock] = transaction
        transaction.waits_for = None
        if changes:
            transaction.changes = bytes(_changeset.concat(transaction.changes, changes))
            self._note_numbers(changes)
        return result

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        if commit and transaction.changes:
            self._connection.execute("BEGIN")
            self._lay(transaction.changes)
            self._connection.execute("COMMIT")
        transaction.changes = b""
        transaction.waits_for = None
        for lock in [lock for lock, owner in self._held.items() if owner is transaction]:
            del self._held[lock]

    def _lay(self, changes: bytes) -> None:
        if changes:
            _changeset.apply(changes, self._connection)  # raises for any conflict: what is locked cannot differ

    def _other(self, transaction: Transaction, lock: Lock) -> Transaction | None:
        owner = self._held.get(lock)
        return None if owner is None or owner is transaction else owner

    def _wait(self, transaction: Transaction, other: Transaction) -> None:
        self.waits += transaction.waits_for is None
        transaction.waits_for = other
        seen = other
        while seen.waits_for is not None:
            seen = seen.waits_for
            if seen is transaction:
                self.deadlocks += 1
                raise Deadlock
            if seen is other:
                return

    def _number(self, text: str) -> None:
        """Numbers are given once, also by those whose rows nobody sees yet."""
        found = _INSERTED.match(text)
        table = found[1] if found else ""
        if table in self._keys.numbered and table in self._newest:
            names = self._keys.columns[table]
            key = self._keys.numbered[table]
            values = [self._newest[table] if name == key else f"\x00{name}" for name in names]
            self._connection.execute(
                f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values
            )

    def _note_numbers(self, changes: bytes) -> None:
        for change in _changeset.iter(changes):
            key = self._keys.numbered.get(change.name)
            if key is not None and change.op == "INSERT" and change.new is not None:
                number = cast("int", change.new[self._keys.columns[change.name].index(key)])
                self._newest[change.name] = max(number, self._newest.get(change.name, 0))

    def _change_locks(self, change: Any) -> Iterator[Lock]:
        """The keys of a changed row, as it was and as it is."""
        old = change.old
        new = change.new
        if new is not None and old is not None:  # what an update leaves alone is not told
            new = [before if after is apsw.no_change else after for before, after in zip(old, new, strict=True)]
        for row in (old, new):
            if row is not None:
                known = [None if value is apsw.no_change else value for value in row]
                yield from self._keys.locks(change.name, known)

    def _read_locks(self, statement: Statement, text: str) -> set[Lock]:
        """The rows that a statement reads in order to keep them."""
        if not text.startswith("SELECT") or not any(mark in text for mark in MARKS):
            return set()
        return set(self._rows_read(statement, text))

    def _rows_read(self, statement: Statement, text: str) -> Iterator[Lock]:
        rest = _HEAD.sub("", text, count=1)
        top = rest
        while (shorter := _PARENTHESES.sub("", top)) != top:
            top = shorter
        top = re.split(r"\bWHERE\b|\bORDER BY\b|/\*", top)[0]
        sources = [(table, alias or table) for table, alias in _SOURCE.findall(top) if table in self._keys.unique]
        columns = [f"{alias}.{name}" for table, alias in sources for name in self._keys.unique[table][0]]
        params = cast("dict[str, Any]", statement.params)
        for row in self._connection.execute(f"SELECT {', '.join(columns)} FROM {rest}", params).fetchall():
            left = list(row)
            for table, _ in sources:
                key = self._keys.unique[table][0]
                values, left = tuple(left[: len(key)]), left[len(key) :]
                yield table, key, values


def _without(result: list[Row], taken: set[Lock]) -> list[Row]:
    """Rows that others have not locked. A query that skips names the run, or the key, of each."""
    keys = {values[0] for _, _, values in taken}
    return [row for row in result if row.get("run", row.get("key")) not in keys]


class Transaction:
    """One body on its way. `waits_for` is who holds what it wants next."""

    def __init__(self, weave: Weave, begin: Callable[[], Tx[Any]]) -> None:
        self._weave = weave
        self._begin = begin
        self._body: Tx[Any] | None = None
        self._statement: Statement | None = None
        self._finished = False
        self.changes = b""
        self.waits_for: Transaction | None = None
        self.result: Any = None

    def step(self) -> Literal["goes on", "waits", "ready"]:
        """Run its next statement. `ready`: there is none left, and `commit` is next. Raises what the body raises."""
        if self._finished:
            return "ready"
        try:
            if self._body is None:
                self._body = self._begin()
                self._statement = next(self._body)
            assert self._statement is not None, "a body that goes on has a statement"
            try:
                result = self._weave.run(self, self._statement)
            except Deadlock:
                self.undo()
                self._body.close()
                self._body = None
                return "goes on"
            except FoliotError as told:
                self._body.throw(told)
                raise
            if isinstance(result, Transaction):
                return "waits"
            self._statement = self._body.send(result)
        except StopIteration as end:
            self.result = end.value
            self._finished = True
            return "ready"
        except BaseException:
            self.undo()
            raise
        return "goes on"

    @property
    def step_name(self) -> str:
        return self._statement.name if self._statement is not None else ""

    def commit(self) -> Any:
        self._weave.end(self, commit=True)
        return self.result

    def undo(self) -> None:
        self._weave.end(self, commit=False)
