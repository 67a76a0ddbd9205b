"""Records that a killed process took with it are made up from the journals, and come out as they would have been."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.audit.completion import ON_THEIR_WAY, Completion
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.open import open_database
from foliot.store.queries import load, load_for_postgres
from foliot.store.transaction import Statement


@tool(effect="once")
async def pay(amount: int, password: str = "") -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="read")
async def fail() -> str:
    """Fail."""
    raise ValueError("no")


def clerk() -> Agent:
    script = [
        {"call": {"pay": {"amount": 7, "password": "hunter2"}, "fail": {}}},
        {"call": {"pay": {"amount": 8}}},
        {"say": "done"},
    ]
    return Agent("clerk", model=ScriptedModel(script), tools=[pay, fail])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def url(request, tmp_path):
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def execute(database, monkeypatch, *texts: str) -> None:
    def body():
        for text in texts:
            for queries in (load(), load("postgres")):
                monkeypatch.setitem(queries, "tampering", text)
            load_for_postgres.cache_clear()
            yield Statement("tampering", {}, "count")

    await database.write(body)


def shape(body: dict) -> dict:
    """A record without its place in the log and the clock of its process."""
    metering = {**body["metering"], "seconds": 0}
    return {**{k: v for k, v in body.items() if k not in ("seq", "previous", "at", "recovered")}, "metering": metering}


async def test_what_is_made_up_is_what_would_have_been_written(url, monkeypatch) -> None:
    async with Runtime(url) as runtime:
        result = await runtime.run(clerk(), "pay", user="ann")
    database = await open_database(url)
    log = SqlAuditLog(database)
    written = {r.body["call_id"]: shape(r.body) for r in await log.find(AuditFilter(moment="finished"))}
    assert len(written) == 3
    later = (await database.read("run_get", id=result.run_id))[0]["updated_at"] + ON_THEIR_WAY + 1
    assert await Completion(database).missing(now=later) == []

    await execute(database, monkeypatch, "DELETE FROM audit", "UPDATE audit_head SET seq = 0, hash = ''")

    missing = await Completion(database).missing(now=later)
    assert {each.call_id for each in missing} == set(written)
    assert await Completion(database).complete(since=0.0, now=later) == 3
    assert await Completion(database).complete(since=0.0, now=later) == 0
    found = await log.find(AuditFilter(moment="finished"))
    assert all(record.body["recovered"] is True for record in found)
    assert {record.body["call_id"]: shape(record.body) for record in found} == written
    assert "hunter2" not in str([record.body for record in found])
    assert (await log.verify()).broken is None
    await database.close()


CHILD = """
import asyncio, os, sys
from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.audit.log import AuditTrail

@tool(effect="once")
async def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

@tool(effect="read")
async def die() -> str:
    "Die, when told to."
    if len(sys.argv) > 2:
        os._exit(9)
    return "lives"

async def never(self): await asyncio.sleep(3600)
if len(sys.argv) > 2:
    AuditTrail._write = never  # the process is killed before the next batch

script = [{"call": {"pay": {"amount": 7}}}, {"call": {"die": {}}}, {"say": "done"}]
async def main():
    async with Runtime(sys.argv[1]) as runtime:
        agent = Agent("clerk", model=ScriptedModel(script), tools=[pay, die])
        if len(sys.argv) > 2:
            await runtime.run(agent, "pay", run_id="r1")
        else:
            await runtime.resume("r1", agent=agent)

asyncio.run(main())
"""


async def test_whoever_takes_over_a_run_makes_up_what_its_dead_holder_had_not_written(tmp_path: Path) -> None:
    script, store = tmp_path / "child.py", str(tmp_path / "foliot.db")
    script.write_text(textwrap.dedent(CHILD), encoding="utf-8")

    def play(*more: str) -> int:
        return subprocess.run([sys.executable, str(script), store, *more], env=os.environ, timeout=110).returncode

    assert await asyncio.to_thread(play, "die") == 9
    database = await open_database(store)
    log = SqlAuditLog(database)
    assert await log.find(AuditFilter()) == []
    assert await asyncio.to_thread(play) == 0

    found = {r.body["tool"]: r.body for r in await log.find(AuditFilter(run_id="r1", moment="finished"))}
    assert found["pay"]["recovered"] is True
    assert found["pay"]["arguments"] == {"amount": 7}
    assert "recovered" not in found["die"]
    await database.close()


DIES_WHILE_PAYING = """
import asyncio, os, sys
from foliot import Agent, Runtime, ScriptedModel, tool

@tool(effect="once")
async def pay(amount: int) -> str:
    "Pay."
    os._exit(9)

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        agent = Agent("clerk", model=ScriptedModel([{"call": {"pay": {"amount": 7}}}, {"say": "done"}]), tools=[pay])
        await (runtime.run(agent, "pay", run_id="r1") if len(sys.argv) > 2 else runtime.resume("r1", agent=agent))

asyncio.run(main())
"""


async def test_a_call_that_died_with_its_process_leaves_a_record_that_says_so(tmp_path: Path) -> None:
    script, store = tmp_path / "child.py", str(tmp_path / "foliot.db")
    script.write_text(textwrap.dedent(DIES_WHILE_PAYING), encoding="utf-8")

    def play(*more: str) -> int:
        return subprocess.run([sys.executable, str(script), store, *more], env=os.environ, timeout=110).returncode

    assert await asyncio.to_thread(play, "die") == 9
    await asyncio.to_thread(play)  # takes the run over, which then waits for a person

    database = await open_database(store)
    log = SqlAuditLog(database)
    (found,) = [record.body for record in await log.find(AuditFilter(run_id="r1", moment="finished"))]
    assert (found["tool"], found["outcome"], found["recovered"]) == ("pay", "unknown", True)
    later = (await database.read("run_get", id="r1"))[0]["updated_at"] + ON_THEIR_WAY + 1
    assert await Completion(database).complete(since=0.0, now=later) == 0
    assert (await log.verify()).broken is None
    await database.close()
