"""Runs, records, budgets, workers, tools and triggers over a server: what each role may, and what nobody else sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from foliot import Client
from foliot.client.run_state import ForkOrder, RunOrder
from foliot.engine.live.hub import Recorded, Streamed
from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.runtime.tools import Asker
from foliot.store.audit.log import AuditFilter
from foliot.store.ledger.doubts import Noted, note
from foliot.store.queue.limits import Limit
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import register

SCRIPT = [{"say": "one two three"}]
SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "ModelEndpoint": ("brain", {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}),
    "Agent": ("writer", {"model_ref": "brain", "prompt": "Write."}),
    "Budget": ("house", {"window": "day", "limit": {"tokens": 100_000}}),
    "Task": ("brief", {"agent": "writer", "mode": "template", "input": {"topic": "clocks"}}),
    "TaskSchedule": ("weekly", {"task_ref": "brief", "schedule": "0 9 * * 1"}),
    "Secret": ("hook", {"stringData": {"value": "correct-horse-battery"}}),
    "TaskWebhook": ("push", {"task_ref": "brief", "auth": {"profile": "github", "secret_ref": "hook"}}),
}


def team(namespace: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        for kind, (name, spec) in SPECS.items()
    ]


@pytest.fixture
async def admin(site) -> AsyncIterator[Client]:
    async with Client(site.url, token=await site.token("root")) as client:
        await client.apply([*team("team-a"), *team("team-b")])
        yield client


async def ended(client: Client, run_id: str) -> list[Any]:
    return [item async for item in client.live(run_id)]


async def test_a_run_is_begun_once_however_often_it_is_asked_for_and_watched_to_its_end(admin) -> None:
    order = RunOrder("writer", "go", "r1", "team-a", {"team": "docs"}, "root")

    first = await admin.begin_run(order)
    again = await admin.begin_run(order)
    items = await ended(admin, "r1")

    assert (first.id, again.id, first.labels["team"]) == ("r1", "r1", "docs")
    seqs = [item.seq for item in items if isinstance(item, Recorded)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(item.run_id == "r1" for item in items if isinstance(item, Streamed))
    stood = await admin.standing("r1")
    assert (stood.result.output, stood.seq, stood.info.phase) == ("one two three", seqs[-1], "succeeded")
    assert [item.seq for item in [i async for i in admin.live("r1", after=seqs[-2])]] == [seqs[-1]]
    assert (await admin.resume_run("r1")).phase == "succeeded"
    assert (await admin.replay_run("r1")).difference is None
    forked = await admin.fork_run("r1", ForkOrder(1, "r2", prompt="Shorter."))
    assert (forked.id, forked.parent) == ("r2", "r1")
    assert (await admin.fork_run("r1", ForkOrder(1, "r2", prompt="Shorter."))).id == "r2"
    await ended(admin, "r2")
    assert await admin.interrupted() == []


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (RunOrder("writer", "go", "a b", "team-a"), InvalidInput),
        (RunOrder("writer", "go", "r1", "team-a", {"foliot.dev/task": "x"}), InvalidInput),
        (RunOrder("team-b/writer", "go", "r1", "team-a"), InvalidInput),
        (RunOrder("writer", " ", "r1", "team-a"), InvalidInput),
        (RunOrder("nobody", "go", "r1", "team-a"), NotFound),
    ],
)
async def test_an_order_that_cannot_be_is_refused_and_leaves_no_run(admin, order, error) -> None:
    with pytest.raises(error):
        await admin.begin_run(order)

    with pytest.raises(NotFound):
        await admin.standing("r1")


async def test_the_id_of_other_work_is_not_taken(admin) -> None:
    await admin.begin_run(RunOrder("writer", "go", "r1", "team-a"))
    await ended(admin, "r1")

    with pytest.raises(Conflict):
        await admin.begin_run(RunOrder("writer", "go", "r1", "team-b"))
    with pytest.raises(Conflict):
        await admin.settle_call("r1", "pay", "happened")


async def test_who_works_in_one_namespace_sees_nothing_of_another(site, admin) -> None:
    await admin.begin_run(RunOrder("writer", "go", "hidden", "team-b"))
    await ended(admin, "hidden")
    theirs = (await admin.audit_records(AuditFilter("team-b")))[0].seq
    await admin.set_limit(Limit("namespace", "team-b", 3))

    async with Client(site.url, token=await site.token("bob", ("operator", "author"), "team-a")) as bob:
        assert {record.body["namespace"] for record in await bob.audit_records(AuditFilter())} == {"team-a"}
        assert await bob.audit_records(AuditFilter("team-b")) == []
        assert await bob.audit_totals(AuditFilter("team-b"), by="tool") == []
        assert {each["metadata"]["namespace"] for each in await bob.schedules(None)} == {"team-a"}
        assert {each["metadata"]["namespace"] for each in await bob.webhooks(None)} == {"team-a"}
        assert await bob.schedules("team-b") == await bob.webhooks("team-b") == []
        assert (await bob.budgets("team-a")).declared == 1
        for attempt in (
            lambda: bob.audit_record(theirs),
            lambda: bob.audit_record(10**9),
            lambda: bob.audit_verify(),
            lambda: anext(bob.audit_export()),
            lambda: bob.budgets("team-b"),
            lambda: bob.limits(),
            lambda: bob.set_limit(Limit("namespace", "team-b", 1)),
            lambda: bob.failing_classes(),
            lambda: bob.toolset("team-b"),
            lambda: bob.call_tool("ask_user", {}, Asker("team-b")),
            lambda: bob.schedule("team-b", "weekly"),
            lambda: bob.run_schedule("team-b", "weekly", given={}),
            lambda: bob.webhook("team-b", "push"),
            lambda: bob.rotate_webhook("team-b", "push", grace=0),
            lambda: bob.deliveries("team-b", "push", limit=5),
            lambda: bob.begin_run(RunOrder("writer", "go", "r1", "team-b")),
            lambda: bob.standing("hidden"),
            lambda: bob.resume_run("hidden"),
            lambda: bob.replay_run("hidden"),
            lambda: bob.fork_run("hidden", ForkOrder(1, "r1")),
            lambda: bob.settle_call("hidden", "pay", "fail"),
            lambda: anext(bob.live("hidden")),
        ):
            with pytest.raises(NotFound) as missing:
                await attempt()
            assert "hidden" not in missing.value.message or "there is no run" in missing.value.message
    assert [(each.name, each.max_running) for each in await admin.limits()] == [("team-b", 3)]


async def test_who_only_reads_looks_at_all_and_does_nothing(site, admin) -> None:
    await admin.begin_run(RunOrder("writer", "go", "r1", "team-a"))
    await ended(admin, "r1")

    async with Client(site.url, token=await site.token("eve", ("reader",), "team-a")) as eve:
        assert (await eve.standing("r1")).result.output == "one two three"
        assert (await eve.toolset("team-a")).tools
        assert (await eve.slots("team-a", "weekly", limit=5)) == []
        assert (await eve.rule_defaults()).default_tool_access in ("allow", "deny")
        assert (await eve.me()).roles == {"team-a": ["reader"]}
        for attempt in (
            lambda: eve.begin_run(RunOrder("writer", "go", "r2", "team-a")),
            lambda: eve.resume_run("r1"),
            lambda: eve.fork_run("r1", ForkOrder(1, "r2")),
            lambda: eve.settle_call("r1", "pay", "fail"),
            lambda: eve.call_tool("ask_user", {}, Asker("team-a")),
            lambda: eve.run_schedule("team-a", "weekly", given={}),
            lambda: eve.rotate_webhook("team-a", "push", grace=0),
            lambda: eve.delivery("team-a", "push", "x"),
            lambda: eve.send_test("team-a", "push", b"{}", event_id="e", headers={}),
        ):
            with pytest.raises(Denied):
                await attempt()


async def test_which_process_of_which_machine_a_worker_is_stays_with_those_who_see_everything(site, admin) -> None:
    offer = Offer("w1", "host/1/2", capacity=2)
    await register(site.runtime.tasking.database, offer, now=1.0, is_gone=lambda _: False)

    async with Client(site.url, token=await site.token("bob", ("admin",), "team-a")) as bob:
        assert [(each.name, each.identity) for each in await bob.workers()] == [("w1", "")]
    assert [(each.name, each.identity) for each in await admin.workers()] == [("w1", "host/1/2")]


async def test_every_act_is_in_the_log_under_the_name_of_who_did_it(site, admin) -> None:
    async with Client(site.url, token=await site.token("ann", ("operator",), "team-a")) as ann:
        await ann.begin_run(RunOrder("writer", "go", "r1", "team-a"))
        await ended(ann, "r1")
        fired = await ann.run_schedule("team-a", "weekly", given={}, by="somebody else")

    assert fired.task.startswith("team-a/weekly-manual-")
    acts = [each.body for each in await admin.audit_records(AuditFilter("team-a", moment="act"))]
    done = {(act["outcome"], act["resource"]["name"]): act["caller"]["user"] for act in acts}
    assert done["begun", "r1"] == done["fired", "weekly"] == "ann"


async def test_calls_that_nobody_has_settled_come_in_pages(site, admin) -> None:
    """Of all namespaces that the caller can see, and of no other."""
    table = site.runtime.runs.doubts.table
    for namespace in ("team-a", "team-b"):
        await admin.begin_run(RunOrder("writer", "go", f"of-{namespace}", namespace))
        await ended(admin, f"of-{namespace}")
        noted = [
            Noted(f"of-{namespace}", f"of-{namespace}/c{n}", f"c{n}", namespace, "f", "s", "pay", "process_died", 5.0)
            for n in range(3)
        ]
        await table._db.write(note, noted, [], [])
    seen: list[str] = []
    cursor = None
    while True:
        page = await admin.unknown_calls(limit=2, after=cursor)
        assert page.total == 6
        seen += [each.key for each in page.calls]
        if (cursor := page.cursor) is None:
            break
    assert seen == [f"of-team-{team}/c{n}" for team in "ab" for n in range(3)]

    async with Client(site.url, token=await site.token("bob", ("operator", "author"), "team-a")) as bob:
        mine = await bob.unknown_calls()
        assert ({each.namespace for each in mine.calls}, mine.total) == ({"team-a"}, 3)
    with pytest.raises(InvalidInput):
        await admin.unknown_calls(after="nonsense")
