"""The ledger of budgets under any order of acts, and under several processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.common.process import is_gone
from foliot.store.ledger.budgets import Amount, BudgetAccount, Ceiling, PaidAct, SqlBudgetLedger
from foliot.store.open import open_database

PROCESS = Path(__file__).with_name("budget_process.py")
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
TEAM = BudgetAccount("default", "team", "total")
DAY = BudgetAccount("default", "day", "2026-11-16")
LIMIT = 100

# What may be done with one of five acts: reserve it in one or both accounts, settle it, release it; or time goes by.
acts = st.integers(0, 4).map(lambda n: PaidAct("r", f"a{n}"))
steps = st.one_of(
    st.tuples(st.just("reserve"), acts, st.integers(0, 60), st.booleans()),
    st.tuples(st.just("settle"), acts, st.integers(0, 60), st.just(False)),
    st.tuples(st.just("release"), acts, st.just(0), st.just(False)),
    st.tuples(st.just("sweep"), st.just(PaidAct("r", "a0")), st.integers(0, 20), st.just(False)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=40))
def test_no_order_of_acts_passes_a_limit_or_loses_a_millionth(script: list[tuple[str, PaidAct, int, bool]]) -> None:
    asyncio.run(_play(script))


async def _play(script: list[tuple[str, PaidAct, int, bool]]) -> None:
    """The ledger beside the simplest thing that could be right: a dictionary."""
    held: dict[PaidAct, tuple[int, tuple[BudgetAccount, ...], float]] = {}
    over: set[PaidAct] = set()
    spent = {TEAM: 0, DAY: 0}
    now = 0.0
    with tempfile.TemporaryDirectory() as folder:
        database = await open_database(f"sqlite:///{folder}/foliot.db")
        ledger = SqlBudgetLedger(database)
        try:
            for verb, act, number, both in script:
                if verb == "reserve":
                    accounts = (TEAM, DAY) if both else (TEAM,)
                    known = act in held or act in over
                    short = await ledger.reserve(
                        act,
                        [Ceiling(each, LIMIT, None) for each in accounts],
                        Amount(number),
                        holder="me",
                        now=now,
                        until=now + 30,
                    )
                    if not known and not short:
                        held[act] = (number, accounts, now + 30)
                elif verb == "settle":
                    moved = await ledger.settle(act, Amount(min(number, held[act][0]) if act in held else 0), now=now)
                    if act in held:
                        estimate, accounts, _ = held.pop(act)
                        for account in accounts:
                            spent[account] += min(number, estimate)
                    if moved:
                        over.add(act)
                elif verb == "release" and await ledger.release(act, now=now):
                    held.pop(act, None)
                elif verb == "sweep":
                    now += number
                    await ledger.sweep(now=now)
                    held = {each: kept for each, kept in held.items() if kept[2] >= now}
                balances = await ledger.balances([TEAM, DAY])
                for account in (TEAM, DAY):
                    reserved = sum(kept[0] for kept in held.values() if account in kept[1])
                    assert balances[account].taken.micros <= LIMIT
                    assert balances[account].spent.micros == spent[account]
                    assert balances[account].reserved.micros == reserved
        finally:
            await database.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/foliot.db"
    return request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("url", DATABASES, indirect=True)
async def test_eight_processes_spend_the_limit_and_not_a_millionth_more(url: str, tmp_path: Path) -> None:
    limit, files = 4000, [tmp_path / f"spent-{n}" for n in range(8)]
    database = await open_database(url)
    ledger = SqlBudgetLedger(database)
    children = [
        subprocess.Popen([sys.executable, str(PROCESS), url, str(file), f"p{n}", str(limit), "25"])
        for n, file in enumerate(files)
    ]
    try:
        most = 0
        while any(child.poll() is None for child in children):
            most = max(most, (await ledger.balances([TEAM]))[TEAM].taken.micros)
            await asyncio.sleep(0.01)
        assert [child.returncode for child in children] == [0] * 8
        balance = (await ledger.balances([TEAM]))[TEAM]
        told = sum(int(line) for file in files if file.exists() for line in file.read_text().splitlines())
        assert balance.reserved == Amount()
        assert balance.spent.micros == told
        assert (await ledger.balances([DAY]))[DAY] == balance
        assert limit - 50 < most <= limit  # it was used up, and never passed
    finally:
        for child in children:
            child.kill()
            child.wait()
        await database.close()


@pytest.mark.parametrize("url", DATABASES, indirect=True)
async def test_what_a_killed_process_held_is_there_for_the_next_one(url: str, tmp_path: Path) -> None:
    database = await open_database(url)
    ledger = SqlBudgetLedger(database)
    file = tmp_path / "held"
    with subprocess.Popen([sys.executable, str(PROCESS), url, str(file), "dead", "100", "0"]) as child:
        try:
            deadline = time.monotonic() + 60
            while not file.exists() or file.read_text() != "held\n":
                assert time.monotonic() < deadline, "the process does not get on"
                await asyncio.sleep(0.01)
            now = time.time()
            ceilings = [Ceiling(TEAM, 100, None)]
            wanted: dict[str, Any] = {"holder": "me", "now": now, "until": now + 60}
            assert await ledger.reserve(PaidAct("r", "a"), ceilings, Amount(1), **wanted)
            assert [holder for holder in await ledger.holders() if is_gone(holder)] == []
        finally:
            child.kill()
    gone = [holder for holder in await ledger.holders() if is_gone(holder)]
    assert await ledger.give_back(gone, now=now) == 1
    assert await ledger.reserve(PaidAct("r", "a"), ceilings, Amount(100), **wanted) == []
    await database.close()
