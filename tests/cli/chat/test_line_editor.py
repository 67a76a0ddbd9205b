"""What is typed into a chat: keys, pastes, several lines, and what was typed before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.cli.chat.commands import COMMANDS, Command, Say, help_lines, read_typed
from foliot.cli.chat.history_file import MOST, NAME, HistoryFile
from foliot.cli.chat.line_editor import Entered, LineEditor
from foliot.cli.chat.screen import MOST_ROWS, prompt_rows
from foliot.errors import InvalidInput


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("hello\r", "hello"),
        ("hello\n", "hello"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("helo\x1b[D\x1b[Dl\r", "hello"),
        ("hello\x7f\x7fp!\r", "help!"),
        ("two words\x17\x17one\r", "one"),
        ("world\x01hello \x05!\r", "hello world!"),
        ("gone\x15kept\r", "kept"),
        ("kept gone\x01\x1b[C\x1b[C\x1b[C\x1b[C\x0b\r", "kept"),
        ("\x1b[200~one\r\ntwo\rthree\x1b[201~\r", "one\ntwo\nthree"),
        ("\x1b[200~\x03\x04\x1b[2J/quit\n\x1b[201~\r", "[2J/quit\n"),
        ("a\x1b[99;5~\x1b[<0;1;1Mb\r", "ab"),
        ("grüße 日本\r", "grüße 日本"),
    ],
)
def test_keys_make_a_text(typed: str, text: str) -> None:
    assert LineEditor().feed(typed.encode()) == [Entered(text)]


@given(st.lists(st.sampled_from(["a", "é", "\x1b[200~", "\x1b[201~", "\x1b[A", "\\", "\x7f", "\x17", "日"])), st.data())
def test_it_does_not_matter_how_the_bytes_are_cut(keys: list[str], data: st.DataObject) -> None:
    typed = "".join(keys).encode() + b"\x1b[201~\r"
    cut = data.draw(st.integers(0, len(typed)))
    whole, pieces = LineEditor(["before"]), LineEditor(["before"])

    assert whole.feed(typed) == pieces.feed(typed[:cut]) + pieces.feed(typed[cut:])
    assert (whole.text, whole.cursor) == (pieces.text, pieces.cursor)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_editor_or_leave_a_control_character(typed: bytes) -> None:
    editor = LineEditor(["before"])
    editor.feed(typed)

    assert 0 <= editor.cursor <= len(editor.text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in editor.text)
    rows, row, column = prompt_rows("> ", editor.text, editor.cursor, 30)
    assert 0 <= row < len(rows) <= MOST_ROWS
    assert 0 <= column <= 30


def test_ctrl_c_drops_a_text_first_and_interrupts_then() -> None:
    editor = LineEditor()

    assert editor.feed(b"half a thought\x03") == ["redraw"]
    assert editor.feed(b"\x03\x04") == ["interrupt", "leave"]


def test_arrows_recall_what_was_entered_and_give_the_draft_back() -> None:
    editor = LineEditor(["first", "second"])
    editor.feed(b"draft\x1b[A\x1b[A")
    assert editor.text == "first"
    editor.feed(b"\x1b[B\x1b[B")
    assert editor.text == "draft"


def test_the_rows_around_the_cursor_are_shown_of_a_long_text() -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    rows, row, _ = prompt_rows("> ", text, len(text), 40)
    assert len(rows) == MOST_ROWS
    assert rows[row] == ". line 99"
    rows, row, column = prompt_rows("> ", text, 0, 40)
    assert rows[row] == "> line 0"
    assert column == 2


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/stop", Command("stop")),
        ("/STOP", Command("stop")),
        ("/abort", Command("stop")),
        ("/model  fast one ", Command("model", "fast one")),
        ("/followup and then?", Say("and then?", "followup")),
        ("/Interrupt no!", Say("no!", "interrupt")),
        ("/etc/passwd is a file", Say("/etc/passwd is a file")),
        ("/unknown words", Say("/unknown words")),
        ("hello\nworld", Say("hello\nworld")),
        ("/", Say("/")),
        ("  \n ", None),
        ("/config TOKEN s3same", Command("config", "TOKEN s3same")),
    ],
)
def test_a_text_is_a_command_or_something_to_say(text: str, meant: object) -> None:
    assert read_typed(text) == meant


def test_the_help_lists_every_command() -> None:
    shown = "\n".join(help_lines(79))
    assert [word for word in COMMANDS if f"/{word}" not in shown] == []


# --- the history file --------------------------------------------------------------------------------------------


def test_the_history_lasts_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    assert HistoryFile(tmp_path).add("one\nof two lines")
    assert HistoryFile(tmp_path).read() == ["one\nof two lines"]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_history_that_others_could_read_is_closed_at_the_next_entry(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("")
    (tmp_path / NAME).chmod(0o644)
    HistoryFile(tmp_path).add("hello")
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_what_may_be_a_secret_is_not_kept(tmp_path: Path) -> None:
    assert not HistoryFile(tmp_path).add("/config TOKEN s3same")
    assert not HistoryFile(tmp_path).add("  /CONFIG TOKEN s3same")
    assert not (tmp_path / NAME).exists()


def test_a_link_in_the_place_of_the_history_is_neither_read_nor_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('"secret"\n')
    (tmp_path / NAME).symlink_to(victim)
    history = HistoryFile(tmp_path)

    assert history.read() == []
    history.add("hello")
    assert victim.read_text() == '"secret"\n'


def test_a_pipe_in_the_place_of_the_history_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert HistoryFile(tmp_path).read() == []
    HistoryFile(tmp_path).add("hello")


def test_a_long_history_is_shortened_and_broken_lines_are_passed_over(tmp_path: Path) -> None:
    lines = "\n".join([*(f'"{number}"' for number in range(2 * MOST + 5)), "{broken", '"last"'])
    (tmp_path / NAME).write_text(lines + "\n")
    assert HistoryFile(tmp_path).read()[-1] == "last"
    assert len((tmp_path / NAME).read_text().splitlines()) == MOST


def test_a_mode_without_a_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="/followup needs a text to say"):
        read_typed("/followup")
