"""The queries by name, and their translation for PostgreSQL.

Every query is written once, in queries/*.sql, under a line `-- name: <name>`, and is valid SQLite as it stands. For
PostgreSQL four things are rewritten:

    :name                         -> $1, $2 … (one number for each name, in order of first use)
    json_each(:names) AS wanted   -> a set of texts with one column `value`, from a JSON array of strings
    IN (SELECT … LIMIT :count)    -> = ANY (ARRAY(SELECT … LIMIT :count)): a page for each row of what stands before it
    /*for_update*/ and the like   -> FOR UPDATE … (SQLite has one writer and needs none)

What the two databases do not share (jsonb, arrays, casts with `::`, SELECT *) stays out of the texts; a parameter whose
type PostgreSQL cannot guess is written `CAST(:x AS TEXT)`. Where there is no common way, as in searching texts, a line
`-- only: sqlite` or `-- only: postgres` opens a part for one of them, up to `-- only: both`, as in migrations. A test
prepares every query on both.

Under its name a query that writes or locks says what it waits for, so that it may share a transaction with others:

    -- locks: task key            the row of that level (see LOCK_ORDER in transaction.py), by these parameters
    -- locks: account keys[]      all rows that a JSON array names
    -- locks: limit/class key     of a level with several tables, the one that is meant
    -- locks: run *               rows that cannot be told from the parameters
    -- locks: -                   nothing that the body has not locked already, or has just made

An INSERT that tells something says by which columns its rows are told apart (parameters have the same names), so that
those of several bodies can be one statement on PostgreSQL:

    -- apart: uid

A query whose way to its answer can become long says so too: it has one of a few places (threads on SQLite, see
sqlite/readers.py, some of the connections on PostgreSQL) and a deadline, so that neither the event loop nor a small
read ever waits for it. A page that an index gives is no such query, however long its texts are: to decode them costs
several times the read. What a run needs to go on (rules, the revision, its session) must not be among them.

    -- reads: many
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from foliot.errors import FoliotError
from foliot.store.schema import Dialect, part_for
from foliot.store.transaction import LOCK_ORDER

FOLDER = Path(__file__).with_name("queries")
_HEADER = "-- name:"
_SAID = "-- locks:"
_APART = "-- apart:"
_READS_MANY = "-- reads: many"
# Quoted text and comments are skipped whole, so that a colon inside them is never taken for a parameter.
_TOKENS = re.compile(r"('(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|::)|:([a-z_][a-z0-9_]*)", re.DOTALL)
_EACH = re.compile(r"json_each\((:[a-z_]+)\) AS ([a-z_]+)")
# One of many that are given. PostgreSQL begins with them when they are an array, whatever it takes the table for: else
# it may go through one that was empty when it made the plan. And it finds them in one walk along the index.
_AMONG = re.compile(
    r"(?<!NOT )IN \((SELECT (?:CAST\(wanted\.value AS BIGINT\)|value) FROM json_each\(:[a-z_]+\) AS wanted)\)"
)
_PAGE = re.compile(r"(?<!NOT )IN \((SELECT\b(?:(?!\bIN \(SELECT\b).)*? LIMIT :count)\)", re.DOTALL)
_MARKERS = {
    "/*for_update*/": "FOR UPDATE",
    "/*for_share*/": "FOR SHARE",
    "/*for_key_share*/": "FOR KEY SHARE",
    "/*skip_locked*/": "FOR UPDATE SKIP LOCKED",
}


class Queries(dict[str, str]):
    """Query texts by name; an unknown name is told apart from every other mistake."""

    def __missing__(self, name: str) -> str:
        raise FoliotError(f"there is no query named {name!r} in the store")


@cache
def load(dialect: Dialect = "sqlite") -> Queries:
    """All queries, as SQLite runs them, or before they are rewritten for PostgreSQL. Read from disk once."""
    found = Queries()
    for file in sorted(FOLDER.glob("*.sql")):
        for name, text in parse(part_for(file.read_text(encoding="utf-8"), dialect)):
            if name in found:
                raise FoliotError(f"two queries are named {name!r}; the second is in {file.name}")
            found[name] = text
    return found


def parse(source: str) -> list[tuple[str, str]]:
    """The (name, text) pairs of one file; comment lines and the closing semicolon are left out."""
    queries: list[tuple[str, str]] = []
    for part in source.split(_HEADER)[1:]:
        name, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        queries.append((name.strip(), "\n".join(lines).rstrip().removesuffix(";")))
    return queries


def for_postgres(text: str) -> tuple[str, tuple[str, ...]]:
    """The same query for PostgreSQL, and the parameter names in the order of their numbers."""
    for marker, clause in _MARKERS.items():
        text = text.replace(marker, clause)
    text = _PAGE.sub(r"= ANY (ARRAY(\1))", _AMONG.sub(r"= ANY (ARRAY(\1))", text))
    text = _EACH.sub(r"json_array_elements_text(CAST(\1 AS json)) AS \2(value)", text)
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        if found[2] not in names:
            names.append(found[2])
        return f"${names.index(found[2]) + 1}"

    return _TOKENS.sub(number, text), tuple(names)


class Locks(NamedTuple):
    """The rows that a query locks: a level of `LOCK_ORDER` (-1 for none), a table of it, and the naming parameters."""

    level: int
    table: str = ""
    params: tuple[str, ...] = ()
    array: bool = False
    untold: bool = False


FREE = Locks(-1)
_LOCKING = re.compile(r"FOR UPDATE|FOR SHARE|FOR KEY SHARE")


@cache
def locks_of(name: str) -> Locks | None:
    """Returns the locks that a query takes on PostgreSQL; None when it declares none, and so must not share a
    transaction.
    """
    if name in _declared():
        return _declared()[name]
    text, _ = load_for_postgres(name)
    is_read = text.startswith(("SELECT", "WITH")) and not _LOCKING.search(text)
    return FREE if is_read else None


@cache
def apart_of(name: str) -> tuple[str, ...]:
    """Returns the columns that tell apart what an INSERT adds; none when the query does not say."""
    return _apart().get(name, ())


@cache
def _apart() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(FOLDER.glob("*.sql")):
        for part in file.read_text(encoding="utf-8").split(_HEADER)[1:]:
            name, *lines = part.splitlines()
            for line in lines:
                if line.startswith(_APART):
                    found[name.strip()] = tuple(line.removeprefix(_APART).split())
    return found


@cache
def _declared() -> dict[str, Locks]:
    found: dict[str, Locks] = {}
    for file in sorted(FOLDER.glob("*.sql")):
        for part in file.read_text(encoding="utf-8").split(_HEADER)[1:]:
            name, said, *_ = part.splitlines()
            if said.startswith(_SAID):
                found[name.strip()] = _locks(said.removeprefix(_SAID))
    return found


@cache
def long_reads() -> frozenset[str]:
    """Returns the names of the queries that say that they read many rows."""
    return frozenset(
        part.partition("\n")[0].strip()
        for file in sorted(FOLDER.glob("*.sql"))
        for part in file.read_text(encoding="utf-8").split(_HEADER)[1:]
        if _READS_MANY in part.splitlines()
    )


def _locks(said: str) -> Locks:
    level, *params = said.split()
    if level == "-":
        return FREE
    level, _, table = level.partition("/")
    if params == ["*"]:
        return Locks(LOCK_ORDER.index(level), table, untold=True)
    names = tuple(param.removesuffix("[]") for param in params)
    return Locks(LOCK_ORDER.index(level), table, names, array=any(param.endswith("[]") for param in params))


@cache
def load_for_postgres(name: str) -> tuple[str, tuple[str, ...]]:
    """One query by name, translated once."""
    return for_postgres(load("postgres")[name])
