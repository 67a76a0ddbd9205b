from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.kernel.messages import (
    Message,
    ModelResponse,
    Part,
    RestartDelta,
    StopReason,
    Text,
    TextDelta,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from foliot.kernel.run import events as e
from foliot.server.streams.pieces import Called, Ended, Piece, Printed, Returned, Teller, Wrote, usage_of


def records(*facts: e.Event) -> list[Recorded]:
    return [Recorded("r", seq, float(seq), fact) for seq, fact in enumerate(facts, 1)]


def answered(step: int, text: str, *calls: ToolCall, stop: StopReason = "end") -> e.ModelResponded:
    parts: tuple[Part, ...] = (*((Text(text),) if text else ()), *calls)
    return e.ModelResponded(step, ModelResponse(Message("assistant", parts), Usage(3, 2), stop))


def told(*items: Live, structured: bool = False) -> list[Piece]:
    teller = Teller("r", structured=structured)
    return [piece for item in items for piece in teller.tell(item)]


def test_text_comes_once_whether_streamed_or_only_recorded() -> None:
    whole = records(answered(1, "Hello there"), e.RunSucceeded("Hello there"))
    pieces = [Streamed("r", 1, TextDelta("Hello")), Streamed("r", 1, TextDelta(" th"))]

    streamed = [piece.text for piece in told(*pieces, *whole) if isinstance(piece, Wrote)]
    recorded = [piece.text for piece in told(*whole) if isinstance(piece, Wrote)]

    assert streamed == ["Hello", " th", "ere"]
    assert recorded == ["Hello there"]


def test_pieces_that_come_after_their_record_are_passed_over() -> None:
    one, two = records(answered(1, "Hello"), e.RunSucceeded("Hello"))

    assert told(one, Streamed("r", 1, TextDelta("Hello")), two)[0] == Wrote(1, "Hello")
    assert len(told(one, Streamed("r", 1, TextDelta("Hello")), two)) == 2


def test_an_answer_that_began_anew_is_told_whole() -> None:
    items: list[Live] = [
        Streamed("r", 1, TextDelta("Hel")),
        Streamed("r", 1, RestartDelta("overloaded")),
        Streamed("r", 1, TextDelta("Good")),
        *records(answered(1, "Good day")),
    ]

    assert told(*items) == [Wrote(1, "Hel"), Wrote(1, "Good day", anew=True)]


def test_a_structured_answer_is_told_only_when_it_was_accepted() -> None:
    items: list[Live] = [
        Streamed("r", 1, TextDelta('{"a": 1}')),
        *records(answered(1, '{"a": 1}'), answered(2, '{"b": 2}'), e.RunSucceeded('{"b": 2}', {"b": 2})),
    ]
    pieces = told(*items, structured=True)

    assert [piece.text for piece in pieces if isinstance(piece, Wrote)] == ['{"b": 2}']
    assert isinstance(pieces[-1], Ended)
    assert pieces[-1].value == {"b": 2}


def test_calls_are_told_once_with_the_arguments_that_were_written() -> None:
    call = ToolCall("c1", "add", '{"one":1}')
    failed = ToolResult("c1", "add", (), ToolFailure("execution_failed", "x", "it broke"))
    pieces = told(
        *records(answered(1, "", call), e.ToolStarted("c1", "add", "k"), e.ToolFinished(failed)),
        Output("r", "c1", "working"),
    )

    assert pieces == [
        Called("c1", "add", '{"one":1}'),
        Returned("c1", "add", "", "it broke", '{"one":1}'),
        Printed("c1", "working"),
    ]


def test_a_call_whose_id_was_taken_keeps_its_arguments() -> None:
    pieces = told(*records(answered(1, "", ToolCall("c", "add", '{"n":2}')), e.ToolStarted("c-2", "add", "k")))

    assert pieces == [Called("c-2", "add", '{"n":2}')]


def test_what_is_asked_is_known_until_it_is_answered() -> None:
    teller = Teller("r")
    asked = e.ApprovalRequested("c1", "ap-1", "pay", "sha256:x", "large")
    waiting = e.RunWaiting("approval", "person", ("c1",), message="waits")
    for item in records(answered(1, "", ToolCall("c1", "pay", '{"n":1}')), asked, waiting):
        teller.tell(item)

    rested = teller.rest()
    assert [(each.kind, each.id, each.arguments) for each in rested.asked] == [("approval", "ap-1", '{"n":1}')]
    assert rested.message == "waits"
    teller.tell(Recorded("r", 4, 4.0, e.ApprovalDecided("c1", "approve")))
    assert teller.rest().asked == ()


def test_ends_say_what_they_are() -> None:
    failed = told(*records(e.RunFailed("model", "model_failed", "no key")))[-1]
    cancelled = told(*records(e.RunCancelled("ann", "")))[-1]
    given_up = told(*records(e.RunDeadLettered("poison", "it takes workers down")))[-1]

    assert isinstance(failed, Ended)
    assert (failed.phase, failed.error, failed.reason) == ("failed", "no key", "model_failed")
    assert isinstance(cancelled, Ended)
    assert (cancelled.phase, cancelled.error) == ("cancelled", "cancelled by ann")
    assert isinstance(given_up, Ended)
    assert (given_up.phase, given_up.reason) == ("failed", "poison")


def test_usage_of_many_is_their_sum() -> None:
    assert usage_of([Usage(1, 2, 3, 4, 5), Usage(1, 1, 1, 1, 1)]) == Usage(2, 3, 4, 5, 6)


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=5), st.integers(0, 5))
def test_however_text_is_cut_and_lost_what_is_told_is_the_text(text: str, cuts: list[int], kept: int) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[one:other] for one, other in itertools.pairwise(places)]
    items: list[Live] = [Streamed("r", 1, TextDelta(piece)) for piece in pieces[:kept]]
    wrote = [
        piece for piece in told(*items, *records(answered(1, text), e.RunSucceeded(text))) if isinstance(piece, Wrote)
    ]

    assert "".join(piece.text for piece in wrote) == text
    assert not any(piece.anew for piece in wrote)
