"""Queries over arrays: what becomes of the text. That PostgreSQL takes them is seen in test_appends.py."""

from __future__ import annotations

import pytest

from foliot.errors import FoliotError
from foliot.store.postgres.batches import over_arrays
from foliot.store.queries import load_for_postgres


def test_rows_to_add_come_from_arrays() -> None:
    text, _ = load_for_postgres("event_add")
    types = ["int8", "int8", "float8", "text", "bytea", "text", "bytea"]
    assert over_arrays(text, types) == (
        "INSERT INTO event (run, seq, at, type, data, blob, link) SELECT * FROM unnest("
        "$1::int8[], $2::int8[], $3::float8[], $4::text[], $5::bytea[], $6::text[], $7::bytea[])"
    )


def test_a_guard_looks_at_each_row_that_it_is_given() -> None:
    text, names = load_for_postgres("run_advance")
    assert names == ("last", "key", "epoch", "worker", "after")
    assert over_arrays(text, ["int8", "int8", "int8", "text", "int8"]) == (
        "UPDATE run SET last_seq = given.p1 "
        "FROM (SELECT each.* FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::int8[]) "
        "AS each(p1, p2, p3, p4, p5) "
        "JOIN run AS locked ON locked.key = each.p2 ORDER BY locked.key FOR UPDATE OF locked) AS given "
        "WHERE key = given.p2 AND epoch = given.p3 AND worker = given.p4 AND last_seq = given.p5"
    )


@pytest.mark.parametrize("text", ["DELETE FROM t WHERE a = $1", "UPDATE t SET a = (SELECT 1 WHERE true) WHERE b = $1"])
def test_what_has_another_form_is_refused(text) -> None:
    with pytest.raises(FoliotError, match="cannot be run over arrays"):
        over_arrays(text, ["int8"])
