"""A typed function becomes a tool whose schema and description a model can use."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from foliot.errors import InvalidInput
from foliot.tools.base import Invocation
from foliot.tools.function import tool


class Address(BaseModel):
    street: str
    title: str = "home"


def call(name: str, **arguments: object) -> Invocation:
    return Invocation(run_id="r1", call_id="c1", tool=name, arguments=dict(arguments), idempotency_key="r1/c1")


@tool(effect="read", timeout=5)
async def forecast(city: str, days: Annotated[int, Field(ge=1)] = 1, unit: Literal["C", "F"] = "C") -> str:
    """Forecast for a city.

    Looks at most ten days ahead.

    Args:
        city: Name of the city,
            in English.
        days: How far to look ahead.

    Returns:
        One line of text.
    """
    return f"{city} {days} {unit}"


def test_the_schema_comes_from_signature_and_docstring() -> None:
    assert forecast.definition.description == "Forecast for a city.\n\nLooks at most ten days ahead."
    assert forecast.definition.effect == "read"
    assert forecast.definition.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Name of the city, in English."},
            "days": {"type": "integer", "minimum": 1, "default": 1, "description": "How far to look ahead."},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        },
    }


def test_a_property_that_is_called_title_stays() -> None:
    @tool
    def move(to: Address, title: str) -> None: ...

    schema = move.definition.schema
    assert schema is not None
    assert set(schema["properties"]) == {"to", "title"}
    assert set(schema["$defs"]["Address"]["properties"]) == {"street", "title"}


async def test_values_arrive_converted_to_the_annotated_types() -> None:
    seen: list[object] = []

    @tool
    async def move(to: Address) -> None:
        seen.append(to)

    await move.invoke(call("move", to={"street": "Elm"}))

    assert seen == [Address(street="Elm")]


async def test_a_blocking_function_runs_off_the_event_loop() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    assert await where.invoke(call("where")) != threading.main_thread().name


async def test_the_call_itself_is_given_to_who_asks_and_hidden_from_the_model() -> None:
    @tool
    async def pay(amount: int, context: Invocation) -> str:
        return context.idempotency_key

    assert await pay.invoke(call("pay", amount=3)) == "r1/c1"
    assert "context" not in (pay.definition.schema or {})["properties"]


def test_a_decorated_function_is_still_a_function() -> None:
    @tool
    def double(n: int) -> int:
        return n * 2

    assert double(4) == 8


async def test_a_decorated_coroutine_is_still_awaitable() -> None:
    assert await asyncio.wait_for(forecast("Oslo"), 1) == "Oslo 1 C"


@pytest.mark.parametrize("make", [lambda: tool(lambda *args: None), lambda: tool(lambda **kwargs: None)])
def test_parameters_that_cannot_be_named_are_refused(make) -> None:
    with pytest.raises(InvalidInput, match="cannot be a tool"):
        make()
