"""A budget with room for one question, held by a process that is killed while it asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foliot.runtime.runtime import Runtime
from foliot.store.base import Put
from foliot.store.ledger.budgets import Balance, SqlBudgetLedger
from tests.engine.test_budgets import Model, agent, budget

PROCESS = Path(__file__).with_name("budget_process.py")
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/foliot.db"
    return request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("url", DATABASES, indirect=True)
@pytest.mark.parametrize("same_run", [True, False])
async def test_what_a_killed_process_had_reserved_is_there_at_once(url: str, tmp_path: Path, same_run: bool) -> None:
    file = tmp_path / "said"
    async with Runtime(url) as runtime:
        parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
        assert parts.resources is not None
        assert parts.database is not None
        await parts.resources.write([Put(budget(limit={"amount": "0.0201"}))])
        ledger = SqlBudgetLedger(parts.database)
        with subprocess.Popen([sys.executable, str(PROCESS), url, str(file)]) as child:
            try:
                deadline = time.monotonic() + 60
                while not file.exists() or file.read_text() != "asked\n":
                    assert child.poll() is None, "the process ended"
                    assert time.monotonic() < deadline, "the process does not get on"
                    await asyncio.sleep(0.01)
                (held,) = await ledger.list("default")
                assert held.balance.reserved.micros == 20_000
            finally:
                child.kill()
        clerk = agent(Model("done"))
        run = runtime.resume("r1", agent=clerk) if same_run else runtime.run(clerk, "go")
        assert (await asyncio.wait_for(run, 60)).succeeded
        (account,) = await ledger.list("default")
        # The question of the killed one was sent: whoever takes its run up pays for it, by its estimate.
        spent = account.balance.spent
        assert account.balance == Balance(spent)
        assert (spent.micros > 10_000, spent.tokens > 150) == (same_run, same_run)
