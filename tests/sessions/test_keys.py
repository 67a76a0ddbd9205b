"""Keys of sessions and titles: texts that two different things never share, and that are whole characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.kernel.run.feedback import user_message
from foliot.sessions.keys import SessionKey, platform_key, read_key, user_key
from foliot.sessions.turns import LONGEST_TITLE, title_of

PART = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("C", "Z")), min_size=1)


def test_keys_have_both_forms() -> None:
    assert platform_key("default", "cli", "42", "main") == "default:cli:42:main"
    assert user_key("a1", "7", "private") == "a1:user:7:private"


def test_a_colon_in_a_part_makes_no_other_key() -> None:
    assert user_key("a", "b:c", "d") != user_key("a", "b", "c:d")
    assert platform_key("a", "x", "y:z", "") == "a:x:y%3Az:"


@pytest.mark.parametrize(("platform", "user"), [("user", "7"), ("USER", "7"), ("", "7"), ("cli", ""), ("cli", "a\nb")])
def test_parts_that_make_no_key_are_refused(platform: str, user: str) -> None:
    with pytest.raises(InvalidInput):
        platform_key("a", platform, user, "main")


@pytest.mark.parametrize("text", ["", "a:b", "a:b:c:d:e", "::x:", "a:b:c%3a:d", "a:b:%zz:d", "a:b:%ff:d"])
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_key(text)


@given(PART, PART, PART, PART)
def test_a_key_is_read_as_it_was_written(agent: str, platform: str, user: str, context: str) -> None:
    if platform.strip().lower() != "user":
        assert read_key(platform_key(agent, platform, user, context)) == SessionKey(agent, user, context, platform)
    assert read_key(user_key(agent, user, context)) == SessionKey(agent, user, context)


def test_a_title_is_the_first_text_cut_at_a_word() -> None:
    assert title_of([user_message("Short")]) == "Short"
    assert title_of([user_message("word " * 40)]) == "word " * 11 + "word…"
    assert title_of([user_message("x" * 100)]) == "x" * 60 + "…"
    assert title_of([user_message("two\nlines\x07")]) == "two lines"


@given(st.text())
def test_a_title_is_whole_characters_and_short(text: str) -> None:
    title = title_of([user_message(text)])
    assert len(title.encode()) <= LONGEST_TITLE + len("…".encode())
    assert title.isprintable()
