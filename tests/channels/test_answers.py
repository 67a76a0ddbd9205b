"""The answer that people are sent: there is one for every way in which a turn can end."""

from __future__ import annotations

from typing import get_args

import pytest

from foliot.channels.base import DeliveryFailed
from foliot.channels.delivery import answer_of
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded, Terminal
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.runtime.results import result_of

MORE = "; whoever runs this agent finds out more by run r1"
ENDS = {
    RunSucceeded("Hello."): "Hello.",
    RunFailed("model_failed", "down", "provider x said 500"): f"Agent error: the model could not answer{MORE}",
    RunFailed("refused", "model_refusal", "I do not do that."): "Agent error: I do not do that.",
    RunFailed("contract_violation", "x", "tool pay: limit 50 of policy p"): f"Agent error: something went wrong{MORE}",
    RunCancelled("ann", "stopped"): "[stopped]",
    RunDeadLettered("internal", "Foliot itself failed"): f"Agent error: something went wrong{MORE}",
    RunDeadLettered("crash_loop"): f"Agent error: something went wrong{MORE}",
}


def ended_with(terminal: Terminal | None) -> State:
    state = State(RunSpec("helper", "a-model"), "r1")
    state.ended = terminal
    return state


def test_every_end_of_a_turn_is_looked_at() -> None:
    assert {type(each) for each in ENDS} == set(get_args(Terminal))


@pytest.mark.parametrize("terminal", ENDS)
def test_people_are_told_how_a_turn_ended(terminal: Terminal) -> None:
    assert answer_of(ended_with(terminal)).text == ENDS[terminal]


def test_the_result_of_a_run_that_was_given_up_has_an_error() -> None:
    assert result_of(ended_with(RunDeadLettered("internal", "Foliot itself failed")), "failed").error == (
        "Foliot itself failed"
    )


def test_a_turn_that_has_not_ended_has_no_answer_yet() -> None:
    with pytest.raises(DeliveryFailed, match="not ended"):
        answer_of(ended_with(None))
