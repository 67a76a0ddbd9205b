"""Old stores with work in them, one for each schema that there was: the present Foliot opens them and goes on.

A store of the corpus was made by the Foliot of its time (see corpus/README.md). A migration without a store fails the
first test.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from foliot.dev.session import ServiceSession
from foliot.engine.audit.completion import Completion
from foliot.errors import Gone, InvalidInput, NotHere
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.server.auth.passwords import Passwords
from foliot.store import schema
from foliot.store.access.tokens import SqlTokens
from foliot.store.access.users import SqlUsers
from foliot.store.audit.log import SqlAuditLog
from foliot.store.backup import back_up, restore
from foliot.store.base import Filter, Key
from foliot.store.incarnation import renew_database
from foliot.store.open import open_database
from foliot.store.sqlite import file as sqlite_file
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command
from foliot.work.triggers.deliveries import Webhooks
from foliot.work.triggers.scheduler import Scheduler
from foliot.work.triggers.webhook import read_webhook
from tests.postgres_tools import run_tool
from tests.store.corpus import story
from tests.store.corpus_kit import Found, declare_again, do_all_work, forget_desk, kept, kept_dumps, listed

# These came together with a later one in a single commit: no Foliot ever made such a store.
pytestmark = pytest.mark.usefixtures("really_migrated")
NEVER_ALONE = {1, 2, 5, 6, 7, 8}
NEWEST = len(schema.migrations("sqlite"))
# `make test` plays the work of those where most changed: the first, the first with audit, tasks, declarers, chains.
PLAYED = kept() if os.environ.get("FOLIOT_CHAOS") else [3, 4, 9, 14, 17, NEWEST]
PLAYED_DUMPS = kept_dumps() if os.environ.get("FOLIOT_CHAOS") else [9, NEWEST]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools of the stores."""
    monkeypatch.syspath_prepend(str(Path(story.__file__).parent))
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    forget_desk()


@pytest.fixture(params=PLAYED)
def found(request: pytest.FixtureRequest, tmp_path: Path, desk: None) -> Found:
    return Found(request.param, tmp_path)


@pytest.fixture(params=PLAYED_DUMPS)
def dumped(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str, desk: None) -> Found:
    return Found(request.param, tmp_path, postgres_url)


def test_every_schema_has_a_store() -> None:
    missing = {*range(1, NEWEST + 1)} - NEVER_ALONE - {*kept()} | {NEWEST} - {*kept_dumps()}
    assert not missing, "a migration was added: add its stores with `python tests/store/corpus/story.py`"


def shape(file: Path) -> set[tuple[str, ...]]:
    connection = apsw.Connection(str(file))
    try:
        columns = connection.execute(
            'SELECT t.name, c.name, c.type, c."notnull", c.dflt_value, c.pk FROM sqlite_schema AS t,'
            " pragma_table_info(t.name) AS c WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'"
        ).fetchall()
        indexes = connection.execute(
            "SELECT 'index', i.tbl_name, i.name, group_concat(c.name) FROM sqlite_schema AS i,"
            " pragma_index_info(i.name) AS c WHERE i.type = 'index' GROUP BY i.name"
        ).fetchall()
        return {tuple(map(str, row)) for row in (*columns, *indexes)}
    finally:
        connection.close()


def test_old_stores_get_the_shape_of_a_new_one(tmp_path: Path) -> None:
    sqlite_file.prepare(tmp_path / "new.db").close()
    wanted = shape(tmp_path / "new.db")
    for number in kept():
        (tmp_path / str(number)).mkdir()
        old = Found(number, tmp_path / str(number))
        sqlite_file.prepare(old.store).close()
        assert shape(old.store) == wanted, f"schema {number}"


def shape_of_database(url: str) -> set[str]:
    """Tables, columns, defaults, constraints and indexes, each in one line."""
    columns = """
        SELECT r.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
          FROM pg_class AS r JOIN pg_attribute AS a ON a.attrelid = r.oid
          LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
         WHERE r.relnamespace = 'public'::regnamespace AND r.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    """
    constraints = """
        SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    """
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
    return {
        line
        for each in (columns, constraints, indexes)
        for line in run_tool("psql", "-At", "-c", each, url).split("\n")
    }


async def test_old_dumps_get_the_shape_of_a_new_database(dumped: Found, service_session: ServiceSession) -> None:
    await (await open_database(dumped.url)).close()
    with service_session.database() as fresh:
        await (await open_database(fresh)).close()
        assert shape_of_database(dumped.url) == shape_of_database(fresh)


async def test_work_of_resources_without_a_declarer_waits_until_they_are_applied_again(found: Found) -> None:
    async with found.opened() as runtime:
        tool = await runtime.inside.resources.get(Key("Tool", "default", "look"))
        if tool["metadata"].get("declaredBy"):
            pytest.skip("the declarers are known")
        with pytest.raises(NotHere) as refused:
            await runtime.resume("run-parked")
        assert "apply it once more" in (refused.value.hint or "")
        if found.schema >= 9:
            await do_all_work(runtime)
            ended = {name for name, phase in (await phases_of(runtime)).items() if phase in ENDED}
            assert ended == {"task-done", "task-dead"}
        await declare_again(runtime)
        assert (await runtime.resume("run-parked")).output == "The order is there."


async def test_old_work_goes_on(found: Found) -> None:
    await check_all(found)


async def test_old_work_goes_on_in_postgres(dumped: Found) -> None:
    await check_all(dumped)


async def check_all(found: Found) -> None:
    paid = found.payments
    async with found.opened() as runtime:
        log = SqlAuditLog(runtime.inside.tasking.database)
        noted = await log.verify()
        assert noted.broken is None
        assert bool(noted.records) == (found.schema >= 4)
        await check_declared(runtime, found)
        await check_runs(runtime, found)
        if found.schema >= 9:
            await check_tasks(runtime, found)
            await check_triggers(runtime)
        await check_callers(runtime, found)
        # Calls of the killed processes have ended by now, and their records are made up.
        await Completion(runtime.inside.tasking.database).complete(since=0.0, now=runtime.inside.clock())
        held = await log.verify(noted.head)
        assert held.broken is None
        assert held.records > noted.records
    once = 2 if found.schema >= 9 else 1
    assert found.payments == paid + once, "the payments that were approved now, once each, and no other"


async def check_declared(runtime: Runtime, found: Found) -> None:
    for document in await listed(runtime):
        _, problems = validate_document(document)
        assert not problems, document["kind"]
    values = await runtime.inside.resources.reveal(Key("Secret", "default", "desk"))
    assert values["value"] == story.SECRETS["desk"].encode()
    changes = runtime.inside.resources.watch(Filter(), after=0)
    if found.is_renewed:
        with pytest.raises(Gone):
            await anext(changes)
    else:
        assert (await anext(changes)).revision == 1
    await declare_again(runtime)


async def check_runs(runtime: Runtime, found: Found) -> None:
    paid = found.payments
    for name in ("run-done", "run-paid", "run-failed", "run-parent", "run-approval", "run-parked", "run-lost"):
        assert (await runtime.inside.replay(name)).difference is None, name

    assert (await runtime.resume("run-parked")).output == "The order is there."
    assert (await runtime.resume("run-delegating")).output == "The teller says: The order is there."
    assert (await runtime.resume("run-paid")).output == "Done: paid 3.00 for A-3"
    lost = await runtime.resume("run-lost")
    assert lost.waiting is not None
    assert lost.waiting.reason == "unknown_effect"
    await runtime.inside.settle_call(
        "run-lost", lost.waiting.calls[0], "happened", result="paid 3.00 for A-3", by="ada"
    )
    assert (await runtime.resume("run-lost")).output == "Done: paid 3.00 for A-3"
    assert found.payments == paid, "a call that has acted, or may have, is not made again"

    (approval,) = [each async for each in runtime.inside.approvals.list(run="run-approval")]
    await runtime.inside.decide_approval(approval["metadata"]["name"], "approve", by="ada")
    assert (await runtime.resume("run-approval")).output == "Done: paid 900.00 for A-2"
    for name in ("run-parked", "run-delegating", "run-lost", "run-approval"):
        assert (await runtime.inside.replay(name)).difference is None, name


async def check_tasks(runtime: Runtime, found: Found) -> None:
    """Queued, leased by a worker that was killed, made by a schedule and by a webhook; waiting, done, given up."""
    again = Command("system", "desk", name="task-queued", message="Look later", idempotency_key="once-only")
    assert (await runtime.inside.tasking.tasks.accept(again)).duplicate
    await do_all_work(runtime)
    phases = await phases_of(runtime)
    assert phases.pop("task-dead") == "dead_lettered"
    waiting = phases.pop("task-approval")
    assert waiting not in ENDED
    assert len(phases) == 5
    assert set(phases.values()) == {"succeeded"}

    (asked,) = [
        each async for each in runtime.inside.approvals.list() if each["status"].get("phase", "Pending") == "Pending"
    ]
    await runtime.inside.decide_approval(asked["metadata"]["name"], "approve", by="ada")
    await do_all_work(runtime)
    assert (await phases_of(runtime))["task-approval"] == "succeeded"
    await runtime.inside.answer_question("run-question", None, "A-9", by="ada")
    assert (await runtime.resume("run-question")).output == "Heard: A-9"


async def check_triggers(runtime: Runtime) -> None:
    database, tasks = runtime.inside.tasking.database, runtime.inside.tasking.tasks
    before = await phases_of(runtime)
    webhook = read_webhook(await runtime.inside.resources.get(Key("TaskWebhook", "default", "bell")))
    webhooks = Webhooks(database, runtime.inside.resources, tasks)
    told = await webhooks.try_out(webhook, b'{"rings": 3}', runtime.inside.clock(), event_id="ring-1", headers={})
    assert told.document["duplicate"], "it came before, and made its task then"
    assert await phases_of(runtime) == before

    later = runtime.inside.clock() + 3600.0
    await Scheduler(database, runtime.inside.resources, tasks, clock=lambda: later).tick(later)
    (made,) = (await phases_of(runtime)).keys() - before.keys()
    assert made.startswith("hourly-")
    await do_all_work(runtime)
    assert (await phases_of(runtime))[made] == "succeeded"


async def check_callers(runtime: Runtime, found: Found) -> None:
    database = runtime.inside.tasking.database
    if found.schema >= 10:
        assert [token.name for token in await SqlTokens(database).list()] == ["reader-1"]
    if found.schema >= 11:
        account = await SqlUsers(database).find("ada")
        assert account is not None
        assert await Passwords().matches(account.password, story.PASSWORD)


async def phases_of(runtime: Runtime) -> dict[str, str]:
    tasks, _ = await runtime.inside.tasking.tasks.list(namespace="default", limit=100)
    return {task.name: task.phase for task in tasks}


async def test_an_old_backup_is_restored_and_goes_on(found: Found, tmp_path: Path) -> None:
    """Made by the Foliot of its time where that could; else by this one of the old store."""
    if found.schema >= 9:
        file = found.backup()
    else:
        file = tmp_path / "made_now.tar"
        back_up(found.store, file)
    found.store.rename(tmp_path / "before.db")
    manifest, _ = restore(file, found.store)
    assert manifest.schema == found.schema
    async with found.opened() as runtime:
        await declare_again(runtime)
        assert (await runtime.resume("run-parked")).output == "The order is there."


async def test_an_old_dump_that_does_not_know_its_place_is_renewed_by_hand(dumped: Found) -> None:
    if dumped.is_renewed:
        pytest.skip("it is noticed")
    first = await renew_database(dumped.url)
    async with dumped.opened() as runtime:
        assert await runtime.inside.resources.revision() == first > 10**9
        with pytest.raises(Gone):
            await anext(aiter(runtime.inside.resources.watch(Filter(), after=1)))
        await declare_again(runtime)
        assert (await runtime.resume("run-parked")).output == "The order is there."


async def test_a_store_of_a_newer_foliot_is_refused_in_words(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    if found.schema == NEWEST:
        pytest.skip("no store is newer than that of the newest Foliot")
    await (await open_database(found.url)).close()
    older = schema.migrations("sqlite")[: found.schema]
    monkeypatch.setattr(schema, "migrations", lambda _: older)
    with pytest.raises(InvalidInput, match=f"schema {NEWEST}; this one knows {found.schema}") as refused:
        await open_database(found.url)
    assert "upgrade" in (refused.value.hint or "")
