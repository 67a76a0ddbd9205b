"""Runs, records, budgets, workers, tools and triggers over a server: what each role may, and what nobody else sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from foliot import Client
from foliot.engine.live.hub import Recorded, Streamed
from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.store.audit.log import AuditFilter
from foliot.store.ledger.doubts import NewDoubt, note
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
        await client.resources.apply([*team("team-a"), *team("team-b")])
        yield client


async def ended(client: Client, run_id: str) -> list[Any]:
    return [item async for item in client.runs.watch(run_id)]


async def test_a_run_is_begun_once_however_often_it_is_asked_for_and_watched_to_its_end(admin) -> None:
    order: dict[str, Any] = {"run_id": "r1", "namespace": "team-a", "labels": {"team": "docs"}, "user": "root"}

    first = await admin.runs.start("writer", "go", **order)
    again = await admin.runs.start("writer", "go", **order)
    items = await ended(admin, "r1")

    assert (first.id, again.id, first.labels["team"]) == ("r1", "r1", "docs")
    seqs = [item.seq for item in items if isinstance(item, Recorded)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(item.run_id == "r1" for item in items if isinstance(item, Streamed))
    stood = await admin.runs.get("r1")
    assert (stood.result.output, stood.seq, stood.info.phase) == ("one two three", seqs[-1], "succeeded")
    assert [item.seq for item in [i async for i in admin.runs.watch("r1", after=seqs[-2])]] == [seqs[-1]]
    assert (await admin.runs.resume("r1")).phase == "succeeded"
    assert (await admin.runs.replay("r1")).difference is None
    forked = await admin.runs.fork("r1", at=1, new_id="r2", prompt="Shorter.")
    assert (forked.id, forked.parent) == ("r2", "r1")
    assert (await admin.runs.fork("r1", at=1, new_id="r2", prompt="Shorter.")).id == "r2"
    await ended(admin, "r2")
    assert await admin.runs.interrupted(namespace=None) == []


@pytest.mark.parametrize(
    ("agent", "input", "more", "error"),
    [
        ("writer", "go", {"run_id": "a b"}, InvalidInput),
        ("writer", "go", {"labels": {"foliot.dev/task": "x"}}, InvalidInput),
        ("team-b/writer", "go", {}, InvalidInput),
        ("writer", " ", {}, InvalidInput),
        ("nobody", "go", {}, NotFound),
    ],
)
async def test_an_order_that_cannot_be_is_refused_and_leaves_no_run(admin, agent, input, more, error) -> None:
    with pytest.raises(error):
        await admin.runs.start(agent, input, **{"run_id": "r1", "namespace": "team-a", **more})

    with pytest.raises(NotFound):
        await admin.runs.get("r1")


async def test_the_id_of_other_work_is_not_taken(admin) -> None:
    await admin.runs.start("writer", "go", run_id="r1", namespace="team-a")
    await ended(admin, "r1")

    with pytest.raises(Conflict):
        await admin.runs.start("writer", "go", run_id="r1", namespace="team-b")
    with pytest.raises(Conflict):
        await admin.runs.settle("r1", "pay", "happened")


async def test_who_works_in_one_namespace_sees_nothing_of_another(site, admin) -> None:
    await admin.runs.start("writer", "go", run_id="hidden", namespace="team-b")
    await ended(admin, "hidden")
    theirs = (await admin.audit.list(AuditFilter("team-b")))[0].seq
    await admin.workers.set_limit(Limit("namespace", "team-b", 3))

    async with Client(site.url, token=await site.token("bob", ("operator", "author"), "team-a")) as bob:
        assert {record.body["namespace"] for record in await bob.audit.list(AuditFilter())} == {"team-a"}
        assert await bob.audit.list(AuditFilter("team-b")) == []
        assert await bob.audit.totals(AuditFilter("team-b"), by="tool") == []
        assert {each["metadata"]["namespace"] for each in await bob.schedules.list(namespace=None)} == {"team-a"}
        assert {each["metadata"]["namespace"] for each in await bob.webhooks.list(namespace=None)} == {"team-a"}
        assert await bob.schedules.list(namespace="team-b") == await bob.webhooks.list(namespace="team-b") == []
        assert (await bob.budgets.list(namespace="team-a")).declared == 1
        for attempt in (
            lambda: bob.audit.get(theirs),
            lambda: bob.audit.get(10**9),
            lambda: bob.audit.verify(),
            lambda: anext(bob.audit.export()),
            lambda: bob.budgets.list(namespace="team-b"),
            lambda: bob.workers.limits(),
            lambda: bob.workers.set_limit(Limit("namespace", "team-b", 1)),
            lambda: bob.workers.failing_classes(),
            lambda: bob.tools.list(namespace="team-b"),
            lambda: bob.tools.call("ask_user", {}, namespace="team-b"),
            lambda: bob.schedules.get("weekly", namespace="team-b"),
            lambda: bob.schedules.run("weekly", namespace="team-b", given={}),
            lambda: bob.webhooks.get("push", namespace="team-b"),
            lambda: bob.webhooks.rotate("push", namespace="team-b", grace=0),
            lambda: bob.webhooks.deliveries("push", namespace="team-b", limit=5),
            lambda: bob.runs.start("writer", "go", run_id="r1", namespace="team-b"),
            lambda: bob.runs.get("hidden"),
            lambda: bob.runs.resume("hidden"),
            lambda: bob.runs.replay("hidden"),
            lambda: bob.runs.fork("hidden", at=1, new_id="r1"),
            lambda: bob.runs.settle("hidden", "pay", "fail"),
            lambda: anext(bob.runs.watch("hidden")),
        ):
            with pytest.raises(NotFound) as missing:
                await attempt()
            assert "hidden" not in missing.value.message or "there is no run" in missing.value.message
    assert [(each.name, each.max_running) for each in await admin.workers.limits()] == [("team-b", 3)]


async def test_who_only_reads_looks_at_all_and_does_nothing(site, admin) -> None:
    await admin.runs.start("writer", "go", run_id="r1", namespace="team-a")
    await ended(admin, "r1")

    async with Client(site.url, token=await site.token("eve", ("reader",), "team-a")) as eve:
        assert (await eve.runs.get("r1")).result.output == "one two three"
        assert (await eve.tools.list(namespace="team-a")).tools
        assert (await eve.schedules.slots("weekly", namespace="team-a", limit=5)) == []
        assert (await eve.policies.defaults()).default_tool_access in ("allow", "deny")
        assert (await eve.me()).roles == {"team-a": ["reader"]}
        for attempt in (
            lambda: eve.runs.start("writer", "go", run_id="r2", namespace="team-a"),
            lambda: eve.runs.resume("r1"),
            lambda: eve.runs.fork("r1", at=1, new_id="r2"),
            lambda: eve.runs.settle("r1", "pay", "fail"),
            lambda: eve.tools.call("ask_user", {}, namespace="team-a"),
            lambda: eve.schedules.run("weekly", namespace="team-a", given={}),
            lambda: eve.webhooks.rotate("push", namespace="team-a", grace=0),
            lambda: eve.webhooks.delivery("push", "x", namespace="team-a"),
            lambda: eve.webhooks.send_test("push", b"{}", namespace="team-a", event_id="e", headers={}),
        ):
            with pytest.raises(Denied):
                await attempt()


async def test_which_process_of_which_machine_a_worker_is_stays_with_those_who_see_everything(site, admin) -> None:
    offer = Offer("w1", "host/1/2", capacity=2)
    await register(site.runtime.inside.tasking.database, offer, now=1.0, is_gone=lambda _: False)

    async with Client(site.url, token=await site.token("bob", ("admin",), "team-a")) as bob:
        assert [(each.name, each.identity) for each in await bob.workers.list()] == [("w1", "")]
    assert [(each.name, each.identity) for each in await admin.workers.list()] == [("w1", "host/1/2")]


async def test_every_act_is_in_the_log_under_the_name_of_who_did_it(site, admin) -> None:
    async with Client(site.url, token=await site.token("ann", ("operator",), "team-a")) as ann:
        await ann.runs.start("writer", "go", run_id="r1", namespace="team-a")
        await ended(ann, "r1")
        fired = await ann.schedules.run("weekly", namespace="team-a", given={}, by="somebody else")

    assert fired.task.startswith("team-a/weekly-manual-")
    acts = [each.body for each in await admin.audit.list(AuditFilter("team-a", moment="act"))]
    done = {(act["outcome"], act["resource"]["name"]): act["caller"]["user"] for act in acts}
    assert done["run_started", "r1"] == done["fired", "weekly"] == "ann"


async def test_calls_that_nobody_has_settled_come_in_pages(site, admin) -> None:
    """Of all namespaces that the caller can see, and of no other."""
    table = site.runtime.inside.runs.doubts.table
    for namespace in ("team-a", "team-b"):
        await admin.runs.start("writer", "go", run_id=f"of-{namespace}", namespace=namespace)
        await ended(admin, f"of-{namespace}")
        noted = [
            NewDoubt(
                f"of-{namespace}", f"of-{namespace}/c{n}", f"c{n}", namespace, "f", "s", "pay", "process_died", 5.0
            )
            for n in range(3)
        ]
        await table._db.write(note, noted, [], [])
    seen: list[str] = []
    cursor = None
    while True:
        page = await admin.runs.unknown(namespace=None, limit=2, after=cursor)
        assert page.total == 6
        seen += [each.key for each in page.calls]
        if (cursor := page.cursor) is None:
            break
    assert seen == [f"of-team-{team}/c{n}" for team in "ab" for n in range(3)]

    async with Client(site.url, token=await site.token("bob", ("operator", "author"), "team-a")) as bob:
        mine = await bob.runs.unknown(namespace=None)
        assert ({each.namespace for each in mine.calls}, mine.total) == ({"team-a"}, 3)
    with pytest.raises(InvalidInput):
        await admin.runs.unknown(namespace=None, after="nonsense")
