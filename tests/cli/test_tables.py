"""Tables: alignment, ages, and that nothing somebody stored can play with the terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.cli.show.tables import at, cell, fitted, headings_of, row_of, since, table, widths_of
from foliot.common.text import one_line
from foliot.resources.kinds import KINDS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_columns_are_aligned_also_with_wide_characters():
    text = table(["NAME", "STATUS"], [["a", "x"], ["日本", "y"], ["long-name", "z"]])

    assert click.unstyle(text).splitlines() == [
        "NAME        STATUS",
        "a           x",
        "日本        y",
        "long-name   z",
    ]


def test_rows_of_a_watch_use_the_given_widths_and_no_heading():
    assert table(["A", "B"], [["x", "y"]], widths=[4, 1]) == "x      y"


@pytest.mark.parametrize(
    ("columns", "last"),
    [(41, "a long last cell that goes on"), (34, "a long last cell that…"), (24, "a long last…")],
)
def test_the_last_cells_are_cut_to_fit_a_terminal(columns, last):
    rows = [["one", "two", "a long last cell that goes on"], ["1", "2", "short"]]

    assert fitted(["A", "B", "C"], rows, columns) == (["A", "B", "C"], [["one", "two", last], ["1", "2", "short"]])


def test_a_column_of_which_nothing_could_be_read_is_left_out():
    assert fitted(["A", "B", "C"], [["one", "two", "a long last cell"]], 23) == (["A", "B"], [["one", "two"]])


def test_wide_characters_are_counted_as_what_they_take():
    assert fitted(["A", "B"], [["x", "日本日本日本日本日本"]], 19)[1] == [["x", "日本日本日本日…"]]


def test_widths_hold_headings_and_cells():
    assert widths_of(["NAME", "B"], [["a", "bbb"]]) == [4, 3]


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=0), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=120), "2m"),
        (timedelta(minutes=119), "119m"),
        (timedelta(hours=2), "2h"),
        (timedelta(hours=47), "47h"),
        (timedelta(days=2), "2d"),
        (timedelta(days=400), "400d"),
        (timedelta(minutes=-5), "in 5m"),
    ],
)
def test_an_age_is_short(ago, text):
    assert since((NOW - ago).isoformat().replace("+00:00", "Z"), now=NOW) == text


@pytest.mark.parametrize("time", [None, 17, ""])
def test_an_age_of_nothing_is_a_dash(time):
    assert since(time, now=NOW) == "-"


def test_a_time_that_is_none_is_shown_as_it_is():
    assert since("yesterday", now=NOW) == "yesterday"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (["a", "b"], "a,b"),
        ([{"to": "x"}, {"name": "y"}], "x,y"),
        ({"token": "***", "user": "***"}, "token,user"),
        ("two\nlines", "two lines"),
        ("x" * 80, "x" * 59 + "…"),
    ],
)
def test_a_cell_is_one_short_line(value, text):
    assert cell(value, now=NOW) == text


def test_labels_are_shown_as_pairs_and_wide_cells_are_not_cut():
    assert cell({"a": "1", "b": "2"}, now=NOW, pairs=True) == "a=1,b=2"
    assert cell("x" * 80, now=NOW, cut=None) == "x" * 80


@given(st.text())
def test_no_stored_text_can_move_the_cursor(text):
    assert all(char == " " or char.isprintable() or ord(char) > 0x9F for char in one_line(text))
    assert "\x1b" not in one_line(text)


def test_a_path_into_nothing_is_nothing():
    assert at({"spec": {"a": {"b": 1}}}, "spec.a.b") == 1
    assert at({"spec": {"a": 1}}, "spec.a.b") is None
    assert at({}, "status.phase") is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("wide", [False, True])
def test_every_kind_has_a_row_even_of_an_empty_document(kind, wide):
    document = {"kind": kind.name, "metadata": {"name": "x", "namespace": "default"}}

    row = row_of(kind, document, wide=wide, namespaced=True, now=NOW, prefix="p/")

    assert len(row) == len(headings_of(kind, wide=wide, namespaced=True))
    assert row[:2] == ["default", "p/x"]
