"""When and where a conversation is cut: decided by the kernel, and always between whole turns or steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run.actions import AskModel, Compact, End
from foliot.kernel.run.compaction import cut
from foliot.kernel.run.events import (
    CompactionRequested,
    ModelCut,
    ModelFailed,
    ModelResponded,
    RunClaimed,
    RunCreated,
    RunSucceeded,
    SessionCompacted,
    SessionNotCompacted,
    StepStarted,
)
from foliot.kernel.run.loop import apply, decide, fold
from foliot.kernel.run.rules import refusal
from foliot.kernel.run.spec import CompactionRules, RunSpec
from foliot.kernel.run.state import State
from tests.kernel.play import user

SUMMARY = user("in short")


def answer(text: str = "fine") -> Message:
    return Message("assistant", (Text(text),))


def called(name: str) -> tuple[Message, Message]:
    return (
        Message("assistant", (ToolCall(name, "look"),)),
        Message("tool", (ToolResult(name, "look", (Text("seen"),)),)),
    )


def at_work(history: list[Message], most: int = 0, tail: int = 20, **created: object) -> State:
    """A run that goes on with a conversation, about to ask."""
    spec = RunSpec("clerk", "m", compaction=True, compaction_rules=CompactionRules(most, tail))
    facts = [(1.0, RunCreated("clerk", "s", (user("now"),), after="r0", **created)), (1.0, RunClaimed(1))]  # type: ignore[arg-type]
    return fold(spec, "r1", facts, history)


steps = st.lists(st.just("step") | st.just("turn"), max_size=30).map(
    lambda kinds: [
        message
        for number, kind in enumerate(kinds)
        for message in ((user("u"), answer()) if kind == "turn" else called(f"c{number}"))
    ]
)


@given(steps, st.integers(0, 12), st.sampled_from(("size", "asked", "overflow")), st.booleans())
def test_a_cut_keeps_calls_with_their_results_and_the_tail(
    said: list[Message], tail: int, cause: str, summarised: bool
) -> None:
    history = [SUMMARY, *said] if summarised else said
    state = at_work(history, tail=tail, summarised=9 if summarised else 0)
    replaced = cut(state, cause)  # type: ignore[arg-type]

    assert 0 <= replaced <= len(state.transcript)
    if not replaced:
        return
    kept = state.transcript[replaced:]
    asked = {call.id for message in kept for call in message.calls}
    given_back = {part.call_id for message in kept for part in message.parts if isinstance(part, ToolResult)}
    assert asked == given_back
    assert len(kept) >= tail or cause == "overflow"
    assert refusal(state, SessionCompacted(replaced, SUMMARY)) is None


@given(steps, st.integers(1, 12))
def test_no_more_messages_than_the_tail_are_all_tail(said: list[Message], tail: int) -> None:
    state = at_work(said[: tail - 1], tail=tail)
    assert cut(state, "size") == cut(state, "asked") == 0


def test_a_cut_is_made_at_the_beginning_of_a_turn_where_there_is_one() -> None:
    said = [user("a"), answer(), user("b"), *called("c1"), answer(), user("c"), answer()]
    assert cut(at_work(said, tail=4), "asked") == 2, "in the middle of the second turn nothing is cut"


def test_a_turn_that_is_longer_than_the_tail_is_cut_between_its_steps() -> None:
    said = [user("a"), *called("c1"), *called("c2"), *called("c3")]
    assert cut(at_work(said, tail=4), "asked") == 3


def test_above_its_threshold_a_conversation_is_compacted_once_before_the_next_question() -> None:
    state = at_work([user("word " * 40), answer("word " * 40)] * 4, most=200, tail=2)
    action = decide(state)
    assert isinstance(action, Compact)
    assert (action.cause, action.replace) == ("size", 6)

    apply(state, SessionCompacted(action.replace, SUMMARY, last=6), 2.0)
    assert state.summarised == 6
    assert isinstance(decide(state), AskModel)


def test_a_compaction_that_failed_is_not_tried_again_before_the_same_question() -> None:
    state = at_work([user("word " * 40), answer("word " * 40)] * 4, most=200, tail=2)
    transcript = list(state.transcript)

    apply(state, SessionNotCompacted("no model", "size", Usage(3, 4)), 2.0)

    assert isinstance(decide(state), AskModel)
    assert state.transcript == transcript
    assert state.spent.tokens == 7


def test_a_tail_that_is_too_long_by_itself_is_not_compacted_at_every_step() -> None:
    long = "word " * 400
    state = at_work([user("a"), answer("b"), user(long), answer(long)], most=300, tail=3)
    assert isinstance(decide(state), AskModel)


def test_what_a_provider_counted_decides_and_not_the_estimate() -> None:
    history = [user("word " * 40), answer("word " * 40)] * 4
    assert isinstance(decide(at_work(history, most=2_000, tail=2)), AskModel)
    assert isinstance(decide(at_work(history, most=500, tail=2, sized=90)), AskModel)
    assert isinstance(decide(at_work(history, most=500, tail=2, sized=9_000)), Compact)


def test_whoever_asks_has_it_compacted_before_the_next_question() -> None:
    state = at_work([user("a"), answer()] * 4, tail=2)
    assert isinstance(decide(state), AskModel)
    apply(state, CompactionRequested("ann"), 2.0)
    action = decide(state)
    assert isinstance(action, Compact)
    assert action.cause == "asked"


def test_a_compaction_that_is_asked_for_during_the_last_question_is_made_before_the_end() -> None:
    state = at_work([user("a"), answer()] * 4, tail=2)
    for event in (StepStarted(1), CompactionRequested("ann"), ModelResponded(1, ModelResponse(answer("done")))):
        apply(state, event, 2.0)
    action = decide(state)
    assert isinstance(action, Compact)
    assert action.cause == "asked"
    apply(state, SessionCompacted(action.replace, SUMMARY, first=1, last=action.replace), 3.0)
    ended = decide(state)
    assert isinstance(ended, End)
    assert isinstance(ended.terminal, RunSucceeded)
    assert ended.terminal.output == "done"


def test_a_run_that_only_compacts_ends_when_it_has() -> None:
    spec = RunSpec("clerk", "m", compaction=True, compaction_rules=CompactionRules(0, 2), output_schema={})
    facts = [(1.0, RunCreated("clerk", "s", after="r0", compacts=True)), (1.0, RunClaimed(1))]
    state = fold(spec, "r1", facts, [user("a"), answer()] * 4)
    assert isinstance(decide(state), Compact)

    apply(state, SessionCompacted(6, SUMMARY, first=1, last=6, tokens_before=90, tokens_after=9), 2.0)
    action = decide(state)

    assert isinstance(action, End)
    assert isinstance(action.terminal, RunSucceeded)
    assert action.terminal.output == "6 messages were summarised: about 90 tokens became 9"
    assert len(state.transcript) == 3


def test_a_summary_that_does_not_fit_what_it_replaces_is_refused() -> None:
    state = at_work([SUMMARY, user("a"), answer(), user("b"), answer()], summarised=40)
    assert refusal(state, SessionCompacted(3, SUMMARY, last=42)) is None
    assert "does not replace" in str(refusal(state, SessionCompacted(3, SUMMARY, last=43)))


def test_text_that_was_shown_is_forgotten_when_the_question_is_asked_again() -> None:
    state = at_work([])
    for event in (StepStarted(1), ModelCut(1, "The answer"), ModelFailed(1, "overloaded", "busy", True)):
        apply(state, event, 2.0)
    assert state.cut is not None
    apply(state, StepStarted(1, 2), 3.0)
    assert state.cut is None


def test_text_is_only_shown_of_an_answer_that_is_awaited() -> None:
    state = at_work([])
    assert "ready" in str(refusal(state, ModelCut(1, "The answer")))
