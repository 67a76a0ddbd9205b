"""Bodies that share a transaction: the order in which they lock, whatever the order in which they came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import Conflict, NotFound
from foliot.store.audit.log import SqlAuditLog, append_records
from foliot.store.base import Put
from foliot.store.ledger.budgets import Amount, BudgetAccount, Ceiling, PaidAct, SqlBudgetLedger
from foliot.store.postgres.batches import BodyBatch, LeftOut, OutOfOrder, Part, RefusedBody, keys_of
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.queries import load, locks_of
from foliot.store.resources.database import SqlResourceStore
from foliot.store.transaction import LOCK_ORDER, Alone, Statement, Tx, alone_with, many, one, rows, run


def locking(*keys: int) -> Tx[None]:
    """Tasks, then runs, then both heads."""
    for key in keys:
        yield from one("task_lock", key=key)
    yield from rows("run_lock", keys=json.dumps(list(keys)))
    yield from one("revision_lock")
    yield from one("audit_turn")


def recording() -> Tx[int]:
    head = yield from one("audit_turn")
    seq = 1 + (head["seq"] if head else 0)
    yield from many("audit_add", [(seq, *"abcdefghij")])
    yield from run("audit_advance", seq=seq, hash="")
    return seq


def refusing() -> Tx[None]:
    yield from one("revision_lock")
    raise Conflict("it is at another version")


async def play(*bodies: Tx[Any]) -> tuple[list[Any], list[Statement]]:
    done: list[Statement] = []

    async def execute(_: Sequence[Part], statements: Sequence[Statement]) -> list[Any]:
        done.extend(statements)
        return [[] for _ in statements]

    return await BodyBatch(execute).run(bodies), done


def order(done: list[Statement]) -> list[tuple[int, Any]]:
    """The locks in the order in which they were taken, each once."""
    taken: dict[tuple[int, Any], None] = {}
    for statement in done:
        locks = locks_of(statement.name)
        assert locks is not None
        if locks.level >= 0:
            taken.update(dict.fromkeys((locks.level, key) for key in keys_of(statement, locks)))
    return list(taken)


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(sorted), min_size=1, max_size=8))
def test_locks_are_taken_in_one_order(wanted: list[list[int]]) -> None:
    async def main() -> None:
        try:
            outcomes, done = await play(*(locking(*keys) for keys in wanted), recording())
        except OutOfOrder:
            return  # nothing of it is kept
        assert order(done) == sorted(order(done))
        assert not all(isinstance(outcome, LeftOut) for outcome in outcomes)

    asyncio.run(main())


async def test_heads_come_last_and_each_body_is_done_with_one_before_the_next_has_it() -> None:
    outcomes, done = await play(recording(), locking(2), recording(), locking(1))
    names = [statement.name for statement in done]
    assert outcomes == [1, None, 2, None]
    assert names == ["task_lock"] * 2 + ["run_lock"] * 2 + ["revision_lock"] * 2 + [
        "audit_turn",  # once for all
        "audit_add",
        "audit_advance",
    ]
    assert done[0].params == {"key": 1}
    added: Any = done[-2].params
    assert [each[0] for each in added] == [1, 2]
    assert done[-1].params == {"seq": 2, "hash": ""}


async def test_what_bodies_have_in_common_is_done_in_one_go_in_the_order_of_keys() -> None:
    def ending(key: int, *, long: bool) -> Tx[int]:
        yield from run("class_well", key="same")
        yield from one("task_lock", key=key)
        if long:
            yield from rows("queue_of_task", task=key)
        yield from run("run_advance", key=10 - key, epoch=1, worker="w", after=1, last=2)
        yield from many("event_add", [(key, *"abcdef")])
        return key

    calls: list[tuple[str, list[Any]]] = []

    async def execute(parts: Sequence[Part], statements: Sequence[Statement]) -> list[Any]:
        assert len(parts) == len(statements)
        keys = [getattr(each.params, "get", {}.get)("key") for each in statements]
        calls.append((statements[0].name, keys))
        assert {each.name for each in statements} == {statements[0].name}
        return [[] for _ in statements]

    bodies = [ending(key, long=key % 2 == 1) for key in (3, 1, 4, 2)]
    assert await BodyBatch(execute).run(bodies) == [3, 1, 4, 2]
    assert calls == [
        ("class_well", ["same"] * 4),
        ("task_lock", [1, 2, 3, 4]),
        ("queue_of_task", [None, None]),
        ("run_advance", [6, 7, 8, 9]),
        ("event_add", [None] * 4),
    ]


async def test_bodies_that_change_one_row_of_a_passing_level_come_one_after_another() -> None:
    def failing(number: int) -> Tx[Any]:
        found = yield from one("class_failed", key="c", namespace="n", agent="a", lane="", now=1.0, threshold=number)
        yield from one("task_lock", key=number)
        return found

    calls: list[tuple[str, int]] = []

    async def execute(_: Sequence[Part], statements: Sequence[Statement]) -> list[Any]:
        calls.append((statements[0].name, len(statements)))
        return [[] for _ in statements]

    await BodyBatch(execute).run([failing(number) for number in (1, 2, 3)])
    assert calls == [("class_failed", 1)] * 3 + [("task_lock", 3)]


async def test_a_body_that_refuses_is_answered_and_the_others_go_on() -> None:
    outcomes, done = await play(recording(), refusing(), locking(1))
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], RefusedBody)
    assert isinstance(outcomes[1].error, Conflict)
    assert outcomes[2] is None
    assert [statement.name for statement in done].count("audit_advance") == 1


async def test_nothing_is_kept_when_a_body_refuses_after_it_has_changed_something() -> None:
    def late() -> Tx[None]:
        yield from run("revision_set", revision=7)
        raise Conflict("too late")

    def recorded() -> Tx[None]:
        yield from recording()
        raise Conflict("too late as well")

    for body in (late, recorded):
        with pytest.raises(Conflict):
            await play(locking(1), body())


async def test_a_body_whose_row_another_has_not_done_with_comes_again() -> None:
    outcomes, done = await play(locking(1), locking(1))
    assert outcomes[0] is None
    assert isinstance(outcomes[1], LeftOut)
    assert not outcomes[1].alone
    assert [statement.name for statement in done].count("task_lock") == 1


async def test_a_body_that_does_not_say_what_it_locks_is_done_alone() -> None:
    outcomes, _ = await play(recording(), many("tool_place_forget", [{"holder": "x"}]))
    assert outcomes[0] == 1
    assert outcomes[1].alone


async def test_nothing_is_kept_when_a_body_goes_back_after_it_has_changed_something() -> None:
    def backwards() -> Tx[None]:
        yield from one("revision_lock")
        yield from one("task_lock", key=1)

    with pytest.raises(OutOfOrder):
        await play(backwards(), recording())


def test_every_level_is_used_and_every_parameter_is_there() -> None:
    said = {name: locks for name in load() if (locks := locks_of(name)) is not None and locks.level >= 0}
    assert {locks.level for locks in said.values()} == set(range(len(LOCK_ORDER)))
    for name, locks in said.items():
        assert all(f":{param}" in load()[name] for param in locks.params), name


# --- on a real PostgreSQL ----------------------------------------------------------------------------------------


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[PostgresDatabase]]:
    opened = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    yield opened
    for database in opened:
        await database.close()


def entry(moment: str) -> dict[str, Any]:
    names = ("namespace", "agent", "tool", "run_id", "call_id", "outcome")
    return {"at": 1.0, "moment": moment, **dict.fromkeys(names, "x")}


def record(*_: Any) -> Tx[None]:
    yield from append_records([entry("x")])


async def test_two_processes_lock_the_same_rows_and_every_write_counts(databases: list[PostgresDatabase]) -> None:
    accounts = [BudgetAccount("default", f"b{number}", "all") for number in range(4)]

    async def work(number: int) -> None:
        database = databases[number % 2]
        act = PaidAct("r", str(number))
        chosen = [accounts[number % 4], accounts[(number * 7 + 1) % 4]]
        ledger = SqlBudgetLedger(database)
        await ledger.reserve(act, [Ceiling(each) for each in set(chosen)], Amount(1), holder="h", now=1.0, until=9e9)
        document = {"kind": "Agent", "metadata": {"name": f"a{number}", "namespace": "default"}, "spec": {}}
        await asyncio.gather(
            ledger.settle(act, Amount(1), now=1.0),
            SqlResourceStore(database, pytest.fail).write([Put(document)], in_transaction=record),
            database.write(record),
        )

    await asyncio.gather(*(work(number) for number in range(40)))
    balances = await SqlBudgetLedger(databases[0]).balances(accounts)
    wanted = [[number % 4, (number * 7 + 1) % 4] for number in range(40)]
    assert [balances[account].spent.micros for account in accounts] == [
        sum(index in each for each in wanted) for index in range(4)
    ]
    assert all(balance.reserved.micros == 0 for balance in balances.values())
    assert (await databases[0].read("audit_head"))[0]["seq"] == 80
    assert (await databases[0].read("feed_bounds"))[0]["revision"] == 40


async def test_refusals_leave_the_writes_beside_them_whole(databases: list[PostgresDatabase]) -> None:
    database = databases[0]
    store = SqlResourceStore(database, pytest.fail)

    def document(name: str) -> dict[str, Any]:
        return {"kind": "Agent", "metadata": {"name": name, "namespace": "default"}, "spec": {}}

    writes = [store.write([Put(document(f"a{number}"))], in_transaction=record) for number in range(30)]
    stale = [store.write([Put(document(f"b{number}"), expect="7")]) for number in range(30)]
    results = await asyncio.gather(
        *(each for pair in zip(writes, stale, strict=True) for each in pair), return_exceptions=True
    )

    assert [type(each) for each in results[1::2]] == [NotFound] * 30
    assert [each[0].action for each in results[::2]] == ["created"] * 30  # type: ignore[index]
    verified = await SqlAuditLog(database).verify()
    assert (verified.records, verified.broken) == (30, None)
    revisions = [row["revision"] for row in await database.read("change_list", after=0, upto=100)]
    assert revisions == list(range(1, 31))


async def test_a_dry_run_undoes_nothing_of_others(databases: list[PostgresDatabase], monkeypatch: Any) -> None:
    database = databases[0]
    store = SqlResourceStore(database, pytest.fail)
    transact, undone = database._transact, list[int]()  # pyright: ignore[reportPrivateUsage]

    async def watched(batch: list[Any]) -> list[Any]:
        try:
            return await transact(batch)
        except Exception:
            undone.append(len(batch))
            raise

    monkeypatch.setattr(database, "_transact", watched)

    def document(name: str) -> dict[str, Any]:
        return {"kind": "Agent", "metadata": {"name": name, "namespace": "default"}, "spec": {}}

    def taken_back(_name: str, _uid: str) -> Tx[None]:
        yield from record()
        raise RuntimeError("taken back")

    def act(in_transaction: Callable[[str, str], Tx[None]]) -> Tx[None]:
        yield from in_transaction("a", "b")

    dry = Alone(taken_back)
    results = await asyncio.gather(
        *(store.write([Put(document(f"a{number}"))], in_transaction=record) for number in range(10)),
        store.write([Put(document("dry"))], in_transaction=record, dry=True),
        database.write(alone_with(dry, act), dry),
        *(store.write([Put(document(f"b{number}"))], in_transaction=record) for number in range(10)),
        return_exceptions=True,
    )

    assert undone == [1, 1]
    assert [type(each) for each in results] == [*[list] * 11, RuntimeError, *[list] * 10]
    assert (await SqlAuditLog(database).verify()).records == 20
    revisions = [row["revision"] for row in await database.read("change_list", after=0, upto=100)]
    assert revisions == list(range(1, 21))


async def test_what_was_reserved_while_its_caller_was_stopped_is_given_back(databases: list[PostgresDatabase]) -> None:
    ledger, other = SqlBudgetLedger(databases[0]), databases[1]
    account = BudgetAccount("default", "b", "all")
    for number in range(20):
        act = PaidAct("r", str(number))
        wanted = ledger.reserve(act, [Ceiling(account)], Amount(1), holder="h", now=1.0, until=9e9)
        reserving = asyncio.create_task(wanted)
        for _ in range(number):  # into the transaction, each time a little further
            await other.read("budget_holders")
        reserving.cancel()
        await asyncio.gather(reserving, return_exceptions=True)
        await ledger.release(act, now=1.0)
    assert (await ledger.balances([account]))[account].reserved.micros == 0
    assert await ledger.holders() == []
