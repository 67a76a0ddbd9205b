from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from foliot.errors import FoliotError
from foliot.store import queries
from foliot.store.sqlite import file as sqlite_file

NAMES = sorted(queries.load())


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> apsw.Connection:
    opened = sqlite_file.prepare(tmp_path_factory.mktemp("queries") / "foliot.db")
    opened.execute("PRAGMA query_only = OFF")
    return opened


@pytest.mark.parametrize("name", NAMES)
def test_every_query_is_valid_sqlite_as_it_stands(name: str, connection: apsw.Connection) -> None:
    connection.execute("EXPLAIN " + queries.load()[name], dict.fromkeys(parameters(name), 1)).fetchall()


@pytest.mark.services
async def test_every_query_is_valid_postgresql_after_translation(postgres_url: str) -> None:
    import asyncpg

    from foliot.store.postgres.database import PostgresDatabase

    await (await PostgresDatabase.open(postgres_url)).close()
    client = await asyncpg.connect(postgres_url)
    try:
        for name in NAMES:
            text, names = queries.load_for_postgres(name)
            prepared = await client.prepare(text)
            assert len(prepared.get_parameters()) == len(names), name
    finally:
        await client.close()


def parameters(name: str) -> set[str]:
    return set(re.findall(r"(?<!:):([a-z_]+)", queries.load()[name]))


def test_parameters_get_one_number_each_and_quoted_colons_are_left_alone() -> None:
    text, names = queries.for_postgres(
        "SELECT ':no', \":x\", /* :c */ a -- :d\n FROM t WHERE a = :b AND c = :a OR d = :b"
    )
    assert text == "SELECT ':no', \":x\", /* :c */ a -- :d\n FROM t WHERE a = $1 AND c = $2 OR d = $1"
    assert names == ("b", "a")


def test_markers_and_json_lists_are_translated() -> None:
    text, names = queries.for_postgres(
        "SELECT w.value FROM json_each(:ids) AS w JOIN t ON t.id = w.value LIMIT :n /*skip_locked*/"
    )
    assert text == (
        "SELECT w.value FROM json_array_elements_text(CAST($1 AS json)) AS w(value)"
        " JOIN t ON t.id = w.value LIMIT $2 FOR UPDATE SKIP LOCKED"
    )
    assert names == ("ids", "n")
    assert queries.for_postgres("SELECT a FROM t /*for_update*/")[0] == "SELECT a FROM t FOR UPDATE"


def test_a_file_is_cut_at_its_headers_and_comments_are_left_out() -> None:
    source = "-- top\n\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT\n  2;\n"
    assert queries.parse(source) == [("one", "SELECT 1"), ("two", "SELECT\n  2")]


def test_an_unknown_name_and_a_name_used_twice_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FoliotError, match="no query named 'x'"):
        queries.load()["x"]
    (tmp_path / "a.sql").write_text("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")
    monkeypatch.setattr(queries, "FOLDER", tmp_path)
    with pytest.raises(FoliotError, match="two queries are named 'a'"):
        queries.load.__wrapped__()


def test_no_query_uses_what_the_databases_do_not_share() -> None:
    for name, text in queries.load().items():
        assert "::" not in text, name
        assert "SELECT *" not in text.upper(), name


def test_what_is_among_many_is_an_array_for_postgresql_and_what_is_not_is_left_alone() -> None:
    text, names = queries.for_postgres(
        "DELETE FROM t WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)"
        " AND name NOT IN (SELECT value FROM json_each(:names) AS wanted)"
    )
    assert text == (
        "DELETE FROM t WHERE key = ANY (ARRAY("
        "SELECT CAST(wanted.value AS BIGINT) FROM json_array_elements_text(CAST($1 AS json)) AS wanted(value)))"
        " AND name NOT IN (SELECT value FROM json_array_elements_text(CAST($2 AS json)) AS wanted(value))"
    )
    assert names == ("keys", "names")


def test_a_page_for_each_row_is_an_array_for_postgresql() -> None:
    text, _ = queries.for_postgres(
        "SELECT t.key FROM json_each(:phases) AS wanted CROSS JOIN t WHERE t.key IN (SELECT n.key FROM t AS n"
        " WHERE n.phase = wanted.value AND n.kind IN ('a', 'b') ORDER BY n.key LIMIT :count) LIMIT :count"
    )
    assert "t.key = ANY (ARRAY(SELECT n.key FROM t AS n WHERE n.phase = wanted.value" in text
    assert text.endswith("ORDER BY n.key LIMIT $2)) LIMIT $2")
    for name in queries.load():
        assert " IN (SELECT" not in queries.load_for_postgres(name)[0] or "LIMIT $" not in _inner(name), name


def _inner(name: str) -> str:
    """Returns what stands behind the last `IN (SELECT` of a query for PostgreSQL, up to its parenthesis."""
    text = queries.load_for_postgres(name)[0]
    inner, depth = text[text.rindex(" IN (SELECT") + 5 :], 1
    for place, letter in enumerate(inner):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return inner[:place]
    return inner
