"""A model finds the tool it needs among a thousand, and is shown it from then on."""

from __future__ import annotations

import json

import pytest

from foliot.kernel.messages import Message, ModelRequest, Text, ToolResult, ToolSpec
from foliot.tools.base import ToolDefinition
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.search import NAME, Index, ToolSearch, offered, tokens
from tests.tools.governed import call

TOOLS = [
    ToolDefinition("create_invoice", "Make a new invoice for a customer."),
    ToolDefinition("list_invoices", "All invoices of a customer, newest first."),
    ToolDefinition(
        "weather", "Forecast for a city.", schema={"properties": {"city": {"description": "Name of a town"}}}
    ),
    ToolDefinition("sendEmail", "Deliver a message to somebody."),
    *(ToolDefinition(f"filler_{n}", f"Does thing number {n}.") for n in range(1000)),
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("weather forecast", "weather"),
        ("which town", "weather"),
        ("make an invoice", "create_invoice"),
        ("newest invoices", "list_invoices"),
        ("send an email", "sendEmail"),
        ("SENDEMAIL", "sendEmail"),
        ("filler_512", "filler_512"),
    ],
)
def test_the_best_match_comes_first(query: str, first: str) -> None:
    assert Index(TOOLS).search(query)[0].name == first


@pytest.mark.parametrize("query", ["xyzzy", "", "???"])
def test_nothing_fits_is_an_empty_answer(query: str) -> None:
    assert Index(TOOLS).search(query) == []


def test_names_are_taken_apart_at_capitals_and_signs() -> None:
    assert tokens("sendEmail_to-Users v2") == ["send", "email", "to", "user", "v2"]


async def test_the_tool_returns_definitions_that_a_model_can_use() -> None:
    pipeline = Pipeline([ToolSearch(TOOLS)])

    found = json.loads((await pipeline.call(call(NAME, {"query": "invoice", "limit": 2}))).text)

    assert [each["name"] for each in found["tools"]] == ["create_invoice", "list_invoices"]
    assert set(found["tools"][0]) == {"name", "description", "schema"}


async def test_a_search_without_a_query_is_refused_by_its_schema() -> None:
    result = await Pipeline([ToolSearch(TOOLS)]).call(call(NAME, {"query": ""}))

    assert result.error is not None
    assert result.error.kind == "invalid_arguments"


def request(*results: ToolResult) -> ModelRequest:
    specs = tuple(ToolSpec(name) for name in (NAME, "a", "b", "c"))
    return ModelRequest("m", tuple(Message("tool", (result,)) for result in results), tools=specs)


DEFERRED = frozenset({"a", "b", "c"})


def shown(asked: ModelRequest) -> list[str]:
    return [tool.name for tool in offered(asked, DEFERRED).tools]


def test_tools_are_shown_once_they_were_found_or_used() -> None:
    hit = ToolResult("c1", NAME, (Text('{"tools":[{"name":"b"}]}'),))
    used = ToolResult("c2", "c", (Text("done"),))

    assert shown(request()) == [NAME]
    assert shown(request(hit)) == [NAME, "b"]
    assert shown(request(hit, used)) == [NAME, "b", "c"]


def test_a_search_result_that_is_no_json_shows_nothing() -> None:
    assert shown(request(ToolResult("c1", NAME, (Text('{"tools":[{"na'),)))) == [NAME]


def test_without_deferred_tools_the_request_is_the_same() -> None:
    asked = request()

    assert offered(asked, frozenset()) is asked
