"""The scheduler on real stores, with a clock in the test's hand and tasks that end when the test says so."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from foliot.errors import Denied, NotFound
from foliot.resources.validate import validate_document
from foliot.store.base import Database, Delete, Document, Key, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.triggers import Slot, slots_of
from foliot.work.tasks.base import Tasks
from foliot.work.triggers.schedule import neglected_since
from foliot.work.triggers.scheduler import Scheduler
from tests.work.task_book import Passing, TaskBook


class Died(BaseException):
    """The process is gone: nothing behind this line happened."""


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


MORNING = at("2026-06-01T08:58:00")  # a Monday


class Desk:
    """A store, tasks, and as many schedulers as a test wants."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.book = TaskBook()
        self.now = MORNING
        self.store = SqlResourceStore(database, lambda: pytest.fail("no secrets here"), now=lambda: self.now)
        self.scheduler = self.another()

    def another(self) -> Scheduler:
        tasks: Tasks = self.book
        return Scheduler(self.database, self.store, tasks, clock=lambda: self.now, takeover=0.0)

    async def declare(self, name: str = "weekly", **spec: Any) -> Document:
        given = {"task_ref": "brief", "schedule": "0 * * * *", **spec}
        if "at" in spec:
            del given["schedule"]
        document, problems = validate_document({"kind": "TaskSchedule", "metadata": {"name": name}, "spec": given})
        assert document is not None, problems
        (written,) = await self.store.write([Put(document)])
        return written.document

    async def tick(self, when: str | float, scheduler: Scheduler | None = None) -> None:
        self.now = self.book.now = at(when) if isinstance(when, str) else when
        await (scheduler or self.scheduler).tick(self.now)

    async def get(self, name: str = "weekly") -> Document:
        return await self.store.get(Key("TaskSchedule", "default", name))

    async def status(self, name: str = "weekly") -> dict[str, Any]:
        return (await self.get(name))["status"]

    async def slots(self, name: str = "weekly") -> list[Slot]:
        """Oldest first."""
        uid = (await self.get(name))["metadata"]["uid"]
        return (await slots_of(self.database, uid, limit=1000))[::-1]

    async def ends(self, name: str = "weekly") -> list[tuple[str, str]]:
        """When, and how each slot ended."""
        return [
            (f"{datetime.fromtimestamp(slot.slot / 1000, UTC):%dT%H:%M}", slot.task or slot.reason)
            for slot in await self.slots(name)
        ]


@pytest.fixture
def desk(opened_store: Database, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(opened_store, monkeypatch)


async def test_a_slot_makes_one_task_after_the_template_and_says_so(desk: Desk) -> None:
    await desk.declare(input={"topic": "Brief of {{ slot_date }} {{slot_time}}", "raw": "{{ slot }} {{trigger}}"})
    await desk.tick("2026-06-01T08:59:59")
    assert desk.book.names == []
    assert (await desk.status())["nextScheduleTime"] == "2026-06-01T09:00:00Z"

    await desk.tick("2026-06-01T09:00:00")
    await desk.tick("2026-06-01T09:00:10")

    assert desk.book.names == ["weekly-20260601-0900"]
    command = desk.book.commands["default/weekly-20260601-0900"]
    uid = (await desk.get())["metadata"]["uid"]
    assert command.input == {"topic": "Brief of 2026-06-01 09:00", "raw": "2026-06-01T09:00:00Z clock"}
    assert command.idempotency_key == f"schedule:{uid}:{int(at('2026-06-01T09:00'))}"
    assert command.spawned_by == f"schedule:{uid}"
    assert command.labels == {
        "foliot.dev/task-schedule": "weekly",
        "foliot.dev/task-schedule-namespace": "default",
        "foliot.dev/task-schedule-uid": uid,
        "foliot.dev/task-schedule-slot": "20260601T090000Z",
    }
    assert await desk.status() == {
        "phase": "Ready",
        "observedGeneration": 1,
        "lastScheduleTime": "2026-06-01T09:00:00Z",
        "nextScheduleTime": "2026-06-01T10:00:00Z",
        "lastTriggeredTask": "default/weekly-20260601-0900",
        "activeRuns": ["default/weekly-20260601-0900"],
    }

    desk.book.end("default/weekly-20260601-0900")
    await desk.tick("2026-06-01T09:00:20")
    status = await desk.status()
    assert status["lastSuccessfulTime"] == "2026-06-01T09:00:10Z"
    assert "activeRuns" not in status


async def test_input_is_filled_in_the_time_zone_of_the_schedule(desk: Desk) -> None:
    desk.now = at("2026-06-01T13:00")
    await desk.declare(
        schedule="0 9 * * 1", time_zone="America/Chicago", input={"topic": "{{ slot_local }} {{ slot_date }}"}
    )
    await desk.tick("2026-06-01T14:00:01")
    assert desk.book.commands["default/weekly-20260601-1400"].input == {"topic": "2026-06-01T09:00:00-05:00 2026-06-01"}


async def test_an_existing_task_template_of_another_namespace_is_used_where_that_is_granted(desk: Desk) -> None:
    desk.book.templates = {"ops/brief"}
    with pytest.raises(Denied, match="may not refer to Task/brief of namespace 'ops'"):
        await desk.declare(task_ref="ops/brief")
    grant = {
        "kind": "ReferenceGrant",
        "metadata": {"name": "brief", "namespace": "ops"},
        "spec": {"from": [{"namespace": "default"}], "to": [{"kind": "Task"}]},
    }
    await desk.store.write([Put(grant)])
    await desk.declare(task_ref="ops/brief")
    await desk.tick("2026-06-01T09:00")
    assert (await desk.slots())[0].task == "ops/weekly-20260601-0900"


async def test_several_schedulers_at_once_make_one_task_for_each_slot(desk: Desk) -> None:
    for number in range(5):
        await desk.declare(f"s{number}", schedule="* * * * *", concurrency_policy="allow")
    schedulers = [desk.another() for _ in range(4)]
    for minute in range(3):
        desk.now = at(f"2026-06-01T09:0{minute}:00")
        await asyncio.gather(*(scheduler.tick(desk.now) for scheduler in schedulers))
    assert sorted(desk.book.names) == sorted(
        f"s{number}-20260601-{minute}" for number in range(5) for minute in ("0900", "0901", "0902")
    )


async def test_a_scheduler_that_dies_after_claiming_is_finished_by_another(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T08:59")
    desk.book.trouble = Died()
    with pytest.raises(Died):
        await desk.tick("2026-06-01T09:00")
    assert [slot.state for slot in await desk.slots()] == ["due"]

    await desk.tick("2026-06-01T09:00:30", desk.another())

    assert await desk.ends() == [("01T09:00", "default/weekly-20260601-0900")]
    assert desk.book.names == ["weekly-20260601-0900"]


async def test_a_scheduler_that_dies_after_making_the_task_makes_no_second_one(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T08:59")
    desk.book.dies_after = Died()
    with pytest.raises(Died):
        await desk.tick("2026-06-01T09:00")
    await desk.tick("2026-06-01T09:00:30", desk.another())
    assert desk.book.names == ["weekly-20260601-0900"]
    assert [slot.state for slot in await desk.slots()] == ["fired"]


async def test_a_template_that_was_changed_before_the_takeover_makes_no_second_task(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T08:59")
    desk.book.dies_after = Died()
    with pytest.raises(Died):
        await desk.tick("2026-06-01T09:00")
    desk.book._keys.clear()  # as if the key meant another target now: only the name is still taken
    await desk.tick("2026-06-01T09:00:30", desk.another())
    assert desk.book.names == ["weekly-20260601-0900"]
    assert (await desk.slots())[0].task == "default/weekly-20260601-0900"


async def test_names_that_are_taken_by_strangers_are_avoided(desk: Desk) -> None:
    await desk.declare("Weekly!".rstrip("!"))
    await desk.declare("weekly")
    await desk.tick("2026-06-01T09:00")
    uid = {name: (await desk.get(name))["metadata"]["uid"] for name in ("Weekly", "weekly")}
    made = sorted(desk.book.names)
    assert made[0] == "weekly-20260601-0900"
    assert made[1] in {f"weekly-20260601-0900-{each[:8]}" for each in uid.values()}


async def test_a_new_schedule_fires_for_the_last_slot_if_it_is_still_in_time(desk: Desk) -> None:
    desk.now = at("2026-06-01T09:04")
    await desk.declare("soon")
    desk.now = at("2026-06-01T09:06")
    await desk.declare("late")
    await desk.tick("2026-06-01T09:06:30")
    assert await desk.ends("late") == []
    assert await desk.ends("soon") == [("01T09:00", "missed_deadline")]  # nobody looked before the deadline was over
    desk.now = at("2026-06-01T10:01")
    await desk.declare("now")
    await desk.tick("2026-06-01T10:01")
    assert await desk.ends("now") == [("01T10:00", "default/now-20260601-1000")]


async def test_while_a_task_has_not_ended_forbid_makes_none_even_if_it_waits(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T09:00")
    desk.book.tasks = {
        id: desk.book.end(
            id,
            "waiting",
        )
        for id in desk.book.tasks
    }
    await desk.tick("2026-06-01T10:00")
    desk.book.end("default/weekly-20260601-0900")
    await desk.tick("2026-06-01T11:00")
    assert await desk.ends() == [
        ("01T09:00", "default/weekly-20260601-0900"),
        ("01T10:00", "skipped_forbid: default/weekly-20260601-0900 has not ended"),
        ("01T11:00", "default/weekly-20260601-1100"),
    ]
    assert (await desk.status())["lastScheduleTime"] == "2026-06-01T11:00:00Z"


async def test_allow_makes_another_and_replace_ends_the_last(desk: Desk) -> None:
    await desk.declare("many", concurrency_policy="allow")
    await desk.declare("one", concurrency_policy="replace")
    await desk.tick("2026-06-01T09:00")
    await desk.tick("2026-06-01T10:00")
    phases = {name: desk.book.tasks[f"default/{name}"].phase for name in desk.book.names}
    assert phases == {
        "many-20260601-0900": "queued",
        "many-20260601-1000": "queued",
        "one-20260601-0900": "cancelled",
        "one-20260601-1000": "queued",
    }
    assert desk.book.tasks["default/one-20260601-0900"].summary == {"reason": "replaced by one-20260601-1000"}
    assert (await desk.status("one"))["activeRuns"] == ["default/one-20260601-1000"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [("01T10:00", "missed"), ("01T11:00", "missed"), ("01T12:00", "missed_deadline")]),
        ("last", [("01T10:00", "missed"), ("01T11:00", "missed"), ("01T12:00", "default/weekly-20260601-1200")]),
        (
            "all",
            [
                ("01T10:00", "missed"),
                ("01T11:00", "default/weekly-20260601-1100"),
                ("01T12:00", "default/weekly-20260601-1200"),
            ],
        ),
    ],
)
async def test_what_was_missed_is_made_up_for_as_declared(
    missed: str, expected: list[tuple[str, str]], desk: Desk
) -> None:
    await desk.declare(missed=missed, catch_up_limit=2, concurrency_policy="allow")
    await desk.tick("2026-06-01T09:00")
    await desk.tick("2026-06-01T12:30", desk.another())  # the machine was off
    assert (await desk.ends())[1:] == expected


async def test_all_that_was_missed_comes_one_after_another_under_forbid(desk: Desk) -> None:
    await desk.declare(missed="all", catch_up_limit=3)
    await desk.tick("2026-06-01T09:00")
    await desk.tick("2026-06-01T11:30")
    assert len(await desk.ends()) == 1  # ten and eleven wait for nine
    desk.book.end("default/weekly-20260601-0900")
    await desk.tick("2026-06-01T11:31")
    desk.book.end("default/weekly-20260601-1000")
    await desk.tick("2026-06-01T11:32")
    assert [task for _, task in await desk.ends()] == [
        "default/weekly-20260601-0900",
        "default/weekly-20260601-1000",
        "default/weekly-20260601-1100",
    ]


async def test_a_year_of_silence_is_told_in_a_few_rows(desk: Desk) -> None:
    await desk.declare(schedule="* * * * *")
    await desk.tick("2026-06-01T09:00")
    desk.book.end("default/weekly-20260601-0900")
    await desk.tick("2027-06-01T09:00")
    ends = await desk.ends()
    assert ends[-1] == ("01T09:00", "default/weekly-20270601-0900")
    assert [reason for _, reason in ends if reason.startswith("missed, and others")] == ["missed, and others before it"]
    assert len(ends) < 30


async def test_a_clock_that_is_set_back_fires_nothing_twice(desk: Desk) -> None:
    await desk.declare(concurrency_policy="allow")
    for hour in ("09", "10", "11"):
        await desk.tick(f"2026-06-01T{hour}:00")
    made = desk.book.names
    for moment in ("2026-06-01T09:30", "2026-06-01T10:00", "2026-06-01T10:30", "2026-06-01T11:00:30"):
        await desk.tick(moment)
        await desk.tick(moment, desk.another())
    assert desk.book.names == made
    await desk.tick("2026-06-01T12:00")
    assert desk.book.names == [*made, "weekly-20260601-1200"]


async def test_a_clock_that_jumped_ahead_and_back_stops_nothing_and_fires_nothing_twice(desk: Desk) -> None:
    await desk.declare(concurrency_policy="allow")
    await desk.tick("2026-06-01T09:00")
    await desk.tick("2030-01-01T00:00")
    await desk.tick("2026-06-01T10:00")
    await desk.tick("2026-06-01T11:00", desk.another())
    await desk.tick("2030-01-01T00:00", desk.another())
    assert desk.book.names == [
        "weekly-20260601-0900",
        "weekly-20300101-0000",
        "weekly-20260601-1000",
        "weekly-20260601-1100",
    ]


async def test_slots_that_were_forgotten_are_never_fired_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.work.triggers.scheduler.SLOTS_KEPT", 2)
    await desk.declare(concurrency_policy="allow", missed="all")
    for hour in range(9, 14):
        await desk.tick(f"2026-06-01T{hour:02}:00")
    assert len(await desk.slots()) == 2
    made = desk.book.names
    await desk.tick("2026-06-01T10:00:30", desk.another())
    assert desk.book.names == made


async def test_a_suspended_schedule_stays_so_and_makes_up_for_nothing(desk: Desk) -> None:
    await desk.declare(suspend=True, missed="all")
    await desk.tick("2026-06-01T09:00")
    await desk.tick("2026-06-01T10:00", desk.another())
    status = await desk.status()
    assert status["phase"] == "Suspended"
    assert "nextScheduleTime" not in status
    desk.now = at("2026-06-01T10:30")
    await desk.declare(missed="all")
    await desk.tick("2026-06-01T10:31")
    assert desk.book.names == []
    assert (await desk.status())["phase"] == "Ready"
    await desk.tick("2026-06-01T11:00")
    assert desk.book.names == ["weekly-20260601-1100"]


async def test_another_timing_counts_from_its_declaration(desk: Desk) -> None:
    await desk.declare(schedule="0 9 * * *", missed="all", concurrency_policy="allow")
    await desk.tick("2026-06-01T09:00")
    desk.now = at("2026-06-01T12:00:30")
    await desk.declare(schedule="* * * * *", missed="all", concurrency_policy="allow")
    await desk.tick("2026-06-01T12:01:30")
    assert desk.book.names == ["weekly-20260601-0900", "weekly-20260601-1201"]


async def test_one_time_only(desk: Desk) -> None:
    await desk.declare(at="2026-06-01T12:00:00", time_zone="Europe/Berlin")
    await desk.tick("2026-06-01T09:59")
    assert (await desk.status())["nextScheduleTime"] == "2026-06-01T10:00:00Z"
    await desk.tick("2026-06-01T10:00")
    await desk.tick("2026-06-02T10:00", desk.another())
    assert await desk.ends() == [("01T10:00", "default/weekly-20260601-1000")]
    assert (await desk.status())["phase"] == "Completed"


async def test_one_time_that_is_over_when_it_is_declared_is_skipped_with_a_reason(desk: Desk) -> None:
    await desk.declare(at="2026-05-01T12:00:00")
    await desk.tick("2026-06-01T09:00")
    assert await desk.ends() == [("01T12:00", "missed_deadline")]


async def test_jitter_delays_by_the_same_amount_for_everybody(desk: Desk) -> None:
    await desk.declare(jitter="10m")
    await desk.tick("2026-06-01T08:59")
    await desk.tick("2026-06-01T09:00")
    assert desk.book.names == []
    due = await desk.scheduler.tick(desk.now)
    assert at("2026-06-01T09:00") < due < at("2026-06-01T09:10")
    await desk.tick(due - 0.01, desk.another())
    assert desk.book.names == []
    await desk.tick(due + 0.01)
    assert desk.book.names == ["weekly-20260601-0900"]
    assert (await desk.slots())[0].slot == at("2026-06-01T09:00") * 1000


async def test_a_template_that_is_missing_is_an_error_of_this_schedule_alone(desk: Desk) -> None:
    await desk.declare("good")
    await desk.declare("bad", task_ref="nothing")
    await desk.tick("2026-06-01T09:00")
    assert await desk.ends("bad") == [("01T09:00", 'task_create_error: task template "nothing" not found')]
    status = await desk.status("bad")
    assert (status["phase"], status["lastError"]) == ("Error", 'task template "nothing" not found')
    assert desk.book.names == ["good-20260601-0900"]
    desk.book.templates.add("default/nothing")
    await desk.tick("2026-06-01T10:00")
    assert (await desk.status("bad"))["phase"] == "Ready"
    assert "lastError" not in await desk.status("bad")


async def test_a_document_that_nobody_can_read_stops_no_other(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    await desk.declare("good")
    broken = {"kind": "TaskSchedule", "metadata": {"name": "broken"}, "spec": {"task_ref": "brief", "at": "never"}}
    await desk.store.write([Put(broken)])
    with caplog.at_level(logging.CRITICAL):
        await desk.tick("2026-06-01T09:00")
    assert desk.book.names == ["good-20260601-0900"]
    assert (await desk.status("broken"))["phase"] == "Error"


async def test_what_fails_for_a_while_is_tried_again(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T08:59")
    desk.book.trouble = Passing("the store is away")
    await desk.tick("2026-06-01T09:00")
    assert [slot.state for slot in await desk.slots()] == ["due"]
    await desk.tick("2026-06-01T09:00:10")
    assert await desk.ends() == [("01T09:00", "default/weekly-20260601-0900")]


async def test_only_as_many_ended_tasks_are_kept_as_declared(desk: Desk) -> None:
    await desk.declare(schedule="* * * * *", successful_history_limit=2, failed_history_limit=1)
    ways = ["succeeded", "failed", "succeeded", "dead_lettered", "succeeded", "cancelled", "succeeded"]
    for minute, way in enumerate(ways):
        await desk.tick(at("2026-06-01T09:00") + 60 * minute)
        desk.book.end(f"default/weekly-20260601-09{minute:02}", way)
        await desk.tick(at("2026-06-01T09:00") + 60 * minute + 30)
    assert desk.book.names == ["weekly-20260601-0904", "weekly-20260601-0905", "weekly-20260601-0906"]
    await desk.declare(schedule="* * * * *", successful_history_limit=0, failed_history_limit=0)
    await desk.tick(at("2026-06-01T09:06:40"))
    assert desk.book.names == []
    assert [slot.state for slot in await desk.slots()].count("fired") == len(ways)


async def test_a_task_by_hand_ignores_the_policy_and_says_who_asked(desk: Desk) -> None:
    await desk.declare(input={"topic": "{{ trigger }}"})
    await desk.tick("2026-06-01T09:00")
    desk.now = at("2026-06-01T09:30")
    _, first = await desk.scheduler.run_now("default", "weekly", by="ada", given={"extra": "x"})
    _, second = await desk.scheduler.run_now("default", "weekly")
    assert first is not None
    assert second is not None
    assert first.name == "weekly-manual-20260601-093000-001"
    assert second.name == "weekly-manual-20260601-093000-002"
    command = desk.book.commands[first.id]
    assert (command.by, command.input) == ("ada", {"topic": "manual", "extra": "x"})
    assert [slot.kind for slot in await desk.slots()] == ["clock", "manual", "manual"]
    assert (await desk.status())["lastScheduleTime"] == "2026-06-01T09:00:00Z"
    with pytest.raises(NotFound):
        await desk.scheduler.run_now("default", "nothing")


async def test_what_is_known_of_a_deleted_schedule_is_forgotten_later(desk: Desk) -> None:
    document = await desk.declare()
    await desk.tick("2026-06-01T09:00")
    uid = document["metadata"]["uid"]
    await desk.store.write([Delete(Key("TaskSchedule", "default", "weekly"))])
    await desk.tick("2026-06-01T09:00:10")
    assert len(await slots_of(desk.database, uid)) == 1
    await desk.tick("2026-06-01T10:00")
    assert await slots_of(desk.database, uid) == []
    assert desk.book.names == ["weekly-20260601-0900"]

    await desk.declare()
    await desk.tick("2026-06-01T11:00")
    uid = (await desk.get())["metadata"]["uid"]
    await desk.store.write([Delete(Key("TaskSchedule", "default", "weekly"))])
    await desk.tick("2026-06-01T11:01", desk.another())  # one that never saw it
    assert await slots_of(desk.database, uid) == []


async def test_a_status_is_written_only_when_it_changes(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T09:00")
    revision = await desk.store.revision()
    for second in range(5, 50, 5):
        await desk.tick(f"2026-06-01T09:00:{second:02}")
        await desk.tick(f"2026-06-01T09:00:{second:02}", desk.another())
    assert await desk.store.revision() == revision


# --- whether any process keeps schedules -----------------------------------------------------------------------------


async def neglected(desk: Desk, when: str) -> float | None:
    return neglected_since(await desk.get(), now=at(when))


async def test_a_new_schedule_is_neglected_until_a_scheduler_looks(desk: Desk) -> None:
    await desk.declare()
    assert await neglected(desk, "2026-06-01T08:58:20") is None, "one looks within seconds"
    assert await neglected(desk, "2026-06-01T08:59:00") == MORNING

    await desk.tick("2026-06-01T08:59:00")
    assert await neglected(desk, "2026-06-01T08:59:59") is None


async def test_a_schedule_is_neglected_from_the_first_time_that_nothing_decided(desk: Desk) -> None:
    await desk.declare()
    await desk.tick("2026-06-01T09:00:00")
    desk.book.end(f"default/{desk.book.names[-1]}")
    await desk.tick("2026-06-01T09:00:10")
    assert await neglected(desk, "2026-06-01T10:00:20") is None
    assert await neglected(desk, "2026-06-01T12:30:00") == at("2026-06-01T10:00:00")

    await desk.tick("2026-06-01T12:30:00")
    desk.book.end(f"default/{desk.book.names[-1]}")
    assert await neglected(desk, "2026-06-01T12:30:00") is None


async def test_a_schedule_that_waits_or_rests_is_not_neglected(desk: Desk) -> None:
    await desk.declare(missed="all")
    await desk.tick("2026-06-01T09:00:00")
    assert await neglected(desk, "2026-06-01T12:30:00") is None, "forbid waits for the task of nine"

    await desk.declare("resting", suspend=True)
    assert neglected_since(await desk.get("resting"), now=MORNING + 3600) is None
