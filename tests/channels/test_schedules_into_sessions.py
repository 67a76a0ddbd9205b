"""Schedules that say something to a session: once for each slot, for whoever declared them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.runtime.session_posts import RuntimePosts
from foliot.store.base import DeclaredBy, Key
from foliot.store.channels import Outbox
from foliot.store.triggers import Slot, slots_of
from foliot.work.triggers.scheduler import Scheduler
from foliot.work.triggers.session_orders import SessionOrder
from tests.channels.kit import declare, opened
from tests.sessions.kit import quiet

ANN = DeclaredBy("ann")
SESSION = {"agent": "helper", "channel": "main", "session_mode": "reuse", "message": "It is {{ slot_time }}."}


class Died(BaseException):
    """The process is gone: nothing behind this line happened."""


class DyingPosts(RuntimePosts):
    """Dies when something was said, before the slot is settled."""

    async def post(self, order: SessionOrder) -> str:
        await super().post(order)
        raise Died


@pytest.fixture
async def runtime(store_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}] * 20}) as runtime:
        yield runtime


def scheduler(runtime: Runtime, posts: type[RuntimePosts] | None = RuntimePosts) -> Scheduler:
    inside = runtime.inside
    given = None if posts is None else posts(inside.sessions, inside.database, clock=inside.clock)
    return Scheduler(inside.database, inside.resources, inside.tasking.tasks, takeover=0.0, posts=given)


async def hourly(runtime: Runtime, by: DeclaredBy = ANN, **session: Any) -> str:
    spec = {"schedule": "0 * * * *", "missed": "last", "session": {**SESSION, **session}}
    await declare(runtime, "TaskSchedule", "hourly", spec, by)
    document = await runtime.inside.resources.get(Key("TaskSchedule", "default", "hourly"))
    return document["metadata"]["uid"]


async def due(runtime: Runtime, uid: str, scheduler: Scheduler, hours: float = 1.0) -> Slot:
    """Lets so many hours pass; the newest slot."""
    now = runtime.inside.clock() + 3600 * hours
    await scheduler.tick(now)
    return (await slots_of(runtime.inside.database, uid))[0]


async def sessions(runtime: Runtime) -> list[Any]:
    return list((await runtime.inside.sessions.list("default", identity=None, archived=True)).items)


async def test_a_slot_says_its_message_to_the_session_of_its_declarer(runtime: Runtime) -> None:
    slot = await due(runtime, await hourly(runtime), scheduler(runtime))
    assert slot.state == "fired"
    (session,) = await sessions(runtime)
    assert (session.place.user, session.place.channel, slot.reason) == ("ann", "main", f"session {session.id}")
    await quiet(runtime, session.id)
    _, state = await runtime.inside.runs.load((await sessions(runtime))[0].head)
    assert state.transcript[0].text.startswith("It is ")


async def test_a_slot_is_said_once_when_the_process_dies_before_it_is_settled(runtime: Runtime) -> None:
    uid = await hourly(runtime)
    with pytest.raises(Died):
        await due(runtime, uid, scheduler(runtime, DyingPosts))
    assert (await due(runtime, uid, scheduler(runtime))).state == "fired"
    (session,) = await sessions(runtime)
    assert session.arrivals == 1


async def test_two_slots_go_to_one_session_or_to_a_new_one_each(runtime: Runtime) -> None:
    uid = await hourly(runtime, session_mode="new")
    for hours in (1.0, 2.0):
        await due(runtime, uid, scheduler(runtime), hours)
    assert [session.arrivals for session in await sessions(runtime)] == [1, 1]


async def test_nobody_but_the_operator_speaks_to_the_session_of_another(runtime: Runtime) -> None:
    slot = await due(runtime, await hourly(runtime, user="bob"), scheduler(runtime))
    assert slot.state == "skipped"
    assert "bob" in slot.reason
    assert await sessions(runtime) == []


async def test_the_operator_may_speak_to_the_session_of_a_user(runtime: Runtime) -> None:
    slot = await due(runtime, await hourly(runtime, DeclaredBy("root", operator=True), user="bob"), scheduler(runtime))
    assert slot.state == "fired"
    assert [session.place.user for session in await sessions(runtime)] == ["bob"]


async def test_a_process_without_sessions_leaves_the_slot_to_one_that_has_them(runtime: Runtime) -> None:
    uid = await hourly(runtime)
    assert (await due(runtime, uid, scheduler(runtime, None))).state == "due"
    assert (await due(runtime, uid, scheduler(runtime))).state == "fired"


async def test_the_answer_is_delivered_where_the_schedule_says(runtime: Runtime) -> None:
    await due(runtime, await hourly(runtime, deliver={"channel": "bot", "recipient": "42"}), scheduler(runtime))
    (session,) = await sessions(runtime)
    await quiet(runtime, session.id)
    (delivery,) = await Outbox(runtime.inside.database).list("default")
    assert (delivery.channel, delivery.address.to) == ("bot", "42")


async def test_a_slot_that_is_asked_for_by_hand_is_said_at_once(runtime: Runtime) -> None:
    await hourly(runtime)

    fired = await runtime.schedules.run("hourly", by="ann")

    (session,) = await sessions(runtime)
    assert (fired.task, fired.session, session.arrivals) == ("", session.id, 1)


async def test_a_slot_that_another_process_left_is_carried_out_between_two_times(runtime: Runtime) -> None:
    """A slot asked for by hand in a process that was killed waits for any scheduler, and not for the next slot."""
    uid, keeper, now = await hourly(runtime), scheduler(runtime), runtime.inside.clock()
    await keeper.tick(now)
    with pytest.raises(Died):
        await scheduler(runtime, DyingPosts).run_now("default", "hourly", by="ann")

    await keeper.tick(now + 5.0)

    (slot, *_) = await slots_of(runtime.inside.database, uid)
    assert (slot.kind, slot.state) == ("manual", "fired")
