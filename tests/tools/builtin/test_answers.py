"""Tools that end a run, findings, to-dos and notes: what they accept, what they refuse, in which words."""

from __future__ import annotations

import msgspec
import pytest

from foliot.tools.base import ToolArgumentsInvalid
from foliot.tools.builtin.answers import Decide, EmitDiagnosis, SubmitWork
from foliot.tools.builtin.notes import Scratchpad, WriteTodos
from tests.tools.builtin.kit import call, invocation

FINDING = {"finding": "slow", "recommendation": "cache", "confidence": 0.5, "evidence": ["run-1"]}


async def result_of(tool, arguments, **fields):
    result = await call(tool, arguments, **fields)
    assert result.error is None, result.text
    return msgspec.json.decode(result.text)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        (Decide(), {"reason": "r"}, "action is required and must be a non-empty string"),
        (Decide(), {"action": " ", "reason": "r"}, "action is required and must be a non-empty string"),
        (Decide(), {"action": "a", "reason": ""}, "reason is required and must be a non-empty string"),
        (Decide(), {"action": "a", "reason": "r", "subtopics": "x"}, "subtopics must be an array of strings"),
        (Decide(), {"action": "a", "reason": "r", "subtopics": ["x", 1]}, r"subtopics\[1\] must be a string"),
        (Decide(), {"action": "a", "reason": "r", "retry_hint": 1}, "retry_hint must be a string"),
        (SubmitWork(), {"result": "\n"}, "result is required"),
        (EmitDiagnosis(), {**FINDING, "finding": ""}, "finding is required and must be a non-empty string"),
        (EmitDiagnosis(), {**FINDING, "recommendation": None}, "recommendation is required and must be"),
        (EmitDiagnosis(), {**FINDING, "confidence": None}, "confidence is required"),
        (EmitDiagnosis(), {**FINDING, "confidence": "high"}, "confidence must be a number"),
        (EmitDiagnosis(), {**FINDING, "confidence": True}, "confidence must be a number"),
        (EmitDiagnosis(), {**FINDING, "confidence": 1.5}, r"confidence must be between 0.0 and 1.0, got 1.5"),
        (EmitDiagnosis(), {**FINDING, "confidence": float("nan")}, "confidence must be between"),
        (EmitDiagnosis(), {**FINDING, "evidence": None}, "evidence is required"),
        (EmitDiagnosis(), {**FINDING, "evidence": "x"}, "evidence must be an array of strings"),
        (EmitDiagnosis(), {**FINDING, "evidence": []}, "evidence must contain at least 1 entity ID, got 0"),
        (EmitDiagnosis(), {**FINDING, "evidence": ["a", 2]}, r"evidence\[1\] must be a string"),
        (EmitDiagnosis(), {**FINDING, "observed_role": 1}, "observed_role must be a string"),
        (EmitDiagnosis(), {**FINDING, "severity": 1}, "severity must be a string"),
        (WriteTodos(), {}, 'missing required argument "todos"'),
        (WriteTodos(), {"todos": {}}, "decode todos: must be an array of {id, content, status}"),
        (WriteTodos(), {"todos": [1]}, "decode todos: must be an array of {id, content, status}"),
        (
            WriteTodos(),
            {"todos": [{"id": "", "content": "c", "status": "pending"}]},
            r"todos\[0\].id must be a non-empty",
        ),
        (WriteTodos(), {"todos": [{"id": "1", "status": "pending"}]}, r"todos\[0\].content must be a non-empty string"),
        (
            WriteTodos(),
            {"todos": [{"id": "1", "content": "c", "status": "done"}]},
            r'todos\[0\].status "done" is invalid; must be one of pending\|in_progress\|completed',
        ),
        (
            WriteTodos(),
            {"todos": [{"id": "1", "content": "c", "status": "pending"}] * 2},
            r'todos\[1\].id "1" is a duplicate; ids must be unique within a call',
        ),
        (Scratchpad(), {}, 'missing required argument "text"'),
        (Scratchpad(), {"text": 1}, 'argument "text" must be a string'),
        (Scratchpad(), {"text": "  "}, 'argument "text" must be a non-empty string'),
    ],
)
async def test_what_does_not_fit_is_refused_in_these_words(tool, arguments, words) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=words):
        await tool.invoke(invocation(tool, arguments))
    through_the_pipeline = await call(tool, arguments)
    assert through_the_pipeline.error is not None
    assert through_the_pipeline.error.code == "invalid_input"


async def test_a_decision_is_its_arguments_without_what_was_left_open() -> None:
    decision = {"action": "research", "reason": "unknown", "subtopics": ["a", "b"]}

    assert await result_of(Decide(), {**decision, "retry_hint": None}) == decision


async def test_an_action_is_taken_as_it_was_meant_and_nothing_further_is_guessed() -> None:
    decide = Decide(["ask_user", "finish"])

    assert (await result_of(decide, {"action": " Ask-User", "reason": "r"})) == {
        "action": "ask_user",
        "reason": "r",
        "raw_action": " Ask-User",
    }
    with pytest.raises(ToolArgumentsInvalid, match=r'action "finnish" is not in the allowed set for this role: \[ask_'):
        await decide.invoke(invocation(decide, {"action": "finnish", "reason": "r"}))


async def test_a_restriction_wins_over_the_list_of_actions() -> None:
    decide = Decide(["Ask-User", "finish"], restricted=["ask_user"])

    with pytest.raises(ToolArgumentsInvalid, match='action "ask_user" is restricted by deployment policy'):
        await decide.invoke(invocation(decide, {"action": "ask_user", "reason": "r"}))
    assert "Ask-User" not in str(decide.definition.schema)


async def test_a_finding_has_the_same_id_when_its_call_is_repeated() -> None:
    first = await result_of(EmitDiagnosis(), {**FINDING, "severity": "catastrophic"})
    again = await result_of(EmitDiagnosis(), {**FINDING, "severity": None})
    other = await result_of(EmitDiagnosis(), FINDING, idempotency_key="key-2")

    assert first == again
    assert first["severity"] == "info"
    assert first["entity_id"].startswith("default.clerk.ops.diagnosis.finding.")
    assert other["entity_id"] != first["entity_id"]


async def test_submitted_work_is_the_text_itself_or_names_its_artifacts() -> None:
    assert (await call(SubmitWork(), {"result": "Done.", "artifacts": []})).text == "Done."
    assert await result_of(SubmitWork(), {"result": "Done.", "artifacts": ["a.md"]}) == {
        "result": "Done.",
        "artifacts": ["a.md"],
    }


async def test_todos_come_back_with_their_positions() -> None:
    todos = [{"id": "1", "content": "c", "status": "pending"}, {"id": "2", "content": "d", "status": "completed"}]

    assert await result_of(WriteTodos(), {"todos": todos}) == {
        "count": 2,
        "todos": [{**todos[0], "position": 0}, {**todos[1], "position": 1}],
    }
    assert await result_of(WriteTodos(), {"todos": []}) == {"count": 0, "todos": []}


async def test_characters_of_a_note_are_counted_and_not_bytes() -> None:
    assert (await result_of(Scratchpad(), {"text": "é€"}))["chars"] == 2
