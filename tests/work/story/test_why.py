"""Every state has its reason, and every reason names whom it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.engine.explain.trace import Trace
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import advance, new_state
from foliot.kernel.graph.plan import Edge, Join, Node, Plan
from foliot.kernel.run.events import RunRetried
from foliot.store.queue.limits import COOL_DOWN, ClassInfo, Limit
from foliot.store.queue.workers import STALE_AFTER, WorkerInfo
from foliot.work.tasks.base import Command, TaskInfo, TaskRecord
from foliot.work.views.story import LiveRun, RunRow, TaskStory, tell_story
from foliot.work.views.why import Surroundings, needs_text, why, worker_name
from foliot.work.worker.places import PROGRAMS

NOW = 1000.0
PLAN = Plan(
    "default/job",
    {
        "lead": Node((Edge("left"), Edge("right"))),
        "left": Node((Edge("end"),)),
        "right": Node((Edge("end"),)),
        "end": Node(join=Join("wait_for_all", ("left", "right"), 2, timeout=100.0)),
    },
    ("lead",),
    retry=RetryPolicy(3),
)


def facts(*given: t.TaskEvent) -> list[TaskRecord]:
    """What is recorded when these things happen one after the other, a second apart."""
    state, records = new_state(), list[TaskRecord]()
    for number, fact in enumerate((t.TaskAccepted("go"), *given)):
        at = NOW - 50 + number
        for each in advance(PLAN, state, fact, at).facts:
            records.append(TaskRecord(len(records) + 1, at, each))
    return records


def done(hop: int, sender: str, to: str, **rest: Any) -> t.MessageEnded:
    return t.MessageEnded(f"default/job/a001/h{hop:03d}/{sender}/{to}", rest.pop("outcome", "succeeded"), **rest)


def info(phase: str, **rest: Any) -> TaskInfo:
    return TaskInfo(
        key=1,
        uid="u",
        namespace="default",
        name="job",
        target_kind="system",
        target="team",
        phase=phase,
        revision=1,
        attempt=1,
        priority=10,
        lane=rest.pop("lane", ""),
        spawned_by="",
        parent="",
        labels={},
        summary={},
        timer_at=None,
        created_at=NOW - 50,
        updated_at=NOW,
        started_at=None,
        ended_at=None,
        archived_at=None,
    )


def row(message: str, **rest: Any) -> RunRow:
    given: dict[str, Any] = {
        "message": message,
        "run_id": "run1",
        "agent": message.rsplit("/", 1)[-1],
        "phase": "pending",
        "worker": None,
        "lease_until": None,
        "created_at": NOW - 50,
        "updated_at": NOW,
        "summary": {},
        "due_at": NOW - 10,
        "requirements": "{}",
        "class_key": "default/lead/",
    }
    return RunRow(**{**given, **rest})


KICKOFF = "default/job/a001/h001/system/lead"


def story(
    phase: str,
    records: Sequence[TaskRecord],
    runs: Sequence[RunRow],
    live: dict[str, LiveRun] | None = None,
    **rest: Any,
) -> TaskStory:
    command = rest.pop("command", Command("system", "team", message="go"))
    return tell_story(info(phase, **rest), command, PLAN, records, runs, live, now=NOW)


def worker(name: str = "w1", **rest: Any) -> WorkerInfo:
    given: dict[str, Any] = {
        "name": name,
        "identity": f"{name}.x/1/2",
        "region": "",
        "gpu": False,
        "models": (),
        "labels": {},
        "capacity": 2,
        "current": 0,
        "phase": "ready",
        "started_at": 0.0,
        "heartbeat_at": NOW,
    }
    return WorkerInfo(**{**given, **rest})


def kinds(story: TaskStory, around: Surroundings) -> list[str]:
    return [cause.kind for cause in why(story, around, NOW).causes]


def test_a_queued_task_without_workers_says_that_nobody_is_alive() -> None:
    told = why(story("queued", facts(), [row(KICKOFF)]), Surroundings(), NOW)

    assert told.headline == "It is queued since 50.0s ago; no worker has begun it."
    assert [cause.kind for cause in told.causes] == ["no_worker"]
    assert "foliot worker" in [hint.command for hint in told.next]
    assert "foliot task cancel job" in [hint.command for hint in told.next]


def test_lost_workers_are_named_and_do_not_count_as_alive() -> None:
    lost = worker("old", heartbeat_at=NOW - STALE_AFTER - 1)

    told = why(story("queued", facts(), [row(KICKOFF)]), Surroundings([lost]), NOW)

    assert [cause.text for cause in told.causes] == ["lead is due, and no worker is alive", "lost: old"]


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        ('{"region":"eu"}', "region=eu"),
        ('{"gpu":true,"model":"big"}', "gpu, model=big"),
        ('{"labels":{"tier":"fast"}}', "label tier=fast"),
        ("{}", "nothing special"),
        ("not json", "requirements that cannot be read"),
    ],
)
def test_what_is_required_is_told_in_words(needs: str, text: str) -> None:
    assert needs_text(needs) == text


def test_a_requirement_that_no_worker_meets_is_told_with_what_each_of_them_has() -> None:
    runs = [row(KICKOFF, requirements='{"region":"eu","gpu":true}')]

    told = why(story("queued", facts(), runs), Surroundings([worker(region="us")]), NOW)

    assert told.causes[0].kind == "placement"
    assert told.causes[0].text == "lead needs a worker with region=eu, gpu"
    assert told.causes[1].text == "w1 has region=us, no gpu, all models"


@pytest.mark.parametrize(
    "limit", [Limit("namespace", "default", 1), Limit("agent", "default/lead", 1), Limit("lane", "default/slow", 1)]
)
def test_a_limit_that_is_reached_is_named(limit: Limit) -> None:
    around = Surroundings([worker()], [limit], {(limit.scope, limit.name): 1})

    told = why(story("queued", facts(), [row(KICKOFF)], lane="slow"), around, NOW)

    assert told.causes[0].kind == "limit"
    assert f"1 of 1 runs of {limit.scope} {limit.name}" in told.causes[0].text


def test_the_limit_of_an_agent_itself_is_named() -> None:
    around = Surroundings([worker()], running={("definition", "default/lead"): 2})

    told = why(story("queued", facts(), [row(KICKOFF, max_running=2)]), around, NOW)

    assert told.causes[0].kind == "limit"
    assert told.causes[0].text == "lead waits for a place: 2 of 2 runs are at work, its own max_concurrency"
    assert kinds(story("queued", facts(), [row(KICKOFF, max_running=3)]), around) == ["due"]


def test_a_limit_with_room_or_of_somebody_else_is_no_reason() -> None:
    around = Surroundings(
        [worker()],
        [Limit("namespace", "default", 2), Limit("agent", "default/other", 0)],
        {("namespace", "default"): 1},
    )

    assert kinds(story("queued", facts(), [row(KICKOFF)]), around) == ["due"]


def test_an_open_class_says_when_it_is_tried() -> None:
    failing = ClassInfo("default/lead/", "default", "lead", "", 5, NOW - 10, NOW - 10, None)

    told = why(story("queued", facts(), [row(KICKOFF)]), Surroundings([worker()], classes=[failing]), NOW)

    assert told.causes[0].kind == "breaker"
    assert told.causes[0].until == NOW - 10 + COOL_DOWN
    assert "the last 5 runs of its class failed; one is tried in 50.0s" in told.causes[0].text


def test_full_workers_are_a_reason_and_free_ones_will_take_it() -> None:
    queued = story("queued", facts(), [row(KICKOFF)])

    assert kinds(queued, Surroundings([worker(current=2)])) == ["capacity"]
    assert kinds(queued, Surroundings([worker(current=1)])) == ["due"]


def test_a_namespace_that_has_its_share_of_the_workers_is_told_so() -> None:
    queued = story("queued", facts(), [row(KICKOFF)])
    busy = worker(current=6, capacity=8)

    told = why(queued, Surroundings([busy], own={busy.identity: 6}, shared=True), NOW)

    assert told.causes[0].kind == "capacity"
    assert "namespace default has its share of the workers (w1 6/8)" in told.causes[0].text
    assert "the rest is kept free for others" in told.causes[0].text
    assert kinds(queued, Surroundings([busy], own={busy.identity: 5}, shared=True)) == ["due"]
    assert kinds(queued, Surroundings([busy], own={busy.identity: 6})) == ["due"]


def test_a_run_that_starts_programs_may_wait_for_others_that_do() -> None:
    able = {"isolation": ("process",), "capacity": 64}
    queued = story("queued", facts(), [row(KICKOFF, requirements='{"isolation":["process"]}')])

    assert kinds(queued, Surroundings([worker(current=PROGRAMS, **able)])) == ["capacity"]
    assert kinds(queued, Surroundings([worker(current=PROGRAMS - 1, **able)])) == ["due"]
    assert kinds(story("queued", facts(), [row(KICKOFF)]), Surroundings([worker(current=PROGRAMS, **able)])) == ["due"]


def test_a_retry_says_until_when_and_why() -> None:
    runs = [row(KICKOFF, due_at=NOW + 30)]
    live = {"run1": LiveRun(Trace("run1"), 1, retry=RunRetried(1, "timeout", "the model did not answer"))}

    told = why(story("running", facts(), runs, live), Surroundings([worker()]), NOW)

    assert [cause.text for cause in told.causes] == [
        "lead is tried again in 30.0s: attempt 1 of 3 broke down",
        "the model did not answer",
    ]
    assert told.causes[0].until == NOW + 30


def test_a_running_task_says_who_has_it_since_when_and_for_how_long() -> None:
    held = row(KICKOFF, phase="running", worker="w1.x/1/2", held=True, lease_until=NOW + 20, due_at=NOW + 20)
    live = {"run1": LiveRun(Trace("run1"), 1, claimed_at=NOW - 5)}

    told = why(story("running", facts(), [held], live), Surroundings([worker()]), NOW)

    assert told.headline == "It is at work: lead."
    assert told.causes[0].text == "lead is done by w1 since 5.0s ago, lease for 20.0s more"


def test_a_lease_that_has_run_out_is_told_as_such() -> None:
    held = row(KICKOFF, phase="running", worker="w1.x/1/2", held=True, lease_until=NOW - 20, due_at=NOW - 20)

    told = why(story("running", facts(), [held]), Surroundings([worker()]), NOW)

    assert told.causes[0].kind == "lapsed"
    assert "whose lease ended 20.0s ago: the next worker that looks takes it over" in told.causes[0].text


def test_a_join_says_for_whom_it_waits_and_until_when() -> None:
    records = facts(done(1, "system", "lead"), done(2, "lead", "left", output="L"))
    runs = [row("default/job/a001/h002/lead/right", phase="running", held=True, worker="w1.x/1/2")]

    told = why(story("running", records, runs), Surroundings([worker()]), NOW)

    join = next(cause for cause in told.causes if cause.kind == "join")
    assert join.agent == "end"
    assert join.text.startswith("end waits for right (round 1: 1 of 2 have arrived)")
    assert join.until == NOW - 48 + 100


def test_a_dead_letter_names_message_agent_error_attempts_and_the_way_back() -> None:
    records = facts(done(1, "system", "lead", outcome="failed", error="no such model", attempts=3, run_id="run1"))

    told = why(story("dead_lettered", records, []), Surroundings(), NOW)

    texts = [cause.text for cause in told.causes]
    assert texts[0].startswith("the task was dead-lettered: ")
    assert any("no such model" in text for text in texts)
    assert f"message {KICKOFF}, 3 attempts" in texts
    assert {"foliot task retry job", "foliot why run1"} <= {hint.command for hint in told.next}


def test_a_cancelled_task_says_by_whom_and_what_did_not_finish() -> None:
    records = facts(t.TaskCancelRequested("ann", "enough"), done(1, "system", "lead", outcome="cancelled"))

    told = why(story("cancelled", records, []), Surroundings(), NOW)

    assert told.causes[0].text == "the task was cancelled by ann: enough"
    assert "foliot task retry job" in [hint.command for hint in told.next]


def test_a_task_that_is_being_cancelled_says_who_has_not_confirmed() -> None:
    records = facts(t.TaskCancelRequested("ann", "enough"))
    held = row(KICKOFF, phase="running", worker="w1.x/1/2", held=True, lease_until=NOW + 20, due_at=NOW + 20)

    told = why(story("running", records, [held]), Surroundings([worker()]), NOW)

    assert told.causes[0].text == "the task will be cancelled by ann when what runs has stopped: enough"


def test_a_deadline_is_told() -> None:
    command = Command("system", "team", message="go", timeout=60.0)

    told = why(story("queued", facts(), [row(KICKOFF)], command=command), Surroundings(), NOW)

    assert told.causes[-1].text == "it is cancelled in 10.0s if it has not ended"


def test_every_phase_has_a_headline_and_a_cause() -> None:
    ended = facts(done(1, "system", "lead", outcome="failed", error="x"))
    for phase in ("queued", "running", "waiting"):
        assert why(story(phase, facts(), [row(KICKOFF)]), Surroundings(), NOW).causes
    for phase in ("failed", "cancelled", "dead_lettered", "succeeded"):
        told = why(story(phase, ended, []), Surroundings(), NOW)
        assert told.headline
        assert told.causes


def test_a_worker_that_is_not_listed_is_named_by_its_process() -> None:
    assert worker_name("host.boot/12/34", []) == "process 12 on host"
    assert worker_name(None, []) == "somebody"


def test_commands_in_another_namespace_say_so() -> None:
    there = story("queued", facts(), [row(KICKOFF)])
    there.info = replace(there.info, namespace="team")

    assert "foliot task cancel job -n team" in [hint.command for hint in why(there, Surroundings(), NOW).next]
