"""Cursors, and what is said of each thing that happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.kernel.graph import events as t
from foliot.kernel.run import events as e
from foliot.work.views.events import (
    Place,
    RunHappening,
    TaskHappening,
    as_data,
    decode_cursor,
    encode_cursor,
    log_line,
    said,
)

AT = 1_767_225_600.25


@given(st.integers(0, 10**6), st.text(max_size=30), st.dictionaries(st.text(max_size=30), st.integers(0, 10**6)))
def test_a_cursor_comes_back_as_it_was(seq: int, finished: str, runs: dict[str, int]) -> None:
    place = Place(seq, finished, runs)

    assert decode_cursor(encode_cursor(place)) == place


@pytest.mark.parametrize("cursor", ["x", "%%%", "W10", "eyJhIjoxfQ", "é", "W1siYSJdLDEse31d"])
def test_a_cursor_that_was_not_given_out_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput, match="does not belong to this list"):
        decode_cursor(cursor)


def test_no_cursor_is_the_beginning() -> None:
    assert decode_cursor(None) == decode_cursor("") == Place()


ENVELOPE = t.Envelope("default/x/a001/h001/system/lead", "system", "lead", "go")


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (t.TaskAccepted("go\nnow", by="ann"), "accepted from ann: go now"),
        (t.MessageSent(ENVELOPE), "system → lead"),
        (t.MessageSent(ENVELOPE, activates=False), "system → lead (it waits at the join)"),
        (t.MessageEnded(ENVELOPE.id, "succeeded", output="fine"), "lead is done"),
        (t.MessageEnded(ENVELOPE.id, "failed", error="no", attempts=3), "lead failed after 3 attempts: no"),
        (t.BranchEnded(ENVELOPE.id, "turn_limit", "4 of 4"), "a branch ends here (turn_limit): 4 of 4"),
        (t.JoinClosed("end", 1, "timeout", "skip", ("a",)), "the join of end is closed (timeout, without a): skip"),
        (t.TimerWentOff(), None),
        (t.TaskCancelRequested("ann", "enough"), "asked to stop by ann: enough"),
        (t.TaskRequeued(2, "ann"), "retried by ann: attempt 2 begins"),
        (t.TaskSucceeded("x"), "the task has succeeded"),
        (t.TaskFailed("c", "r", "broken"), "the task has failed: broken"),
        (t.TaskCancelled("ann", "enough"), "the task was cancelled by ann: enough"),
        (t.TaskDeadLettered("r", "given up"), "the task was dead-lettered: given up"),
    ],
)
def test_every_fact_of_a_task_is_said_in_a_line(fact: t.TaskEvent, text: str | None) -> None:
    happening = TaskHappening(AT, 3, fact)

    assert said(happening) == text
    assert log_line(happening) == (None if text is None else f"2026-01-01T00:00:00.250Z {text}")


def test_what_happens_in_a_run_has_its_agent_in_front() -> None:
    assert said(RunHappening(AT, 2, "lead", "r1", e.StepStarted(1))) == "lead: step 1"
    for number in (7, 8):  # two workers of one machine are told apart
        taken = e.RunClaimed(2, f"host.b/1/{number}/2")
        told = f"lead: taken by process {number} on host (attempt 2)"
        assert said(RunHappening(AT, 2, "lead", "r1", taken)) == told
    assert said(RunHappening(AT, 2, "lead", "r1", e.RunFailed("c", "r", "broken"))) == "lead: failed: broken"


def test_data_names_the_task_and_for_runs_the_run_too() -> None:
    own = as_data("default/x", TaskHappening(AT, 3, t.TaskSucceeded("fine")))
    of_run = as_data("default/x", RunHappening(AT, 2, "lead", "r1", e.StepStarted(1)))

    assert own == {"type": "task.succeeded", "task": "default/x", "seq": 3, "at": AT, "data": {"output": "fine"}}
    assert of_run["type"] == "step.started"
    assert (of_run["run"], of_run["agent"], of_run["data"]) == ("r1", "lead", {"step": 1})
