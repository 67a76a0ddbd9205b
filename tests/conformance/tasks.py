"""What holds for tasks on every database."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.graph.advance import decode_state, fold
from foliot.kernel.graph.events import TaskCancelled, TaskDeadLettered, TaskSucceeded
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import RunClaimed
from foliot.models.base import ModelAuthError, ModelOverloaded
from foliot.resources.references import Origin
from foliot.store import tasks as rows
from foliot.store.journal.base import Entry
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import unpack
from foliot.work.worker.performer import MOST_FRUITLESS
from tests.journal_links import linked
from tests.work.task_kit import Kit, echo

HERE = Origin("TaskSchedule", "default")
SYSTEMS = {
    "line": {"agents": ["a", "b"]},
    "fan": {
        "agents": ["a", "b", "c", "d"],
        "graph": {
            "a": {"edges": [{"to": "b"}, {"to": "c"}]},
            "b": {"edges": [{"to": "d"}]},
            "c": {"edges": [{"to": "d"}]},
            "d": {"join": {"mode": "wait_for_all", "timeout": "60s"}},
        },
    },
    "route": {
        "agents": ["triage", "bug", "other"],
        "graph": {
            "triage": {
                "edges": [{"to": "bug", "when": {"route": "bug"}}, {"to": "other", "when": "otherwise"}],
            }
        },
    },
}


class TasksConformance:
    """Subclasses give `db`, an open database."""

    @pytest.fixture
    async def kit(self, db):
        kit = Kit(db, SYSTEMS)
        yield kit
        await kit.close()

    async def test_a_task_runs_through_its_agents_and_gives_what_the_last_one_said(self, kit):
        accepted = await kit.accept("line", "tea")
        assert not accepted.duplicate
        assert accepted.task.phase == "queued"
        await kit.work()
        task = await kit.tasks.get("default", accepted.task.name)
        assert task.phase == "succeeded"
        assert task.started_at is not None
        assert task.ended_at is not None
        end = await kit.end_of(task.name)
        assert isinstance(end, TaskSucceeded)
        assert end.output == "b(a(tea))"
        assert end.usage.total_tokens == 30
        assert kit.asked == [("a", "tea"), ("b", "a(tea)")]

    async def test_fan_out_and_join_meet_in_the_order_of_the_graph(self, kit):
        task = (await kit.accept("fan", "x", name="t")).task
        await kit.work()
        end = await kit.end_of(task.name)
        assert isinstance(end, TaskSucceeded)
        assert end.output == "d(b: b(a(x))\n\nc: c(a(x)))"

    async def test_an_answer_with_a_route_goes_that_way(self, kit):
        kit.answer = lambda agent, told: "a crash\nroute: bug" if agent == "triage" else echo(agent, "…")
        await kit.accept("route", name="t")
        await kit.work()
        assert [agent for agent, _ in kit.asked] == ["triage", "bug"]

    async def test_the_same_key_gives_the_same_task(self, kit):
        first = await kit.accept("line", "tea", idempotency_key="k")
        again = await kit.accept("line", "tea", idempotency_key="k", by="somebody else")
        assert again.duplicate
        assert again.task.name == first.task.name
        await kit.work()
        assert (await kit.accept("line", "tea", idempotency_key="k")).task.phase == "succeeded"
        assert len(kit.asked) == 2

    async def test_the_same_key_for_something_else_is_a_conflict(self, kit):
        await kit.accept("line", "tea", idempotency_key="k")
        with pytest.raises(Conflict, match="idempotency_key reused with different payload"):
            await kit.accept("line", "coffee", idempotency_key="k")

    async def test_twenty_requests_with_one_key_at_once_make_one_task(self, kit):
        accepted = await asyncio.gather(*(kit.accept("line", "tea", idempotency_key="k") for _ in range(20)))
        assert len({each.task.name for each in accepted}) == 1
        assert sum(not each.duplicate for each in accepted) == 1
        await kit.work()
        assert len(kit.asked) == 2

    async def test_a_name_that_is_taken_by_another_request_is_a_conflict(self, kit):
        await kit.accept("line", "tea", name="t")
        with pytest.raises(Conflict, match="asks for something else"):
            await kit.accept("line", "coffee", name="t")
        assert (await kit.accept("line", "tea", name="t")).duplicate

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"target": "nowhere", "message": "x"}, "there is no system"),
            ({"target": "line"}, "message is required"),
            ({"target": "line", "message": "x", "timeout": -1.0}, "timeout must be >= 0"),
            ({"target": "line", "message": "x", "name": "no spaces"}, "cannot be the name of a task"),
            ({"target": "line", "message": "x", "retry": RetryPolicy(max_attempts=0)}, "max_attempts"),
            ({"target": " ", "message": "x"}, "needs an agent or a system"),
        ],
    )
    async def test_what_cannot_be_done_is_not_accepted(self, kit, given, words):
        with pytest.raises((InvalidInput, NotFound), match=words):
            await kit.tasks.accept(Command("system", **given))
        assert (await kit.tasks.list())[0] == []

    async def test_a_system_whose_agent_is_missing_is_not_accepted(self, kit):
        kit.definitions.missing.add("b")
        with pytest.raises(NotFound, match="agent 'b' of system 'line'"):
            await kit.accept("line")

    async def test_a_task_keeps_the_definitions_it_was_accepted_with(self, kit):
        task = (await kit.accept("line")).task
        kit.definitions.prompt = "be long"
        kit.definitions.changes += 1
        kit.definitions.systems["line"] = {"agents": ["a"]}
        await kit.work()
        assert isinstance(await kit.end_of(task.name), TaskSucceeded)
        assert [agent for agent, _ in kit.asked] == ["a", "b"]

    async def test_what_a_run_stores_of_its_system_does_not_grow_with_the_agents_of_it(self, kit):
        first: dict[int, list[Entry]] = {}
        for size in (2, 60):
            agents = [f"agent-{number:02}" for number in range(size)]
            kit.definitions.systems[f"line-{size:02}"] = {"agents": agents}
            kit.definitions.changes += 1
            task = (await kit.accept(f"line-{size:02}", name=f"t-{size:02}")).task
            kit.answer = lambda agent, told: "done"
            await kit.work(rounds=2 * size)
            runs = await kit.tasks.runs("default", task.name)
            first[size] = [(await kit.journal.read(each["run_id"], limit=1))[0] for each in runs]
            assert len(runs) == size
            pins = [decode(entry.data).definitions for entry in first[size]]
            assert pins == [
                {f"Agent/{name}": f"sha256:{name}", f"AgentSystem/{task.target}": f"sha256:{task.target}"}
                for name in agents
            ]
        # But for the words "go" and "done", that the first and all others are told.
        assert {len(entry.data) for entry in first[60]} == {len(entry.data) for entry in first[2]}
        plan = (await kit.tasks.ref("default", "t-60")).pinned.plan
        assert len(plan.definitions) == 61, "the plan, which the task keeps, has them all"

    async def test_a_failure_is_tried_again_as_another_attempt_of_the_same_run(self, kit):
        answers = iter([ModelOverloaded("busy"), ModelOverloaded("busy"), "done"])
        kit.answer = lambda agent, told: next(answers)
        task = (
            await kit.tasks.accept(Command("agent", "a", message="x", retry=RetryPolicy(3, 10.0, jitter="none")))
        ).task
        await kit.work()
        assert (await kit.tasks.get("default", task.name)).phase == "running"
        assert await kit.claim() == []
        kit.now += 10.0
        await kit.work()
        assert await kit.claim() == []
        kit.now += 20.0
        await kit.work()
        runs = await kit.tasks.runs("default", task.name)
        assert len(runs) == 1
        _, state = await kit.runs.load(runs[0]["run_id"])
        assert state.attempt == 3
        assert isinstance(await kit.end_of(task.name), TaskSucceeded)

    async def test_a_failure_that_would_only_repeat_itself_is_given_up_at_once(self, kit):
        kit.answer = lambda agent, told: ModelAuthError("no key")
        task = (await kit.accept("line", retry=RetryPolicy(5))).task
        await kit.work()
        end = await kit.end_of(task.name)
        assert isinstance(end, TaskDeadLettered)
        assert "no key" in end.message
        assert len(kit.asked) == 1

    async def test_a_dead_letter_can_be_edited_and_requeued_behind_what_succeeded(self, kit):
        broken = True
        kit.answer = lambda agent, told: ModelAuthError("no key") if agent == "b" and broken else echo(agent, told)
        task = (await kit.accept("line", "x", name="t")).task
        await kit.work()
        dead = await kit.end_of("t")
        assert isinstance(dead, TaskDeadLettered)
        broken = False
        again = await kit.tasks.requeue("default", task.name, by="ann", payloads={dead.message_id: "edited"})
        assert again.attempt == 2
        await kit.work()
        end = await kit.end_of("t")
        assert isinstance(end, TaskSucceeded)
        assert end.output == "b(edited)"
        assert [agent for agent, _ in kit.asked] == ["a", "b", "b"]

    async def test_what_has_succeeded_cannot_be_requeued_or_cancelled(self, kit):
        await kit.accept("line", name="t")
        await kit.work()
        with pytest.raises(Conflict, match=r"cannot be retried: its phase is Succeeded"):
            await kit.tasks.requeue("default", "t")
        with pytest.raises(Conflict, match=r"cannot be cancelled: its phase is Succeeded"):
            await kit.tasks.cancel("default", "t")

    async def test_a_queued_task_is_cancelled_at_once_and_nothing_is_asked(self, kit):
        await kit.accept("line", name="t")
        cancelled = await kit.tasks.cancel("default", "t", by="ann", reason="enough")
        assert cancelled.phase == "cancelled"
        end = await kit.end_of("t")
        assert isinstance(end, TaskCancelled)
        assert (end.by, end.reason) == ("ann", "enough")
        await kit.work()
        assert kit.asked == []

    async def test_cancelling_interrupts_the_model_and_the_task_ends_when_its_runs_have(self, kit):
        asked, never, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hang(told):
            asked.set()
            try:
                await never.wait()
            finally:
                await released.wait()

        kit.answer = lambda agent, told: hang(told)
        await kit.accept("line", name="t")
        (lease,) = await kit.claim()
        working = asyncio.create_task(kit.performer.perform(lease))
        await asyncio.wait_for(asked.wait(), 60)
        assert (await kit.tasks.cancel("default", "t")).phase == "running"
        released.set()
        await asyncio.wait_for(working, 60)
        assert (await kit.tasks.get("default", "t")).phase == "cancelled"

    async def test_cancelling_a_parent_cancels_its_children(self, kit):
        await kit.accept("line", name="p")
        await kit.accept("line", name="c", parent="p")
        await kit.tasks.cancel("default", "p")
        assert (await kit.tasks.get("default", "c")).phase == "cancelled"

    async def test_cancelling_reaches_grandchildren_and_ends_where_parents_go_in_a_circle(self, kit):
        asked, never, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hang(told):
            asked.set()
            try:
                await never.wait()
            finally:
                await released.wait()

        kit.answer = lambda agent, told: hang(told)
        await kit.accept("line", name="a", parent="a")
        (lease,) = await kit.claim()
        working = asyncio.create_task(kit.performer.perform(lease))
        await asyncio.wait_for(asked.wait(), 60)
        await kit.accept("line", name="b", parent="a")
        await kit.accept("line", name="c", parent="b")
        assert (await asyncio.wait_for(kit.tasks.cancel("default", "a"), 60)).phase == "running"
        released.set()
        await asyncio.wait_for(working, 60)
        assert {name: (await kit.tasks.get("default", name)).phase for name in "abc"} == dict.fromkeys(
            "abc", "cancelled"
        )

    async def test_a_join_that_waits_too_long_is_closed_by_its_timer(self, kit):
        begun, never = asyncio.Event(), asyncio.Event()

        async def hangs():
            begun.set()
            await never.wait()

        kit.answer = lambda agent, told: hangs() if agent == "c" else echo(agent, told)
        await kit.accept("fan", name="t")
        (first,) = await kit.claim()
        await kit.performer.perform(first)
        leases = {(await kit.journal.get(lease.run_id)).agent: lease for lease in await kit.claim()}
        hanging = asyncio.create_task(kit.performer.perform(leases["c"]))
        await asyncio.wait_for(begun.wait(), 60)
        await kit.performer.perform(leases["b"])
        due = await kit.tasks.timers(kit.now)
        assert due == kit.now + 60
        kit.now += 61
        assert await kit.tasks.timers(kit.now) is None
        await asyncio.wait_for(hanging, 60)
        end = await kit.end_of("t")
        assert isinstance(end, TaskDeadLettered)
        never.set()

    async def test_a_task_that_takes_too_long_is_ended(self, kit):
        await kit.accept("line", name="t", timeout=5.0)
        kit.now += 6
        await kit.tasks.timers(kit.now)
        end = await kit.end_of("t")
        assert isinstance(end, TaskCancelled)
        assert "longer than 5 s" in end.reason

    async def test_a_task_that_nobody_began_in_time_expires(self, kit):
        await kit.accept("line", name="late", expires_at=kit.now + 5)
        await kit.accept("line", name="begun", expires_at=kit.now + 5)
        leases = {(await kit.journal.get(lease.run_id)).labels["foliot.dev/task"]: lease for lease in await kit.claim()}
        await kit.journal.append(leases["late"], [], phase="pending")
        kit.now += 6
        await kit.tasks.timers(kit.now)
        await kit.performer.perform(leases["begun"])
        assert (await kit.tasks.get("default", "begun")).phase == "running"

    async def test_archived_tasks_are_hidden_and_can_still_be_read(self, kit):
        await kit.accept("line", name="t")
        archived = await kit.tasks.archive("default", "t")
        assert archived.phase == "cancelled"
        assert archived.archived_at is not None
        assert (await kit.tasks.archive("default", "t")).archived_at == archived.archived_at
        assert (await kit.tasks.list())[0] == []
        assert [task.name for task in (await kit.tasks.list(archived=True))[0]] == ["t"]

    async def test_deleting_forgets_an_ended_task_and_refuses_a_live_one(self, kit):
        await kit.accept("line", name="t")
        with pytest.raises(Conflict, match="has not ended"):
            await kit.tasks.delete("default", "t")
        await kit.work()
        await kit.tasks.delete("default", "t")
        with pytest.raises(NotFound):
            await kit.tasks.get("default", "t")

    async def test_lists_filter_and_go_on_from_a_cursor_without_gap_or_repetition(self, kit):
        for number in range(7):
            labels = {"team": "a" if number % 2 else "b", "n": str(number)}
            await kit.accept("line", name=f"t{number}", labels=labels, lane="fast" if number < 3 else "")
            kit.now += 1
        seen, cursor = [], None
        while True:
            page, cursor = await kit.tasks.list(limit=2, cursor=cursor)
            seen += [task.name for task in page]
            if cursor is None:
                break
        assert seen == [f"t{number}" for number in reversed(range(7))]
        assert [task.name for task in (await kit.tasks.list(labels={"team": "a"}))[0]] == ["t5", "t3", "t1"]
        assert [task.name for task in (await kit.tasks.list(labels={"team": "A"}))[0]] == []
        assert len((await kit.tasks.list(lane="fast"))[0]) == 3
        assert len((await kit.tasks.list(created_after=1_003.0, created_before=1_004.0))[0]) == 2
        assert len((await kit.tasks.list(phases=("queued",)))[0]) == 7
        assert (await kit.tasks.list(phases=("running", "waiting")))[0] == []
        with pytest.raises(InvalidInput, match="cursor"):
            await kit.tasks.list(cursor="nonsense")
        assert len((await kit.tasks.list(phases=("Pending",)))[0]) == 7
        with pytest.raises(InvalidInput, match="phase: 'bored' is not one of"):
            await kit.tasks.list(phases=("bored",))

    async def test_each_filter_finds_what_looking_at_all_tasks_finds(self, kit):
        """Each has a query and an index of its own: none may see less than another, nor the same task twice."""
        for number in range(27):
            place = {
                "namespace": "default" if number % 3 else "other",
                "labels": {"team": "ab"[number % 2], "all": "yes"},
            }
            await kit.accept("line" if number % 4 else "fan", name=f"t{number}", **place)
            if number % 6 == 5:
                await kit.work()
            elif number % 6 == 4:
                await self._let_all_wait(kit)
        for name in ("t20", "t21"):
            space = "other" if name == "t21" else "default"
            await kit.tasks.cancel(space, name, by="ann", reason="enough")
        leases = await kit.claim(1)
        assert leases, "one is held"
        everything, _ = await kit.tasks.list(limit=200)
        assert {"queued", "running", "waiting", "succeeded", "cancelled"} <= {task.phase for task in everything}

        wholes = (
            ("queued",),
            ("running",),
            ("waiting",),
            ("cancelled",),
            ("queued", "waiting"),
            ("running", "succeeded"),
        )
        for namespace in (None, "default", "other"):
            for phases in ((), *wholes):
                for more in ({}, {"target": "fan"}, {"labels": {"team": "a"}}, {"labels": {"team": "b", "all": "yes"}}):
                    expected = [
                        task.name
                        for task in everything
                        if namespace in (None, task.namespace)
                        and (not phases or task.phase in phases)
                        and more.get("target") in (None, task.target)
                        and more.get("labels", {}).items() <= task.labels.items()
                    ]
                    seen, cursor = [], None
                    while True:
                        page, cursor = await kit.tasks.list(
                            namespace=namespace, phases=phases, limit=3, cursor=cursor, **more
                        )
                        seen += [task.name for task in page]
                        if cursor is None:
                            break
                    assert seen == expected, (namespace, phases, more)

    async def _let_all_wait(self, kit) -> None:
        for lease in await kit.claim():
            waiting = {"waiting": {"reason": "input", "until": None}}
            await kit.journal.append(lease, [], phase="waiting", summary=waiting)

    async def test_a_forgotten_task_is_found_by_none_of_its_labels(self, kit):
        await kit.accept("line", name="t", labels={"team": "a", "n": "1"})
        await kit.work()
        await kit.tasks.delete("default", "t")
        await kit.accept("line", name="t", labels={"team": "b"})

        assert (await kit.tasks.list(labels={"team": "a"}))[0] == []
        assert [task.labels for task in (await kit.tasks.list(labels={"team": "b"}))[0]] == [{"team": "b"}]

    async def test_labels_that_look_alike_or_are_long_are_told_apart(self, kit):
        long = "x" * 20_000
        labels: list[dict[str, str]] = [{"a=b": "c", "a": "b=c"}, {"a": long}, {"a": long + "y"}]
        for number, each in enumerate(labels):
            await kit.accept("line", name=f"t{number}", labels=each)

        async def named(**wanted: str) -> list[str]:
            return [task.name for task in (await kit.tasks.list(labels=wanted))[0]]

        assert [await named(**each) for each in labels] == [["t0"], ["t1"], ["t2"]]
        assert await named(a="b=c") == await named(**{"a=b": "c"}) == ["t0"]
        await kit.work()
        await kit.tasks.delete("default", "t2")
        assert [await named(**each) for each in labels] == [["t0"], ["t1"], []]

    async def test_a_task_is_found_by_its_name_or_the_beginning_or_the_end_of_it(self, kit):
        for name in ("report", "report-x7k2", "review-p9q1"):
            await kit.accept("line", name=name)

        assert (await kit.tasks.find("default", "report")).name == "report"
        assert (await kit.tasks.find("default", "rev")).name == "review-p9q1"
        assert (await kit.tasks.find("default", "x7k2")).name == "report-x7k2"
        with pytest.raises(InvalidInput, match="several tasks"):
            await kit.tasks.find("default", "re")
        with pytest.raises(NotFound):
            await kit.tasks.find("other", "report")

    async def test_what_is_stored_of_a_task_is_the_fold_of_its_facts(self, kit):
        await kit.accept("fan", name="t")
        await kit.work()
        rows = await kit.db.read("task_identity", namespace="default", name="t")
        assert rows
        info = await kit.tasks.get("default", "t")
        (row,) = await kit.db.read("task_lock", key=info.key)
        records = await kit.tasks.events("default", "t")
        assert [record.seq for record in records] == list(range(1, row["revision"] + 1))
        plan = unpack(row["plan"], await kit.journal.get_blob(row["plan"])).plan_for("default/t")
        assert fold(plan, [(record.at, record.event) for record in records]) == decode_state(row["graph"])

    async def test_a_template_is_filled_in_and_is_itself_never_run(self, kit):
        kit.definitions.templates["daily"] = {
            "metadata": {"name": "daily", "namespace": "default", "labels": {"team": "a"}},
            "spec": {"mode": "template", "system": "line", "input": {"topic": "tea", "style": "short"}},
        }
        given = Command("system", "", input={"topic": "coffee"}, idempotency_key="slot-1", labels={"slot": "1"})
        accepted = await kit.tasks.accept_template("default/daily", given, origin=HERE)
        assert (await kit.tasks.accept_template("default/daily", given, origin=HERE)).duplicate
        assert accepted.task.labels == {"team": "a", "slot": "1"}
        await kit.work()
        assert kit.asked[0] == ("a", "coffee\n\nstyle: short")
        kit.definitions.templates["daily"]["spec"]["mode"] = "run"
        with pytest.raises(InvalidInput, match=r"must set spec\.mode=template"):
            await kit.tasks.accept_template(
                "default/daily", msgspec.structs.replace(given, idempotency_key="2"), origin=HERE
            )
        with pytest.raises(NotFound, match='task template "nightly" not found'):
            await kit.tasks.accept_template("default/nightly", given, origin=HERE)

    async def test_a_run_whose_tools_are_gone_ends_and_its_task_says_why(self, kit):
        async def broken(spec):
            raise NotFound("there is no tool 'x'")

        await kit.accept("line", name="t")
        kit.performer._toolbox = broken
        await kit.work()
        end = await kit.end_of("t")
        assert isinstance(end, TaskDeadLettered)
        assert "there is no tool 'x'" in end.message

    async def test_a_run_that_is_cancelled_in_the_middle_is_given_back_at_once(self, kit):
        asked, never = asyncio.Event(), asyncio.Event()

        async def hang():
            asked.set()
            await never.wait()

        kit.answer = lambda agent, told: hang()
        await kit.accept("line", name="t")
        (lease,) = await kit.claim()
        working = asyncio.create_task(kit.performer.perform(lease))
        await asyncio.wait_for(asked.wait(), 60)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        kit.answer = echo
        await kit.work()
        assert isinstance(await kit.end_of("t"), TaskSucceeded)

    async def test_purging_forgets_old_ended_tasks_and_keeps_the_runs_of_live_ones(self, kit):
        await kit.accept("line", name="old")
        await kit.work()
        await kit.accept("line", name="live")
        (lease,) = await kit.claim()
        await kit.performer.perform(lease)
        kit.now += 100
        assert await rows.purge(kit.db, kit.now - 50, 10) == (1, 2)
        assert await rows.purge(kit.db, kit.now - 50, 10) == (0, 0)
        assert await kit.journal.purge(ended_before=kit.now - 50) == 0
        assert [task.name for task in (await kit.tasks.list())[0]] == ["live"]
        await kit.work()
        assert isinstance(await kit.end_of("live"), TaskSucceeded)
        assert len(await kit.tasks.runs("default", "live")) == 2

    async def test_a_run_that_takes_every_worker_down_is_given_up(self, kit):
        """An attempt that dies leaves its beginning in the journal, and nothing else."""
        await kit.accept("line", name="t")
        for attempt in range(1, MOST_FRUITLESS + 1):
            (lease,) = await kit.claim()
            claimed = RunClaimed(attempt, lease.worker, lease.epoch)
            entry = Entry(attempt + 1, kit.now, type_of(claimed), encode(claimed))
            told = await kit.journal.read(lease.run_id)
            await kit.journal.append(lease, linked(lease.run_id, told, [entry]))
            kit.now += 31
        await kit.work()
        end = await kit.end_of("t")
        assert isinstance(end, TaskDeadLettered)
        assert end.reason == "crash_loop"
        assert kit.asked == []
