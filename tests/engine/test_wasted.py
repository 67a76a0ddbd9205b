"""Attempts that give no answer, on real runs: they count against every limit, and the journal keeps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import cost_of
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage
from foliot.kernel.run.events import ModelDelayed, ModelFailed, RunCancelled, RunWaiting
from foliot.models.base import ModelOverloaded
from foliot.models.routing.pricing import Pricing
from foliot.models.routing.usage import mark_cut
from foliot.resources.validate import validate_document
from foliot.runtime.agent import Agent
from foliot.runtime.runtime import Runtime
from foliot.store.base import Put
from foliot.store.ledger.budgets import SqlBudgetLedger
from simulators.provider import Fault, Play, WireServer

ANSWER = ModelResponse(
    Message("assistant", (Text("It is done, all of it."),)),
    usage=Usage(input_tokens=200_000, output_tokens=50),
    model="claude-sonnet-4-5",
)
BROKEN = Play(ANSWER, pieces=7, fault=Fault("error_event", after=4))


class Failing:
    """Fails `times` after the provider had counted 1,000 tokens; each costs a millionth of a dollar."""

    pricing = Pricing(1.0, 1.0)

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked += 1
        if self.asked <= self.times:
            error = ModelOverloaded("broke off", retry_after=0.0)
            error.usage = Usage(990, 10)
            raise error
        return ModelResponse(Message("assistant", (Text("done"),)), Usage(100, 50, cost_usd=0.01))

    async def close(self) -> None:
        pass


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def events(runtime: Runtime, run_id: str) -> list[Any]:
    return [event for _, event in await runtime.inside.runs.facts(run_id)]


@pytest.mark.parametrize(("limit", "requests"), [(150_000, 1), (450_000, 3), (None, 4)])
async def test_retries_end_where_the_limit_of_tokens_does(
    limit: int | None, requests: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with WireServer([BROKEN, BROKEN, BROKEN, Play(ANSWER)]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        monkeypatch.setattr(
            "foliot.runtime.inside.LOOK_EVERY", 0.01
        )  # the run waits between its tries, in a time of its own
        clerk = Agent("clerk", model="anthropic:claude-sonnet-4-5", limits={"max_tokens": limit} if limit else {})
        async with Runtime(tmp_path / "foliot.db", clock=lambda: time.time() * 200, lease_seconds=1e6) as runtime:
            ended = await _last(runtime, clerk, runtime.inside.new_run_id())
        assert len(server.requests) == requests
    assert ended.usage.input_tokens == 200_000 * requests
    assert type(ended).__name__ == ("RunSucceeded" if limit is None else "RunFailed")


async def test_what_was_wasted_is_told_and_stands_in_the_trace(runtime: Runtime) -> None:
    result = await runtime.run(_clerk(1), "go")
    facts = await runtime.inside.runs.facts(result.run_id)
    assert result.usage.total_tokens == 1_150
    trace = trace_of(result.run_id, facts)
    assert trace.usage.total_tokens == 1_150
    assert trace.steps[0].wasted.total_tokens == 1_000
    assert any("1,000 tokens of it" in line and "no answer" in line for line in cost_of(trace))


def _clerk(times: int) -> Agent:
    return Agent("clerk", model=Failing(times))


async def budget(runtime: Runtime, **limit: int) -> SqlBudgetLedger:
    document, problems = validate_document(
        {"kind": "Budget", "metadata": {"name": "team"}, "spec": {"limit": limit, "window": "day"}}
    )
    assert document is not None, problems
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.resources is not None
    assert parts.database is not None
    await parts.resources.write([Put(document)])
    return SqlBudgetLedger(parts.database)


async def test_a_budget_pays_for_every_attempt(runtime: Runtime) -> None:
    ledger = await budget(runtime, amount=1)
    result = await runtime.run(_clerk(1), "go")
    assert result.succeeded
    (found,) = await ledger.list("default")
    assert (found.balance.spent.micros, found.balance.spent.tokens) == (11_000, 1_150)
    assert found.balance.reserved.micros == 0


class Hanging(Failing):
    """Never ends; whoever stops it is told what it took."""

    def __init__(self) -> None:
        super().__init__(0)
        self.begun = asyncio.Event()

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cut:
            mark_cut(cut, Usage(700, 3))
            raise
        raise AssertionError


async def test_a_cancelled_question_is_paid_for(runtime: Runtime) -> None:
    model = Hanging()
    run_id = runtime.inside.new_run_id()
    running = asyncio.ensure_future(_last(runtime, Agent("clerk", model=model), run_id))
    await model.begun.wait()
    await runtime.inside.cancel(run_id, by="ann")
    last = await running
    assert isinstance(last, RunCancelled)
    assert last.usage.total_tokens == 703
    assert any(isinstance(event, ModelFailed) and event.kind == "cancelled" for event in await events(runtime, run_id))


async def _last(runtime: Runtime, agent: Agent, run_id: str) -> Any:
    last: Any = None
    async for item in runtime.stream(agent, "go", run_id=run_id):
        last = getattr(item, "event", last)
    return last


async def test_what_was_used_before_a_delay_is_counted_as_a_try_and_a_cancelled_run_leaves_the_line(
    runtime: Runtime,
) -> None:
    """The first endpoint breaks off, and its fallback has no room."""
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.resources is not None
    assert parts.database is not None
    broken, answer = Play(ANSWER, pieces=7, fault=Fault("error_event", after=4)), Play(ANSWER)
    async with WireServer(lambda _: broken) as first, WireServer(lambda _: answer) as second:
        address = {"provider": "anthropic", "default_model": "claude-sonnet-4-5", "auth": {"secretRef": "key"}}
        limited = {"rate_limit": {"requests": 1, "per": "1h"}}
        for kind, name, spec in (
            ("Secret", "key", {"stringData": {"value": "k"}}),
            ("ModelEndpoint", "main", {**address, "base_url": first.url, "fallbacks": ["spare"]}),
            ("ModelEndpoint", "spare", {**address, "base_url": second.url, **limited}),
            ("Agent", "clerk", {"model_ref": "main"}),
            ("Budget", "team", {"limit": {"tokens": 10_000_000}, "window": "day"}),
        ):
            document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None, problems
            await parts.resources.write([Put(document)])
        assert (await runtime.inside.run("clerk", "one", stream=True)).usage.input_tokens == 400_000
        second_run = asyncio.ensure_future(runtime.inside.run("clerk", "two", run_id="two", stream=True))
        while not any(isinstance(event, RunWaiting) for event in await events(runtime, "two")):
            await asyncio.sleep(0.01)
        _, state = await runtime.inside.runs.load("two")
        assert state.spent.tokens > 200_000
        assert state.model_failures == 1
        (delayed,) = [event for event in await events(runtime, "two") if isinstance(event, ModelDelayed)]
        assert delayed.failed == "overloaded"
        (found,) = await SqlBudgetLedger(parts.database).list("default")
        assert found.balance.spent.tokens > 600_000
        assert found.balance.reserved.tokens == 0
        assert await parts.database.read("model_place_first", key=await _line(parts.database), since=0.0)
        await runtime.inside.cancel("two", by="ann")
        await asyncio.gather(second_run, return_exceptions=True)
        assert not await parts.database.read("model_place_first", key=await _line(parts.database), since=0.0)


async def _line(database: Any) -> str:
    (row,) = await database.read("model_line_held", now=0.0)
    return row["key"]


# --- what is reserved is what can be spent -----------------------------------------------------------------------


class Wordy:
    """Writes 50,000 tokens, unless it is asked for fewer: then it is cut. A token costs a millionth of a dollar."""

    pricing = Pricing(1.0, 1.0)

    def __init__(self) -> None:
        self.bounds: list[int | None] = []

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        most = request.settings.max_output_tokens
        self.bounds.append(most)
        output = min(50_000, most or 50_000)
        stop = "length" if output < 50_000 else "end"
        usage = Usage(100, output, cost_usd=(100 + output) / 1e6)
        return ModelResponse(Message("assistant", (Text("words"),)), usage, stop=stop)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("limits", "settings", "reason", "most"),
    [
        ({"max_tokens": 5_000}, {}, "tokens", 5_000),
        ({"max_tokens": 5_000}, {"max_output_tokens": 9_000}, "tokens", 5_000),
        ({"max_cost_usd": 0.006}, {}, "cost_usd", 6_000),
    ],
)
async def test_an_answer_is_never_longer_than_the_limits_of_its_run_leave_room_for(
    runtime: Runtime, limits: dict[str, Any], settings: dict[str, Any], reason: str, most: int
) -> None:
    model = Wordy()
    clerk = Agent("clerk", model=model, limits=limits, model_settings=settings)
    result = await runtime.run(clerk, "go", check=False)
    assert (result.phase, result.reason) == ("failed", reason)
    assert 0.9 * most < result.usage.output_tokens <= most
    assert len(model.bounds) == 1


@pytest.mark.parametrize(("tokens", "bound"), [(100_000, 4_096), (10_000_000, 16_384)])
async def test_an_answer_is_never_longer_than_what_its_budget_reserved(
    runtime: Runtime, tokens: int, bound: int
) -> None:
    model, ledger = Wordy(), await budget(runtime, tokens=tokens)
    result = await runtime.run(Agent("clerk", model=model), "go", check=False)
    assert (result.phase, result.reason) == ("failed", "tokens")
    assert model.bounds == [bound]
    (found,) = await ledger.list("default")
    assert found.balance.spent.tokens == 100 + bound
    assert found.balance.reserved.tokens == 0


async def test_an_answer_within_its_own_bound_is_cut_by_that(runtime: Runtime) -> None:
    await budget(runtime, tokens=100_000)
    model = Wordy()
    clerk = Agent("clerk", model=model, model_settings={"max_output_tokens": 2_000})
    result = await runtime.run(clerk, "go", check=False)
    assert set(model.bounds) == {2_000}
    assert result.reason == "repairs_exhausted"


# --- attempts of which nobody heard the end -----------------------------------------------------------------------


class Stuck(Failing):
    """Does not answer the first `times`; nobody knows what these took."""

    def __init__(self, times: int) -> None:
        super().__init__(0)
        self.stuck = times
        self.begun = asyncio.Event()

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked += 1
        if self.asked <= self.stuck:
            self.begun.set()
            await asyncio.Event().wait()
        return ModelResponse(Message("assistant", (Text("done"),)), Usage(100, 50, cost_usd=0.01))


@pytest.mark.parametrize("times", [1, 2])
async def test_questions_of_processes_that_ended_are_counted_once_by_their_estimate(
    runtime: Runtime, times: int
) -> None:
    model, ledger = Stuck(times), await budget(runtime, amount=1)
    clerk, run_id = Agent("clerk", model=model), runtime.inside.new_run_id()
    for _ in range(times):
        model.begun.clear()
        asking = asyncio.ensure_future(runtime.run(clerk, "a question of some length", run_id=run_id))
        await model.begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    result = await runtime.run(clerk, "a question of some length", run_id=run_id)
    lost = result.usage.total_tokens - 150
    assert lost > 0
    assert lost % times == 0
    assert result.usage.source == "estimated"
    assert result.usage.cost_usd == pytest.approx(0.01 + lost / 1e6)
    (found,) = await ledger.list("default")
    assert (found.balance.spent.tokens, found.balance.reserved.tokens) == (150 + lost, 0)
    trace = trace_of(run_id, await runtime.inside.runs.facts(run_id))
    assert trace.steps[0].wasted.total_tokens == lost
    assert any("no answer" in line and "estimated" in line for line in cost_of(trace))


async def test_lost_questions_leave_no_room_where_there_is_none(runtime: Runtime) -> None:
    model, run_id = Stuck(1), runtime.inside.new_run_id()
    clerk = Agent("clerk", model=model, limits={"max_tokens": 60})
    words = "word " * 30
    asking = asyncio.ensure_future(runtime.run(clerk, words, run_id=run_id))
    await model.begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    result = await runtime.run(clerk, words, run_id=run_id, check=False)
    assert (result.phase, result.reason, model.asked) == ("failed", "tokens", 1)
    assert result.usage.input_tokens > 30
