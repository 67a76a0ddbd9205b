"""Whenever somebody begins to listen, and however often they look: they hear every character once, and in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.engine.live.hub import Live, Recorded, Streamed
from foliot.kernel.messages import Message, ModelResponse, Text, TextDelta, ToolResult, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.codec import encode, type_of
from foliot.server.openai.responses import DELTA, ResponseAnswer, behind
from foliot.server.openai.stored import Listening
from foliot.server.streams.pieces import Ended, Piece, Wrote
from foliot.store.journal.base import Entry

Timeline = list[Live]


def history(steps: list[list[str]]) -> Timeline:
    """A run whose answers are written in these chunks, as it happens."""
    timeline: Timeline = []
    seq = 0

    def record(event: e.Event) -> None:
        nonlocal seq
        seq += 1
        timeline.append(Recorded("r", seq, float(seq), event))

    record(e.RunCreated("a", "sha256:0"))
    for step, chunks in enumerate(steps, 1):
        record(e.StepStarted(step))
        timeline.extend(Streamed("r", step, TextDelta(chunk)) for chunk in chunks)
        record(
            e.ModelResponded(step, ModelResponse(Message("assistant", (Text("".join(chunks)),)), Usage(1, 1), "end"))
        )
        if step < len(steps):
            record(e.ToolStarted(f"c{step}", "look", "k"))
            record(e.ToolFinished(ToolResult(f"c{step}", "look", (Text("seen"),))))
    record(e.RunSucceeded("".join(steps[-1])))
    return timeline


def heard(timeline: Timeline, joined: int, looks: list[int], *, elsewhere: bool) -> list[Piece]:
    """What is told to one who hears from `joined` on, and looks after so many more things have happened each time."""
    listening = Listening("r", structured=False, after=0)
    pieces: list[Piece] = []
    taken, now = joined, joined
    for look in [*looks, len(timeline)]:
        now = min(len(timeline), now + look)
        happened = [each for each in timeline[:now] if isinstance(each, Recorded) and each.seq > listening.teller.seq]
        entries = [Entry(each.seq, each.at, type_of(each.event), encode(each.event)) for each in happened]
        came = [each for each in timeline[taken:now] if not (elsewhere and isinstance(each, Recorded))]
        taken = now
        pieces += listening.hear(entries, came)
    return pieces


steps = st.lists(st.lists(st.text("abcdé ", min_size=1, max_size=6), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(steps, st.integers(0, 40), st.lists(st.integers(0, 9), max_size=12))
def test_every_character_is_told_once_and_in_order(written: list[list[str]], joined: int, looks: list[int]) -> None:
    timeline = history(written)

    pieces = heard(timeline, min(joined, len(timeline)), looks, elsewhere=False)

    texts: dict[int, str] = {}
    for piece in pieces:
        if isinstance(piece, Wrote):
            assert not piece.anew
            texts[piece.step] = texts.get(piece.step, "") + piece.text
    assert texts == {step: "".join(chunks) for step, chunks in enumerate(written, 1)}
    assert isinstance(pieces[-1], Ended)


def test_a_step_that_was_under_way_is_told_when_it_is_whole_and_the_next_as_it_is_written() -> None:
    timeline = history([["Let ", "me ", "look."], ["It ", "is."]])

    pieces = heard(timeline, 3, [1] * len(timeline), elsewhere=False)

    assert [piece.text for piece in pieces if isinstance(piece, Wrote)] == ["Let me look.", "It ", "is."]


def test_pieces_from_another_process_are_told_from_the_next_step_on() -> None:
    timeline = history([["Let ", "me ", "look."], ["It ", "is."]])

    pieces = heard(timeline, 3, [1] * len(timeline), elsewhere=True)

    assert [piece.text for piece in pieces if isinstance(piece, Wrote)] == ["Let me look.", "It ", "is."]


@settings(deadline=None)
@given(steps, st.integers(0, 40), st.integers(0, 60))
def test_numbers_are_the_same_however_the_text_was_cut(written: list[list[str]], joined: int, number: int) -> None:
    timeline = history(written)
    as_written = heard(timeline, 0, [1] * len(timeline), elsewhere=False)
    later = heard(timeline, min(joined, len(timeline)), [], elsewhere=False)

    def events(pieces: list[Piece]) -> list[dict[str, object]]:
        answer = ResponseAnswer("resp_r", "a", 0.0, {}, "r")
        return [*answer.begin(), *(event for piece in pieces for event in answer.take(piece))]

    live, again = events(as_written), events(later)
    known = [event for event in live if event["sequence_number"] <= number]
    last = max((event["sequence_number"] for event in known), default=-1)
    rest = [event for each in again if (event := behind(each, last)) is not None]

    def text(of: list[dict[str, object]]) -> str:
        return "".join(str(event["delta"]) for event in of if event["type"] == DELTA)

    assert text(known) + text(rest) == text(live)
    shown = [(event["sequence_number"], event["type"]) for event in (*known, *rest) if event["type"] != DELTA]
    assert shown == [(event["sequence_number"], event["type"]) for event in live if event["type"] != DELTA]
