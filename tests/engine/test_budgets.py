"""Declared budgets on real runs: what is reserved, spent, paused, woken and rolled up over delegation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from foliot.engine.budgets.declared import BudgetRule, DeclaredBudgets, Payer
from foliot.engine.budgets.run_budget import RunBudgets
from foliot.engine.budgets.service import BudgetService, Estimate, Hold
from foliot.engine.budgets.wakeups import paused_runs, wake_paused
from foliot.errors import Unavailable
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run.actions import AskModel
from foliot.kernel.run.events import BudgetExceeded, ModelFailed, RunFailed, RunResumed, StepStarted, ToolFinished
from foliot.models.base import ModelOverloaded
from foliot.models.routing.pricing import Pricing
from foliot.models.routing.usage import UsageQuote
from foliot.resources.definitions.tool import ToolSpec
from foliot.resources.validate import validate_document
from foliot.runtime.agent import Agent
from foliot.runtime.results import RunFailedError
from foliot.runtime.runtime import Runtime
from foliot.runtime.tools import ToolCaller
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import Delete, Key, Put, ResourceStore
from foliot.store.ledger.budgets import Amount, Balance, PaidAct, SqlBudgetLedger
from foliot.tools.function import tool

NOON = 1_794_830_400.0  # 2026-11-16 12:00 UTC
MIDNIGHT = NOON + 12 * 3600


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Model:
    """Answers from a list; every answer costs a cent. `asked` are the questions it really got."""

    pricing: Pricing | None = Pricing(input=0.0, output=10.0)  # a question may cost max_output_tokens * 10 millionths

    def __init__(self, *answers: str | ToolCall | Exception, cost: float | None = 0.01) -> None:
        self.answers = list(answers)
        self.cost = cost
        self.asked = 0

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else "done"
        if isinstance(answer, Exception):
            raise answer
        part = Text(answer) if isinstance(answer, str) else answer
        return ModelResponse(Message("assistant", (part,)), Usage(100, 50, cost_usd=self.cost))

    async def close(self) -> None:
        pass


class Unpriced(Model):
    pricing = None


def agent(model: Model, name: str = "clerk", **spec: Any) -> Agent:
    """One that asks for 2,000 tokens at most, so that two cents are reserved for each question."""
    return Agent(name, model=model, model_settings={"max_output_tokens": 2000}, **spec)


def budget(name: str = "team", **spec: Any) -> dict[str, Any]:
    document, problems = validate_document({"kind": "Budget", "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    return document


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def runtime(tmp_path: Path, clock: Clock) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db", clock=clock) as opened:
        yield opened


def store_of(runtime: Runtime) -> ResourceStore:
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.resources is not None
    return parts.resources


async def declare(runtime: Runtime, clock: Clock, *documents: dict[str, Any]) -> None:
    await store_of(runtime).write([Put(document) for document in documents])
    clock.now += 2  # a change is known within a second


def ledger_of(runtime: Runtime) -> SqlBudgetLedger:
    database = runtime.inside._open().database  # pyright: ignore[reportPrivateUsage]
    assert database is not None
    return SqlBudgetLedger(database)


async def balances(runtime: Runtime) -> dict[tuple[str, str, str], Balance]:
    found = await ledger_of(runtime).list("default")
    return {(each.account.budget, each.account.payer, each.account.period): each.balance for each in found}


async def facts(runtime: Runtime, run_id: str, kind: type) -> list[Any]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, kind)]


# --- spending ----------------------------------------------------------------------------------------------------


async def test_what_a_run_costs_is_counted_in_every_budget_that_applies(runtime: Runtime, clock: Clock) -> None:
    await declare(
        runtime,
        clock,
        budget("team", limit={"amount": 1, "tokens": 100_000}),
        budget("day", window="day", limit={"amount": 1}),
        budget("other", scope={"agent": "somebody-else"}, limit={"amount": 1}),
    )
    await runtime.run(agent(Model("one")), "go")
    assert await balances(runtime) == {
        ("team", "", "total"): Balance(Amount(10_000, 150)),
        ("day", "", "2026-11-16"): Balance(Amount(10_000, 150)),
    }


async def test_without_room_nothing_is_asked_and_the_run_waits_for_the_next_day(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(window="day", limit={"amount": "0.025"}))
    model = Model("one", "two")
    first = await runtime.run(agent(model), "go")
    assert first.succeeded
    second = await runtime.run(agent(model), "go")
    assert second.waiting is not None
    assert (second.phase, second.waiting.reason, second.waiting.owner) == ("waiting", "budget", "budget")
    assert second.waiting.until == MIDNIGHT + 1
    assert second.waiting.message == (
        "budget 'team' has no room: 0.01 of 0.025 USD are spent, and this may take 0.02; "
        "it begins anew at 2026-11-17 00:00 UTC"
    )
    assert model.asked == 1
    assert (await balances(runtime))["team", "", "2026-11-16"] == Balance(Amount(10_000, 150))

    clock.now = MIDNIGHT + 2
    third = await runtime.resume(second.run_id)
    assert third.succeeded
    replayed = await runtime.inside.replay(second.run_id)
    assert replayed.difference is None
    assert (await balances(runtime))["team", "", "2026-11-17"] == Balance(Amount(10_000, 150))


async def test_a_run_that_is_taken_up_too_early_waits_again(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.005"}))
    run = await runtime.run(agent(Model()), "go")
    assert run.waiting is not None
    assert run.waiting.until is None
    assert run.waiting.message.endswith("and this may take 0.02, more than the whole limit")
    again = await runtime.resume(run.run_id)
    assert again.waiting == run.waiting
    assert len(await facts(runtime, run.run_id, BudgetExceeded)) == 2


async def test_a_raised_limit_wakes_the_runs_that_wait_for_it(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.005"}))
    run = await runtime.run(agent(Model()), "go")
    assert [info.id for info in await paused_runs(runtime.inside.runs.journal, "default")] == [run.run_id]
    attending = asyncio.create_task(runtime.inside.attend(run.run_id))
    await declare(runtime, clock, budget(limit={"amount": "5"}))
    assert (await asyncio.wait_for(attending, 60)).succeeded


async def test_a_changed_budget_is_signalled_to_the_runs_that_wait(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    run = await runtime.run(agent(Unpriced()), "go")
    assert run.waiting is not None
    assert "the price of python:default/clerk is not known" in run.waiting.message
    assert await wake_paused(runtime.inside.runs.journal, "elsewhere", clock=clock) == 0
    await declare(runtime, clock, budget(limit={"amount": 1}, unpriced="allow"))
    assert await wake_paused(runtime.inside.runs.journal, "default", clock=clock) == 1
    (signal,) = await runtime.inside.runs.journal.signals([run.run_id])
    assert signal.type == "run.resumed"
    assert (await runtime.resume(run.run_id)).succeeded
    assert [event.reason for event in await facts(runtime, run.run_id, RunResumed)] == ["budget"]
    assert await runtime.inside.runs.journal.signals([run.run_id]) == []


async def test_a_budget_that_is_deleted_is_in_nobodys_way(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.005"}))
    run = await runtime.run(agent(Model()), "go")
    await store_of(runtime).write([Delete(Key("Budget", "default", "team"))])
    assert (await asyncio.wait_for(runtime.inside.attend(run.run_id), 60)).succeeded


async def test_a_budget_that_fails_ends_the_run_with_a_typed_error(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.005"}, on_exceeded="fail"))
    model = Model()
    with pytest.raises(RunFailedError) as caught:
        await runtime.run(agent(model), "go")
    (ended,) = await facts(runtime, caught.value.result.run_id, RunFailed)
    assert (ended.code, ended.reason) == ("budget_exceeded", "cost_usd")
    assert model.asked == 0


async def test_of_several_budgets_all_must_have_room(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget("wide", limit={"amount": 1}), budget("tight", limit={"tokens": 100}))
    run = await runtime.run(agent(Model()), "go")
    assert run.waiting is not None
    assert run.waiting.message.startswith("budget 'tight' has no room: 0 of 100 tokens are spent, and this may take ")
    assert {key[0]: each for key, each in (await balances(runtime)).items()} == {
        "wide": Balance(),
        "tight": Balance(),
    }


async def test_a_model_that_fails_costs_nothing(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    with pytest.raises(RunFailedError):
        await runtime.run(agent(Model(ModelOverloaded("no", retryable=False))), "go")
    assert (await balances(runtime))["team", "", "total"] == Balance()


async def test_an_answer_without_a_price_costs_what_was_reserved_for_it(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    await runtime.run(agent(Model("one", cost=None)), "go")
    assert (await balances(runtime))["team", "", "total"] == Balance(Amount(20_000, 150))


async def test_where_others_hold_what_is_missing_a_run_waits_in_place_until_they_settle(
    runtime: Runtime, clock: Clock
) -> None:
    """Each question holds twice what it costs: fifty runs at once, a few at a time, and none of them is paused."""
    await declare(runtime, clock, budget(limit={"amount": "0.52"}))
    model = Model()
    results = await asyncio.gather(*(runtime.run(agent(model), "go") for _ in range(50)))
    assert all(result.succeeded for result in results)
    assert (await balances(runtime))["team", "", "total"] == Balance(Amount(500_000, 7500))
    assert [await facts(runtime, result.run_id, BudgetExceeded) for result in results] == [[]] * 50


async def test_a_step_that_is_asked_again_after_a_failure_reserves_again(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    model = Model(ModelOverloaded("later", retry_after=0.0), "done")
    run = await runtime.run(agent(model), "go")
    assert [event.attempt for event in await facts(runtime, run.run_id, StepStarted)] == [1, 2]
    assert (await balances(runtime))["team", "", "total"] == Balance(Amount(10_000, 150))


async def test_hard_stops_and_warnings_are_in_the_audit_log(runtime: Runtime, clock: Clock, tmp_path: Path) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.03"}, warn=[30, 60]))
    model = Model("one", "two", "three")
    first = await runtime.run(agent(model), "go")
    second = await runtime.run(agent(model), "go")
    third = await runtime.run(agent(model), "go")
    assert (first.phase, second.phase, third.phase) == ("succeeded", "succeeded", "waiting")
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.audit is not None
    assert parts.database is not None
    await parts.audit.flush()
    found = await SqlAuditLog(parts.database).find(AuditFilter(moment="budget"))
    assert [(each.body["outcome"], each.body["run_id"], each.body["decision"]["rule"]) for each in found] == [
        ("paused", third.run_id, "Budget/team"),
        ("warned", second.run_id, "Budget/team"),
        ("warned", first.run_id, "Budget/team"),
    ]
    assert found[1].body["decision"]["message"] == "60 % of budget 'team' are spent"


PAYER = Payer("default", "r1", ("clerk",))


class Deaf(SqlBudgetLedger):
    """Reserves, and does not come back to say so."""

    reserved: asyncio.Event

    async def reserve(self, *args: Any, **kwargs: Any) -> Any:
        await super().reserve(*args, **kwargs)
        self.reserved.set()
        await asyncio.Event().wait()


async def test_what_was_reserved_for_somebody_who_was_stopped_meanwhile_is_given_back(
    runtime: Runtime, clock: Clock
) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    database = runtime.inside._open().database  # pyright: ignore[reportPrivateUsage]
    assert database is not None
    ledger = Deaf(database)
    ledger.reserved = asyncio.Event()
    service = BudgetService(ledger, DeclaredBudgets(store_of(runtime), clock=clock), clock=clock)

    async def payer() -> Payer:
        return PAYER

    async def estimate() -> Estimate:
        return Estimate(Amount(500_000), "m")

    task = asyncio.create_task(service.reserve("default", PaidAct("r1", "step/1/1"), payer, estimate))
    await asyncio.wait_for(ledger.reserved.wait(), 60)
    assert (await balances(runtime))["team", "", "total"].reserved == Amount(500_000)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await service.close()
    assert (await balances(runtime))["team", "", "total"] == Balance()


WALLET = BudgetRule("default", "team", micros=100)


async def reserved(ledger: SqlBudgetLedger, clock: Clock) -> int:
    (ceiling,) = WALLET.ceilings(PAYER, clock())
    return (await ledger.balances([ceiling.account]))[ceiling.account].reserved.micros


async def comes_to(ledger: SqlBudgetLedger, clock: Clock, micros: int) -> None:
    async with asyncio.timeout(60):
        while await reserved(ledger, clock) != micros:
            await asyncio.sleep(0.001)


class Away(SqlBudgetLedger):
    """Gives nothing back for a while, and says what is renewed."""

    away = True

    def opened(self) -> Away:
        self.renewed: asyncio.Queue[list[str]] = asyncio.Queue()
        return self

    async def release(self, *args: Any, **kwargs: Any) -> Any:
        if self.away:
            raise Unavailable("the store does not answer")
        return await super().release(*args, **kwargs)

    async def renew(self, holder: str, acts: Any = (), **kwargs: Any) -> Any:
        acts = list(acts)
        self.renewed.put_nowait([act.name for act in acts])
        return await super().renew(holder, acts, **kwargs)


async def test_what_could_not_be_given_back_is_neither_forgotten_nor_kept_alive(
    runtime: Runtime, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.engine.budgets.service.FIRST_PAUSE", 0.001)
    ledger = Away(ledger_of(runtime)._db).opened()  # pyright: ignore[reportPrivateUsage]
    service = BudgetService(ledger, DeclaredBudgets(store_of(runtime), clock=clock), clock=clock, hold_seconds=0.003)
    kept = await service.reserve_in([WALLET], PaidAct("r1", "step/1/1"), PAYER, Estimate(Amount(10), "m"))
    dropped = await service.reserve_in([WALLET], PaidAct("r2", "step/1/2"), PAYER, Estimate(Amount(80), "m"))
    assert isinstance(kept, Hold)
    assert isinstance(dropped, Hold)
    while not ledger.renewed.empty():
        ledger.renewed.get_nowait()
    service.let_go(dropped)
    assert await asyncio.wait_for(ledger.renewed.get(), 60) == ["step/1/1"]
    ledger.away = False
    await comes_to(ledger, clock, 10)
    await service.settle(kept, Amount(10))
    assert await reserved(ledger, clock) == 0
    await service.close()


class Late:
    """A database whose next reservation is answered with "may or may not be stored", and stored later."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._armed = True
        self.stores: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self._armed and body.__name__ == "_reserve"):
            return self._database.write(body, *args, **kwargs)
        self._armed = False
        self.stores = lambda: self._database.write(body, *args, **kwargs)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(Unavailable("the change may or may not be stored"))
        return answer


class Asked(SqlBudgetLedger):
    """Says when it has been asked to give something back."""

    asked: asyncio.Event

    async def release(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().release(*args, **kwargs)
        finally:
            self.asked.set()


@pytest.mark.parametrize("begins_again", [False, True])
async def test_a_reservation_that_is_stored_after_it_was_given_up_is_given_back(
    runtime: Runtime, clock: Clock, monkeypatch: pytest.MonkeyPatch, begins_again: bool
) -> None:
    monkeypatch.setattr("foliot.engine.budgets.service.FIRST_PAUSE", 0.001)
    late = Late(ledger_of(runtime)._db)  # pyright: ignore[reportPrivateUsage]
    ledger = Asked(late)  # pyright: ignore[reportArgumentType]
    ledger.asked = asyncio.Event()
    service = BudgetService(ledger, DeclaredBudgets(store_of(runtime), clock=clock), clock=clock)
    act = PaidAct("r1", "step/1/1")
    with pytest.raises(Unavailable):
        await service.reserve_in([WALLET], act, PAYER, Estimate(Amount(80), "m"))
    await asyncio.wait_for(ledger.asked.wait(), 60)
    if begins_again:  # then it is wanted, and must not be given back
        held = await service.reserve_in([WALLET], act, PAYER, Estimate(Amount(30), "m"))
        assert isinstance(held, Hold)
        await late.stores()
        ledger.asked.clear()
        assert await reserved(ledger, clock) == 30
        await service.settle(held, Amount(5))
        assert not ledger.asked.is_set()
    else:
        await late.stores()
    await comes_to(ledger, clock, 0)
    await service.close()


async def test_closing_does_not_wait_for_a_reservation_that_may_never_be_stored(runtime: Runtime, clock: Clock) -> None:
    ledger = Asked(Late(ledger_of(runtime)._db))  # pyright: ignore
    ledger.asked = asyncio.Event()
    service = BudgetService(ledger, DeclaredBudgets(store_of(runtime), clock=clock), clock=clock)
    with pytest.raises(Unavailable):
        await service.reserve_in([WALLET], PaidAct("r1", "step/1/1"), PAYER, Estimate(Amount(80), "m"))
    await asyncio.wait_for(ledger.asked.wait(), 60)
    (watching,) = service._loose  # pyright: ignore[reportPrivateUsage]
    await service.close()
    assert watching.done()
    assert not watching.cancelled()  # it ended by itself, and was not given up after a wait


async def test_what_cannot_be_checked_lets_nothing_begin(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))

    class Down(SqlBudgetLedger):
        async def reserve(self, *args: Any, **kwargs: Any) -> Any:
            raise Unavailable("the store does not answer")

    database = runtime.inside._open().database  # pyright: ignore[reportPrivateUsage]
    assert database is not None
    service = BudgetService(Down(database), DeclaredBudgets(store_of(runtime), clock=clock), clock=clock)
    model = Model()
    run = await runtime.run(agent(model), "go")
    _, state = await runtime.inside.runs.load(run.run_id)
    purse = RunBudgets(service, runtime.inside.runs.journal, runtime_quote).purse(state)
    fact = await purse.ask(AskModel(2, ModelRequest("m", ())), never)
    assert isinstance(fact, ModelFailed)
    assert (fact.retryable, "cannot be checked: the store does not answer" in fact.message) == (True, True)
    await service.close()


async def runtime_quote(spec: Any, request: ModelRequest) -> UsageQuote:
    return UsageQuote(1, 1, cost_usd=0.01)


async def never() -> Any:
    raise AssertionError("nothing is asked")


# --- tools -------------------------------------------------------------------------------------------------------


def priced_agent(model: Model, done: list[str]) -> Agent:
    @tool(effect="idempotent")
    async def search(query: str) -> str:
        done.append(query)
        return "found"

    dear = search.with_definition(replace(search.definition, price=50_000))
    return agent(model, tools=[dear])


async def test_a_call_with_a_price_is_reserved_for_and_settled(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": 1}))
    done: list[str] = []
    await runtime.run(priced_agent(Model(ToolCall("c1", "search", '{"query": "a"}'), "done"), done), "go")
    assert done == ["a"]
    assert (await balances(runtime))["team", "", "total"] == Balance(Amount(70_000, 300))


async def test_a_call_without_room_waits_and_is_made_when_there_is(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(limit={"amount": "0.05"}))
    done: list[str] = []
    model = Model(ToolCall("c1", "search", '{"query": "a"}'), "done")
    run = await runtime.run(priced_agent(model, done), "go")
    assert run.waiting is not None
    assert (run.waiting.reason, run.waiting.calls, done, model.asked) == ("budget", ("c1",), [], 1)
    await declare(runtime, clock, budget(limit={"amount": "1"}))
    assert (await runtime.resume(run.run_id)).succeeded
    assert (done, model.asked) == (["a"], 2)
    assert (await balances(runtime))["team", "", "total"] == Balance(Amount(70_000, 300))


async def test_a_call_outside_any_run_is_paid_for_and_asking_what_would_happen_is_free(
    tmp_path: Path, clock: Clock
) -> None:
    @tool(effect="read")
    async def search() -> str:
        return "found"

    dear = search.with_definition(replace(search.definition, price=50_000))
    async with Runtime(tmp_path / "foliot.db", clock=clock, tools=[dear]) as runtime:
        await declare(runtime, clock, budget(limit={"amount": "0.09"}))
        told = await runtime.inside.tools.test("search", {}, ToolCaller())
        assert told.outcome == "allow"
        assert await balances(runtime) == {}
        first = await runtime.inside.tools.call("search", {}, ToolCaller())
        second = await runtime.inside.tools.call("search", {}, ToolCaller())
        assert isinstance(first, ToolResult)
        assert isinstance(second, ToolResult)
        assert first.error is None
        assert second.error is not None
        assert (second.error.kind, second.error.details["rule"]) == ("budget_exceeded", "Budget/team")
        assert (await runtime.inside.tools.test("search", {}, ToolCaller())).outcome == "deny"
        assert (await balances(runtime))["team", "", "total"] == Balance(Amount(50_000))


# --- delegation --------------------------------------------------------------------------------------------------


async def test_what_is_delegated_is_spent_by_the_run_that_delegates(runtime: Runtime, clock: Clock) -> None:
    """One account for the whole tree, no cent of it counted twice."""
    await declare(
        runtime,
        clock,
        budget("each-run", window="run", limit={"amount": 1}),
        budget("boss-only", scope={"agent": "boss"}, limit={"amount": 1}),
        budget("each-agent", scope={"agent": "*"}, limit={"amount": 1}),
        budget("by-label", scope={"labels": {"team": "a"}}, limit={"amount": 1}),
    )
    helper = agent(Model("helped"), "helper")
    boss = agent(Model(ToolCall("c1", "agent:helper", '{"input": "help"}'), "done"), "boss", tools=[helper])
    run = await runtime.run(boss, "go", labels={"team": "a"})
    spent = {key: each.spent.micros for key, each in (await balances(runtime)).items()}
    assert spent == {
        ("each-run", "", f"run:{run.run_id}"): 30_000,
        ("boss-only", "", "total"): 30_000,
        ("each-agent", "agent=boss", "total"): 30_000,
        ("each-agent", "agent=helper", "total"): 10_000,
        ("by-label", "", "total"): 30_000,
    }
    assert run.usage.cost_usd == pytest.approx(0.03)


async def test_the_money_of_a_run_is_shared_with_those_it_delegates_to(runtime: Runtime) -> None:
    """A limit of the run itself: the child gets what is left of it, and what it spends is gone for its parent."""
    spinning = [ToolCall(f"c{n}", "look", "{}") for n in range(9)]

    @tool(effect="read")
    async def look() -> str:
        return "nothing"

    helper = agent(Model(*spinning), "helper", tools=[look])
    model = Model(ToolCall("c1", "agent:helper", '{"input": "help"}'), "done")
    boss = agent(model, "boss", tools=[helper], limits={"max_cost_usd": 0.035, "max_steps": 10})
    run = await runtime.run(boss, "go", check=False)
    (child,) = [info for info in await runtime.inside.runs.journal.list() if info.agent == "helper"]
    _, state = await runtime.inside.runs.load(child.id)
    assert state.spec.limits.max_cost_usd == pytest.approx(0.025)
    assert state.spent.cost_usd == pytest.approx(0.03)  # passed by one answer, whose price is known when it is there
    assert run.usage.cost_usd == pytest.approx(0.04)
    assert (run.phase, run.reason, model.asked) == ("failed", "cost_usd", 1)


async def test_a_child_without_room_waits_and_its_parent_with_it(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(scope={"agent": "helper"}, limit={"amount": "0.005"}))
    helper = agent(Model("helped"), "helper")
    boss = agent(Model(ToolCall("c1", "agent:helper", '{"input": "help"}'), "done"), "boss", tools=[helper])
    running = asyncio.create_task(runtime.run(boss, "go"))

    async def paused() -> bool:
        return bool(await paused_runs(runtime.inside.runs.journal, "default"))

    for _ in range(1000):
        if await paused():
            break
        await asyncio.sleep(0.01)
    assert not running.done()
    await declare(runtime, clock, budget(scope={"agent": "helper"}, limit={"amount": "1"}))
    assert (await asyncio.wait_for(running, 60)).succeeded


async def test_a_fork_is_spent_by_whom_the_original_was(runtime: Runtime, clock: Clock) -> None:
    await declare(
        runtime,
        clock,
        budget("by-label", scope={"labels": {"team": "a"}}, limit={"amount": "0.025"}),
        budget("by-user", scope={"user": "ann"}, limit={"amount": 1}),
    )
    original = await runtime.run(agent(Model("one", "two")), "go", labels={"team": "a"}, user="ann")
    assert original.succeeded

    fork = await runtime.inside.fork(original.run_id, at=1)

    assert fork.waiting is not None
    spent = {key[0]: each.spent.micros for key, each in (await balances(runtime)).items()}
    assert spent == {"by-label": 10_000, "by-user": 10_000}


async def test_each_user_has_an_account_and_what_is_delegated_is_theirs(runtime: Runtime, clock: Clock) -> None:
    await declare(runtime, clock, budget(scope={"user": "*"}, window="month", limit={"amount": "0.045"}))
    for user in ("ann", "ann", "bob"):
        helper = agent(Model("helped"), "helper")
        boss = agent(Model(ToolCall("c1", "agent:helper", '{"input": "help"}'), "done"), "boss", tools=[helper])
        if user == "ann" and await balances(runtime):
            assert (await runtime.run(boss, "go", user=user)).waiting is not None
        else:
            assert (await runtime.run(boss, "go", user=user)).succeeded
    assert (await runtime.run(agent(Model()), "go")).succeeded  # for nobody in particular
    spent = {key[1]: each.spent.micros for key, each in (await balances(runtime)).items()}
    assert spent == {"user=ann": 30_000, "user=bob": 30_000}


REFUSED_ADDRESS = "http://169.254.169.254/{account}"  # tools may not connect there
NO_SECRET = {"auth": {"profile": "bearer", "secretRef": "bank-token"}}
NO_TOKEN = {
    "auth": {
        "profile": "oauth2_client_credentials",
        "secretRef": "bank-client",
        "tokenURL": "https://169.254.169.254/token",
        "scopes": ["pay"],
    }
}
BANK = {
    "kind": "McpServer",
    "metadata": {"name": "bank"},
    "spec": {"transport": "http", "endpoint": "http://127.0.0.1:9"},
}
CLIENT = {
    "kind": "Secret",
    "metadata": {"name": "bank-client"},
    "spec": {"stringData": {"client_id": "clerk", "client_secret": "s3cret-of-the-clerk"}},
}

# For each type of tool: what keeps a call from leaving, with the code of the refusal.
STAYS: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "http": [
        ("invalid_input", {"endpoint": "https://bank.example/accounts/{account}"}, "../admin"),
        ("runtime_policy_invalid", {"endpoint": REFUSED_ADDRESS}, "7"),
        ("runtime_policy_invalid", {"endpoint": "http://127.0.0.1:9/{account}"}, "7"),
        ("secret_resolution_failed", {"endpoint": "https://bank.example", **NO_SECRET}, "7"),
        ("secret_resolution_failed", {"endpoint": "https://bank.example", **NO_TOKEN}, "7"),
    ],
    "external": [
        ("runtime_policy_invalid", {"endpoint": "http://169.254.169.254"}, "7"),
        ("secret_resolution_failed", {"endpoint": "https://bank.example", **NO_SECRET}, "7"),
    ],
    "webhook-callback": [
        ("runtime_policy_invalid", {"endpoint": "http://169.254.169.254"}, "7"),
        ("secret_resolution_failed", {"endpoint": "https://bank.example", **NO_SECRET}, "7"),
    ],
    "grpc": [
        ("runtime_policy_invalid", {"endpoint": "169.254.169.254:443"}, "7"),
        ("secret_resolution_failed", {"endpoint": "bank.example:443", **NO_SECRET}, "7"),
    ],
    "queue": [("execution_failed", {}, "7")],
    "mcp": [
        ("unsupported_tool", {"mcp_server_ref": "nobody", "mcp_tool_name": "pay"}, "7"),
        ("runtime_policy_invalid", {"mcp_server_ref": "bank", "mcp_tool_name": "pay"}, "7"),
    ],
    "wasm": [("runtime_policy_invalid", {"wasm": {"module": __file__, "digest": f"sha256:{'0' * 64}"}}, "7")],
    "function": [("invalid_input", {"function": "tests.engine.test_budgets:pay_out"}, "seven")],
    "cli": [
        ("invalid_input", {"cli": {"command": ["cat", "{account}"]}}, "-n"),
        (
            "runtime_policy_invalid",
            {"cli": {"command": ["cat"]}, "sandbox": {"mounts": [{"source": "/nowhere-at-all", "target": "/srv"}]}},
            "7",
        ),
        (
            "secret_resolution_failed",
            {
                "cli": {"command": ["cat"]},
                "sandbox": {
                    "network": [{"hosts": ["bank.example"]}],
                    "secrets": [{"secretRef": "bank-token", "hosts": ["bank.example"]}],
                },
            },
            "7",
        ),
    ],
}


def pay_out(account: int) -> str:
    raise AssertionError(f"the arguments do not fit, and yet {account} was paid")


def test_each_type_of_tool_is_in_the_table() -> None:
    assert set(STAYS) == set(get_args(ToolSpec.model_fields["type"].annotation))


@pytest.mark.parametrize(
    ("type", "code", "spec", "account"),
    [(type, code, spec, account) for type, rows in STAYS.items() for code, spec, account in rows],
)
async def test_a_call_that_cannot_leave_costs_nothing(
    tmp_path: Path, clock: Clock, type: str, code: str, spec: dict[str, Any], account: str
) -> None:
    clock.now = time.time()  # the deadline of a request over the network goes by the clock of the machine
    settings = load_settings(
        {"home": str(tmp_path), "nats": "nats://127.0.0.1:9", "tool_modules": __name__, "wasm_modules": "/"}, {}
    )
    spec = {
        "type": type,
        "effect": "once",
        "price_usd": "0.05",
        "input_schema": {"type": "object", "properties": {"account": {"type": "string"}}, "required": ["account"]},
        **spec,
    }
    documents = list[dict[str, Any]]()
    for each in (BANK, CLIENT, {"kind": "Tool", "metadata": {"name": "dial"}, "spec": spec}):
        document, problems = validate_document(each)
        assert document is not None, problems
        documents.append(document)
    async with Runtime(tmp_path / "foliot.db", clock=clock, settings=settings) as runtime:
        await declare(runtime, clock, budget(limit={"amount": 1}), *documents)
        model = Model(ToolCall("c1", "dial", json.dumps({"account": account})), "done")
        run = await runtime.run(agent(model, tools=["dial"]), "go")
        (finished,) = await facts(runtime, run.run_id, ToolFinished)
        assert finished.result.error is not None
        assert (finished.result.error.code, finished.result.error.before_effect) == (code, True)
        assert (await balances(runtime))["team", "", "total"] == Balance(Amount(20_000, 300))  # the model's answers
