"""The fold knows whether any message of a conversation may name a file, so that no question is searched for one."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import Media, Message, ModelResponse, Text, Usage
from foliot.kernel.run.events import (
    Event,
    InputReceived,
    ModelResponded,
    RunClaimed,
    RunCreated,
    SessionCompacted,
    StepStarted,
)
from foliot.kernel.run.loop import fold
from tests.kernel.play import spec, user

FILE = Message("user", (Text("see"), Media("image/png", blob="sha256:1")))
SHOWN = Message("user", (Media("image/png", data="aGk="), Media("image/png", url="https://example.com/a.png")))
PLAIN = user("hello")
ANSWER = Message("assistant", (Text("so"),))


def names_files(*facts: Event, said: Message = PLAIN, history: tuple[Message, ...] = ()) -> bool:
    begun = (RunCreated("clerk", "sha256:0", (said,)), RunClaimed(1, "w", 1), *facts)
    return fold(spec(), "r1", [(1.0, fact) for fact in begun], history).files


def answered(answer: Message, usage: Usage) -> ModelResponded:
    return ModelResponded(1, ModelResponse(answer, usage))


def test_a_conversation_in_words_names_none() -> None:
    told = InputReceived("i1", PLAIN)
    facts = (told, StepStarted(1, 1), answered(ANSWER, Usage(1, 1)), SessionCompacted(1, PLAIN))
    assert not names_files(*facts, history=(PLAIN, ANSWER, SHOWN))


@pytest.mark.parametrize("usage", [Usage(), Usage(5, 5)])
def test_a_file_of_an_answer_is_known(usage: Usage) -> None:
    pictured = Message("assistant", (Text("here"), Media("image/png", blob="sha256:2")))
    assert names_files(StepStarted(1, 1), answered(pictured, usage))


def test_a_file_is_known_from_wherever_it_comes() -> None:
    assert names_files(said=FILE)
    assert names_files(history=(FILE, ANSWER))
    assert names_files(SessionCompacted(1, FILE))


def test_a_file_of_an_input_is_known_before_the_input_is_taken() -> None:
    """The next question is made with what is due, before the fold takes it in."""
    assert names_files(InputReceived("i1", FILE))


def test_what_was_known_once_stays_known() -> None:
    assert names_files(SessionCompacted(1, PLAIN), said=FILE), "what is left of the conversation may name others"
