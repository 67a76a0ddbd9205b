from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.models.wire.lines import JsonLines, SseLines

EVENTS = [b'{"a": 1}', b'{"b": "two"}', b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_any_line_end_and_any_cut_give_the_same_events(end: bytes, cuts: list[int]) -> None:
    stream = (b": ping\n\n" + b"".join(b"event: x\nid: 1\ndata: %b\n\n" % event for event in EVENTS)).replace(
        b"\n", end
    )
    marks = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    lines = SseLines()
    found: list[bytes] = []
    for a, b in pairwise(marks):
        found += lines.feed(stream[a:b])
    assert found + lines.flush() == EVENTS


def test_data_on_several_lines_is_one_event() -> None:
    assert SseLines().feed(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


def test_data_without_the_blank_is_data() -> None:
    assert SseLines().feed(b"data:x\n\n") == [b"x"]


def test_comments_pings_and_events_without_data_are_nothing() -> None:
    assert SseLines().feed(b": OPENROUTER PROCESSING\n\nevent: ping\n\nretry: 10\n\n\n\n") == []


def test_a_last_event_without_its_blank_line_is_found_at_the_end() -> None:
    lines = SseLines()
    assert lines.feed(b"data: [DONE]") == []
    assert lines.flush() == [b"[DONE]"]
    assert lines.flush() == []


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_json_lines_survive_any_cut(cuts: list[int]) -> None:
    stream = b"\n".join([*EVENTS, b"", b'{"last": true}'])
    marks = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    lines = JsonLines()
    found: list[bytes] = []
    for a, b in pairwise(marks):
        found += lines.feed(stream[a:b])
    assert found + lines.flush() == [*EVENTS, b'{"last": true}']


def test_empty_data_and_a_mark_at_the_beginning_are_nothing() -> None:
    lines = SseLines()
    found = [
        event
        for byte in b"\xef\xbb\xbfdata: a\n\ndata: \n\ndata:\n\ndata: b\n\n"
        for event in lines.feed(bytes([byte]))
    ]
    assert found == [b"a", b"b"]


def test_an_event_is_complete_as_soon_as_its_blank_line_is() -> None:
    lines = SseLines()
    assert lines.feed(b"data: a\r\n\r") == [b"a"]
    assert lines.feed(b"\ndata: b\r\n") == []
    assert lines.feed(b"\r\n") == [b"b"]
