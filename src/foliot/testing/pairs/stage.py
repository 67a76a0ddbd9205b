"""The one database on which pairs are played: seeded once, put back between plays, looked at after each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from foliot.errors import FoliotError
from foliot.store.postgres_driver import Connection, connect
from foliot.testing.pairs.invariants import INVARIANTS, PROBLEMS
from foliot.testing.pairs.tables import all_tables

# Random bits: ids, digests, uuids. Those of the seeded state keep their names, every other one is as good as the next.
_RANDOM: Final = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,64}|[A-Za-z0-9_-]{43}|\b[a-z0-9]{12}\b"
)
_ANY: Final = "~"
# Most rows are as they were in the play before.
MOST_KEPT: Final = 20_000
# Columns that hold the key of a run, or of a task: a number that depends on who came first.
_RUN_KEYS: Final = {
    "run": ("key",),
    "event": ("run",),
    "blob_use": ("run",),
    "queue": ("run",),
    "work_class": ("probe",),
}
_TASK_KEYS: Final = {
    "task": ("key",),
    "task_event": ("task",),
    "task_run": ("task",),
    "task_memory": ("task",),
    "task_told": ("task",),
    "queue": ("task",),
}
_COUNTED: Final = {"webhook_delivery": "key"}


class Snapshot:
    """Some tables as they are, in a form that can be compared; and what is wrong with them."""

    def __init__(self, rows: dict[str, list[str]], problems: list[str]) -> None:
        self.rows = rows
        self.problems = problems
        self.text = "\n".join(f"{table} {row}" for table, found in sorted(rows.items()) for row in found)

    def difference(self, other: Snapshot, mine: Sequence[str], his: Sequence[str]) -> str:
        """How a state and its results differ from another one and its, in one line."""
        told: list[str] = []
        for label, here, there in zip("AB", mine, his, strict=True):
            if here != there:
                told.append(f"{label} gave {here}, not {there}")
        for table in sorted(self.rows):
            here, there = set(self.rows[table]), set(other.rows.get(table, ()))
            mine, his = sorted(here - there), sorted(there - here)
            if len(mine) == len(his) == 1:
                told.append(f"{table}: {_changed(mine[0], his[0])}")
                continue
            told += [f"+{table} {row[:200]}" for row in mine]
            told += [f"-{table} {row[:200]}" for row in his]
        return "; ".join(told)[:1500]

    def distance(self, other: Snapshot) -> int:
        """How many rows differ."""
        return sum(len(set(rows) ^ set(other.rows.get(table, ()))) for table, rows in self.rows.items())


def _changed(mine: str, his: str) -> str:
    here: dict[str, Any] = msgspec.json.decode(mine)
    there: dict[str, Any] = msgspec.json.decode(his)
    return ", ".join(
        f"{name} is {str(here[name])[:80]!r}, not {str(there[name])[:80]!r}"
        for name in here
        if here[name] != there.get(name)
    )


class Stage:
    """`url` names a database of which nobody else uses anything."""

    def __init__(self, url: str, connection: Connection, known: frozenset[str], numbers: Mapping[str, int]) -> None:
        """Use `set_up`."""
        self.url = url
        self.tables = all_tables()
        self._connection = connection
        self._known = known
        self._numbers = numbers
        self._dirty: frozenset[str] = self.tables
        self._resets: dict[frozenset[str], str] = {}
        self._looks: dict[frozenset[str], str] = {}
        self._plains: dict[str, str] = {}

    @classmethod
    async def set_up(cls, url: str) -> Stage:
        """Keep what is in the database now as the state from which every play begins."""
        connection = await connect(url, within=30.0)
        await connection.execute("DROP SCHEMA IF EXISTS seed CASCADE")
        await connection.execute("CREATE SCHEMA seed")
        numbers: dict[str, int] = {}
        for table in sorted(all_tables()):
            await connection.execute(f"CREATE TABLE seed.{table} AS TABLE public.{table}")
            for row in await connection.fetch(
                "SELECT column_name AS name FROM information_schema.columns WHERE table_schema = 'public' "
                "AND table_name = $1 AND (is_identity = 'YES' OR column_default LIKE 'nextval%')",
                table,
            ):
                newest = await connection.fetchval(f"SELECT COALESCE(MAX({row['name']}), 0) FROM {table}")
                where = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", table, row["name"])
                numbers[f"{table} {where}"] = newest + 1
        stage = cls(url, connection, frozenset(), numbers)
        whole = await connection.fetch(stage._look_text(stage.tables))
        known = {bits for row in whole for bits in _RANDOM.findall(row["row"] or "")}
        return cls(url, connection, frozenset(known), numbers)

    async def close(self) -> None:
        await self._connection.close()

    async def also(self, statement: str) -> None:
        """Change the seeded state (in the schema `seed`)."""
        await self._connection.execute(statement)

    def touched(self, tables: frozenset[str]) -> None:
        """These may be other than they were seeded."""
        self._dirty |= tables

    async def reset(self) -> None:
        """Put back what was touched."""
        tables, self._dirty = self._dirty, frozenset[str]()
        if tables:
            await self._connection.execute(self._reset_text(tables))

    def _reset_text(self, tables: frozenset[str]) -> str:
        text = self._resets.get(tables)
        if text is None:
            parts = [
                f"DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE seed.{table};"
                for table in sorted(tables)
            ]
            parts += [
                f"SELECT setval('{name.partition(' ')[2]}', {number}, false);"
                for name, number in self._numbers.items()
                if name.partition(" ")[0] in tables
            ]
            text = self._resets[tables] = "BEGIN; " + " ".join(parts) + " COMMIT"
        return text

    async def look(self, tables: frozenset[str]) -> Snapshot:
        """These tables as they are now, and what is wrong with the whole state."""
        found: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
        problems: set[str] = set()
        for row in await self._connection.fetch(self._look_text(tables | {"run", "task"})):
            if row["name"] in INVARIANTS:
                problems.add(f"{row['name']}: {row['row']}")
            else:
                found.setdefault(row["name"], []).append(msgspec.json.decode(row["row"]))
        runs = {row["key"]: row["id"] for row in found["run"]}
        tasks = {row["key"]: row["uid"] for row in found["task"]}
        shown: dict[str, list[str]] = {}
        for table in sorted(tables):
            for row in found[table]:
                for column in _RUN_KEYS.get(table, ()):
                    row[column] = runs.get(row[column], row[column])
                for column in _TASK_KEYS.get(table, ()):
                    row[column] = tasks.get(row[column], row[column])
                if table in _COUNTED:
                    row.pop(_COUNTED[table])
            shown[table] = sorted(self._plain(msgspec.json.encode(row).decode()) for row in found[table])
        return Snapshot(shown, sorted(problems))

    def told(self, result: object) -> str:
        """What an act gave, in a form that can be compared."""
        if isinstance(result, FoliotError):
            return f"{type(result).__name__} {self._plain(result.message)}"
        if isinstance(result, BaseException):
            return type(result).__name__
        return self._plain(repr(result))

    def _plain(self, text: str) -> str:
        plain = self._plains.get(text)
        if plain is None:
            plain = _RANDOM.sub(lambda found: found[0] if found[0] in self._known else _ANY, text)
            if len(self._plains) < MOST_KEPT:
                self._plains[text] = plain
        return plain

    def _look_text(self, tables: frozenset[str]) -> str:
        text = self._looks.get(tables)
        if text is None:
            parts = [
                f"SELECT '{table}' AS name, to_jsonb(each)::text AS row FROM {table} AS each"
                for table in sorted(tables)
            ]
            text = self._looks[tables] = " UNION ALL ".join([*parts, PROBLEMS])
        return text
