"""What a model sees of code mode: its agent's tools as functions of Python."""

from __future__ import annotations

import ast
from typing import Any, cast

import pytest

from foliot.tools.backends.agent import Agents, Program
from foliot.tools.base import ToolDefinition
from foliot.tools.builtin.code import MOST_SHOWN, Code, arguments_of, described, plain, python_names, value_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "limit": {"type": ["integer", "null"], "description": "How many."},
        "query": {"type": "string", "description": "What to look for."},
        "order": {"enum": ["up", "down"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "x-trace": {"type": "string"},
    },
    "required": ["query"],
}
SEARCH = ToolDefinition("search", "Finds pages. It is slow.", SCHEMA)


def test_a_tool_is_shown_as_a_function_with_types_and_what_it_says() -> None:
    shown = described([SEARCH], Program()).partition("\n\n")[2]
    assert shown.splitlines() == [
        (
            "async def search(query: str, limit: int | None = ..., order: Literal['up', 'down'] = ..., "
            "tags: list[str] = ..., **others) -> Any: ..."
        ),
        "    # Finds pages. It is slow.",
        "    #     query: What to look for.",
        "    #     limit: How many.",
        "    #     x-trace: (give it as **{'x-trace': ...})",
    ]
    ast.parse(shown)


def test_values_are_taken_in_the_order_that_is_shown() -> None:
    assert arguments_of(SCHEMA, ["clocks", 3], {"x-trace": "t"}) == {"query": "clocks", "limit": 3, "x-trace": "t"}
    assert arguments_of(None, ["text"], {}) == {"input": "text"}
    with pytest.raises(TypeError, match="several values for the argument 'query'"):
        arguments_of(SCHEMA, ["clocks"], {"query": "x"})


def test_names_do_not_collide_and_do_not_depend_on_their_order() -> None:
    names = ["memory.read", "memory_read", "memory-read", "agent:writer", "2fast", "print", "class", "ToolError", "…"]
    found = python_names(names)
    assert found == python_names(reversed(names))
    assert found["memory_read"] == "memory_read"
    assert {found["memory.read"], found["memory-read"]} == {"memory_read_2", "memory_read_3"}
    assert (found["agent:writer"], found["2fast"], found["print"], found["class"]) == (
        "agent_writer",
        "_2fast",
        "print_",
        "class_",
    )
    assert len(set(found.values())) == len(names)
    assert all(each.isidentifier() for each in found.values())


@pytest.mark.parametrize(("count", "detail"), [(3, "# Words"), (100, "async def t"), (2000, "more")])
def test_the_signatures_are_bounded_however_many_tools_there_are(count: int, detail: str) -> None:
    tools = [ToolDefinition(f"t{n}", "Words. " * 200, SCHEMA) for n in range(count)]
    text = described(tools, Program())
    assert detail in text
    assert len(text) < MOST_SHOWN + 3_000
    assert text == described(list(reversed(tools)), Program())


def test_tools_that_end_the_run_or_belong_to_it_are_not_among_them() -> None:
    others = [SEARCH, ToolDefinition("submit", ends_run=True), ToolDefinition("write_todos")]
    made: list[Code] = []
    code = Code(cast("Agents", object()), lambda: [*others, *(each.definition for each in made)])
    made.append(code)
    said = code.definition.description
    assert "search(" in said
    assert "submit(" not in said
    assert "write_todos(" not in said
    assert "code(" not in said
    assert code.definition.runs_programs


def test_a_program_of_an_agent_that_works_on_files_has_them_for_itself() -> None:
    files = ToolDefinition("write", resource_keys=("file:{path}",))
    alone, beside = (Code(cast("Agents", object()), lambda tools=tools: tools) for tools in ([SEARCH], [files]))
    assert alone.definition.resource_keys == ()
    assert beside.definition.resource_keys == ("file:*",)


@pytest.mark.parametrize("value", [{1}, b"x", float("nan"), float("inf"), {1: 2}, object()])
def test_a_value_that_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        plain([value], "it")


def test_a_value_that_holds_itself_is_refused() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(TypeError, match="nested more than 100 deep"):
        plain(deep, "it")


def test_a_result_that_is_json_is_a_value_and_any_other_a_text() -> None:
    assert [value_of(text) for text in ('{"a":[1]}', "3", "null", "plain", '"quoted"', "01234")] == [
        {"a": [1]},
        3,
        None,
        "plain",
        '"quoted"',
        "01234",
    ]
