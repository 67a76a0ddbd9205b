"""A store is tidied by itself: what is old is forgotten, what is live stays, and the file gets smaller."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.holdings import measure_namespaces, share_of_each
from foliot.store.journal.database import SqlJournal
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.work.housekeeping import EVERY, Forgotten, Housekeeper, Retention, growth_of, sizes_of

DAY = 86_400.0


@tool(effect="read")
async def report() -> str:
    """Write a long report."""
    return "line of a report\n" * 8000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def store(request, tmp_path):
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    settings = load_settings({"store": url, "home": str(tmp_path)})
    database = await open_database(settings.store)
    yield settings, database, SqlResourceStore(database, partial(load_keyring, settings))
    await database.close()


async def ended(settings, count: int = 1) -> list[str]:
    async with Runtime(settings=settings) as runtime:
        agent = Agent("clerk", model=ScriptedModel([{"call": {"report": {}}}, {"say": "done"}]), tools=[report])
        return [(await runtime.run(agent, f"go {number}")).run_id for number in range(count)]


async def waits(settings) -> str:
    async with Runtime(settings=settings) as runtime:
        model = ScriptedModel([{"call": {"report": {}}}, {"call": {"ask_user": {"question": "Go on?"}}}])
        agent = Agent("asker", model=model, tools=[report, "ask_user"])
        return (await runtime.run(agent, "go", check=False)).run_id


def keeper(store, rules: Retention, *, days: float = 0.0) -> Housekeeper:
    _, database, resources = store
    return Housekeeper(database, resources, rules, clock=lambda: time.time() + days * DAY)


async def phases(database) -> dict[str, str]:
    return {run.id: run.phase for run in await SqlJournal(database).list(limit=99)}


async def test_the_defaults_keep_a_month_and_forget_what_is_older(store) -> None:
    settings, database, _ = store
    old, open_one = (await ended(settings))[0], await waits(settings)
    rules = Retention.of(settings)

    assert await keeper(store, rules, days=29).look() is not None
    assert old in await phases(database)
    found = await keeper(store, rules, days=31).look()

    assert found is not None
    assert found.runs == 1
    assert await phases(database) == {open_one: "waiting"}
    async with Runtime(settings=settings) as runtime:  # with everything that it refers to
        _, state = await runtime.inside.runs.load(open_one)
        assert "line of a report" in state.transcript[-2].text or state.calls


async def test_audit_records_are_kept_for_a_year_and_the_log_still_holds(store) -> None:
    settings, database, _ = store
    await ended(settings)
    log = SqlAuditLog(database)

    await keeper(store, Retention.of(settings), days=200).look()
    assert await log.find(AuditFilter(moment="finished"))
    found = await keeper(store, Retention.of(settings), days=400).look()

    assert found is not None
    assert found.records >= 1
    assert await log.find(AuditFilter(moment="finished")) == []
    assert (await log.verify()).broken is None


async def test_forever_keeps_everything(store) -> None:
    settings, database, _ = store
    (old,) = await ended(settings)

    await keeper(store, Retention(runs=None, audit=None), days=3650).look()

    assert old in await phases(database)


async def test_one_process_at_a_time_has_the_turn(store) -> None:
    looks = [keeper(store, Retention()).look() for _ in range(6)]

    found = await asyncio.gather(*looks)

    assert sum(each is not None for each in found) == 1
    assert await keeper(store, Retention()).look() is None
    assert await keeper(store, Retention(), days=EVERY / DAY).look() is not None
    # A clock that was set back must not keep the store from being tidied until it has caught up.
    assert await keeper(store, Retention(), days=-1).look() is not None


async def test_a_file_gets_smaller_when_what_was_in_it_is_forgotten(store) -> None:
    settings, database, _ = store
    if not settings.store.startswith("sqlite"):
        pytest.skip("PostgreSQL keeps the space for what comes next")
    for _ in range(3):
        await ended(settings, 4)
    before = (await database.size()).total

    found = await keeper(store, Retention(runs=DAY), days=2).look()

    assert found is not None
    assert found.freed > 0
    after = await database.size()
    assert after.total == before - found.freed
    assert after.total == after.used


async def test_a_file_that_is_too_large_forgets_what_ended_first_and_nothing_live(store) -> None:
    settings, database, _ = store
    if not settings.store.startswith("sqlite"):
        pytest.skip("the size of PostgreSQL is its operator's")
    runs, open_one = await ended(settings, 3), await waits(settings)

    found = await keeper(store, Retention(size=1), days=0.5).look()

    assert found is not None
    assert found.early == len(runs)
    assert await phases(database) == {open_one: "waiting"}


async def test_who_holds_most_gives_first_also_when_all_of_it_is_young(store) -> None:
    settings, database, _ = store
    if not settings.store.startswith("sqlite"):
        pytest.skip("the size of PostgreSQL is its operator's")
    async with Runtime(settings=settings) as runtime:
        modest = Agent("clerk", namespace="modest", model=ScriptedModel([{"say": "done"}]))
        old = [(await runtime.run(modest, f"go {n}")).run_id for n in range(5)]
    before = (await database.size()).used
    async with Runtime(settings=settings) as runtime:
        for n in range(20):
            greedy = Agent("clerk", namespace="greedy", model=ScriptedModel([{"say": "done"}]))
            await runtime.run(greedy, f"{n} " + "".join(f"{n * 7919 + i:x} " for i in range(9000)))
    limit = int(before + ((await database.size()).used - before) / 2)

    assert (await keeper(store, Retention(size=limit), days=30 / DAY).look()) is not None
    assert len(await phases(database)) == 25, "nothing has ended for a minute: nobody gives"
    found = await keeper(store, Retention(size=limit), days=1800 / DAY).look()

    assert found is not None
    left = await phases(database)
    assert set(old) <= set(left), "who holds little keeps its history"
    assert 10 <= found.early < 20
    assert (await database.size()).used <= limit
    found = await keeper(store, Retention(size=limit), days=0.5).look()
    assert found is not None
    assert found.early == 0, "it is small enough now"


@pytest.mark.parametrize(
    ("held", "room", "share"),
    [([], 10, math.inf), ([1, 2], 10, math.inf), ([1, 20], 10, 9), ([1, 2, 30, 40], 23, 10), ([8, 8], 10, 5)],
)
def test_a_share_is_an_equal_part_and_what_others_leave(held: list[float], room: float, share: float) -> None:
    assert share_of_each(held, room) == share


async def test_who_fills_the_store_with_declarations_takes_nobodys_history(store) -> None:
    settings, database, _ = store
    if not settings.store.startswith("sqlite"):
        pytest.skip("the size of PostgreSQL is its operator's")
    old: list[str] = []
    async with Runtime(settings=settings) as runtime:
        for n in range(5):
            agent = Agent("clerk", namespace="modest", model=ScriptedModel([{"say": "done"}]))
            old.append((await runtime.run(agent, f"{n} " + "x" * 40_000)).run_id)
    before = (await database.size()).used
    declared = [("ModelEndpoint", "m", {"provider": "mock", "default_model": "mock"})]
    for n in range(20):
        spec = {"model_ref": "m", "prompt": "".join(f"{n * 7919 + i:x} " for i in range(9000))}
        declared.append(("Agent", f"a{n}", spec))
    async with Runtime(settings=settings) as runtime:
        for kind, name, spec in declared:
            metadata = {"name": name, "namespace": "greedy"}
            document = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}
            await runtime.resources.apply([document])
    held = await measure_namespaces(database)
    assert held["greedy"] > held["modest"] > 0

    limit = int(before + ((await database.size()).used - before) / 2)
    found = await keeper(store, Retention(size=limit), days=0.5).look()

    assert found is not None
    assert found.early == 0
    assert set(old) <= set(await phases(database))


async def test_content_counts_once_in_equal_parts_for_those_who_have_it(store) -> None:
    settings, database, _ = store
    async with Runtime(settings=settings) as runtime:
        for namespace in ("a", "a", "b"):
            model = ScriptedModel([{"call": {"report": {}}}, {"say": "done"}])
            agent = Agent("clerk", namespace=namespace, model=model, tools=[report])
            await runtime.run(agent, "go")
    held = await measure_namespaces(database)
    events = dict.fromkeys(held, 0)
    for row in await database.read("held_by_runs", after=0, count=10):
        events[row["namespace"]] += row["size"]
    content = await database.read("held_content", after="", count=99)
    shared = {row["digest"]: row["size"] for row in content if row["namespace"]}
    assert held["a"] - events["a"] == held["b"] - events["b"] == sum(shared.values()) / 2 > 0


async def test_sizes_are_noted_once_a_day_and_tell_the_growth(store) -> None:
    _, database, _ = store
    for days in (0.0, 0.2, 1.1, 2.2):
        await keeper(store, Retention(), days=days).look()

    (row,) = await database.read("setting_get", name="housekeeping.sizes")
    assert len(sizes_of(row["value"])) == 3
    assert growth_of([(0.0, 100)], DAY / 2, 200) is None
    assert growth_of([(0.0, 100)], 2 * DAY, 300) == 100


async def test_a_file_of_an_older_version_is_compacted_on_demand(tmp_path) -> None:
    import apsw

    from foliot.store.sqlite.file import compact, prepare

    path = tmp_path / "old.db"
    prepare(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA auto_vacuum = NONE; VACUUM; CREATE TABLE x (y); INSERT INTO x VALUES (zeroblob(900000))")
    connection.execute("DELETE FROM x; PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    database = await open_database(str(path))
    assert await database.shrink() == 0

    size = (await database.size()).total
    assert compact(path) < size - 800_000
    await database.close()


def test_nothing_forgotten_is_nothing_to_tell() -> None:
    assert not Forgotten()
    assert Forgotten(runs=1)
