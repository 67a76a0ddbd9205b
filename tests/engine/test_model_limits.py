"""Runs above the limit of their model wait, in order, and hold nothing; one step has one budget of tries."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.catalog.apply import apply_documents
from foliot.engine.budgets.wakeups import models_changed
from foliot.engine.definition.freeze import ENDPOINT
from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import RunLiveness, explain
from foliot.engine.limits.shared import SharedTurns
from foliot.kernel.messages import Message, ModelResponse, Text, Usage
from foliot.kernel.run.events import Event, ModelDelayed, ModelFailed, RunSucceeded, RunWaiting
from foliot.kernel.run.spec import RunSpec
from foliot.resources.rates import Declarer, RateLimits
from foliot.resources.validate import validate_document
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.open import open_database
from simulators.provider import Fault, Play, WireServer

CHAOS = bool(os.environ.get("FOLIOT_CHAOS"))
RUNS, REQUESTS, PER = (1600, 160, 2.0) if CHAOS else (24, 8, 1.5)
ANSWER = ModelResponse(Message("assistant", (Text("done"),)), usage=Usage(10, 5), model="m")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(store=str(tmp_path / "store.db")) as opened:
        yield opened


async def declare(runtime: Runtime, server: WireServer, **endpoint: Any) -> None:
    main = {"provider": "openai-compatible", "base_url": f"{server.url}/v1", "default_model": "m", **endpoint}
    documents: list[Any] = []
    for kind, name, spec in (("ModelEndpoint", "main", main), ("Agent", "clerk", {"model_ref": "main"})):
        document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        documents.append(document)
    await apply_documents(runtime.inside.resources, documents)


async def facts(runtime: Runtime, run_id: str) -> list[Event]:
    return [event for _, event in await runtime.inside.runs.facts(run_id)]


async def until(runtime: Runtime, run_id: str, kind: type[Event]) -> None:
    """Until the journal of a run holds such a fact."""
    while not any(isinstance(event, kind) for event in await facts(runtime, run_id)):
        await asyncio.sleep(0.01)


def most_in_any_window(times: list[float], seconds: float) -> int:
    return max(sum(start <= at < start + seconds for at in times) for start in times)


async def test_runs_above_the_limit_all_succeed_in_order(runtime: Runtime) -> None:
    heard: list[str] = []

    def answer(request: Any) -> ModelResponse:
        heard.append(request.json["messages"][-1]["content"])
        return ANSWER

    taken: list[float] = []
    promised: dict[str, float] = {}
    late = 0.0  # so much later than promised somebody came for a turn: on a busy machine others go first then
    turns = runtime.inside._assembly.models._router.turns
    real = turns.take

    async def take(key: str, asker: str, *args: Any, **more: Any) -> Any:
        nonlocal late
        if (turn := await real(key, asker, *args, **more)).wait <= 0:
            taken.append(turn.at)
            late = max(late, turn.at - promised.get(asker, turn.at))
        else:
            promised[asker] = turns._clock() + turn.wait
        return turn

    turns.take = take
    async with WireServer(answer) as server:
        await declare(runtime, server, rate_limit={"requests": REQUESTS, "per": f"{int(PER * 1000)}ms"})
        runs = [asyncio.create_task(runtime.run("clerk", f"{number}", run_id=f"r{number}")) for number in range(RUNS)]
        done = await asyncio.gather(*runs)

    assert [result.phase for result in done] == ["succeeded"] * RUNS
    assert len(heard) == RUNS  # nobody asked in vain
    began = {f"r{n}": (await runtime.inside.runs.facts(f"r{n}"))[0][0] for n in range(RUNS)}
    by_start = sorted(range(RUNS), key=lambda n: began[f"r{n}"])
    place = {int(text): position for position, text in enumerate(heard)}
    # Those of one window go in any order; nobody is overtaken by a later one.
    most = (2 + late / PER) * REQUESTS
    assert max(abs(place[number] - position) for position, number in enumerate(by_start)) <= most
    # The limit holds where turns are taken; on the way to the server some are faster than others.
    assert most_in_any_window(taken, PER) <= REQUESTS
    assert len(taken) == RUNS
    late = await facts(runtime, f"r{by_start[-1]}")
    assert any(isinstance(event, ModelDelayed) for event in late)
    assert not any(isinstance(event, ModelFailed) for event in late)


async def test_a_run_that_waits_for_its_turn_holds_nothing_says_why_and_goes_on_when_the_limit_is_gone(
    runtime: Runtime,
) -> None:
    async with WireServer(lambda _: ANSWER) as server:
        await declare(runtime, server, rate_limit={"requests": 1, "per": "1h"})
        await runtime.run("clerk", "first")
        second = asyncio.create_task(runtime.run("clerk", "second", run_id="second"))
        third = asyncio.create_task(runtime.run("clerk", "third", run_id="third"))
        for run_id in ("second", "third"):
            await until(runtime, run_id, RunWaiting)
        info, state = await runtime.inside.runs.load("second")
        assert (info.phase, info.worker) == ("waiting", None)
        assert state.waiting is not None
        assert (state.waiting.reason, state.model_failures) == ("model_limit", 0)
        trace = trace_of("second", await runtime.inside.runs.facts("second"))
        told = explain(trace, RunLiveness(info.phase), state.spec, runtime.inside.clock())
        assert told.headline.startswith("It waits for its turn at the model, in about ")
        assert "allows 1 requests in 3600 s" in told.chain[0]

        await declare(runtime, server)
        database = runtime.inside._open().database
        assert database is not None
        await models_changed(database, "default", clock=runtime.inside.clock)
        assert [(await task).phase for task in (second, third)] == ["succeeded"] * 2
        assert any(isinstance(event, RunSucceeded) for event in await facts(runtime, "third"))


@pytest.mark.parametrize("adapter", [False, True], ids=["endpoint", "adapter"])
async def test_one_step_of_a_dead_endpoint_is_tried_four_times_in_all(tmp_path: Path, adapter: bool) -> None:
    now = 1_700_000_000.0
    async with (
        WireServer(lambda _: Play(fault=Fault("status", status=503))) as server,
        Runtime(store=str(tmp_path / "store.db"), clock=lambda: now) as runtime,
    ):
        await declare(runtime, server)
        spec = RunSpec("clerk", "m", extra={ENDPOINT: "default/main"})
        if adapter:
            pytest.importorskip("pydantic_ai")
            from pydantic_ai.models.openai import OpenAIChatModel
            from pydantic_ai.providers.openai import OpenAIProvider

            from foliot.models.gateways.pydantic_ai import PydanticAIGateway

            model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="k"))
            runtime.inside._assembly.models.serve("adapted", PydanticAIGateway(model))
            spec = RunSpec("clerk", "adapted")
        driver = await runtime.inside.runs.start(spec, [Message("user", (Text("go"),))], run_id="r")
        state = await runtime.inside.runs.drive(driver)
        while state.ended is None:
            now += 100
            state = await runtime.inside.runs.drive(await runtime.inside.runs.take("r"))
        assert state.ended.reason == "overloaded"
        assert len(server.requests) == 4


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def test_three_processes_stay_below_the_strictest_limit_of_their_key_together(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One declares six in a second, one nine, one nothing."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "store.db")
    database = await open_database(url)
    turns = SharedTurns(SqlModelLimits(database), clock=time.time)
    await turns.take("k", "before", RateLimits(6, per=1.0), 0, queue=True, by=Declarer("default/a", "m", "1"))
    await database.close()
    out = tmp_path / "times"
    script = Path(__file__).with_name("model_limit_process.py")
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, str(script), url, str(out), name, "6", most, "1.0")
        for name, most in (("a", "6"), ("b", "9"), ("c", "0"))
    ]
    assert [await process.wait() for process in processes] == [0, 0, 0]
    times = sorted(float(line) for line in out.read_text().split())
    assert len(times) == 18
    assert most_in_any_window(times, 1.0) <= 6


async def test_a_pause_that_one_process_was_told_holds_the_others(tmp_path: Path) -> None:
    """No endpoint declares a limit; what the first was told is known to the second before it asks."""
    store = str(tmp_path / "store.db")
    refused = Play(fault=Fault("status", status=429, headers={"Retry-After": "50"}))
    async with WireServer(lambda _: refused) as server, Runtime(store=store) as one, Runtime(store=store) as other:
        await declare(one, server)
        first = asyncio.create_task(one.run("clerk", "go", run_id="first"))
        await until(one, "first", RunWaiting)
        second = asyncio.create_task(other.run("clerk", "go", run_id="second"))
        await until(other, "second", ModelDelayed)
        assert len(server.requests) == 1
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_a_limit_is_forgotten_with_its_endpoint(runtime: Runtime) -> None:
    async with WireServer(lambda _: ANSWER) as server:
        await declare(runtime, server, rate_limit={"requests": 5})
        await runtime.run("clerk", "first")
        database = runtime.inside._open().database
        assert database is not None
        limits = SqlModelLimits(database)
        await models_changed(database, "default", clock=runtime.inside.clock)
        assert [endpoint for endpoint, _ in await limits.declarers("default")] == ["default/main"]
        await declare(runtime, server)
        await models_changed(database, "default", clock=runtime.inside.clock)
        assert await limits.declarers("default") == []


async def test_who_stands_behind_somebody_that_leaves_goes_on_earlier(runtime: Runtime) -> None:
    """One in an hour; the turn of the third comes after two, and after one when the second is cancelled."""
    async with WireServer(lambda _: ANSWER) as server:
        await declare(runtime, server, rate_limit={"requests": 1, "per": "1h"})
        await runtime.run("clerk", "first")
        waiting: list[asyncio.Task[Any]] = []
        for run_id in ("second", "third"):
            waiting.append(asyncio.create_task(runtime.run("clerk", run_id, run_id=run_id)))
            await until(runtime, run_id, RunWaiting)
        await runtime.inside.cancel("second", by="ann")
        dues: list[float] = []
        while len(dues) < 2:
            dues = [event.until for event in await facts(runtime, "third") if isinstance(event, ModelDelayed)]
            await asyncio.sleep(0.01)
        assert dues[0] - dues[1] == pytest.approx(3600, abs=60)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
