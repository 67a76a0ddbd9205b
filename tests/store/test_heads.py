"""The heads that bodies of one transaction share: what is put off, and when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import SqlAuditLog
from foliot.store.heads import Heads
from foliot.store.postgres.batches import BodyBatch, Part
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.sqlite.writer import Executor
from foliot.store.transaction import Guarded, Planned, Statement, Tx, many, one, rows, run

TURN = Statement("audit_turn", {}, "rows")


def added(*numbers: int) -> Statement:
    return Statement("audit_add", [(number,) for number in numbers], "many")


def advance(seq: int) -> Statement:
    return Statement("audit_advance", {"seq": seq, "hash": f"h{seq}"}, "count")


def recorded(heads: Heads, seq: int) -> None:
    assert heads.answers([added(seq)]) == [None]
    assert heads.answers([advance(seq)]) == [1]


def test_who_comes_second_goes_on_from_where_the_first_has_left_the_log() -> None:
    heads = Heads()
    assert heads.answers([TURN]) is None
    recorded(heads, 1)
    assert heads.answers([TURN, TURN]) == [[{"seq": 1, "hash": "h1"}]] * 2


def test_records_of_several_are_added_together_at_the_end_and_move_the_head_once() -> None:
    heads = Heads()
    recorded(heads, 1)
    recorded(heads, 2)
    assert heads.rest() == [added(1, 2), advance(2)]
    assert heads.rest() == []


@pytest.mark.parametrize("name", ["audit_read", "audit_head", "audit_advance_from"])
def test_records_are_due_before_whatever_could_see_that_they_are_missing(name: str) -> None:
    heads = Heads()
    recorded(heads, 1)
    assert heads.answers([Statement(name, {}, "rows")]) is None
    assert heads.due(name) == [added(1), advance(1)]
    assert heads.due(name) == []
    recorded(heads, 2)
    assert heads.rest() == [added(2), advance(2)]


@pytest.mark.parametrize("name", ["run_get", "task_lock", "event_add"])
def test_a_statement_about_something_else_leaves_records_for_later(name: str) -> None:
    heads = Heads()
    recorded(heads, 1)
    assert heads.due(name) == []
    assert heads.rest() == [added(1), advance(1)]


def test_the_revision_is_where_the_last_one_has_set_it() -> None:
    heads = Heads()
    lock = Statement("revision_lock", {}, "rows")
    assert heads.answers([lock]) is None
    heads.done([Statement("revision_set", {"revision": number}, "count") for number in (7, 8)])
    assert heads.answers([lock]) == [[{"revision": 8}]]
    assert heads.rest() == []


# --- the two shells --------------------------------------------------------------------------------------------------


def records(seq: int) -> Tx[int]:
    yield from one("audit_turn")
    yield from many("audit_add", [(seq, *"abcdefghij")])
    yield from run("audit_advance", seq=seq, hash="")
    return seq


def records_and_reads(seq: int) -> Tx[int]:
    yield from records(seq)
    yield from rows("audit_read", after=0, count=10)
    return seq


async def test_a_body_on_postgresql_that_reads_the_log_finds_the_records_of_its_transaction() -> None:
    done: list[str] = []

    async def execute(_: Sequence[Part], statements: Sequence[Statement]) -> list[Any]:
        done.extend(each.name for each in statements)
        return [[] for _ in statements]

    assert await BodyBatch(execute).run([records(1), records_and_reads(2), records(3)]) == [1, 2, 3]
    assert done.index("audit_add") < done.index("audit_read")
    assert done.index("audit_advance") < done.index("audit_read")
    assert done[-2:] == ["audit_add", "audit_advance"]


async def test_sqlite_moves_the_head_before_a_fact_that_is_guarded_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    done: list[str] = []
    execute = Executor._execute  # pyright: ignore[reportPrivateUsage]

    def executed(executor: Executor, statement: Statement) -> Any:
        done.append(statement.name)
        return execute(executor, statement)

    monkeypatch.setattr(Executor, "_execute", executed)
    plan = Planned((2, "h2", "head", 1, ""), [])
    fact = Guarded(records, guard="audit_advance_from", add="audit_add", plan=lambda *_: plan)
    moved = database.write(records, 1)
    await database.write(fact)
    await moved
    assert done == ["audit_turn", "audit_add", "audit_advance"]
    assert await SqlAuditLog(database).head() == ChainHead(2, "h2"), "the guard has found the head where it was left"
    await database.close()
