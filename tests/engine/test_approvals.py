"""A call that needs an approval: asked, decided, expired, edited, and never done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Invocation, Runtime, ScriptedModel, tool
from foliot.engine.approval.service import ApprovalService
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, Denied, InvalidInput, NotFound, Unavailable
from foliot.kernel.arguments import arguments_digest
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import ApprovalDecided, ApprovalRequested, RunClaimed, ToolFinished, ToolStarted
from foliot.resources.validate import validate_document
from foliot.runtime.results import RunResult
from foliot.store.base import Delete, Document, Key, Put, ResourceStore
from foliot.store.journal.base import Entry, Signal
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.tools.base import Parked
from tests.journal_links import linked

ONE = [{"call": {"pay": {"to": "ada", "amount": 900, "api_key": "hunter2"}}}, {"say": "It says: {last_result}"}]
TWO = [
    {"call": [{"pay": {"to": "ada", "amount": 900}}, {"pay": {"to": "bob", "amount": 700}}]},
    {"say": "All is settled."},
]


class Clock:
    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A runtime whose tool `pay` needs an approval, and the ledger that it writes."""

    def __init__(self, store: Path | str) -> None:
        self.store = store
        self.clock = Clock()
        self.ledger: list[tuple[str, int]] = []
        self.started = asyncio.Event()

    def agent(self, script: list[dict[str, Any]], **spec: Any) -> Agent:
        @tool(effect="once")
        async def pay(to: str, amount: int, call: Invocation, api_key: str = "") -> str:
            """Pay somebody."""
            self.started.set()
            self.ledger.append((to, amount))
            return f"paid {amount} to {to}"

        return Agent("desk", model=ScriptedModel(script), tools=[pay], **spec)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        async with Runtime(self.store, clock=self.clock) as runtime:
            yield runtime

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[ResourceStore]:
        database = await open_database(str(self.store))
        try:
            yield SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
        finally:
            await database.close()

    async def rule(self, **spec: Any) -> None:
        raw = {
            "kind": "ToolPermission",
            "metadata": {"name": "payments"},
            "spec": {
                "tool_ref": "pay",
                "operation_rules": [{"operation_class": "*", "verdict": "approval_required"}],
                **spec,
            },
        }
        document, problems = validate_document(raw)
        assert document is not None, problems
        async with self.resources() as store:
            await store.write([Put(document)])


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "foliot.db")
    await desk.rule()
    return desk


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def shared_desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    """On each kind of store: for what several processes do at once."""
    store = tmp_path / "foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    desk = Desk(store)
    await desk.rule()
    return desk


async def all_of(service: ApprovalService, **wanted: Any) -> list[Document]:
    return [document async for document in service.list(**wanted)]


async def asked(runtime: Runtime, run_id: str = "r1") -> list[Document]:
    return await all_of(runtime.inside.approvals, run=run_id)


async def start(desk: Desk, runtime: Runtime, script: list[dict[str, Any]] = ONE, **spec: Any) -> tuple[RunResult, str]:
    """A run that waits; its result so far, and the name of its first approval."""
    result = await runtime.run(desk.agent(script, **spec), "pay them", run_id="r1", check=False)
    assert result.phase == "waiting", result
    documents = await asked(runtime)
    return result, documents[0]["metadata"]["name"]


async def facts_of(runtime: Runtime, kind: type[Any], run_id: str = "r1") -> list[Any]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, kind)]


async def count(runtime: Runtime, kind: str, run_id: str = "r1") -> int:
    return [type_of(event) for _, event in await runtime.inside.runs.facts(run_id)].count(kind)


# --- asking ------------------------------------------------------------------------------------------------------


async def test_a_parked_call_is_stored_with_what_it_is_bound_to_and_without_its_secrets(desk: Desk) -> None:
    async with desk.open() as runtime:
        result, name = await start(desk, runtime)
        (document,) = await asked(runtime)

    assert result.waiting is not None
    assert (result.waiting.reason, result.waiting.until) == ("approval", desk.clock.now + 72 * 3600)
    spec, status = document["spec"], document["status"]
    assert (spec["run"], spec["tool"], spec["agent"]) == ("r1", "pay", "desk")
    assert spec["arguments"] == {"to": "ada", "amount": 900, "api_key": "[REDACTED]"}
    assert spec["arguments_digest"] == arguments_digest({"to": "ada", "amount": 900, "api_key": "hunter2"})
    assert "ToolPermission/payments" in spec["reason"]
    assert spec["operation_class"] == "write"
    assert (status["phase"], status["expires_at"]) == ("Pending", "2030-03-20T17:46:40.000Z")
    assert "hunter2" not in str(document)
    assert validate_document(document)[1] == []
    assert name.startswith("ap-")
    assert desk.ledger == []


async def test_a_run_that_waits_for_a_person_is_not_slept_through_until_the_question_expires(desk: Desk) -> None:
    async with desk.open() as runtime:
        result, _ = await start(desk, runtime)  # would take ten minutes
    assert result.phase == "waiting"


# --- deciding ----------------------------------------------------------------------------------------------------


async def test_an_approved_call_is_made_once_and_the_model_is_not_asked_again(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        info = await runtime.inside.decide_approval(name, "approve", by="ann", comment="fine")
        result = await runtime.resume("r1")
        (decided,) = await facts_of(runtime, ApprovalDecided)
        (document,) = await asked(runtime)

        assert info.phase == "succeeded"
        assert result.output == "It says: paid 900 to ada"
        assert desk.ledger == [("ada", 900)]
        assert await count(runtime, "model.responded") == 2
        assert (decided.decision, decided.by, decided.reason) == ("approve", "ann", "fine")
        status = document["status"]
        assert (status["phase"], status["decision"], status["decided_by"]) == ("Approved", "approved", "ann")
        assert (await runtime.inside.replay("r1")).difference is None


async def test_a_denied_call_is_told_to_the_model(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        await runtime.inside.decide_approval(name, "deny", by="ann", comment="too much")
        result = await runtime.resume("r1")

    assert "not approved by ann: too much" in result.output
    assert desk.ledger == []


async def test_a_decision_made_by_another_process_is_heard_when_the_run_is_taken_up(desk: Desk) -> None:
    async with desk.open() as first:
        _, name = await start(desk, first)
    async with desk.open() as elsewhere:
        await elsewhere.inside.approvals.decide(name, "approve", by="ann")
    async with desk.open() as again:
        result = await again.resume("r1", agent=desk.agent(ONE))

    assert result.succeeded
    assert desk.ledger == [("ada", 900)]


async def test_of_an_approval_and_a_denial_at_once_one_wins_and_the_other_is_told(shared_desk: Desk) -> None:
    desk = shared_desk
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        async with desk.open() as other:
            outcomes = await asyncio.gather(
                *(
                    each.inside.approvals.decide(name, decision, by=by)
                    for each, decision, by in (
                        (runtime, "approve", "ann"),
                        (other, "deny", "bob"),
                        (runtime, "deny", "cy"),
                        (other, "approve", "dan"),
                    )
                ),
                return_exceptions=True,
            )
        won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        told = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
        await runtime.resume("r1", check=False)

        assert (len(won), len(told)) == (1, 3)
        winner = won[0].document["status"]
        for error in told:
            assert error.details["decided_by"] == winner["decided_by"]
            assert winner["decided_by"] in error.message
            assert winner["decided_at"] in error.message
        (decided,) = await facts_of(runtime, ApprovalDecided)
        assert decided.by == winner["decided_by"]
        assert len(desk.ledger) == (winner["phase"] == "Approved")


async def test_a_decision_is_taken_once(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        await runtime.inside.decide_approval(name, "approve", by="ann")
        for decision in ("approve", "deny"):
            with pytest.raises(Conflict, match="decided before: approved by ann"):
                await runtime.inside.decide_approval(name, decision, by="bob")
        assert len(desk.ledger) == 1


async def test_only_the_named_approvers_may_decide(desk: Desk) -> None:
    await desk.rule(approvers=["ann", "zoe"])
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        with pytest.raises(Denied, match="bob may not decide") as caught:
            await runtime.inside.decide_approval(name, "approve", by="bob")
        assert caught.value.hint == "these may: ann, zoe"
        with pytest.raises(InvalidInput, match="needs the name"):
            await runtime.inside.decide_approval(name, "approve", by=" ")
        assert desk.ledger == []
        assert (await runtime.inside.decide_approval(name, "approve", by="zoe")).phase == "succeeded"


async def test_two_gated_calls_of_one_step_are_two_approvals_and_both_are_needed(desk: Desk) -> None:
    async with desk.open() as runtime:
        await start(desk, runtime, TWO)
        first, second = await asked(runtime)
        assert first["metadata"]["name"] != second["metadata"]["name"]

        info = await runtime.inside.decide_approval(first["metadata"]["name"], "approve", by="ann")
        assert info.phase == "waiting"
        assert len(desk.ledger) == 1
        info = await runtime.inside.decide_approval(second["metadata"]["name"], "approve", by="ann")

        assert info.phase == "succeeded"
        assert sorted(desk.ledger) == [("ada", 900), ("bob", 700)]
        assert await count(runtime, "model.responded") == 2
        assert await count(runtime, "approval.requested") == 2


async def test_one_of_two_calls_may_be_denied(desk: Desk) -> None:
    async with desk.open() as runtime:
        await start(desk, runtime, TWO)
        for document in await asked(runtime):
            decision = "approve" if document["spec"]["arguments"]["to"] == "bob" else "deny"
            await runtime.inside.decide_approval(document["metadata"]["name"], decision, by="ann")

        assert desk.ledger == [("bob", 700)]
        assert (await runtime.resume("r1")).succeeded


# --- edited arguments --------------------------------------------------------------------------------------------


async def test_edited_arguments_are_what_the_tool_gets_and_what_the_grant_covers(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        shown = (await runtime.inside.approvals.get(name))["spec"]["arguments"]
        await runtime.inside.decide_approval(name, "edit", by="ann", arguments={**shown, "amount": 450})
        result = await runtime.resume("r1")
        (document,) = await asked(runtime)
        (decided,) = await facts_of(runtime, ApprovalDecided)

    assert desk.ledger == [("ada", 450)]
    assert "A person changed the arguments" in result.output
    status = document["status"]
    assert (status["phase"], status["decision"], status["decided_by"]) == ("Approved", "edited", "ann")
    assert status["edited_arguments"] == {"to": "ada", "amount": 450, "api_key": "[REDACTED]"}
    assert status["granted_digest"] == arguments_digest({"to": "ada", "amount": 450, "api_key": "hunter2"})
    assert '"hunter2"' in decided.arguments  # the masked value was left as shown, so it is the real one
    assert "hunter2" not in str(document)


async def test_edited_arguments_must_fit_the_tool_before_anything_is_decided(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        with pytest.raises(InvalidInput, match="amount"):
            await runtime.inside.decide_approval(name, "edit", by="ann", arguments={"to": "ada", "amount": "lots"})
        with pytest.raises(InvalidInput, match="only stands for a value"):
            await runtime.inside.decide_approval(name, "edit", by="ann", arguments={"to": "[REDACTED]", "amount": 1})
        with pytest.raises(InvalidInput, match="given with the decision"):
            await runtime.inside.decide_approval(name, "approve", by="ann", arguments={"to": "ada", "amount": 1})
        with pytest.raises(InvalidInput, match="given with the decision"):
            await runtime.inside.decide_approval(name, "edit", by="ann")

        assert (await runtime.inside.approvals.get(name))["status"]["phase"] == "Pending"
        assert desk.ledger == []


async def test_an_edit_that_changes_nothing_is_an_approval(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        shown = (await runtime.inside.approvals.get(name))["spec"]["arguments"]
        await runtime.inside.decide_approval(name, "edit", by="ann", arguments=shown)
        (decided,) = await facts_of(runtime, ApprovalDecided)

    assert decided.decision == "approve"
    assert desk.ledger == [("ada", 900)]


# --- time --------------------------------------------------------------------------------------------------------


async def test_an_expired_question_counts_as_expired_whenever_it_is_looked_at(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        desk.clock.now += 72 * 3600
        assert (await runtime.inside.approvals.get(name))["status"]["phase"] == "Expired"
        with pytest.raises(Conflict, match="has expired at 2030-03-20T17:46:40"):
            await runtime.inside.decide_approval(name, "approve", by="ann")

        result = await runtime.resume("r1")

        assert "nobody approved the call in time" in result.output
        (document,) = await asked(runtime)
        assert document["status"]["reason"] == "nobody decided in time"
        assert desk.ledger == []


@pytest.mark.parametrize("execution", [{"on_denied": "fail"}, {"on_expiry": "fail"}])
async def test_a_question_that_expired_can_end_the_run_by_policy(desk: Desk, execution: dict[str, str]) -> None:
    async with desk.open() as runtime:
        await start(desk, runtime, execution=execution)
        desk.clock.now += 72 * 3600 + 1

        result = await runtime.resume("r1", check=False)

    assert (result.phase, result.reason) == ("failed", "approval_denied")
    assert desk.ledger == []


async def test_a_decision_in_time_holds_however_late_the_run_is_taken_up(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        desk.clock.now += 72 * 3600 - 1
        await runtime.inside.approvals.decide(name, "approve", by="ann")
        desk.clock.now += 1_000_000
        result = await runtime.resume("r1")

    assert result.succeeded
    assert desk.ledger == [("ada", 900)]


# --- crashes -----------------------------------------------------------------------------------------------------


async def test_an_object_that_was_never_made_is_made_when_somebody_looks(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        async with desk.resources() as store:
            await store.write([Delete(Key("ToolApproval", "default", name))])
        assert await asked(runtime) == []

        await runtime.inside.approvals.repair()
        (document,) = await asked(runtime)
        assert document["spec"]["arguments"]["to"] == "ada"
        async with desk.resources() as store:
            await store.write([Delete(Key("ToolApproval", "default", name))])
        await runtime.resume("r1")  # by whoever takes the run up, too
        (document,) = await asked(runtime)

        assert document["spec"]["operation_class"] == "write"
        assert (await runtime.inside.decide_approval(name, "approve", by="ann")).phase == "succeeded"


class LosesSignals:
    """A journal in front of a process that dies before the run is told."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def signal(self, signal: Signal, **_: Any) -> None:
        raise Unavailable("the process died here")


@pytest.mark.parametrize("decision", ["approve", "deny", "edit"])
async def test_a_decision_whose_signal_was_never_sent_is_heard_all_the_same(desk: Desk, decision: Any) -> None:
    arguments = {"to": "eve", "amount": 5} if decision == "edit" else None
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        async with desk.resources() as store:
            dying = ApprovalService(store, LosesSignals(runtime.inside.runs.journal), clock=desk.clock)  # pyright: ignore[reportArgumentType] - forwards the rest
            with pytest.raises(Unavailable):
                await dying.decide(name, decision, by="ann", arguments=arguments)
        assert await runtime.inside.runs.journal.signals(["r1"]) == []

        result = await runtime.resume("r1")

    assert result.succeeded
    assert desk.ledger == {"approve": [("ada", 900)], "deny": [], "edit": [("eve", 5)]}[decision]


async def test_a_cancelled_run_leaves_no_open_question(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        assert (await runtime.inside.cancel("r1", by="ann")).phase == "cancelled"
        (document,) = await asked(runtime)
        assert document["status"]["phase"] == "Expired"
        assert "cancelled" in document["status"]["reason"]
        with pytest.raises(Conflict, match="has expired"):
            await runtime.inside.decide_approval(name, "approve", by="ann")


async def test_a_forged_decision_in_the_journal_alone_lets_nothing_pass(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        (event,) = await facts_of(runtime, ApprovalRequested)
        forged = ApprovalDecided(event.call_id, "approve", by="mallory", approval_id=name)
        await runtime.inside.runs.journal.signal(signal("r1", forged, desk.clock.now))
        result = await runtime.resume("r1")

        assert "does not cover this call" in result.output
        assert desk.ledger == []
        assert await count(runtime, "tool.started") == 0


async def test_a_grant_does_not_cover_other_arguments_than_were_decided_on(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        await runtime.inside.approvals.decide(name, "approve", by="ann")
        async with desk.resources() as store:
            document = await store.get(Key("ToolApproval", "default", name))
            status = {**document["status"], "granted_digest": arguments_digest({"to": "ada", "amount": 1})}
            await store.write([Put({**document, "status": status}, only="status")])
        result = await runtime.resume("r1")

    assert "does not cover this call" in result.output
    assert desk.ledger == []


async def test_an_object_that_was_changed_after_it_was_asked_decides_nothing(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        async with desk.resources() as store:
            document = await store.get(Key("ToolApproval", "default", name))
            other = {**document["spec"], "arguments_digest": arguments_digest({"to": "eve", "amount": 1})}
            with pytest.raises(Denied, match="asked by a run"):
                await store.write([Put({**document, "spec": other})])
            await store.write([Put({**document, "spec": other}, own=True)])
        with pytest.raises(Conflict, match="it was changed"):
            await runtime.inside.decide_approval(name, "approve", by="ann")
        assert desk.ledger == []
        assert (await runtime.inside.approvals.get(name))["spec"] == document["spec"]


class NeverBelieves:
    """A toolbox whose gate asks again, whatever was decided."""

    def definition(self, name: str) -> None:
        return None

    async def admit(self, call: Invocation) -> Parked:
        return Parked("ap-other", "sha256:0", "it always asks")


async def test_a_gate_that_asks_again_after_a_decision_refuses_instead_of_going_round_in_circles(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        await runtime.inside.approvals.decide(name, "approve", by="ann")
        driver = await runtime.inside.runs.take("r1", tools=NeverBelieves())
        async with asyncio.timeout(60):
            state = await runtime.inside.runs.drive(driver)

        (finished,) = await facts_of(runtime, ToolFinished)
        assert finished.result.error.reason == "approval_not_valid"
        assert state.ended is not None
        assert desk.ledger == []


async def test_a_restart_between_the_decision_and_the_call_makes_the_call_once(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        decided = await runtime.inside.approvals.decide(name, "approve", by="ann")
        # The process that heard it dies right after the decision is in the journal.
        lease = await runtime.inside.runs.journal.claim(
            "r1", worker="gone", now=desk.clock.now, until=desk.clock.now + 1
        )
        facts = await runtime.inside.runs.journal.read("r1")
        claimed = RunClaimed(2, "gone", lease.epoch)
        entries = [
            Entry(len(facts) + 1, desk.clock.now, "run.claimed", encode(claimed)),
            Entry(len(facts) + 2, desk.clock.now, "approval.decided", decided.signal.data),
        ]
        await runtime.inside.runs.journal.append(lease, linked("r1", facts, entries), taken=[decided.signal.id])
        desk.clock.now += 2

        result = await runtime.resume("r1")

        assert result.succeeded
        assert desk.ledger == [("ada", 900)]
        assert await count(runtime, "approval.decided") == 1
        assert len(await facts_of(runtime, ToolStarted)) == len(await facts_of(runtime, ToolFinished)) == 1


# --- staying with a run ------------------------------------------------------------------------------------------


async def test_whoever_stays_with_a_run_goes_on_with_it_when_somebody_else_decides(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        staying = asyncio.create_task(runtime.inside.attend("r1"))
        async with desk.open() as other, asyncio.timeout(60):
            while not (await other.inside.approvals.get(name))["status"].get("attended_by"):
                await asyncio.sleep(0.01)
            await other.inside.approvals.decide(name, "approve", by="ann")
            result = await staying

    assert result.succeeded
    assert desk.ledger == [("ada", 900)]


async def test_who_asks_for_an_approval_that_is_not_there_is_told(desk: Desk) -> None:
    async with desk.open() as runtime:
        _, name = await start(desk, runtime)
        with pytest.raises(NotFound, match="no approval 'nope'"):
            await runtime.inside.approvals.find("nope")
        assert (await runtime.inside.approvals.find(name[:8]))["metadata"]["name"] == name
