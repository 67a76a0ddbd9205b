"""Text for people: what is invisible or steers a terminal is seen, and nothing else changes."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.text import MOST_MARKS, lines_of, one_line, safe_json, visible

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JOINERS = "\u200c\u200d" + "".join(map(chr, range(0xFE00, 0xFE10)))


@given(ANY_TEXT)
def test_no_control_or_format_character_is_left(text: str) -> None:
    assert not [
        char
        for char in visible(text)
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in f"\n\t{JOINERS}"
    ]


@given(ANY_TEXT, st.integers(2, 80))
def test_one_line_is_one_line_of_that_length(text: str, longest: int) -> None:
    line = one_line(text, longest)

    assert len(line) <= longest
    assert len(line.splitlines()) <= 1
    assert "  " not in line


@given(st.recursive(st.none() | st.integers() | ANY_TEXT, lambda v: st.lists(v) | st.dictionaries(ANY_TEXT, v)))
def test_json_means_the_same(value: object) -> None:
    assert json.loads(safe_json(value)) == value
    assert json.loads(safe_json(value, indent=None)) == value


@given(st.recursive(ANY_TEXT, lambda v: st.lists(v) | st.dictionaries(ANY_TEXT, v)))
def test_json_for_people_has_nothing_more_to_escape(value: object) -> None:
    text = safe_json(value)

    assert visible(text) == text


@pytest.mark.parametrize(
    "text",
    ["Grüße, Việt Nam", "日本語 العربية עברית", "👨‍👩‍👧 ❤️ 🏳️‍🌈", "می‌خواهم", "tab\there\nand a line", "शर्मा क्‍ष"],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\u001b[2Jb"),
        ("a\x9b2Jb", r"a\u009b2Jb"),
        ("pay\u202e001", r"pay\u202e001"),
        ("pay\u200bee", r"pay\u200bee"),
        ("pay\u200dee", r"pay\u200dee"),
        ("é\u200d\u200d\u200d", "é\u200d\\u200d\\u200d"),
        ("a\rb", r"a\u000db"),
        ("a\u2028b\x0bc\x0cd\x85e", r"a\u2028b\u000bc\u000cd\u0085e"),
        ("hi\U000e0041", r"hi\udb40\udc41"),
        ("half \ud800", r"half \ud800"),
        ("\u3164\u2800\u115f", r"\u3164\u2800\u115f"),
    ],
)
def test_what_hides_or_steers_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_flood_of_marks_stays_on_its_line() -> None:
    shown = visible("a" + "\u0301" * 50)

    assert shown.count("\u0301") == MOST_MARKS
    assert shown.count(r"\u0301") == 50 - MOST_MARKS


def test_only_a_line_break_begins_a_line() -> None:
    assert lines_of("a\u2028b\x85c\r\nd\x0ce") == [r"a\u2028b\u0085c", r"d\u000ce"]


def test_a_screen_of_spaces_is_seen_in_json() -> None:
    text = safe_json({"amount": "1" + " " * 500 + "000"})

    assert "  " not in text.removeprefix('{\n  "')
    assert json.loads(text) == {"amount": "1" + " " * 500 + "000"}
