"""People who try to let a call pass that they have no say in: as the asker, twice, by a grant, by a changed object.

Where several act at once they are several runtimes on one store, SQLite and PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.approval.documents import current_digest
from foliot.engine.approval.grants import StoredGrants
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, Denied, NotFound
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.events import InputReceived, ToolStarted
from foliot.resources.validate import validate_document
from foliot.store.access.tokens import SqlTokens
from foliot.store.access.users import SqlUsers
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import Document, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore

NOW = 1_900_000_000.0
PAY = {"to": "ada", "amount": 900}


class House:
    """A store with one tool, `pay`, for which a rule asks."""

    def __init__(self, store: Path | str) -> None:
        self.store = store
        self.now = NOW
        self.paid: list[tuple[str, int]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        async with Runtime(self.store, clock=lambda: self.now) as runtime:
            yield runtime

    def agent(self, calls: int = 1, **spec: Any) -> Agent:
        @tool(effect="once")
        async def pay(to: str, amount: int) -> str:
            """Pay somebody."""
            self.paid.append((to, amount))
            return "paid"

        script = [{"call": {"pay": {**PAY, "amount": 900 + number}}} for number in range(calls)]
        return Agent("desk", model=ScriptedModel([*script, {"say": "done"}]), tools=[pay], **spec)

    async def rule(self, name: str = "payments", **spec: Any) -> None:
        asks = [{"operation_class": "*", "verdict": "approval_required"}]
        raw = {
            "kind": "ToolPermission",
            "metadata": {"name": name},
            "spec": {"tool_ref": "pay", "operation_rules": asks, **spec},
        }
        document, problems = validate_document(raw)
        assert document is not None, problems
        await self.write(document)

    async def write(self, document: Document, *, own: bool = False) -> None:
        database = await open_database(str(self.store))
        try:
            store = SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
            await store.write([Put(document, own=own)])
        finally:
            await database.close()

    async def ask(self, runtime: Runtime, run: str = "r1", *, user: str = "ann", **spec: Any) -> str:
        """Begin a run for ann, which waits; the name of its approval."""
        result = await runtime.run(self.agent(**spec), "pay", run_id=run, user=user, check=False)
        assert result.phase == "waiting", result
        (document,) = [each async for each in runtime.inside.approvals.list(run=run)]
        return document["metadata"]["name"]


async def seen(runtime: Runtime, name: str) -> str:
    """The digest of what somebody who looks now sees."""
    return current_digest(await runtime.inside.approvals.get(name))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    return House(tmp_path / "foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def home(tmp_path: Path) -> House:
    return House(tmp_path / "foliot.db")


# --- four eyes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asker", ["ann", "ANN", " ann "])
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_who_asks_decides_nothing(home: House, asker: str, decision: Any) -> None:
    await home.rule(four_eyes=True)
    async with home.open() as runtime:
        name = await home.ask(runtime)

        with pytest.raises(Denied, match="acts for them"):
            await runtime.inside.approvals.decide(name, decision, by=asker)

        await runtime.inside.approvals.decide(name, "approve", by="bob")
        assert (await runtime.resume("r1")).succeeded
    assert home.paid == [("ada", 900)]


async def test_a_grant_of_who_asks_answers_nothing(home: House) -> None:
    await home.rule(four_eyes=True)
    async with home.open() as runtime:
        await runtime.inside.approvals.grant(by="ann", tool="pay", seconds=60)

        await home.ask(runtime)
    assert home.paid == []


async def people(home: House) -> None:
    """Ann has an account and tokens of it, one of them under a name of its own; eve has a token and no account."""
    database = await open_database(str(home.store))
    try:
        await SqlUsers(database).create("ann", password="x", grants={"default": ["admin"]}, now=0.0)
        tokens = SqlTokens(database)
        for name, under, owner in (
            ("ci", "ann", "ann"),
            ("phone", "ann", "ann"),
            ("robot", "", "ann"),
            ("eve", "", ""),
        ):
            await tokens.create(
                name, namespaces=["default"], roles=["approver"], now=0.0, by="ann", under=under, owner=owner
            )
        await tokens.create("ci", namespaces=["default"], roles=["approver"], now=0.0, by="eve", under="eve")
    finally:
        await database.close()


@pytest.mark.parametrize("asker", ["ann", "ann/ci", "robot"])
async def test_a_token_of_who_asks_is_who_asks(home: House, asker: str) -> None:
    await home.rule(four_eyes=True)
    async with home.open() as runtime:
        await people(home)
        for giver in ("ann", "ann/phone", "robot"):
            await runtime.inside.approvals.grant(by=giver, tool="pay", seconds=60)
        name = await home.ask(runtime, user=asker)

        for by in ("ann", "ann/ci", "ANN/phone", "robot"):
            with pytest.raises(Denied, match="acts for them"):
                await runtime.inside.approvals.decide(name, "approve", by=by)
        done = await runtime.inside.approvals.decide(name, "approve", by="eve/ci")
        assert done.document["status"]["decided_by"] == "eve/ci"
        assert (await runtime.resume("r1")).succeeded


async def test_tokens_of_one_person_are_one_vote(house: House) -> None:
    await house.rule(required_approvals=2)
    async with house.open() as runtime:
        await people(house)
        name = await house.ask(runtime, user="zoe")
        digest = (await runtime.inside.approvals.get(name))["spec"]["arguments_digest"]
        await runtime.inside.approvals.decide(name, "approve", by="ann/ci", digest=digest)
        for by in ("ann", "ann/phone", "robot", "Ann/CI"):
            with pytest.raises(Conflict, match="already: 1 of 2"):
                await runtime.inside.approvals.decide(name, "approve", by=by, digest=digest)
        done = await runtime.inside.approvals.decide(name, "approve", by="eve", digest=digest)
        assert done.document["status"]["decided_by"] == "ann/ci, eve"
    assert house.paid == []


@pytest.mark.parametrize("said", ["input", "nothing", "edit"])
async def test_who_told_the_run_what_to_do_asks_too(home: House, said: str) -> None:
    await home.rule(four_eyes=True)
    async with home.open() as runtime:
        await people(home)
        await runtime.inside.approvals.grant(by="bob", tool="pay", seconds=60, when="args.amount == 901")
        name = await home.ask(runtime, calls=2)
        if said == "edit":
            await runtime.inside.approvals.decide(name, "edit", by="bob", arguments={"to": "bob", "amount": 1})
        else:
            if said == "input":
                fact = InputReceived("i1", Message("user", (Text("pay bob"),)), by="bob")
                await runtime.inside.runs.journal.signal(signal("r1", fact, home.now))
                await runtime.resume("r1", check=False)
                with pytest.raises(Denied, match="told by them"):
                    await runtime.inside.approvals.decide(name, "approve", by="bob")
            await runtime.inside.approvals.decide(name, "approve", by="eve")
        waits = await runtime.resume("r1", check=False)
        if said == "nothing":
            assert waits.succeeded  # nobody but ann has told it anything: the grant of bob answers
            return
        assert waits.phase == "waiting"
        (second,) = [
            each["metadata"]["name"]
            async for each in runtime.inside.approvals.list(run="r1")
            if each["status"]["phase"] == "Pending"
        ]
        with pytest.raises(Denied, match="told by them"):
            await runtime.inside.approvals.decide(second, "approve", by="bob")
        await runtime.inside.approvals.decide(second, "approve", by="eve")
        assert (await runtime.resume("r1")).succeeded


# --- votes -------------------------------------------------------------------------------------------------------


async def test_one_person_is_one_vote(house: House) -> None:
    await house.rule(required_approvals=2, approvers=["ann", "bob", "Bob", "eve"])
    async with house.open() as runtime:
        name = await house.ask(runtime)
        first = await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        assert (first.signal, first.document["status"]["phase"]) == (None, "Pending")

        for again in ("bob", "Bob"):
            with pytest.raises(Conflict, match="already: 1 of 2"):
                await runtime.inside.approvals.decide(name, "approve", by=again, digest=await seen(runtime, name))
        with pytest.raises(Denied):
            await runtime.inside.approvals.decide(name, "approve", by="mallory")
        assert (await runtime.resume("r1", check=False)).phase == "waiting"

        done = await runtime.inside.approvals.decide(name, "approve", by="eve", digest=await seen(runtime, name))
        assert done.document["status"]["decided_by"] == "bob, eve"
        assert [vote["by"] for vote in done.document["status"]["votes"]] == ["bob", "eve"]
        assert (await runtime.resume("r1")).succeeded
    assert house.paid == [("ada", 900)]


async def test_votes_at_the_same_moment_are_counted_once_each(house: House) -> None:
    people = [f"p{number}" for number in range(6)]
    await house.rule(required_approvals=4, approvers=people)
    async with AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(house.open()) for _ in range(3)]
        name = await house.ask(runtimes[0])
        digest = await seen(runtimes[0], name)

        votes = [
            runtimes[number % 3].inside.approvals.decide(name, "approve", by=person, digest=digest)
            for number, person in enumerate([*people, *people])
        ]
        outcomes = await asyncio.gather(*votes, return_exceptions=True)

        counted = [each for each in outcomes if not isinstance(each, BaseException)]
        assert all(isinstance(each, Conflict) for each in outcomes if isinstance(each, BaseException))
        assert len(counted) == 4
        status = (await runtimes[0].approvals.get(name))["status"]
        voters = [vote["by"] for vote in status["votes"]]
        assert (status["phase"], len(voters), len(set(voters))) == ("Approved", 4, 4)


async def test_one_denial_denies_whatever_was_voted(home: House) -> None:
    await home.rule(required_approvals=2)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        await runtime.inside.approvals.decide(name, "deny", by="eve")
        with pytest.raises(Conflict):
            await runtime.inside.approvals.decide(name, "approve", by="zoe")
        await runtime.resume("r1")
    assert home.paid == []


async def test_an_edit_begins_the_votes_anew(home: House) -> None:
    await home.rule(required_approvals=2)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        digest = await seen(runtime, name)
        await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        edited = await runtime.inside.approvals.decide(
            name, "edit", by="eve", arguments={"to": "eve", "amount": 1}, digest=digest
        )
        assert [vote["by"] for vote in edited.document["status"]["votes"]] == ["eve"]

        with pytest.raises(Conflict, match="changed meanwhile"):  # zoe looked at what the model wrote
            await runtime.inside.approvals.decide(name, "approve", by="zoe", digest=digest)
        assert (await runtime.resume("r1", check=False)).phase == "waiting"
        await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        await runtime.resume("r1")
    assert home.paid == [("eve", 1)]


@pytest.mark.parametrize("edited", [False, True])
async def test_nobody_approves_with_others_what_they_have_not_seen(home: House, edited: bool) -> None:
    await home.rule(required_approvals=2)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        looked = await seen(runtime, name)
        if edited:
            await runtime.inside.approvals.decide(
                name, "edit", by="ann", arguments={"to": "ann", "amount": 9999}, digest=looked
            )

        tried: list[tuple[Any, dict[str, Any]]] = [("approve", {}), ("edit", {"arguments": PAY})]
        for decision, more in tried:
            with pytest.raises(Conflict, match="with the digest"):
                await runtime.inside.approvals.decide(name, decision, by="bob", **more)
        if edited:
            with pytest.raises(Conflict, match="changed meanwhile"):
                await runtime.inside.approvals.decide(name, "approve", by="bob", digest=looked)
        await runtime.inside.approvals.decide(name, "deny", by="bob")  # what is refused need not be looked at
    assert home.paid == []


async def test_a_standing_grant_is_not_several_people(home: House) -> None:
    await home.rule(required_approvals=2)
    async with home.open() as runtime:
        await runtime.inside.approvals.grant(by="bob", tool="pay", seconds=60)
        await runtime.inside.approvals.grant(by="eve", tool="pay", seconds=60)

        await home.ask(runtime)
    assert home.paid == []


async def test_two_rules_that_ask_hold_together(home: House) -> None:
    await home.rule("first", approvers=["bob", "eve"])
    await home.rule("second", approvers=["eve", "zoe"], four_eyes=True)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        for other in ("bob", "zoe", "ann"):
            with pytest.raises(Denied):
                await runtime.inside.approvals.decide(name, "approve", by=other, digest=await seen(runtime, name))
        await runtime.inside.approvals.decide(name, "approve", by="eve", digest=await seen(runtime, name))


# --- standing grants ---------------------------------------------------------------------------------------------


async def test_who_may_not_approve_may_not_grant(home: House) -> None:
    await home.rule(approvers=["bob"])
    async with home.open() as runtime:
        with pytest.raises(Denied, match="names its approvers"):
            await runtime.inside.approvals.grant(by="mallory", tool="Pay", seconds=60)


async def test_a_grant_from_before_the_rule_answers_nothing(home: House) -> None:
    async with home.open() as runtime:
        await runtime.inside.approvals.grant(by="mallory", tool="pay", seconds=60)
        await home.rule(approvers=["bob"])

        await home.ask(runtime)
    assert home.paid == []


async def test_racing_calls_use_a_grant_no_more_often_than_it_says(house: House) -> None:
    await house.rule()
    async with AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(house.open()) for _ in range(3)]
        grant = await runtimes[0].approvals.grant(by="bob", tool="pay", seconds=60, max_uses=4)

        runs = [
            runtimes[number % 3].run(house.agent(), "pay", run_id=f"r{number}", user="ann", check=False)
            for number in range(9)
        ]
        phases = [result.phase for result in await asyncio.gather(*runs)]

        assert phases.count("succeeded") == 4
        assert phases.count("waiting") == 5
        assert len(house.paid) == 4
        stored = await runtimes[0].approvals.get(grant["metadata"]["name"])
        assert len(set(stored["status"]["uses"])) == len(stored["status"]["uses"]) == 4


async def test_each_use_names_who_gave_the_grant(home: House) -> None:
    await home.rule()
    async with home.open() as runtime:
        grant = (await runtime.inside.approvals.grant(by="bob", tool="pay", seconds=60))["metadata"]["name"]
        await runtime.run(home.agent(2), "pay", run_id="r1", user="ann")

        starts = [event for _, event in await runtime.inside.runs.facts("r1") if isinstance(event, ToolStarted)]
        assert [(event.standing, event.granted_by) for event in starts] == [(grant, "bob")] * 2


async def test_a_use_is_the_same_after_a_crash_and_none_after_the_grant_ended(home: House) -> None:
    await home.rule()
    async with home.open() as runtime:
        grant = (await runtime.inside.approvals.grant(by="bob", tool="pay", seconds=60, max_uses=1))["metadata"]["name"]
    database = await open_database(str(home.store))
    try:
        store = SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
        grants = StoredGrants(store, "default", clock=lambda: home.now)
        assert [await grants.use(grant, use) for use in ("call-1", "call-1", "call-2")] == [True, True, False]
        home.now += 61
        assert not await grants.use(grant, "call-1")
    finally:
        await database.close()


@pytest.mark.parametrize(
    "change", [{"tool": "wipe"}, {"max_uses": 900}, {"when": ""}, {"agent": ""}, {"ttl": "1000h"}], ids=str
)
async def test_a_grant_that_was_changed_afterwards_is_none(home: House, change: dict[str, Any]) -> None:
    await home.rule()
    async with home.open() as runtime:
        given = await runtime.inside.approvals.grant(
            by="bob", tool="pay", seconds=60, max_uses=5, agent="desk", when="args.amount < 1000"
        )
        spec = {key: value for key, value in {**given["spec"], **change}.items() if value}
        await home.write({**given, "spec": spec})

        await home.ask(runtime)
    assert home.paid == []


# --- objects that say more than the journal ------------------------------------------------------------------------


async def test_who_may_decide_is_taken_from_the_journal_and_not_from_the_object(home: House) -> None:
    await home.rule(approvers=["bob", "eve"], required_approvals=2, four_eyes=True)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        document = await runtime.inside.approvals.get(name)
        weak = {key: value for key, value in document["spec"].items() if key not in ("required_approvals", "four_eyes")}
        await home.write({**document, "spec": {**weak, "approvers": ["mallory"]}}, own=True)

        with pytest.raises(Conflict, match="it was changed"):
            await runtime.inside.approvals.decide(name, "approve", by="mallory")
        with pytest.raises(Denied):
            await runtime.inside.approvals.decide(name, "approve", by="mallory")
        assert (
            await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        ).signal is None


FORGED: list[dict[str, Any]] = [
    {"arguments": {"to": "charity", "amount": 1}},
    {"arguments": {**PAY, "memo": "harmless"}},
    {"arguments": {"to": "ada"}},
    {"arguments": {"to": "***", "amount": "900"}},
    {"arguments": {"to": "charity ***", "amount": 900}},
    {"reason": "harmless"},
    {"tool": "look"},
    {"asked_by": "nobody"},
    {"arguments_digest": "sha256:0"},
]


@pytest.mark.parametrize("forged", FORGED, ids=repr)
async def test_what_is_decided_is_what_the_journal_asks(home: House, forged: dict[str, Any]) -> None:
    """An object that somebody wrote over in the store is put right before anybody decides by it."""
    await home.rule()
    async with home.open() as runtime:
        name = await home.ask(runtime)
        document = await runtime.inside.approvals.get(name)
        with pytest.raises(Denied, match="asked by a run"):
            await home.write({**document, "spec": {**document["spec"], **forged}})

        for decision in ("approve", "deny", "resume"):
            await home.write({**document, "spec": {**document["spec"], **forged}}, own=True)
            if decision == "resume":
                assert (await runtime.resume("r1", check=False)).phase == "waiting"
            else:
                with pytest.raises(Conflict, match="it was changed"):
                    await runtime.inside.approvals.decide(name, decision, by="bob")
            assert (await runtime.inside.approvals.get(name))["spec"] == document["spec"]
    assert home.paid == []


DECISIONS: list[tuple[Any, dict[str, Any] | None]] = [("approve", None), ("deny", None), ("edit", {**PAY, "amount": 1})]


async def test_a_copy_in_another_namespace_decides_nothing(home: House) -> None:
    await home.rule()
    async with home.open() as runtime:
        document = await runtime.inside.approvals.get(await home.ask(runtime))
        copy = {**document, "metadata": {"name": document["metadata"]["name"], "namespace": "team-b"}}
        with pytest.raises(Denied):
            await home.write(copy)
        await home.write(copy, own=True)

        for decision, arguments in DECISIONS:
            with pytest.raises(NotFound, match="names a run that is not there"):
                await runtime.inside.approvals.decide(
                    document["metadata"]["name"], decision, by="eve", namespace="team-b", arguments=arguments
                )
        assert (await runtime.resume("r1", check=False)).phase == "waiting"
    assert home.paid == []


async def test_a_copy_does_not_tell_whether_the_run_of_another_namespace_is_there(home: House) -> None:
    """One that waits, one that has ended, another call of it, and none at all: the same words, the same object."""
    await home.rule()
    async with home.open() as runtime:
        await home.ask(runtime)
        first = await runtime.inside.approvals.get(ended := await home.ask(runtime, "r2"))
        await runtime.inside.decide_approval(ended, "deny", by="bob")
        said = set[tuple[str, str]]()
        for number, (run, call) in enumerate((run, call) for run in ("r1", "r2", "none") for call in ("c1", "none")):
            name = f"copy-{number}"
            spec = {**first["spec"], "run": run, "call_id": call if call == "none" else first["spec"]["call_id"]}
            metadata = {"name": name, "namespace": "team-b"}
            await home.write({**first, "metadata": metadata, "spec": spec}, own=True)
            for decision, arguments in DECISIONS:
                with pytest.raises(NotFound) as caught:
                    await runtime.inside.approvals.decide(
                        name, decision, by="eve", namespace="team-b", arguments=arguments
                    )
                phase = (await runtime.inside.approvals.get(name, namespace="team-b"))["status"]["phase"]
                said.add((caught.value.message.replace(name, "NAME"), phase))
        assert len(said) == 1, said


async def test_a_status_that_comes_with_a_document_decides_nothing(home: House) -> None:
    await home.rule()
    async with home.open() as runtime:
        name = await home.ask(runtime)
        document = await runtime.inside.approvals.get(name)
        forged = {"phase": "Approved", "decision": "approved", "decided_by": "bob"}
        await home.write({**document, "status": {**forged, "granted_digest": document["spec"]["arguments_digest"]}})

        assert (await runtime.resume("r1", check=False)).phase == "waiting"
        assert (await runtime.inside.approvals.get(name))["status"]["phase"] == "Pending"
    assert home.paid == []


async def test_a_decision_is_not_replayed_for_another_call(home: House) -> None:
    await home.rule()
    async with home.open() as runtime:
        name = await home.ask(runtime, calls=2)
        await runtime.inside.approvals.decide(name, "approve", by="bob")
        assert (await runtime.resume("r1", check=False)).phase == "waiting"
        with pytest.raises(Conflict, match="decided before"):
            await runtime.inside.approvals.decide(name, "approve", by="bob")
    assert home.paid == [("ada", 900)]


# --- expiry ------------------------------------------------------------------------------------------------------


async def test_a_question_stands_for_three_days_and_no_vote_counts_afterwards(home: House) -> None:
    await home.rule(required_approvals=2)
    async with home.open() as runtime:
        name = await home.ask(runtime)
        home.now += 72 * 3600 - 1
        await runtime.inside.approvals.decide(name, "approve", by="bob", digest=await seen(runtime, name))
        home.now += 2
        with pytest.raises(Conflict, match="has expired"):
            await runtime.inside.approvals.decide(name, "approve", by="eve")
    assert home.paid == []


@pytest.mark.parametrize(
    ("execution", "phase"),
    [
        ({}, "succeeded"),
        ({"on_expiry": "fail"}, "failed"),
        ({"on_denied": "fail"}, "failed"),
        ({"on_denied": "fail", "on_expiry": "tell"}, "succeeded"),
    ],
    ids=str,
)
async def test_expiry_ends_as_the_agent_says(home: House, execution: dict[str, str], phase: str) -> None:
    await home.rule(approval_ttl="1h")
    async with home.open() as runtime:
        name = await home.ask(runtime, **({"execution": execution} if execution else {}))
        home.now += 3601
        assert (await runtime.resume("r1", check=False)).phase == phase
        assert (await runtime.inside.approvals.get(name))["status"]["phase"] == "Expired"
    assert home.paid == []


async def test_what_nobody_decided_in_time_is_recorded_once(house: House) -> None:
    await house.rule()
    async with house.open() as one, house.open() as other:
        name = await house.ask(one)
        house.now += 80 * 3600
        await asyncio.gather(*(each.resume("r1", check=False) for each in (one, other)), return_exceptions=True)

        with pytest.raises(Conflict, match="expired"):
            await other.inside.approvals.decide(name, "approve", by="bob")
        log = SqlAuditLog(one.inside.tasking.database)
        (record,) = await log.find(AuditFilter(moment="decided"))
        assert (record.body["outcome"], record.body["decision"]["by"]) == ("expired", "system")
        assert (record.body["approval"]["id"], record.body["tool"]) == (name, "pay")
        assert (await log.verify()).broken is None
    assert house.paid == []
