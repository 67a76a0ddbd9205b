"""Names of generated Tools."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from foliot.tools.mcp.sync import assign_names, base_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}[A-Za-z0-9]")
texts = st.text(max_size=100)


def test_underscores_and_dots_turn_into_dashes():
    assert base_name("files", "read_text.file") == "files--read-text-file"


def test_tools_that_want_the_same_name_are_numbered_in_the_order_of_their_own_names():
    assert assign_names("s", ["a_b", "a.b", "a-b"], kept={}, taken=()) == {
        "a-b": "s--a-b",
        "a.b": "s--a-b-2",
        "a_b": "s--a-b-3",
    }


def test_a_name_once_given_stays_with_its_tool():
    assert assign_names("s", ["a-b", "a_b"], kept={"a_b": "s--a-b"}, taken=()) == {"a_b": "s--a-b", "a-b": "s--a-b-2"}


def test_names_of_others_are_left_alone():
    assert assign_names("s", ["x"], kept={}, taken={"s--x"}) == {"x": "s--x-2"}


@given(texts, texts)
def test_every_model_provider_takes_the_name(server, tool):
    assert NAME.fullmatch(base_name(server, tool))


@given(texts, st.lists(texts, unique=True, max_size=20), st.sets(texts, max_size=5))
def test_no_two_tools_share_a_name_and_none_takes_anothers(server, tools, taken):
    names = assign_names(server, tools, kept={}, taken=taken)
    assert len(set(names.values())) == len(tools)
    assert not set(names.values()) & taken
    assert all(NAME.fullmatch(name) for name in names.values())
    assert assign_names(server, reversed(tools), kept=names, taken=taken) == names
