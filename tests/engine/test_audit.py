"""The audit log: what is written of every call, that it cannot be changed unnoticed, and when a call waits for it."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from dataclasses import replace
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.audit.entry import CallEntry, entry_of
from foliot.engine.audit.log import AuditTrail, _Pending
from foliot.engine.audit.metering import totals
from foliot.errors import InvalidInput, Unavailable
from foliot.kernel.messages import Usage
from foliot.resources.validate import validate_document
from foliot.store import queries
from foliot.store.audit.chain import ChainHead, linked
from foliot.store.audit.log import AuditFilter, SqlAuditLog, append_records
from foliot.store.base import Put
from foliot.store.open import open_database
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.base import Caller, ToolDefinition
from foliot.tools.function import tool as function_tool
from foliot.tools.governance.rules import FixedRules
from foliot.tools.pipeline.parts import PipelineParts, count, spend
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.record import CallRecord, snapshot
from foliot.tools.pipeline.results import success_result
from foliot.tools.secrets.masking import MASK, Masker
from tests.tools.governed import call, permission, rules


def record(number: int = 1, moment: str = "admitted", arguments: dict | None = None, **fields) -> CallRecord:
    made = call(call_id=f"c{number}", arguments=arguments or {"amount": number})
    return CallRecord(moment, made, ToolDefinition("refund"), float(number), **fields)


def entry(number: int) -> CallEntry:
    made = record(number)
    return entry_of(made, snapshot(made.call.arguments))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "foliot.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request, path):
    url = str(path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = await open_database(url)
    yield opened
    await opened.close()


@pytest.fixture
async def written(path):
    """Five records in a file, and nobody who holds it open."""
    database = await SqliteDatabase.open(path)
    await SqlAuditLog(database).append([entry(number) for number in range(1, 6)])
    await database.close()
    return path


def tamper(path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


async def broken(path, anchor: ChainHead | None = None) -> tuple[int, str] | None:
    database = await SqliteDatabase.open(path)
    try:
        found = (await SqlAuditLog(database).verify(anchor)).broken
    finally:
        await database.close()
    return (found.seq, found.fault) if found else None


class TestTheChain:
    async def test_records_are_numbered_without_gaps_over_several_writers(self, database) -> None:
        log, other = SqlAuditLog(database), SqlAuditLog(database)
        await asyncio.gather(*(each.append([entry(n), entry(n + 1)]) for n in range(10) for each in (log, other)))

        verified = await log.verify()
        assert (verified.records, verified.broken) == (40, None)
        assert verified.head == await log.head()

    async def test_each_record_holds_the_hash_of_the_one_before(self, database) -> None:
        log = SqlAuditLog(database)
        first, second = await log.append([entry(1), entry(2)])
        (third,) = await log.append([entry(3)])

        assert [first.body["previous"], second.body["previous"], third.body["previous"]] == [
            "",
            first.hash,
            second.hash,
        ]
        assert await log.get(2) == second

    async def test_an_empty_log_is_whole(self, database) -> None:
        assert (await SqlAuditLog(database).verify()).broken is None

    async def test_records_are_found_by_what_they_say_newest_first(self, database) -> None:
        log = SqlAuditLog(database)
        await log.append([entry(n) for n in range(1, 6)])

        assert [each.seq for each in await log.find(AuditFilter(tool="refund"), limit=2)] == [5, 4]
        assert [each.seq for each in await log.find(AuditFilter(call_id="c3"))] == [3]
        assert [each.seq for each in await log.find(AuditFilter(since=2.0, until=4.0))] == [3, 2]
        assert [each.seq for each in await log.find(AuditFilter(), before=3)] == [2, 1]
        assert await log.find(AuditFilter(agent="nobody")) == []
        assert [each.seq for each in await log.find(AuditFilter(run_id="r1"), limit=2)] == [5, 4]
        assert [each.seq for each in await log.find(AuditFilter(run_id="r1", call_id="c2", until=9.0))] == [2]
        assert await log.find(AuditFilter(run_id="r2")) == []

    async def test_the_records_of_one_run_are_found_without_going_along_all(self, written) -> None:
        connection = apsw.Connection(str(written))
        text = queries.load()["audit_find_run"]
        given = dict.fromkeys(re.findall(r":([a-z_]+)", text), "")
        (plan,) = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", given)]
        connection.close()
        assert "audit_by_run" in plan

    async def test_a_page_boundary_is_no_break(self, database, monkeypatch) -> None:
        monkeypatch.setattr("foliot.store.audit.log.PAGE", 2)
        log = SqlAuditLog(database)
        await log.append([entry(n) for n in range(1, 6)])
        assert (await log.verify()).records == 5


class TestTampering:
    @pytest.mark.parametrize(
        ("statements", "expected"),
        [
            pytest.param(
                ["UPDATE audit SET data = replace(data, '\"amount\":3', '\"amount\":4') WHERE seq = 3"],
                (3, "edited"),
                id="text",
            ),
            pytest.param(["UPDATE audit SET agent = 'someone' WHERE seq = 2"], (2, "edited"), id="column"),
            pytest.param(
                ["UPDATE audit SET data = 'nonsense', hash = 'x' WHERE seq = 2"], (2, "edited"), id="nonsense"
            ),
            pytest.param(["DELETE FROM audit WHERE seq = 3"], (3, "removed"), id="removed"),
            pytest.param(["DELETE FROM audit WHERE seq = 1"], (1, "removed"), id="first removed"),
            pytest.param(
                [
                    "UPDATE audit SET seq = 99 WHERE seq = 2",
                    "UPDATE audit SET seq = 2 WHERE seq = 3",
                    "UPDATE audit SET seq = 3 WHERE seq = 99",
                ],
                (2, "reordered"),
                id="reordered",
            ),
            pytest.param(["DELETE FROM audit WHERE seq > 3"], (4, "truncated"), id="tail"),
            pytest.param(["DELETE FROM audit"], (1, "truncated"), id="all"),
            pytest.param(["DELETE FROM audit_head"], (5, "head"), id="head gone"),
            pytest.param(["UPDATE audit_head SET seq = 4"], (5, "head"), id="head moved back"),
            pytest.param(["UPDATE audit_head SET hash = 'x'"], (5, "head"), id="head changed"),
        ],
    )
    async def test_it_is_found_where_it_was_done(self, written, statements, expected) -> None:
        assert await broken(written) is None
        tamper(written, *statements)
        assert await broken(written) == expected

    async def test_a_record_with_a_new_hash_of_its_own_is_missed_by_the_next(self, written) -> None:
        from hashlib import sha256

        connection = apsw.Connection(str(written))
        (data,) = connection.execute("SELECT data FROM audit WHERE seq = 2").fetchone()
        forged = data.replace('"amount":2', '"amount":9')
        with connection:
            digest = sha256(forged.encode()).hexdigest()
            connection.execute("UPDATE audit SET data = ?, hash = ? WHERE seq = 2", (forged, digest))
        connection.close()
        assert await broken(written) == (3, "edited")

    async def test_a_whole_new_chain_is_found_by_a_head_that_was_noted(self, written, tmp_path) -> None:
        database = await SqliteDatabase.open(written)
        noted = await SqlAuditLog(database).head()
        await database.close()
        tamper(written, "DELETE FROM audit WHERE seq > 3")
        tamper(written, "UPDATE audit_head SET seq = 3, hash = (SELECT hash FROM audit WHERE seq = 3)")

        assert await broken(written) is None
        assert await broken(written, noted) == (4, "truncated")
        assert await broken(written, ChainHead(2, "another")) == (2, "edited")

    async def test_a_log_without_its_head_takes_no_more_records(self, written) -> None:
        tamper(written, "DELETE FROM audit_head")
        database = await SqliteDatabase.open(written)
        with pytest.raises(InvalidInput, match="lost its head"):
            await SqlAuditLog(database).append([entry(6)])
        await database.close()


class TestWhatIsWritten:
    def test_secrets_in_arguments_are_not(self) -> None:
        masker = Masker()
        masker.add("hunter2hunter2")
        schema = {"properties": {"door": {"properties": {"code": {"writeOnly": True}}}, "n": {"format": "password"}}}
        given = {"api_key": "k", "note": "it is hunter2hunter2", "door": {"code": 42, "floor": 3}, "n": "x"}
        made = CallRecord("admitted", call(arguments=given), ToolDefinition("refund", schema=schema), 1.0)

        kept = entry_of(made, snapshot(given), masker).arguments
        assert kept == {"api_key": MASK, "note": f"it is {MASK}", "door": {"code": MASK, "floor": 3}, "n": MASK}

    def test_a_record_is_written_as_if_its_names_had_been_sorted(self) -> None:
        """The chain is one of canonical JSON, whether an entry is a mapping or of a fixed shape."""
        made = call(arguments={"z": 1, "a": {"y": 2, "b": 3}}, caller=Caller(roles=("r2", "r1"), user="ada"))
        ended = success_result(made, "fine")
        spent = Usage(3, 4, cost_usd=0.25)
        for moment, result, usage in (("finished", ended, spent), ("finished", ended, None), ("admitted", None, None)):
            kept = entry_of(
                CallRecord(moment, made, ToolDefinition("refund"), 1.5, result=result, attempts=1),
                snapshot(made.arguments),
                usage=usage,
            )
            ((_, _, text, _),) = linked([kept], ChainHead(6, "before"))
            body = json.loads(text)
            assert text == json.dumps(body, sort_keys=True, separators=(",", ":"))
            assert (body["seq"], body["previous"]) == (7, "before")
            assert ("metering" in body, "result" in body, "approval" in body) == (bool(result), bool(result), False)
            assert ("cost_usd" in body.get("metering", {})) == (usage is not None)

    def test_large_arguments_are_left_out_with_their_size(self) -> None:
        given = {"text": ["x" * 1000] * 100}
        kept = entry_of(record(arguments=given), snapshot(given))
        assert "bytes" in kept.arguments["(left out)"]

    def test_a_name_that_a_database_would_refuse_is_made_fit(self) -> None:
        made = CallRecord("refused", call("a\0b\ud800" + "c" * 1000, {}, caller=Caller(agent="é")), None, 1.0)
        kept = entry_of(made, snapshot({}))
        assert kept.tool.startswith("a\\0b\\ud800ccc")
        assert len(kept.tool) < 600
        msgspec.json.encode(kept)

    @pytest.mark.parametrize("value", ["\ud800", 2**200, {1, 2}, float("nan")], ids=repr)
    def test_arguments_that_are_no_json_do_not_stop_the_record(self, value) -> None:
        assert entry_of(record(arguments={"x": value}), snapshot({"x": value})).arguments

    def test_arguments_nested_without_end_do_not_stop_the_record(self) -> None:
        schema: dict = {}
        schema["properties"] = {"x": schema}
        for depth in (100, 400, 900):
            given: dict = {}
            for _ in range(depth):
                given = {"x": given}
            made = CallRecord("admitted", call(arguments=given), ToolDefinition("refund", schema=schema), 1.0)
            msgspec.json.encode(entry_of(made, snapshot(given)))


@pytest.fixture
async def log(path):
    database = await SqliteDatabase.open(path)
    yield SqlAuditLog(database)
    await database.close()


class NoLog:
    """A log whose disk is full."""

    def __init__(self) -> None:
        self.tries = 0

    async def append(self, entries, *, told=True):
        self.tries += 1
        raise Unavailable("the disk is full", retryable=False)


def pipeline(recorder, *documents, **definition) -> tuple[Pipeline, list]:
    acted: list = []

    def refund(amount: int) -> str:
        """Give money back."""
        acted.append(amount)
        return f"gave {amount}"

    made = function_tool(name="refund")(refund)
    made = made.with_definition(replace(made.definition, **definition))
    parts = PipelineParts(rules=FixedRules(rules(*documents)), recorders=(recorder,))
    return Pipeline([made], parts), acted


class TestTheTrail:
    async def test_what_a_record_was_made_from_is_let_go_before_it_is_written(self) -> None:
        left: list[bool] = []

        class Looking:
            async def append(self, entries, *, told=True):
                gc.collect()
                left.append(watched() is not None)
                return []

        class Given(dict[str, Any]):
            """Something that can be watched."""

        given = Given(act="x")
        watched = weakref.ref(given)
        trail = AuditTrail(Looking())
        trail._enqueue(_Pending(lambda each: {"at": 1.0, **each}, (given,)))
        del given
        await trail.close()
        assert left == [False]

    async def test_a_call_that_nobody_asked_about_leaves_one_record_with_what_it_took(self, log) -> None:
        trail = AuditTrail(log)
        tools, _ = pipeline(trail)
        await tools.call(call(arguments={"amount": 3}))
        await trail.close()

        (finished,) = [each.body for each in await log.find(AuditFilter())]
        assert finished["decision"] == {"asks": []}
        assert (finished["moment"], finished["outcome"]) == ("finished", "ok")
        assert finished["arguments"] == {"amount": 3}
        assert finished["metering"]["attempts"] == 1
        assert finished["metering"]["bytes_out"] == len("gave 3")

    @pytest.mark.parametrize(
        ("given", "declared"),
        [
            pytest.param({}, {"record": "required"}, id="required"),
            pytest.param({"run_id": ""}, {}, id="outside any run"),
        ],
    )
    async def test_a_call_whose_start_no_journal_shows_leaves_its_decision_before_it_runs(
        self, log, given, declared
    ) -> None:
        trail = AuditTrail(log)
        tools, _ = pipeline(trail, **declared)
        await tools.call(call(arguments={"amount": 3}, **given))
        await trail.close()

        finished, admitted = [each.body for each in await log.find(AuditFilter())]
        assert (admitted["moment"], admitted["outcome"]) == ("admitted", "allowed")
        assert (finished["moment"], finished["outcome"]) == ("finished", "ok")

    async def test_a_tool_that_changes_its_arguments_does_not_change_the_record(self, log) -> None:
        trail = AuditTrail(log)

        class Greedy:
            definition = ToolDefinition("refund")

            async def invoke(self, call, *, on_output=None):
                call.arguments["amount"] = 1_000_000
                return "gave it"

        await Pipeline([Greedy()], PipelineParts(recorders=(trail,))).call(call(arguments={"amount": 3}))
        await trail.close()
        assert (await log.get(1)).body["arguments"] == {"amount": 3}

    async def test_a_refusal_names_layer_and_rule(self, log) -> None:
        trail = AuditTrail(log)
        tools, acted = pipeline(trail, permission("refunds", tool_ref="refund", required_permissions=["may:refund"]))
        await tools.call(call(arguments={"amount": 3}))
        await trail.close()

        (refused,) = [each.body for each in await log.find(AuditFilter())]
        assert refused["outcome"] == "denied"
        assert refused["decision"]["layer"] == "permissions"
        assert refused["decision"]["rule"] == "ToolPermission/refunds"
        assert acted == []

    async def test_a_question_is_written_with_the_digest_of_what_is_asked(self, log) -> None:
        trail = AuditTrail(log)
        ask = permission(
            "refunds", tool_ref="refund", conditions=[{"when": "args.amount > 1", "verdict": "approval_required"}]
        )
        tools, _ = pipeline(trail, ask)
        parked = await tools.admit(call(arguments={"amount": 3}))
        await trail.close()

        (asked,) = [each.body for each in await log.find(AuditFilter(outcome="asked"))]
        assert asked["approval"]["digest"] == parked.digest
        assert asked["decision"]["asks"][0]["rule"] == "ToolPermission/refunds"

    async def test_what_a_call_delegated_is_metered_with_it(self, log) -> None:
        trail = AuditTrail(log)

        @function_tool(name="refund")
        def refund() -> str:
            """Ask somebody else."""
            spend("child-1", Usage(input_tokens=100, output_tokens=20, cost_usd=0.25))
            return "done"

        count()
        await Pipeline([refund], PipelineParts(recorders=(trail,))).call(call())
        await trail.close()

        metering = (await log.get(1)).body["metering"]
        assert (metering["input_tokens"], metering["output_tokens"], metering["cost_usd"]) == (100, 20, 0.25)
        (total,) = await totals(log, AuditFilter(), by="tool")
        assert (total.calls, total.tokens, total.cost_usd) == (1, 120, 0.25)

    @pytest.mark.parametrize("kept", ["best_effort", "required"])
    async def test_a_call_that_is_stopped_is_written_as_stopped(self, log, kept) -> None:
        trail = AuditTrail(log)
        began = asyncio.Event()

        @function_tool(name="refund")
        async def refund() -> None:
            """Never end."""
            began.set()
            await asyncio.Event().wait()

        made = refund.with_definition(replace(refund.definition, record=kept))
        task = asyncio.create_task(Pipeline([made], PipelineParts(recorders=(trail,))).call(call()))
        await asyncio.wait_for(began.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await trail.close()

        stopped = (await log.find(AuditFilter(), limit=1))[0].body
        assert (stopped["moment"], stopped["outcome"], stopped["result"]["code"]) == ("finished", "unknown", "canceled")

    async def test_records_keep_the_order_in_which_they_came(self, log) -> None:
        trail = AuditTrail(log)
        for number in range(1200):
            trail.record(record(number))
        await trail.flush()

        found = await log.find(AuditFilter(), limit=2000)
        assert [each.body["call_id"] for each in reversed(found)] == [f"c{number}" for number in range(1200)]
        await trail.close()

    async def test_arguments_are_those_that_the_call_began_with(self, log) -> None:
        trail = AuditTrail(log)
        made = record(1)
        trail.record(made)
        made.call.arguments["amount"] = "changed"
        await trail.close()
        assert (await log.get(1)).body["arguments"] == {"amount": 1}

    async def test_a_log_that_cannot_be_written_does_not_stop_other_calls(self) -> None:
        trail = AuditTrail(NoLog())
        tools, acted = pipeline(trail)
        result = await tools.call(call(arguments={"amount": 3}))
        await trail.close()
        assert (result.text, acted) == ("gave 3", [3])
        assert trail.dropped == 1

    async def test_a_required_record_that_cannot_be_written_keeps_the_tool_from_running(self) -> None:
        trail = AuditTrail(NoLog())
        tools, acted = pipeline(trail, record="required")
        result = await tools.call(call(arguments={"amount": 3}))
        await trail.close()
        assert result.error is not None
        assert "cannot be recorded" in result.error.message
        assert acted == []

    async def test_a_required_record_of_a_result_that_cannot_be_written_withholds_the_result(self, log) -> None:
        class FailsAtTheEnd:
            async def append(self, entries, *, told=True):
                if any(each.moment == "finished" for each in entries):
                    raise InvalidInput("the log is full")
                return await log.append(entries, told=told)

        trail = AuditTrail(FailsAtTheEnd())
        tools, acted = pipeline(trail, record="required")
        result = await tools.call(call(arguments={"amount": 3}))
        await trail.close()
        assert acted == [3]
        assert result.error is not None
        assert "although it has acted" in result.error.message

    async def test_one_record_that_cannot_be_made_does_not_take_others_with_it(self, log, monkeypatch) -> None:
        def made(record, *rest):
            if record.call.call_id == "c2":
                raise ValueError("cannot be made")
            return entry_of(record, *rest)

        monkeypatch.setattr("foliot.engine.audit.log.entry_of", made)
        trail = AuditTrail(log)
        for number in (1, 2, 3):
            trail.record(record(number))
        await trail.close()
        assert [each.body["call_id"] for each in await log.find(AuditFilter())] == ["c3", "c1"]
        assert trail.dropped == 1

    async def test_a_full_queue_drops_and_counts(self, log) -> None:
        trail = AuditTrail(log, capacity=3)
        for number in range(5):
            trail.record(record(number))
        await trail.close()
        assert trail.dropped == 2
        assert len(await log.find(AuditFilter())) == 3

    async def test_closing_twice_is_harmless_and_later_records_are_counted_as_lost(self, log) -> None:
        trail = AuditTrail(log)
        trail.record(record(1))
        await trail.close()
        await trail.close()
        trail.record(record(2))
        assert trail.dropped == 1
        assert len(await log.find(AuditFilter())) == 1


@pytest.mark.parametrize(("decision", "outcomes"), [("approve", ["ok", "allowed"]), ("deny", [])])
async def test_who_decided_about_a_call_is_written_too(path, decision, outcomes) -> None:
    @tool
    def refund(amount: int) -> str:
        """Give money back."""
        return f"gave {amount}"

    rule = permission(
        "refunds", tool_ref="refund", conditions=[{"when": "args.amount > 1", "verdict": "approval_required"}]
    )
    script = [{"call": {"refund": {"amount": 3}}}, {"say": "done"}]
    agent = Agent("desk", model=ScriptedModel(script), tools=[refund])
    async with Runtime(path) as runtime:
        checked, problems = validate_document(rule)
        assert checked is not None, problems
        await runtime.inside._assembly.resources.write([Put(checked)])
        waiting = await runtime.run(agent, "go", check=False)
        assert waiting.phase == "waiting"
        (approval,) = [each async for each in runtime.inside.approvals.list()]
        await runtime.inside.decide_approval(approval["metadata"]["name"], decision, by="ada", comment="seen it")

    database = await SqliteDatabase.open(path)
    log = SqlAuditLog(database)
    found = [each.body for each in await log.find(AuditFilter())]
    decided = next(each for each in found if each["moment"] == "decided")
    asked = next(each for each in found if each["outcome"] == "asked")
    assert (decided["decision"]["by"], decided["decision"]["comment"]) == ("ada", "seen it")
    assert decided["approval"]["id"] == asked["approval"]["id"]
    assert decided["call_id"] == asked["call_id"]
    assert [each["outcome"] for each in found if each["moment"] in ("admitted", "finished")] == outcomes
    assert (await log.verify()).broken is None
    await database.close()


async def test_two_who_write_in_turns_and_a_third_within_a_transaction_make_one_chain(database) -> None:
    first, second = SqlAuditLog(database), SqlAuditLog(database)
    number = 0
    for log, times in ((first, 3), (second, 2), (first, 1), (second, 1), (first, 3)):
        for _ in range(times):
            number += 2
            await log.append([entry(number - 1), entry(number)], told=False)
    await database.write(append_records, [entry(number + 1)])
    await first.append([entry(number + 2)], told=False)
    told = await first.append([entry(number + 3)])

    assert [each.seq for each in told] == [number + 3]
    assert await first.verify() == await second.verify()
    assert (await first.verify()).broken is None
    assert [each.body["call_id"] for each in reversed(await first.find(AuditFilter(), limit=100))] == [
        f"c{each}" for each in range(1, number + 4)
    ]


@pytest.mark.services
async def test_on_postgresql_who_writes_alone_needs_one_statement(postgres_url, monkeypatch) -> None:
    database = await open_database(postgres_url)
    log, asked = SqlAuditLog(database), []
    await log.append([entry(1)], told=False)
    await log.append([entry(2)], told=False)  # nobody else has written meanwhile
    await log.append([entry(3)], told=False)  # once for a process, the statement is made from the indices of its table
    fetch, execute = asyncpg.Connection.fetch, asyncpg.Connection.execute
    monkeypatch.setattr(asyncpg.Connection, "fetch", lambda self, text, *a: asked.append(text) or fetch(self, text, *a))
    monkeypatch.setattr(
        asyncpg.Connection, "execute", lambda self, text, *a: asked.append(text) or execute(self, text, *a)
    )
    await log.append([entry(4), entry(5)], told=False)
    monkeypatch.undo()

    assert len([text for text in asked if "pg_notify" not in text]) == 1
    assert (await log.verify()).records == 5
    await database.close()


async def test_runs_of_a_runtime_are_audited(path) -> None:
    @tool(effect="read")
    def population(city: str) -> int:
        """How many people live in a city."""
        return 717_000

    agent = Agent(
        "clerk",
        model=ScriptedModel([{"call": {"population": {"city": "Oslo"}}}, {"say": "{last_result}"}]),
        tools=[population],
    )
    async with Runtime(path) as runtime:
        run_id = (await runtime.run(agent, "How many?")).run_id
    database = await SqliteDatabase.open(path)
    log = SqlAuditLog(database)
    found = [each.body for each in await log.find(AuditFilter(run_id=run_id))]
    assert [(each["moment"], each["agent"], each["tool"]) for each in found] == [
        ("finished", "clerk", "population"),
    ]
    assert found[0]["schema_digest"].startswith("sha256:")
    assert (await log.verify()).broken is None
    await database.close()


async def test_a_secret_that_a_model_endpoint_was_asked_with_is_not_in_the_records_of_calls(path, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_SECRET_DESK_KEY", "hunter2hunter2")

    @tool(effect="read")
    def note(text: str) -> str:
        """Note a text."""
        return "noted"

    raw = {
        "kind": "ModelEndpoint",
        "metadata": {"name": "desk"},
        "spec": {
            "provider": "scripted",
            "auth": {"secretRef": "desk-key"},
            "script": [{"call": {"note": {"text": "the key is hunter2hunter2"}}}, "done"],
        },
    }
    document, problems = validate_document(raw)
    assert document is not None, problems
    async with Runtime(str(path), tools=[note]) as runtime:
        await runtime.inside.resources.write([Put(document)])
        await runtime.run(Agent("clerk", model="desk", tools=["note"]), "hi")
    database = await SqliteDatabase.open(path)
    records = [repr(each.body) for each in await SqlAuditLog(database).find(AuditFilter())]
    await database.close()

    assert any(MASK in each for each in records)
    assert not any("hunter2" in each for each in records)
