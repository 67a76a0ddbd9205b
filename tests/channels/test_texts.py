"""Texts are cut where Telegram's limit says, and never inside a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foliot.channels.bot_api import split_text


@given(st.text(st.sampled_from("ab \n🙂é"), max_size=200), st.integers(2, 20))
def test_every_piece_fits_and_nothing_but_blanks_is_lost(text: str, limit: int) -> None:
    pieces = split_text(text, limit)
    assert all(0 < len(piece.encode("utf-16-le")) // 2 <= limit for piece in pieces)
    assert all(piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_text_is_cut_behind_a_line_if_it_has_one() -> None:
    assert split_text("one\ntwo three", 8) == ["one", "two", "three"]
    assert split_text("short") == ["short"]
    assert split_text("  \n ") == []
