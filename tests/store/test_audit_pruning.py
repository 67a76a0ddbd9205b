"""The beginning of the audit log can be forgotten, and what is left still shows every other change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.errors import Conflict, NotFound
from foliot.store.audit import log as audit_pruning
from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import AuditFilter, SqlAuditLog, prune_audit
from foliot.store.base import Database
from foliot.store.open import open_database


def entry(number: int) -> dict[str, Any]:
    columns = {"namespace": "default", "agent": "desk", "tool": "refund", "run_id": "r1", "call_id": f"c{number}"}
    return {**columns, "at": float(number), "moment": "finished", "outcome": "ok", "decision": {"asks": []}}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = await open_database(url)
    yield opened
    await opened.close()


async def filled(database: Database, count: int = 10) -> SqlAuditLog:
    log = SqlAuditLog(database)
    await log.append([entry(number) for number in range(1, count + 1)])
    return log


async def numbers(log: SqlAuditLog) -> list[int]:
    return [each.seq for each in reversed(await log.find(AuditFilter(), limit=1000))]


async def test_what_is_old_is_gone_and_the_log_says_so_and_holds(database: Database) -> None:
    log = await filled(database)
    last = await log.get(6)

    cut = await prune_audit(database, before=7.0, by="ann", now=100.0)

    assert cut is not None
    assert (cut.records, cut.last) == (6, ChainHead(6, last.hash))
    assert await numbers(log) == [7, 8, 9, 10, 11]
    told = await log.get(11)
    assert told.body["pruned"] == {"from": 1, "to": 6, "hash": last.hash, "records": 6}
    assert told.body["decision"]["by"] == "ann"
    verified = await log.verify()
    assert (verified.records, verified.first, verified.broken) == (5, 7, None)
    with pytest.raises(NotFound) as refused:
        await log.get(3)
    assert refused.value.hint == "records up to 6 were pruned"


async def test_the_chain_goes_on_and_can_be_cut_again(database: Database) -> None:
    log = await filled(database)
    await prune_audit(database, before=4.0, by="ann", now=50.0)
    await log.append([entry(60), entry(61)])
    cut = await prune_audit(database, before=60.0, by="bob", now=100.0)

    assert cut is not None
    assert (cut.records, cut.last.seq) == (8, 11)
    assert await numbers(log) == [12, 13, 14]
    assert (await log.get(14)).body["pruned"]["from"] == 4
    assert (await log.verify()).broken is None


async def test_everything_can_be_forgotten_but_not_that_it_was(database: Database) -> None:
    log = await filled(database)
    assert await prune_audit(database, before=1e9, by="ann", now=100.0) is not None
    assert await numbers(log) == [11]
    assert await prune_audit(database, before=1e9, by="ann", now=200.0) is None
    assert await numbers(log) == [11]
    assert (await log.verify()).broken is None


async def test_nothing_old_means_nothing_is_written(database: Database) -> None:
    log = await filled(database)
    assert await prune_audit(database, before=1.0, by="ann", now=100.0) is None
    assert len(await numbers(log)) == 10
    empty = await prune_audit(database, before=0.0, by="ann", now=100.0)
    assert empty is None


async def test_a_head_that_was_noted_is_still_good_or_is_said_to_be_too_old(database: Database) -> None:
    log = await filled(database)
    noted = {number: ChainHead(number, (await log.get(number)).hash) for number in (3, 6, 8)}
    await prune_audit(database, before=7.0, by="ann", now=100.0)

    assert (await log.verify(noted[8])).broken is None
    assert (await log.verify(noted[6])).broken is None
    for anchor, fault in ((noted[3], "pruned"), (ChainHead(6, "0" * 64), "edited"), (ChainHead(8, "0" * 64), "edited")):
        broken = (await log.verify(anchor)).broken
        assert broken is not None
        assert broken.fault == fault


async def test_writers_and_readers_go_on_meanwhile(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_pruning, "AT_ONCE", 7)
    log = await filled(database, 200)

    async def write() -> None:
        for number in range(20):
            await log.append([entry(1000 + number)])

    async def look() -> None:
        for _ in range(10):
            assert (await log.verify()).broken is None

    await asyncio.gather(write(), look(), prune_audit(database, before=150.0, by="ann", now=2000.0), look())
    assert (await log.verify()).broken is None
    assert min(await numbers(log)) == 150


async def test_what_a_crash_left_behind_counts_as_gone_and_goes_the_next_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await filled(database)

    async def dies(database: Database, last: int) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(audit_pruning, "_forget", dies)
        with pytest.raises(RuntimeError):
            await prune_audit(database, before=7.0, by="ann", now=100.0)
    assert len(await numbers(log)) == 11
    verified = await log.verify()
    assert (verified.records, verified.broken) == (5, None)

    assert await prune_audit(database, before=7.0, by="ann", now=200.0) is None
    assert await numbers(log) == [7, 8, 9, 10, 11]


# --- tampering ---------------------------------------------------------------------------------------------------


async def pruned_file(path: Path) -> None:
    opened = await open_database(str(path))
    try:
        await filled(opened)
        await prune_audit(opened, before=5.0, by="ann", now=100.0)
    finally:
        await opened.close()


async def fault_of(path: Path) -> str | None:
    opened = await open_database(str(path))
    try:
        broken = (await SqlAuditLog(opened).verify()).broken
    finally:
        await opened.close()
    return broken.fault if broken else None


def tamper(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statements", "fault"),
    [
        (["DELETE FROM audit WHERE seq = 5"], "removed"),
        (["DELETE FROM audit_head WHERE name = 'base'"], "removed"),
        (["UPDATE audit_head SET hash = 'x' WHERE name = 'base'"], "edited"),
        (["UPDATE audit_head SET seq = 3 WHERE name = 'base'"], "removed"),
        (
            [
                "UPDATE audit_head SET seq = 6, hash = (SELECT hash FROM audit WHERE seq = 6) WHERE name = 'base'",
                "DELETE FROM audit WHERE seq <= 6",
            ],
            "removed",
        ),
        (["UPDATE audit SET data = replace(data, '\"records\":4', '\"records\":2') WHERE seq = 11"], "edited"),
        (["DELETE FROM audit WHERE seq = 11"], "removed"),
    ],
)
async def test_a_cut_that_nobody_recorded_is_found(tmp_path: Path, statements: list[str], fault: str) -> None:
    path = tmp_path / "foliot.db"
    await pruned_file(path)
    assert await fault_of(path) is None
    tamper(path, *statements)
    assert await fault_of(path) in (fault, "truncated")


async def test_a_log_cut_by_hand_is_found_although_nothing_was_ever_pruned(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    opened = await open_database(str(path))
    await filled(opened)
    await opened.close()
    tamper(
        path,
        "INSERT INTO audit_head (name, seq, hash) SELECT 'base', seq, hash FROM audit WHERE seq = 4",
        "DELETE FROM audit WHERE seq <= 4",
    )
    assert await fault_of(path) == "removed"


async def test_a_log_that_does_not_hold_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    opened = await open_database(str(path))
    log = await filled(opened)
    await opened.close()
    tamper(path, "UPDATE audit SET agent = 'someone' WHERE seq = 2")
    opened = await open_database(str(path))
    try:
        log = SqlAuditLog(opened)
        with pytest.raises(Conflict, match="broken at record 2"):
            await prune_audit(opened, before=7.0, by="ann", now=100.0)
        assert len(await numbers(log)) == 10
    finally:
        await opened.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1)), min_size=1, max_size=5))
async def test_any_order_of_writing_and_pruning_leaves_a_log_that_holds(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[int, float]]
) -> None:
    opened = await open_database(str(tmp_path_factory.mktemp("audit") / "foliot.db"))
    try:
        log, clock = SqlAuditLog(opened), 0
        for count, share in acts:
            await log.append([entry(clock + n) for n in range(1, count + 1)])
            clock += count
            await prune_audit(opened, before=clock * share, by="ann", now=float(clock))
            verified = await log.verify()
            assert verified.broken is None
            found = await numbers(log)
            assert found == list(range(verified.first, found[-1] + 1))
    finally:
        await opened.close()
