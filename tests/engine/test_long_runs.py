"""What is made from a journal takes work in proportion to its facts, however long the run was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.explain import trace as trace_room
from foliot.engine.explain.replay import replay
from foliot.engine.explain.trace import read_trace, trace_of
from foliot.engine.explain.why import RunLiveness, explain
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolResult, ToolSpec, Usage
from foliot.kernel.run import calls as calls_room
from foliot.kernel.run import events as e
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.loop import fold
from foliot.kernel.run.past import CallIds
from foliot.kernel.run.spec import RunSpec, ToolRule
from foliot.kernel.tokens import PER_MESSAGE, estimate_parts, estimate_request, image_rule
from foliot.runtime import inside as inside_room
from foliot.store.journal.base import Entry
from foliot.tools.builtin import journal as journal_room
from foliot.work.views.story import live_run
from tests.work_count import count_work

STEPS = 60
SPEC = RunSpec(
    "clerk",
    "m",
    tools=(ToolRule(ToolSpec("look", "", {"type": "object"}), effect="read"),),
    limits=Limits(max_steps=None),
)


def facts(steps: int) -> list[tuple[float, e.Event]]:
    """A run that in each step is taken over in the middle of a call, whose id the model gives again and again."""
    found: list[tuple[float, e.Event]] = [
        (1.0, e.RunCreated("clerk", "sha256:x", (Message("user", (Text("hi"),)),), equality=e.EQUALITY)),
        (1.0, e.RunClaimed(1, "vm/1/1", 1)),
    ]
    for step in range(1, steps + 1):
        at, call = 1.0 + step, "c" if step == 1 else f"c-{step}"
        asked = Message("assistant", (ToolCall("c", "look", f'{{"page":{step}}}'),))
        answer = ModelResponse(asked, Usage(10, 5, cost_usd=0.5), model="m", notes=("as always", f"number {step}"))
        told: list[e.Event] = [
            e.StepStarted(step),
            e.ModelResponded(step, answer, 0.75),
            e.ToolStarted(call, "look", f"r1/{call}"),
            e.RunClaimed(step + 1, "vm/2/2", step + 1),
            e.ToolStarted(call, "look", f"r1/{call}", 2),
            e.ToolFinished(ToolResult(call, "look", (Text("ok"),)), 0.1),
        ]
        found += [(at, each) for each in told]
    return found


WORK: dict[str, Callable[[list[tuple[float, e.Event]]], Any]] = {
    "trace": lambda story: trace_of("r1", story),
    "explanation": lambda story: explain(trace_of("r1", story), RunLiveness("running"), SPEC, 9.0e9),
    "state": lambda story: fold(SPEC, "r1", story),
    "replay": lambda story: replay_whole(story),
    "live view": lambda story: live_run(trace_of("r1", story), story),
}


def replay_whole(story: list[tuple[float, e.Event]]) -> None:
    entries = [Entry(seq, at, type_of(each), encode(each), b"") for seq, (at, each) in enumerate(story, 1)]
    found = replay(SPEC, "r1", entries)
    assert (found.difference, found.events) == (None, len(story))


def prepare_story(what: str, steps: int) -> Callable[[], Any]:
    story = facts(steps)
    return lambda: WORK[what](story)


@pytest.mark.parametrize("what", WORK)
def test_what_is_made_from_a_journal_takes_the_same_work_for_each_fact(what: str) -> None:
    once, twice = count_work("line", prepare_story, (what, STEPS), (what, 2 * STEPS))
    assert 10 * STEPS < once < twice < 2.2 * once


def test_the_ids_of_calls_are_gathered_once_for_a_trace(monkeypatch):
    made: list[CallIds] = []

    class Counted(CallIds):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(calls_room, "CallIds", Counted)
    found = trace_of("r1", facts(STEPS))
    assert len(found.calls) == STEPS
    assert len(made) == 1


def explain_calls(calls: int) -> Any:
    ids = tuple(f"c{number}" for number in range(calls))
    asked = Message("assistant", tuple(ToolCall(each, "look", "{}") for each in ids))
    told: list[tuple[float, e.Event]] = [
        (1.0, e.ModelResponded(1, ModelResponse(asked))),
        (1.0, e.RunWaiting("approval", "person", ids)),
    ]
    return explain(trace_of("r1", told), RunLiveness("waiting"), SPEC, 9.0)


def prepare_calls(calls: int) -> Callable[[], Any]:
    return lambda: explain_calls(calls)


def test_what_waits_in_one_step_is_found_in_one_look():
    assert "since 8.0s ago" in explain_calls(2).headline
    once, twice = count_work("line", prepare_calls, (STEPS,), (2 * STEPS,))
    assert STEPS < once < twice < 2.2 * once


@pytest.mark.parametrize(("steps", "beside"), [(2, False), (100, True)])
async def test_a_long_trace_is_made_beside_the_event_loop(monkeypatch, steps, beside):
    threads: list[int] = []

    def noted(run_id: str, told: Any) -> Any:
        threads.append(threading.get_ident())
        return trace_of(run_id, told)

    monkeypatch.setattr(trace_room, "trace_of", noted)
    assert len((await read_trace("r1", facts(steps))).steps) == steps
    assert [each != threading.get_ident() for each in threads] == [beside]


@pytest.mark.parametrize("what", ["replay", "results"])
async def test_a_long_run_is_replayed_and_its_results_are_listed_beside_the_event_loop(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect="read")
    async def look(page: int) -> str:
        """Look at a page."""
        return f"{page} " * 100

    threads: list[int] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any, **named: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*given, **named)

        return told

    monkeypatch.setattr(inside_room, "replay", noted(inside_room.replay))
    monkeypatch.setattr(inside_room, "check_chain", noted(inside_room.check_chain))
    monkeypatch.setattr(journal_room, "_past", noted(journal_room._past))
    turns = [{"call": {"look": {"page": n}}} for n in range(200)]
    clerk = Agent("clerk", model=ScriptedModel([*turns, {"say": "done"}]), tools=[look], limits={"max_steps": 300})
    async with Runtime(tmp_path / "foliot.db") as rt:
        run_id = (await rt.run(clerk, "go")).run_id
        threads.clear()
        await getattr(rt.runs, what)(run_id)

    assert threads
    assert threading.get_ident() not in threads


def _asked(steps: int, note: str = "") -> list[ModelRequest]:
    """The questions of a run, each of which repeats the messages of the one before it."""
    said: tuple[Message, ...] = (Message("user", (Text("hi"),)),)
    found: list[ModelRequest] = []
    for step in range(steps):
        said = (*said, Message("assistant", (ToolCall(f"c{step}", "look", "{}"),)))
        said = (*said, Message("tool", (ToolResult(f"c{step}", "look", (Text(f"page {step}"),)),)))
        last = (Message("user", (Text(f"{note} {step}"),)),) if note else ()
        found.append(ModelRequest("m", (*said, *last)))
    return found


def prepare_question(note: str, steps: int) -> Callable[[], Any]:
    """The last question of a run, all others of which were estimated."""
    *before, question = _asked(steps, note)
    for each in before:
        estimate_request(each)
    return lambda: estimate_request(question)


@pytest.mark.parametrize("note", ["", "steps left:"], ids=["as it is", "with a note for each question"])
def test_the_tokens_of_a_question_are_estimated_from_what_is_new_in_it(note: str) -> None:
    short, long = count_work("line", prepare_question, (note, 100), (note, 400))
    assert 0 < long < 1.5 * short


@given(st.lists(st.sampled_from(["add", "cut", "change", "other model", "another run"]), max_size=30))
def test_an_estimate_is_the_same_whatever_was_estimated_before(changes: list[str]) -> None:
    model, said = "m", _asked(40)[-1].messages
    for number, change in enumerate(changes):
        match change:
            case "add":
                said = (*said, Message("user", (Text("more " * number),)))
            case "cut":
                said = (said[0], *said[3:])
            case "change":
                said = (*said[:-2], Message("user", (Text("x" * number),)), said[-1])
            case "other model":
                model = "gpt-4o" if model == "m" else "m"
            case _:
                said = _asked(40 + number)[-1].messages
        parts = sum(estimate_parts(each.parts, image_rule(model)) for each in said)
        assert estimate_request(ModelRequest(model, said)) == parts + PER_MESSAGE * len(said)
