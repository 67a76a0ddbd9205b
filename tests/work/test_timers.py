"""Timers of tasks, cancelling whole families, and what an old worker cannot read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from foliot.engine.driver.journal import signal
from foliot.kernel.graph.events import TaskCancelRequested
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.events import InputReceived
from foliot.store import tasks as task_rows
from foliot.store.base import Database
from foliot.store.journal.base import Entry, Lease, Signal
from foliot.store.queue.claims import claim
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import register
from foliot.store.transaction import Tx, run
from foliot.work.tasks.base import Command
from foliot.work.views.reader import Stories
from tests.journal_links import linked
from tests.work.task_kit import Kit


@pytest.fixture
async def kit(opened_store: Database) -> AsyncIterator[Kit]:
    made = Kit(opened_store, {"one": {"agents": ["writer"], "graph": {"writer": {}}}})
    yield made
    await made.close()


async def told(kit: Kit, name: str) -> int:
    """How often a task was asked to end."""
    events = await kit.tasks.events("default", name)
    return sum(isinstance(each.event, TaskCancelRequested) for each in events)


def spoil(key: int) -> Tx[None]:
    """Leave a state of the task that this version cannot read."""
    row = yield from task_rows.lock(key)
    kept = {name: row[name] for name in ("key", "phase", "attempt", "summary", "timer_at", "started_at")}
    yield from run(
        "task_change", **kept, graph=b"\xc1", expected=row["revision"], revision=row["revision"], ended_at=None, now=0.0
    )


async def test_the_timeout_of_a_requeued_task_counts_from_the_requeue(kit: Kit) -> None:
    name = (await kit.accept("one", timeout=60.0)).task.name
    kit.now += 61
    await kit.tasks.timers(kit.now)
    await kit.work()
    assert (await kit.tasks.get("default", name)).phase == "cancelled"

    again = await kit.tasks.requeue("default", name)
    assert again.timer_at == kit.now + 60
    kit.now += 59
    await kit.tasks.timers(kit.now)
    await kit.work()
    assert (await kit.tasks.get("default", name)).phase == "succeeded"


async def test_a_task_that_is_overdue_is_told_once(kit: Kit) -> None:
    name = (await kit.accept("one", timeout=60.0)).task.name
    await kit.claim()  # somebody has its run, and does not hear
    for _ in range(5):
        kit.now += 61
        await kit.tasks.timers(kit.now)
    assert await told(kit, name) == 1


async def test_tasks_that_cannot_be_read_do_not_stop_the_timers_of_the_others(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.work.tasks.service.TIMERS_AT_ONCE", 2)
    for message in ("a", "b", "c"):  # more than one look deals with
        spoiled = (await kit.accept("one", message=message, timeout=1.0)).task
        await kit.db.write(spoil, spoiled.key)
    late = (await kit.accept("one", message="after them", timeout=2.0)).task
    kit.now += 10
    following = await kit.tasks.timers(kit.now)
    assert await told(kit, late.name) == 1
    assert following is None or following > kit.now


async def test_cancelling_a_parent_reaches_every_child(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.work.tasks.service.CHILDREN_AT_ONCE", 3)
    parent = (await kit.accept("one")).task.name
    for number in range(8):
        await kit.accept("one", message=f"child {number}", parent=parent)
    child = (await kit.tasks.list(namespace="default", parent=parent))[0][0].name
    await kit.accept("one", message="grandchild", parent=child)

    await kit.tasks.cancel("default", parent)

    left = await kit.tasks.list(namespace="default", phases=["queued", "running", "waiting"])
    assert left == ([], None)


# --- what an old worker cannot read ------------------------------------------------------------------------------


async def lease_of(kit: Kit, offer: Offer) -> list[Lease]:
    return (await claim(kit.db, offer, want=4, now=kit.now, until=kit.now + 30)).leases


async def write_future(kit: Kit, lease: Lease) -> None:
    """Leave an event that only a newer version knows, and give the run back."""
    entry = Entry(2, kit.now, "run.teleported", b'{"type":"run.teleported"}')
    told = await kit.journal.read(lease.run_id)
    await kit.journal.append(lease, linked(lease.run_id, told, [entry]), phase="pending", due=0.0)


async def test_an_old_worker_gives_back_what_it_cannot_read_and_does_not_claim_it_again(kit: Kit) -> None:
    task = (await kit.accept("one")).task
    (lease,) = await kit.claim()
    await write_future(kit, lease)

    (lease,) = await kit.claim()
    await kit.performer.prepare([lease])
    await kit.performer.perform(lease)

    assert await kit.claim() == []
    assert (await kit.tasks.get("default", task.name)).phase == "running"
    newer = await lease_of(kit, Offer("newer", "newer"))
    assert [each.run_id for each in newer] == [lease.run_id]


async def test_why_says_that_a_run_waits_for_a_newer_worker(kit: Kit) -> None:
    await register(kit.db, kit.offer, now=kit.now, is_gone=lambda _: False)
    task = (await kit.accept("one")).task
    (lease,) = await kit.claim()
    await write_future(kit, lease)
    (lease,) = await kit.claim()
    await kit.performer.perform(lease)

    told = await Stories(kit.tasks, kit.runs, kit.db, clock=kit.clock).why("default", task.name)

    assert [cause.kind for cause in told.causes] == ["placement"]
    assert "newer worker: w could not read" in told.causes[0].text


async def test_a_signal_of_a_newer_version_is_left_for_those_who_know_it(kit: Kit) -> None:
    await kit.accept("one")
    (lease,) = await kit.claim()
    future = Signal("s1", lease.run_id, kit.now, "run.teleported", b'{"type":"run.teleported"}')
    await kit.journal.signal(future)

    await kit.performer.perform(lease)

    assert [each.id for each in await kit.journal.signals([lease.run_id])] == ["s1"]
    assert await kit.claim() == []
    assert len(await lease_of(kit, Offer("newer", "newer"))) == 1


async def test_signal_ids_belong_to_their_run(kit: Kit) -> None:
    for message in ("a", "b"):
        await kit.tasks.accept(Command("system", "one", message=message))
    leases = await kit.claim()
    said: Any = InputReceived("i1", Message("user", (Text("hello"),)), by="ann")
    for lease in leases:
        await kit.journal.signal(signal(lease.run_id, said, kit.now, signal_id="said-once"))
    assert len(await kit.journal.signals([lease.run_id for lease in leases])) == 2

    first, second = leases
    await kit.journal.append(first, [], taken=["said-once"])
    assert [each.run_id for each in await kit.journal.signals([each.run_id for each in leases])] == [second.run_id]
