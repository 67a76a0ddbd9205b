"""The events of a turn as data: what follows from which fact, their places, and their JSON, which never changes."""

from __future__ import annotations

import pytest

from foliot.engine.live.hub import Output, Recorded, Streamed
from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Message,
    ModelResponse,
    Reasoning,
    RestartDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from foliot.kernel.run import events as e
from foliot.sessions.chat_events import (
    ChatAsk,
    ChatEvent,
    ChatPlace,
    CompactionEvent,
    EndEvent,
    ErrorEvent,
    FileEvent,
    ImageEvent,
    InputEvent,
    ReasoningEvent,
    RestartEvent,
    TextEvent,
    ToolEvent,
    TurnStory,
    WaitingEvent,
    decode_chat_event,
    encode_chat_event,
    read_place,
)

CREATED = e.RunCreated(
    "helper", "sha256:0", (Message("user", (Text("Hello"),)),), session="s1", turn=3, inputs=(7,)
)  # fmt: skip
CALL = ModelResponse(Message("assistant", (ToolCall("c1", "pay", '{"to":"bob","password":"x"}'),)), stop="tool_calls")


def told(*facts: e.Event) -> list[ChatEvent]:
    story = TurnStory("r1")
    return [event for seq, fact in enumerate(facts, 1) for event in story.events(Recorded("r1", seq, 0.0, fact))]


GOLDEN = [
    (TextEvent("r1", "r1/3.0", text="hi", step=1), '{"type":"text","run":"r1","place":"r1/3.0","text":"hi","step":1}'),
    (TextEvent("r1", text="h", step=1, piece=True), '{"type":"text","run":"r1","text":"h","step":1,"piece":true}'),
    (ReasoningEvent("r1", text="hm"), '{"type":"reasoning","run":"r1","text":"hm"}'),
    (RestartEvent("r1", step=2, reason="busy"), '{"type":"restart","run":"r1","step":2,"reason":"busy"}'),
    (
        ImageEvent("r1", media_type="image/png", blob="sha256:0", name="a.png"),
        '{"type":"image","run":"r1","media_type":"image/png","blob":"sha256:0","name":"a.png"}',
    ),
    (
        FileEvent("r1", media_type="text/csv", url="https://a.example/b", call_id="c1"),
        '{"type":"file","run":"r1","media_type":"text/csv","url":"https://a.example/b","call_id":"c1"}',
    ),
    (
        ToolEvent("r1", call_id="c1", tool="bash", status="error", input="ls", detail="no", code="x", seconds=0.5),
        '{"type":"tool","run":"r1","call_id":"c1","tool":"bash","status":"error","input":"ls","detail":"no","code":"x","seconds":0.5}',
    ),
    (
        InputEvent("r1", text="go", files=("a.png",), numbers=(1, 2)),
        '{"type":"input","run":"r1","text":"go","files":["a.png"],"numbers":[1,2]}',
    ),
    (
        CompactionEvent("r1", replaced=4, summary="s", cause="size", tokens_before=9, tokens_after=3),
        '{"type":"compaction","run":"r1","replaced":4,"summary":"s","cause":"size","tokens_before":9,"tokens_after":3}',
    ),
    (
        ErrorEvent("r1", code="overloaded", message="busy", retries=True),
        '{"type":"error","run":"r1","code":"overloaded","message":"busy","retries":true}',
    ),
    (
        WaitingEvent("r1", reason="approval", asks=(ChatAsk("approval", "c1", "pay", "ap-1", decisions=("approve",)),)),
        '{"type":"waiting","run":"r1","reason":"approval","asks":[{"kind":"approval","call_id":"c1","tool":"pay","id":"ap-1","decisions":["approve"]}]}',
    ),
    (
        EndEvent("r1", "r1/9.0", status="answered", stop="end", text="hi", steps=1, usage=Usage(3, 4), turn=2),
        '{"type":"end","run":"r1","place":"r1/9.0","status":"answered","stop":"end","text":"hi","steps":1,"usage":{"input_tokens":3,"output_tokens":4},"turn":2}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("event", "text"), GOLDEN)
def test_the_json_of_an_event_stays_as_it_is(event: ChatEvent, text: str) -> None:
    assert encode_chat_event(event).decode() == text
    assert decode_chat_event(text) == event


def test_places_are_read_as_they_are_written() -> None:
    for place in (ChatPlace("r-1.a:b", 7), ChatPlace("r1", 7, 2)):
        assert read_place(str(place)) == place
    assert ChatPlace("r1", 7, 2).covers(7, 2)
    assert not ChatPlace("r1", 7, 2).covers(7, 3)
    assert ChatPlace("r1", 7).covers(7, 99)


@pytest.mark.parametrize("text", ["", "r1", "r1/", "/1", "r1/x", "r1/1.", "r1/-1", "r1/1\n", "a b/1", f"{'r' * 200}/1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no place"):
        read_place(text)


def test_one_fact_may_give_several_events_with_places_of_their_own() -> None:
    answer = ModelResponse(Message("assistant", (Reasoning("hm"), Text("hi"))))
    _, thought, text = told(CREATED, e.StepStarted(1), e.ModelResponded(1, answer))
    assert [type(each) for each in (thought, text)] == [ReasoningEvent, TextEvent]
    assert [each.place for each in (thought, text)] == ["r1/3.0", "r1/3.1"]


def test_a_call_that_may_have_acted_is_asked_about_with_its_decisions() -> None:
    events = told(
        CREATED,
        e.StepStarted(1),
        e.ModelResponded(1, CALL),
        e.ToolStarted("c1", "pay", "k"),
        e.ToolUnknown("c1", "process_died", "the process died"),
        e.RunWaiting("unknown_effect", "person", ("c1",), message="did it take effect?"),
    )
    (waiting,) = [each for each in events if isinstance(each, WaitingEvent)]
    (ask,) = waiting.asks
    assert (ask.kind, ask.tool, ask.reason) == ("unknown_effect", "pay", "the process died")
    assert ask.decisions == ("happened", "run", "fail")


def test_a_question_carries_its_choices_and_a_decided_one_is_not_asked_again() -> None:
    asked = e.QuestionAsked("c1", "ask", "Which?", ("a", "b"), expires_at=9.0)
    waiting = e.RunWaiting("input", "person", ("c1",), message="Which?")
    first = told(CREATED, e.StepStarted(1), e.ModelResponded(1, CALL), asked, waiting)[-1]
    assert isinstance(first, WaitingEvent)
    assert [(each.kind, each.question, each.choices) for each in first.asks] == [("question", "Which?", ("a", "b"))]
    answered = e.QuestionAnswered("c1", "a", by="ann")
    last = told(CREATED, e.StepStarted(1), e.ModelResponded(1, CALL), asked, waiting, answered, waiting)[-1]
    assert isinstance(last, WaitingEvent)
    assert last.asks == ()


def test_waiting_for_a_timer_is_not_shown() -> None:
    assert told(CREATED, e.RunWaiting("model_retry", "timer", until=5.0))[1:] == []


def test_pieces_of_a_step_that_is_recorded_are_not_shown() -> None:
    story = TurnStory("r1")
    answer = e.ModelResponded(1, ModelResponse(Message("assistant", (Text("hi"),))))
    assert story.events(Streamed("r1", 1, TextDelta("h")))
    story.events(Recorded("r1", 1, 0.0, answer))
    assert story.events(Streamed("r1", 1, TextDelta("i"))) == []
    assert story.events(Recorded("r1", 1, 0.0, answer)) == [], "a fact that came before gives nothing"
    assert story.events(Streamed("r1", 2, RestartDelta("busy"))) == [RestartEvent("r1", step=2, reason="busy")]
    (printed,) = story.events(Output("r1", "c9", "line\n"))
    assert (printed.place, getattr(printed, "output", "")) == ("", "line\n")


def test_a_result_that_failed_is_summed_up_in_its_first_line() -> None:
    failure = ToolFailure("timeout", "tool_timeout", "it took too long\nand more")
    event = told(CREATED, e.ModelResponded(1, CALL), e.ToolFinished(ToolResult("c1", "pay", (), failure)))[-1]
    assert isinstance(event, ToolEvent)
    assert (event.status, event.detail, event.code) == ("error", "it took too long", "timeout")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (e.RunCancelled("ann", "interrupted by an input"), "interrupted"),
        (e.RunCancelled("ann", "stopped"), "stopped"),
        (e.RunDeadLettered("internal", "Foliot itself failed"), "failed"),
    ],
)
def test_every_end_of_a_run_is_one_end_of_its_turn(end: e.Terminal, status: str) -> None:
    events = told(CREATED, end)
    (last,) = [each for each in events if isinstance(each, EndEvent)]
    assert (events[-1], last.status, last.turn) == (last, status, 3)
