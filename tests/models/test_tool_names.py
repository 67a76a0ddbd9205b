from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.messages import ToolSpec
from foliot.models.wire.tool_names import FALLBACK_SCHEMA, ordered_tools, schema_of, tool_names

names = st.lists(
    st.text(max_size=90) | st.sampled_from(["memory.write", "memory_write", "Memory.Write", "1", "-"]), max_size=8
)


def specs(*given: str) -> list[ToolSpec]:
    return [ToolSpec(name) for name in given]


def test_a_dotted_name_is_sent_with_an_underscore_and_read_back() -> None:
    found = tool_names(specs("memory.write"))
    assert found.wire("memory.write") == "memory_write"
    assert found.real("memory_write") == "memory.write"


def test_a_name_that_is_fine_keeps_itself_and_the_other_is_numbered() -> None:
    found = tool_names(specs("memory.write", "memory_write", "memory/write"))
    assert found.wire("memory_write") == "memory_write"
    assert {found.wire("memory.write"), found.wire("memory/write")} == {"memory_write_2", "memory_write_3"}


def test_a_tool_known_only_from_the_history_never_takes_the_name_of_one_that_is_offered() -> None:
    found = tool_names(specs("memory_write"))
    assert found.wire("memory.write") == "memory_write_2"


def test_a_name_that_a_model_invents_comes_back_as_it_is() -> None:
    assert tool_names(specs("search")).real("serch") == "serch"


@pytest.mark.parametrize("letter_first", [False, True])
@settings(deadline=None)
@given(given_names=names, limit=st.sampled_from([16, 64, 128]))
def test_aliases_are_legal_unique_and_lead_back(given_names: list[str], limit: int, letter_first: bool) -> None:
    found = tool_names(specs(*given_names), limit=limit, letter_first=letter_first)
    aliases = {name: found.wire(name) for name in set(given_names)}
    legal = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*" if letter_first else r"[a-zA-Z0-9_-]+")
    assert all(legal.fullmatch(alias) and len(alias) <= limit for alias in aliases.values())
    assert len({alias.lower() for alias in aliases.values()}) == len(aliases)
    assert all(found.real(alias) == name for name, alias in aliases.items())
    again = tool_names(specs(*reversed(given_names)), limit=limit, letter_first=letter_first)
    assert {name: again.wire(name) for name in set(given_names)} == aliases


def test_tools_are_sorted_and_each_is_sent_once() -> None:
    assert [tool.name for tool in ordered_tools(specs("b", "a", "b"))] == ["a", "b"]


def test_a_tool_without_a_schema_takes_one_string() -> None:
    assert schema_of(ToolSpec("t")) == FALLBACK_SCHEMA
    assert schema_of(ToolSpec("t", schema={})) == {"type": "object", "properties": {}}
