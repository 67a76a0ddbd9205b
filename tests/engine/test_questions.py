"""A run that asks a person: it holds nothing while it waits, and what is said is the result of its call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.approval.questions import LONGEST_ANSWER
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.run.events import ModelResponded, QuestionAnswered, QuestionAsked, ToolFinished, ToolStarted
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.open import open_database
from foliot.tools.base import Invocation, OnOutput, Question, ToolDefinition

ASK = {"question": "Which colour?", "choices": ["red", "blue"]}


def painter(question: dict[str, Any] = ASK, *, tools: Any = ("ask_user",), **spec: Any) -> Agent:
    turns = [{"call": {tools[0]: question}}, {"say": "It is {last_result}."}]
    return Agent("painter", model=ScriptedModel(turns), tools=list(tools), **spec)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture(params=["memory", "sqlite"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime("memory:" if request.param == "memory" else tmp_path / "foliot.db") as runtime:
        yield runtime


async def facts_of(runtime: Runtime, run_id: str, *kinds: type[Any]) -> list[Any]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, kinds)]


async def test_the_run_waits_and_holds_nothing(runtime: Runtime) -> None:
    result = await runtime.run(painter(), "Paint it.")

    assert result.phase == "waiting"
    assert result.waiting is not None
    assert (result.waiting.reason, result.waiting.owner) == ("input", "person")
    assert result.waiting.message == "Which colour?"
    assert runtime.inside.runs.local(result.run_id) is None
    info = await runtime.inside.runs.journal.get(result.run_id)
    assert info.worker is None
    (asked,) = await runtime.inside.questions.open()
    assert (asked.run_id, asked.question, asked.choices) == (result.run_id, "Which colour?", ("red", "blue"))


async def test_the_answer_is_the_result_and_the_model_is_not_asked_again(runtime: Runtime) -> None:
    result = await runtime.run(painter(), "Paint it.")
    (asked,) = await runtime.inside.questions.open()

    info = await runtime.inside.answer_question(result.run_id, asked.call_id, "Blue", by="ann")

    assert info.phase == "succeeded"
    assert (await runtime.resume(result.run_id)).output == "It is blue."
    assert len(await facts_of(runtime, result.run_id, ModelResponded)) == 2
    assert await facts_of(runtime, result.run_id, ToolStarted) == [], "nothing was run"
    assert await facts_of(runtime, result.run_id, QuestionAnswered) == [QuestionAnswered(asked.call_id, "blue", "ann")]
    assert await runtime.inside.questions.open() == []
    assert (await runtime.inside.replay(result.run_id)).difference is None


@pytest.mark.parametrize(("said", "taken"), [("red", "red"), (" RED ", "red"), ("2", "blue")])
async def test_a_choice_is_taken_as_it_is_meant(runtime: Runtime, said: str, taken: str) -> None:
    result = await runtime.run(painter(), "Paint it.")

    await runtime.inside.answer_question(result.run_id, None, said)

    assert (await runtime.resume(result.run_id)).output == f"It is {taken}."


@pytest.mark.parametrize("said", ["green", "0", "3", " ", "", "x" * (LONGEST_ANSWER + 1)])
async def test_what_cannot_be_the_answer_is_refused_and_the_question_stays(runtime: Runtime, said: str) -> None:
    result = await runtime.run(painter(), "Paint it.")

    with pytest.raises(InvalidInput):
        await runtime.inside.answer_question(result.run_id, None, said)

    assert len(await runtime.inside.questions.open()) == 1


async def test_without_choices_the_answer_is_kept_word_for_word(runtime: Runtime) -> None:
    result = await runtime.run(painter({"question": "Why?"}), "Paint it.")

    await runtime.inside.answer_question(result.run_id, None, "  because\nof that ")

    (done,) = await facts_of(runtime, result.run_id, ToolFinished)
    assert done.result.text == "  because\nof that "


async def test_answering_twice_is_told_who_was_faster(runtime: Runtime) -> None:
    result = await runtime.run(painter({"question": "Why?"}), "Paint it.")
    run_id, (asked,) = result.run_id, await runtime.inside.questions.open()
    await runtime.inside.questions.answer(run_id, asked.call_id, "mine", by="ann")

    with pytest.raises(Conflict, match="answered before, by ann: mine"):
        await runtime.inside.questions.answer(run_id, asked.call_id, "other", by="bob")

    await runtime.resume(run_id)
    with pytest.raises(Conflict, match="asks nothing"):
        await runtime.inside.answer_question(run_id, asked.call_id, "again")
    assert [each.answer for each in await facts_of(runtime, run_id, QuestionAnswered)] == ["mine"]


async def test_of_many_answers_at_once_one_counts_and_the_others_are_told(runtime: Runtime) -> None:
    result = await runtime.run(painter({"question": "Why?"}), "Paint it.")

    told = await asyncio.gather(
        *(runtime.inside.answer_question(result.run_id, None, f"answer {n}", by=f"p{n}") for n in range(8)),
        return_exceptions=True,
    )

    assert sum(not isinstance(each, BaseException) for each in told) == 1
    assert all(isinstance(each, Conflict) for each in told if isinstance(each, BaseException))
    assert len(await facts_of(runtime, result.run_id, QuestionAnswered)) == 1


async def test_a_call_that_asks_nothing_cannot_be_answered(runtime: Runtime) -> None:
    result = await runtime.run(painter(), "Paint it.")
    with pytest.raises(NotFound, match="no call 'zzz' that asks"):
        await runtime.inside.answer_question(result.run_id, "zzz", "red")


async def test_two_questions_of_one_step_are_answered_one_by_one(runtime: Runtime) -> None:
    calls = [{"ask_user": {"question": "Which?"}}, {"ask_user": {"question": "Where?"}}]
    agent = Agent("painter", model=ScriptedModel([{"call": calls}, {"say": "done"}]), tools=["ask_user"])
    result = await runtime.run(agent, "Paint it.")
    first, second = await runtime.inside.questions.open()
    with pytest.raises(Conflict, match="asks several questions"):
        await runtime.inside.answer_question(result.run_id, None, "red")

    assert (await runtime.inside.answer_question(result.run_id, second.call_id, "there")).phase == "waiting"
    assert (await runtime.inside.answer_question(result.run_id, first.call_id, "this")).phase == "succeeded"

    done = await facts_of(runtime, result.run_id, ToolFinished)
    assert {each.result.call_id: each.result.text for each in done} == {
        first.call_id: "this",
        second.call_id: "there",
    }


class Confirm:
    """A tool of somebody's own that asks; nothing of it is run."""

    definition = ToolDefinition("confirm", "Have a person confirm an amount.", {"type": "object"}, effect="idempotent")

    def question(self, call: Invocation) -> Question:
        return Question(f"Pay {call.arguments['amount']} euros?", ("yes", "no"), "no", seconds=60)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> str:
        pytest.fail("it only asks")


async def test_a_tool_of_ones_own_can_ask_too(runtime: Runtime) -> None:
    turns = [{"call": {"confirm": {"amount": 5}}}, {"say": "They said {last_result}."}]
    result = await runtime.run(Agent("payer", model=ScriptedModel(turns), tools=[Confirm()]), "Pay.")

    (asked,) = await runtime.inside.questions.open()
    assert (asked.question, asked.choices, asked.default) == ("Pay 5 euros?", ("yes", "no"), "no")
    await runtime.inside.answer_question(result.run_id, None, "YES")
    assert (await runtime.resume(result.run_id)).output == "They said yes."


async def test_the_short_name_asks_too(runtime: Runtime) -> None:
    result = await runtime.run(painter({"question": "Why?"}, tools=("ask",)), "Paint it.")
    await runtime.inside.answer_question(result.run_id, "ask", "so")
    assert (await runtime.resume(result.run_id)).output == "It is so."


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": " "},
        {"question": "Which?", "choices": ["one"]},
        {"question": "Which?", "choices": ["a", "a "]},
        {"question": "Which?", "choices": ["a", "b"], "default": "c"},
        {"question": "x" * 4001},
        {"question": "Which?", "choices": [str(n) for n in range(21)]},
    ],
)
async def test_a_question_that_cannot_be_asked_is_sent_back_to_the_model(runtime: Runtime, wrong: Any) -> None:
    result = await runtime.run(painter(wrong), "Paint it.")

    assert result.phase == "succeeded"
    (done,) = await facts_of(runtime, result.run_id, ToolFinished)
    assert done.result.error is not None
    assert done.result.error.code == "invalid_input"


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(None, 604_800, 604_800), (60, 60, 60), (10**9, 604_800, 604_800)]
)
async def test_every_question_has_an_end(runtime: Runtime, asked: Any, least: float, most: float) -> None:
    result = await runtime.run(painter({"question": "Why?", "timeout_seconds": asked}), "Paint it.")
    (fact,) = await facts_of(runtime, result.run_id, QuestionAsked)
    times = [at for at, event in await runtime.inside.runs.facts(result.run_id) if event == fact]
    assert least - 1 <= fact.expires_at - times[0] <= most + 1


@pytest.mark.parametrize(
    ("default", "said"), [("red", "It is (Nobody answered in time; this is the default.)\nred."), (None, "")]
)
async def test_when_nobody_answers_the_default_is_taken_or_the_model_is_told(
    tmp_path: Path, default: str | None, said: str
) -> None:
    clock = Clock()
    async with Runtime(tmp_path / "foliot.db", clock=clock) as runtime:
        question = {**ASK, "default": default, "timeout_seconds": 60}
        result = await runtime.run(painter(question), "Paint it.")
        clock.now += 61
        done = await runtime.resume(result.run_id)
        (fact,) = await facts_of(runtime, result.run_id, ToolFinished)
        if default is None:
            assert fact.result.error.reason == "question_expired"
        else:
            assert done.output == said
        with pytest.raises(Conflict, match="asks nothing"):
            await runtime.inside.answer_question(result.run_id, None, "blue")


async def test_who_stays_goes_on_when_somebody_else_answers(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "foliot.db") as staying, Runtime(tmp_path / "foliot.db") as other:
        result = await staying.run(painter(), "Paint it.")
        attending = asyncio.create_task(staying.inside.attend(result.run_id))
        await other.inside.questions.answer(result.run_id, None, "red", by="ann")
        async with asyncio.timeout(60):
            assert (await attending).output == "It is red."


async def test_the_answer_is_in_the_audit_log_with_who_gave_it(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        result = await runtime.run(painter(), "Paint it.")
        await runtime.inside.answer_question(result.run_id, None, "red", by="ann")
    database = await open_database(str(tmp_path / "foliot.db"))
    try:
        records = [record.body for record in reversed(await SqlAuditLog(database).find(AuditFilter()))]
    finally:
        await database.close()
    assert [(body["moment"], body["outcome"]) for body in records] == [("parked", "asked"), ("decided", "answered")]
    assert records[1]["decision"]["by"] == "ann"
    assert records[1]["run_id"] == result.run_id


async def test_a_rule_can_want_an_approval_of_the_question(tmp_path: Path) -> None:
    from foliot.resources.validate import validate_document
    from foliot.store.base import Put
    from foliot.store.resources.database import SqlResourceStore

    spec = {"tool_ref": "ask_user", "operation_rules": [{"operation_class": "*", "verdict": "approval_required"}]}
    document, problems = validate_document({"kind": "ToolPermission", "metadata": {"name": "quiet"}, "spec": spec})
    assert document is not None, problems
    async with Runtime(tmp_path / "foliot.db") as runtime:
        database = await open_database(str(tmp_path / "foliot.db"))
        try:
            await SqlResourceStore(database, lambda: pytest.fail("no secret is touched")).write([Put(document)])
        finally:
            await database.close()
        result = await runtime.run(painter(), "Paint it.")
        assert result.waiting is not None
        assert result.waiting.reason == "approval"
        (approval,) = [each async for each in runtime.inside.approvals.list()]
        await runtime.inside.decide_approval(approval["metadata"]["name"], "approve", by="ann")
        _, state = await runtime.inside.runs.load(result.run_id)
        assert state.waiting is not None
        assert state.waiting.reason == "input"
        assert (await runtime.inside.answer_question(result.run_id, None, "red")).phase == "succeeded"


KILLED = """
import asyncio, os, sys
from foliot import Runtime
from tests.engine.test_questions import painter

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        if sys.argv[2] == "ask":
            await runtime.run(painter(), "Paint it.", run_id="r-1")
        else:
            await runtime.inside.questions.answer("r-1", None, "red", by="ann")
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_both_the_question_and_the_answer_outlive_processes_that_are_killed(tmp_path: Path) -> None:
    store = str(tmp_path / "foliot.db")
    for act in ("ask", "answer"):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, store, act],
            timeout=110,
            check=False,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with Runtime(store) as runtime:
        result = await runtime.resume("r-1", agent=painter())
        assert result.output == "It is red."
        assert len(await facts_of(runtime, "r-1", ModelResponded)) == 2
        assert len(await facts_of(runtime, "r-1", QuestionAsked)) == 1
