"""What Prometheus is told: counts from events, states read at the scrape, and labels that stay few."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.live.hub import RunHub
from foliot.engine.telemetry.http import serving
from foliot.engine.telemetry.metrics import MOST_QUESTIONS, OTHER, UNKNOWN_TOOL, BoundedLabel, Histogram, Metrics, Tally
from foliot.errors import Unavailable, UsageError
from foliot.kernel.messages import Message, ModelResponse, ToolFailure, ToolResult, Usage
from foliot.kernel.run.events import ApprovalDecided, ApprovalRequested, ModelResponded, RunFailed, ToolFinished
from foliot.runtime.telemetry import measured
from foliot.store.base import Put
from foliot.store.queue.queue import QueueItem, enqueue
from foliot.store.sqlite.database import SqliteDatabase


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


LOOKER = Agent("looker", model=ScriptedModel([{"call": "look"}, {"say": "I have {last_result} it."}]), tools=[look])


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found, name: str, **labels: str) -> float:
    return found[f"foliot_{name}", tuple(sorted(labels.items()))]


async def test_what_a_run_did_is_counted_and_can_be_parsed(tmp_path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        with measured(runtime) as metrics:
            result = await runtime.run(LOOKER, "go")
            found = samples(await metrics.render())

    assert result.phase == "succeeded"
    assert value(found, "runs_started_total") == 1
    assert value(found, "runs_ended_total", outcome="succeeded", reason="") == 1
    assert value(found, "tool_calls_total", tool="look", outcome="ok") == 1
    assert value(found, "tool_seconds_count", tool="look") == 1
    assert sum(v for (name, _), v in found.items() if name == "foliot_steps_total") == 2
    assert sum(v for (name, _), v in found.items() if name == "foliot_tokens_total") == result.usage.total_tokens
    assert value(found, "store_up") == 1
    assert value(found, "runs", phase="running") == 0
    # Every commit is in a bucket, and every transaction was in one.
    assert value(found, "commit_transactions_count") >= 1
    assert value(found, "commit_transactions_sum") >= value(found, "commit_transactions_count")
    assert ("process_resident_memory_bytes", ()) in found


async def test_nothing_is_counted_before_or_after_someone_asks(tmp_path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.run(LOOKER, "before")
        with measured(runtime) as metrics:
            pass
        await runtime.run(LOOKER, "after")
    assert metrics.tally.events == 0


async def test_the_queue_is_told_by_state_and_age_at_the_moment_of_the_scrape(tmp_path) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    now = 1000.0

    def item(key: int, due_at: float, namespace: str = "a") -> QueueItem:
        return QueueItem(key, f"r{key}", 1, namespace, "x", "", "c", 0, due_at)

    try:
        await database.write(enqueue, [item(1, 900.0), item(2, 990.0), item(3, 2000.0), item(4, 995.0, "b")])
        metrics = Metrics(database, clock=lambda: now)
        found = samples(await metrics.render())
    finally:
        await database.close()

    assert value(found, "queue_runs", namespace="a", state="due") == 2
    assert value(found, "queue_runs", namespace="a", state="later") == 1
    assert value(found, "queue_oldest_due_seconds", namespace="a") == 100.0
    assert value(found, "queue_oldest_due_seconds", namespace="b") == 5.0


async def test_a_run_that_waits_for_consent_shows_how_long(tmp_path) -> None:
    @tool(effect="once")
    async def pay(sum: int) -> str:
        """Pays."""
        return "paid"

    times = {"now": 1_800_000_000.0}
    async with Runtime(tmp_path / "foliot.db", clock=lambda: times["now"]) as runtime:
        await runtime.inside.resources.write(
            [
                Put(
                    {
                        "kind": "ToolPermission",
                        "metadata": {"name": "pay", "namespace": "default"},
                        "spec": {
                            "tool_ref": "pay",
                            "action": "invoke",
                            "operation_rules": [{"verdict": "approval_required"}],
                        },
                    }
                )
            ]
        )
        agent = Agent("payer", model=ScriptedModel([{"call": {"pay": {"sum": 1}}}, {"say": "done"}]), tools=[pay])
        with measured(runtime) as metrics:
            result = await runtime.run(agent, "pay", run_id="r1", check=False)
            assert result.waiting is not None
            metrics._clock = lambda: times["now"] + 50.0
            found = samples(await metrics.render())
            assert value(found, "waiting_runs", reason="approval") == 1
            assert value(found, "waiting_longest_seconds", reason="approval") == pytest.approx(50.0)
            assert value(found, "approvals_requested_total") == 1
            times["now"] += 100.0
            (approval,) = [
                event.approval_id
                for _, event in await runtime.inside.runs.facts("r1")
                if isinstance(event, ApprovalRequested)
            ]
            await runtime.inside.decide_approval(approval, "approve", by="ann")
            found = samples(await metrics.render())
            assert value(found, "approvals_decided_total", decision="approve") == 1
            assert value(found, "approval_wait_seconds_sum") == pytest.approx(100.0)
            assert ("foliot_waiting_runs", (("reason", "approval"),)) not in found


async def test_a_budget_shows_how_much_of_it_is_used(tmp_path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        budget = {"kind": "Budget", "metadata": {"name": "small", "namespace": "default"}}
        await runtime.inside.resources.write([Put({**budget, "spec": {"window": "day", "limit": {"tokens": 100_000}}})])
        with measured(runtime) as metrics:
            before = samples(await metrics.render())
            agent = Agent("talker", model=ScriptedModel([{"say": "word " * 5_000}]))
            await runtime.run(agent, "talk")
            after = samples(await metrics.render())
    assert value(before, "budget_used_ratio", namespace="default", budget="small") == 0.0
    assert 0.0 < value(after, "budget_used_ratio", namespace="default", budget="small") < 1.0


async def test_a_store_that_does_not_answer_is_told_and_not_raised(tmp_path) -> None:
    class Away:
        async def read(self, name: str, /, **params: object):
            raise Unavailable("away")

    metrics = Metrics(Away())  # type: ignore[arg-type]  # only its reads are used
    metrics.tally.recorded("r", 1, 0.0, RunFailed("x", "broken", "secret text"))
    text = await metrics.render()
    found = samples(text)
    assert value(found, "store_up") == 0
    assert value(found, "runs_ended_total", outcome="failed", reason="broken") == 1
    assert b"secret text" not in text


def test_a_label_tells_only_so_many_values_apart() -> None:
    bounded = BoundedLabel(3)
    assert [bounded(word) for word in "abcdab"] == ["a", "b", "c", OTHER, "a", "b"]


def test_a_tool_that_a_model_made_up_is_no_label() -> None:
    tally = Tally()
    for n in range(1000):
        failure = ToolFailure("unsupported_tool", "tool_unsupported", "no such tool", kind="unknown_tool")
        tally.recorded("r", n, 0.0, ToolFinished(ToolResult(f"c{n}", f"made-up-{n}", (), failure), synthetic="invalid"))
    assert tally.tool_calls == {(UNKNOWN_TOOL, "invalid"): 1000}


def test_an_unknown_price_is_not_a_price_of_zero() -> None:
    tally = Tally()
    answer = Message("assistant", ())
    tally.recorded("r", 1, 0.0, ModelResponded(1, ModelResponse(answer, Usage(10, 2, cost_usd=0.5), model="m")))
    tally.recorded("r", 2, 0.0, ModelResponded(2, ModelResponse(answer, Usage(10, 2), model="m"), 0.2))
    assert tally.cost == {("m",): 0.5}
    assert tally.unpriced == {("m",): 1}
    assert tally.tokens == {("m", "input"): 20, ("m", "output"): 4}


def test_questions_that_nobody_decides_do_not_pile_up() -> None:
    tally = Tally()
    for n in range(MOST_QUESTIONS + 10):
        tally.recorded(f"r{n}", 1, 0.0, ApprovalRequested("c", "a", "t", "d"))
    assert len(tally._asked) == MOST_QUESTIONS
    tally.recorded(
        "r0", 2, 5.0, ApprovalDecided("c", "approve")
    )  # its question is forgotten: it counts, without a time
    assert tally.approvals_decided == {("approve",): 1}
    assert sum(tally.approval_wait.counts) == 0


def test_a_spread_puts_a_number_on_a_bound_below_it() -> None:
    spread = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 9.0):
        spread.add(number)
    assert (spread.counts, spread.sum) == ([2, 2, 1], 14.0)


def test_an_observer_hears_every_run_until_it_stops() -> None:
    hub, heard = RunHub(), []
    stop = hub.observe(lambda run_id, seq, at, event: heard.append((run_id, seq)))
    hub.recorded("a", 1, 0.0, RunFailed("x", "y", "z"))
    hub.recorded("b", 1, 0.0, RunFailed("x", "y", "z"))
    stop()
    hub.recorded("a", 2, 0.0, RunFailed("x", "y", "z"))
    assert heard == [("a", 1), ("b", 1)]


async def test_the_endpoint_serves_metrics_and_health_on_loopback() -> None:
    state = ["ready"]
    async with (
        serving(Metrics(None), port=0, state=lambda: state[0]) as port,
        ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        async with client.get("/metrics") as answer:
            assert answer.status == 200
            assert "foliot_build_info" in await answer.text()
        async with client.get("/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        state[0] = "stopped"
        async with client.get("/healthz") as answer:
            assert answer.status == 503
        async with client.get("/other") as answer:
            assert answer.status == 404
        with pytest.raises(UsageError, match="cannot be served"):
            async with serving(Metrics(None), port=port):
                pass


async def test_without_the_library_it_is_said_what_to_install(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match="prometheus-client"):
        await Metrics(None).render()


async def test_commits_in_groups_are_counted_by_size(tmp_path) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    try:
        assert database.commit_sizes() == ((0,) * 12, 0)
        items = [QueueItem(n, f"r{n}", 1, "a", "x", "", "c", 0, 1.0) for n in range(40)]
        await asyncio.gather(*(database.write(enqueue, [item]) for item in items))
        sizes, transactions = database.commit_sizes()
    finally:
        await database.close()
    assert transactions == 40
    assert 1 <= sum(sizes) <= 40


async def test_messages_that_are_tried_again_and_given_up_are_counted() -> None:
    metrics = Metrics(None)
    metrics.tasks.messages_sent(["writer"])
    metrics.tasks.message_begun("writer")
    metrics.tasks.message_ended("writer", "retried", None)
    metrics.tasks.message_ended("writer", "failed", 2.0)
    metrics.tasks.task_ended("default", "team", "failed", 2.5)

    text = (await metrics.render()).decode()

    for prefix in ("foliot", "orloj"):
        assert f'{prefix}_retries_total{{agent="writer"}} 1.0' in text
        assert f'{prefix}_deadletters_total{{agent="writer"}} 1.0' in text
        for phase in ("queued", "running", "retrypending", "deadletter"):
            assert f'{prefix}_messages_total{{agent="writer",phase="{phase}"}} 1.0' in text
        assert f'{prefix}_task_duration_seconds_sum{{namespace="default",status="failed",system="team"}} 2.5' in text
    assert 'foliot_message_latency_seconds_count{agent="writer"} 1.0' in text
