"""Many executions of one query as one statement over arrays: one round trip, and little for each row.

A query is written once, for one set of parameters. What it becomes over arrays follows from its form:

    SELECT … WHERE a = $1            -> SELECT found.*, given.nr
                                          FROM unnest($1::int8[]) WITH ORDINALITY AS given(p1, nr)
                                         CROSS JOIN LATERAL (SELECT … WHERE a = given.p1) AS found
    INSERT INTO t (a, b)             -> INSERT INTO t (a, b) SELECT given.p1, given.p2
    VALUES ($1, $2)                       FROM unnest($1::int8[], $2::text[]) AS given(p1, p2)
    ON CONFLICT (a) DO NOTHING            ORDER BY given.p1 ON CONFLICT (a) DO NOTHING
    INSERT INTO t (a) SELECT …       -> INSERT INTO t (a) SELECT found.*
                                          FROM unnest(…) AS given(…) CROSS JOIN LATERAL (SELECT …) AS found
    UPDATE t SET a = $1              -> UPDATE t SET a = given.p1
     WHERE key = $2 AND b = $3            FROM (SELECT each.* FROM unnest(…) WITH ORDINALITY AS each(p1, p2, p3, nr)
                                                  JOIN t AS locked ON locked.key = each.p2 AND locked.b = each.p3
                                                 ORDER BY locked.key, locked.b FOR UPDATE OF locked) AS given
                                         WHERE key = given.p2 AND b = given.p3 RETURNING given.nr
    DELETE FROM t WHERE key = $1     -> DELETE FROM t USING (as above) AS given WHERE key = given.p1 RETURNING given.nr

Only rows are locked that the query names: those that agree in the columns which it compares with parameters, as many
of them as a unique index needs, or all. They are locked in the order of these keys, as everywhere: an UPDATE by itself
takes them in the order of its plan. New rows that others may be adding too come in the order of what they conflict in.
Callers give the sets of a SELECT that locks in the order of the keys. `nr` says whose row it is that comes back. A new
row cannot carry it: there the columns do that the query names under `-- apart:`, by parameters of the same names.

A row of its own costs the server about 20 microseconds to bind and execute, a row of an array about 3; and a statement
of its own costs this process about 80, most of it for sending and waiting.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from foliot.errors import FoliotError
from foliot.store.postgres.driver import PostgresConnection
from foliot.store.queries import apart_of, load_for_postgres
from foliot.store.transaction import Guarded, Planned, Statement

_NUMBER: Final = re.compile(r"\$(\d+)")
# What a part of a query that is taken over as it stands must not have: it would mean something else there.
_OTHER: Final = re.compile(r"\b(?:ON CONFLICT|RETURNING|FROM|SELECT|WHERE)\b")
_CLAUSE: Final = re.compile(r"\b(?:ON CONFLICT|RETURNING)\b")
_INSERT: Final = re.compile(
    r"(?P<into>INSERT INTO \w+ \([^()]*\))\s+"
    r"(?:VALUES\s*\((?P<values>[^()]*)\)|(?P<select>SELECT\b.*?))"
    r"(?P<conflict>\s+ON CONFLICT(?: \([\w, ]+\))? DO NOTHING)?(?:\s+RETURNING (?P<returned>[\w, ]+))?",
    re.DOTALL,
)
_KEYED: Final = (
    r"\bWHERE (?P<key>\w+ = \$\d+(?:\s+AND \w+ = \$\d+(?!\w))*)(?P<more>.*?)(?:\s+RETURNING (?P<returned>[\w, ]+))?"
)
_EQUAL: Final = re.compile(r"(\w+) = \$(\d+)")
# A condition besides the key narrows: what it must not have outside of parentheses.
_EITHER: Final = re.compile(r"\bOR\b")
_PARENTHESES: Final = re.compile(r"\([^()]*\)")
_CONFLICT: Final = re.compile(r"ON CONFLICT \(([\w, ]+)\)")
_UPDATE: Final = re.compile(r"(?P<change>UPDATE (?P<table>\w+)\s.*?)" + _KEYED, re.DOTALL)
_DELETE: Final = re.compile(r"(?P<change>DELETE FROM (?P<table>\w+)\s+)" + _KEYED, re.DOTALL)

_CHANGED: Final = re.compile(r"(?:UPDATE|DELETE FROM) (\w+)")
# The columns of each unique index of a table. Asked once for each query of a process.
UNIQUE: Final = """
SELECT array_agg(a.attname::text) AS columns
  FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
 WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
 GROUP BY i.indexrelid"""

Verb = Literal["select", "insert", "update", "delete"]
NR: Final = "given_nr"


class SetForm(NamedTuple):
    """A query over arrays. `key`: where the parameters stand that name the rows of an UPDATE or DELETE."""

    verb: Verb
    text: str
    key: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()


def over_arrays(
    text: str,
    types: Sequence[str],
    *,
    apart: Sequence[str] = (),
    names: Sequence[str] = (),
    unique: Collection[frozenset[str]] = (),
) -> SetForm:
    """The query with an array in the place of each parameter. Raises `FoliotError` for one of another form.

    `names` are those of the parameters, and `apart` the ones among them that tell apart what an INSERT returns.
    `unique` are the columns of each unique index of the table that is changed.
    """
    columns = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, 1))
    given = f"unnest({arrays}) AS given({columns})"
    numbered = f"unnest({arrays}) WITH ORDINALITY AS {{}}({columns}, {NR})"
    refused = FoliotError(f"this query cannot be run over arrays: {text}")
    if not types:
        raise refused
    if text.startswith("SELECT"):
        source = f"FROM {numbered.format('given')} CROSS JOIN LATERAL ({_with_given(text)}) AS found"
        return SetForm("select", f"SELECT found.*, given.{NR} {source}")
    if found := _INSERT.fullmatch(text):
        if found["select"] is not None and _CLAUSE.search(found["select"]):
            raise refused
        source = (
            f"SELECT {_with_given(found['values'])} FROM {given}{_conflict_order(found)}"
            if found["values"] is not None
            else f"SELECT found.* FROM {given} CROSS JOIN LATERAL ({_with_given(found['select'])}) AS found"
        )
        returned = ", ".join(
            [*([found["returned"]] if found["returned"] else []), *(f"{each} AS given_{each}" for each in apart)]
        )
        returning = f" RETURNING {returned}" if apart else ""
        places = tuple(names.index(each) for each in apart)
        return SetForm("insert", f"{found['into']} {source}{found['conflict'] or ''}{returning}", apart=places)
    found = _UPDATE.fullmatch(text) or _DELETE.fullmatch(text)
    if found is None or _OTHER.search(found["change"].removeprefix("DELETE FROM")) or _OTHER.search(found["more"]):
        raise refused
    if _EITHER.search(_outside(found["more"])):
        raise refused
    equal = [(column, int(number)) for column, number in _EQUAL.findall(found["key"])]
    columns_of = [{column for column, _ in equal[:count]} for count in range(1, len(equal) + 1)]
    enough = next((n for n, known in enumerate(columns_of, 1) if any(known >= each for each in unique)), len(equal))
    key = equal[:enough]
    same = " AND ".join(f"locked.{column} = each.p{number}" for column, number in key)
    order = f"ORDER BY {', '.join(f'locked.{column}' for column, _ in key)} FOR UPDATE OF locked"
    returned = f"{found['returned']}, given.{NR}" if found["returned"] else f"given.{NR}"
    is_update = text.startswith("UPDATE")
    changed = (
        f"{_with_given(found['change']).rstrip()} {'FROM' if is_update else 'USING'} "
        f"(SELECT each.* FROM {numbered.format('each')} JOIN {found['table']} AS locked ON {same} {order}) AS given "
        f"WHERE {_with_given(found['key'])}{_with_given(found['more'])} RETURNING {returned}"
    )
    return SetForm("update" if is_update else "delete", changed, key=tuple(number - 1 for _, number in key))


def _outside(text: str) -> str:
    """The text without what stands in parentheses."""
    while (shorter := _PARENTHESES.sub("", text)) != text:
        text = shorter
    return text


def _conflict_order(insert: re.Match[str]) -> str:
    """The order of new rows: that of the columns in which they may conflict with those that others add meanwhile."""
    conflict = _CONFLICT.search(insert["conflict"] or "")
    if conflict is None:
        return ""
    columns = [each.strip() for each in insert["into"].partition("(")[2].rstrip(")").split(",")]
    values = dict(zip(columns, (each.strip() for each in insert["values"].split(",")), strict=True))
    keys = [values[each.strip()] for each in conflict[1].split(",")]
    named = [_with_given(each) for each in keys if _NUMBER.fullmatch(each)]
    return f" ORDER BY {', '.join(named)}" if named else ""


def _with_given(text: str) -> str:
    return _NUMBER.sub(r"given.p\1", text)


@cache
def has_set_form(name: str) -> bool:
    """Whether a query can be run over arrays. An INSERT that returns something must say how to tell it apart."""
    text, names = load_for_postgres(name)
    try:
        form = over_arrays(text, ["text"] * len(names), apart=apart_of(name), names=names)
    except FoliotError:
        return False
    return form.verb != "insert" or bool(form.apart) or "RETURNING" not in text


_known: dict[str, SetForm] = {}


def queries_in(text: str) -> tuple[str, ...]:
    """The names of the queries that a text over arrays was made of; none for any other text. For simulators."""
    return next((tuple(names.split()) for names, form in _known.items() if form.text == text), ())


async def form_of(connection: PostgresConnection, name: str) -> SetForm:
    """The form of a query over arrays, on a database whose tables exist. Raises `FoliotError` if it has none."""
    if (form := _known.get(name)) is None:
        text, names = load_for_postgres(name)
        types = [each.name for each in (await connection.prepare(text)).get_parameters()]
        changed = _CHANGED.match(text)
        unique = [frozenset(row["columns"]) for row in await connection.fetch(UNIQUE, changed[1])] if changed else ()
        form = _known[name] = over_arrays(text, types, apart=apart_of(name), names=names, unique=unique)
    return form


def can_share(name: str, want: str) -> bool:
    """Whether several statements of this name can be one. An INSERT counts its rows by what it returns."""
    if not has_set_form(name):
        return False
    return want == "many" or not load_for_postgres(name)[0].startswith("INSERT") or bool(apart_of(name))


@cache
def adds_in_order(name: str, want: str) -> bool:
    """Whether several statements of this name add their rows as one, in the order of what these may conflict in."""
    found = _INSERT.fullmatch(load_for_postgres(name)[0])
    return found is not None and found["values"] is not None and bool(_conflict_order(found)) and can_share(name, want)


async def run_many(connection: PostgresConnection, name: str, sets: Sequence[Sequence[Any]]) -> None:
    """Executes a query once for each set of parameters, in one statement where that is the same."""
    text, _ = load_for_postgres(name)
    if len(sets) > 1 and has_set_form(name):
        form = await form_of(connection, name)
        if not form.key or _are_apart(form, sets):
            await connection.fetch(form.text, *_columns(sets))
            return
    await connection.executemany(text, sets)


def _are_apart(form: SetForm, sets: Sequence[Sequence[Any]]) -> bool:
    """Whether no two sets are about the same rows."""
    return len({tuple([each[place] for place in form.key]) for each in sets}) == len(sets)


async def run_shared(connection: PostgresConnection, statements: Sequence[Statement]) -> list[Any] | None:
    """The results of several statements of one name, done as one; None when that would not be the same."""
    name, want = statements[0].name, statements[0].want
    form = await form_of(connection, name)
    _, names = load_for_postgres(name)
    params: list[Any] = [each.params for each in statements]
    sets = [tuple([each[name] for name in names]) for each in params]
    if form.verb == "update" and not _are_apart(form, sets):
        return None
    # Of equal ones the first finds the row, as if they had been done one after the other.
    first: dict[tuple[Any, ...], int] = {}
    if form.verb == "select":
        distinct: list[tuple[Any, ...]] = sets
    else:
        for number, each in enumerate(sets):
            first.setdefault(tuple(each[place] for place in form.apart) if form.apart else each, number)
        distinct = [sets[number] for number in first.values()]
    if form.verb == "delete" and not _are_apart(form, distinct):
        return None
    found = await connection.fetch(form.text, *_columns(distinct))
    numbers = list(first.values())
    returned: list[list[dict[str, Any]]] = [[] for _ in statements]
    for record in found:
        row: dict[str, Any] = dict(record)
        if form.verb == "insert":
            place = first[tuple([row.pop(f"given_{names[each]}") for each in form.apart])]
        else:
            number: int = row.pop(NR) - 1
            place = number if form.verb == "select" else numbers[number]
        returned[place].append(row)
    return returned if want == "rows" else [len(each) for each in returned]


def _columns(sets: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*sets, strict=True)]


# --- facts -----------------------------------------------------------------------------------------------------------


async def run_guarded(connection: PostgresConnection, body: Guarded, planned: Sequence[Planned]) -> list[bool]:
    """All guards and the rows behind them in one statement, which is a transaction of its own: whose guard held.

    Of one whose guard did not hold nothing is stored; nor of a second one that guards the same row.
    """
    key = (await form_of(connection, body.guard)).key
    first: dict[tuple[Any, ...], int] = {}
    for number, each in enumerate(planned):
        first.setdefault(tuple([each.guard[place] for place in key]), number)
    numbers = list(first.values())
    guards = [planned[number].guard for number in numbers]
    rows = [(*row, place) for place, number in enumerate(numbers, 1) for row in planned[number].rows]
    found = await connection.fetch(await _guarded_text(connection, body), *_columns(guards), *_columns(rows))
    held: set[int] = {numbers[int(record[NR]) - 1] for record in found}
    return [number in held for number in range(len(planned))]


async def _guarded_text(connection: PostgresConnection, body: Guarded) -> str:
    """The statement of a kind of facts: guards as above, and rows that each name the guard they are behind."""
    label = f"{body.guard} {body.add}"
    if (form := _known.get(label)) is None:
        guard = await form_of(connection, body.guard)
        added, names = load_for_postgres(body.add)
        types = [each.name for each in (await connection.prepare(added)).get_parameters()]
        insert = _INSERT.fullmatch(added)
        if guard.verb != "update" or insert is None or insert["values"] is None:
            raise FoliotError(f"{body.guard} and {body.add} cannot be done together")
        behind = len(load_for_postgres(body.guard)[1])
        columns = ", ".join(f"p{number}" for number in range(1, len(names) + 1))
        arrays = ", ".join(f"${behind + number}::{each}[]" for number, each in enumerate([*types, "int8"], 1))
        rows = f"unnest({arrays}) AS given({columns}, {NR})"
        text = (
            f"WITH held AS ({guard.text}), added AS ({insert['into']} SELECT {_with_given(insert['values'])} "
            f"FROM {rows} JOIN held ON held.{NR} = given.{NR}) SELECT {NR} FROM held"
        )
        form = _known[label] = SetForm("insert", text)
    return form.text
