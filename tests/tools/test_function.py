"""A typed function becomes a tool whose schema and description a model can use."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from foliot.errors import InvalidInput
from foliot.tools.base import Invocation, ToolArgumentsInvalid, ToolError
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
    assert await asyncio.wait_for(forecast("Oslo"), 60) == "Oslo 1 C"


@pytest.mark.parametrize("function", [lambda *args: None, lambda **kwargs: None, lambda given, /: None])
def test_parameters_that_cannot_be_named_are_refused(function: Callable[..., None]) -> None:
    with pytest.raises(InvalidInput, match="has no name a model could use"):
        tool(name="unnamed")(function)


def properties(made: object) -> dict[str, dict[str, object]]:
    schema = made.definition.schema  # type: ignore[attr-defined]  # the decorators between hide what it is
    return schema["properties"]


def test_parameters_are_described_in_the_style_of_numpy() -> None:
    @tool
    def area(width: float, height: float = 1.0, unit: str = "m", *, exact: bool = False) -> float:
        """The area of a rectangle.

        Of a flat one.

        Parameters
        ----------
        width, height : float
            The sides,
            in the same unit.
        unit : {"m", "ft"}, optional
            Which one.
        exact
            Without rounding.

        Returns
        -------
        float
            The area.

        Notes
        -----
        unit : this is not about the parameter
            at all.
        """
        return width * height

    assert area.definition.description == "The area of a rectangle.\n\nOf a flat one."
    assert {name: node["description"] for name, node in properties(area).items()} == {
        "width": "The sides, in the same unit.",
        "height": "The sides, in the same unit.",
        "unit": "Which one.",
        "exact": "Without rounding.",
    }


def test_parameters_are_described_in_the_style_of_sphinx() -> None:
    @tool
    def area(width: float, height: float = 1.0) -> float:
        """The area of a rectangle.

        :param width: One side,
            in metres.
        :param float height: The other.
        :type width: float
        :returns: The area.
        """
        return width * height

    assert area.definition.description == "The area of a rectangle."
    assert {name: node["description"] for name, node in properties(area).items()} == {
        "width": "One side, in metres.",
        "height": "The other.",
    }


def test_a_word_that_could_head_a_section_is_text_where_no_section_follows() -> None:
    @tool
    def look(query: str) -> str:
        """Looks something up.

        Returns:
        the first thing found; Args: are not a section here.
        """
        return query

    assert look.definition.description.endswith("are not a section here.")
    assert "description" not in properties(look)["query"]


def test_what_the_annotation_says_of_a_parameter_goes_before_the_docstring() -> None:
    @tool
    def find(
        city: Annotated[str, Field(description="By its English name", min_length=1)],
        country: Annotated[str, "Two letters"] = "NO",
        most: int = Field(10, ge=1, description="How many"),
        page: int = Field(1, ge=1),
    ) -> str:
        """Finds.

        Args:
            city: Not this.
            country: Nor this.
            most: Nor that.
            page: Which page.
        """
        return f"{city} {country} {most} {page}"

    found = properties(find)
    assert found["city"] == {"type": "string", "minLength": 1, "description": "By its English name"}
    assert found["country"] == {"type": "string", "default": "NO", "description": "Two letters"}
    assert found["most"] == {"type": "integer", "minimum": 1, "default": 10, "description": "How many"}
    assert found["page"] == {"type": "integer", "minimum": 1, "default": 1, "description": "Which page."}


async def test_a_default_that_is_a_field_gives_its_value() -> None:
    @tool
    async def find(most: int = Field(10, ge=1)) -> int:
        return most

    assert await find.invoke(call("find")) == 10
    with pytest.raises(ToolArgumentsInvalid, match="most: Input should be greater"):
        await find.invoke(call("find", most=0))


@pytest.mark.filterwarnings("error")
async def test_parameters_may_have_any_name() -> None:
    @tool
    async def query(
        schema: str, json: bool, copy: int = 1, _quiet: bool = False, model_config: str = "c"
    ) -> list[object]:
        return [schema, json, copy, _quiet, model_config]

    assert list(properties(query)) == ["schema", "json", "copy", "_quiet", "model_config"]
    assert await query.invoke(call("query", schema="s", json=True, _quiet=True)) == ["s", True, 1, True, "c"]
    with pytest.raises(ToolArgumentsInvalid, match="p0: Extra inputs"):
        await query.invoke(call("query", p0="s", json=True, schema="s"))


async def test_the_call_may_be_optional_for_who_also_calls_the_function_himself() -> None:
    @tool
    async def pay(amount: int, context: Invocation | None = None) -> str:
        return context.run_id if context is not None else "nobody"

    assert await pay.invoke(call("pay", amount=3)) == "r1"
    assert await pay(3) == "nobody"


async def test_a_coroutine_under_a_plain_decorator_is_awaited() -> None:
    def decorated(function: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
        @functools.wraps(function)
        def wrapper(*args: object, **kwargs: object) -> Awaitable[int]:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @decorated
    async def double(n: int) -> int:
        return 2 * n

    assert await double.invoke(call("double", n=4)) == 8


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration("x")])
async def test_nothing_that_a_function_raises_ends_the_process_or_gets_lost(raised: BaseException) -> None:
    @tool
    def leave() -> None:
        raise raised

    with pytest.raises(Exception, match=r"end the process|StopIteration"):  # no BaseException
        await asyncio.wait_for(leave.invoke(call("leave")), 60)


async def test_a_coroutine_that_exits_does_not_end_the_process() -> None:
    @tool
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(ToolError, match="wanted to end the process"):
        await leave.invoke(call("leave"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: tool(5), "5 cannot be a tool"),  # type: ignore[call-overload]  # wrong on purpose
        (lambda: tool(functools.partial(print, 1)), "cannot be a tool"),
        (lambda: tool(Address), "cannot be a tool"),
        (lambda: tool(lambda city: city), "a lambda has no name"),
        (lambda: tool(takes_a_function), r"takes_a_function\(\) cannot be a tool: .*JsonSchema"),
        (lambda: tool(takes_what_is_not_there), "cannot be resolved"),
        (lambda: tool(effect="reed")(forecast.function), "'reed' is not an effect"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: tool(on_unknown="hope")(forecast.function), "on_unknown='hope'"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_what_cannot_be_a_tool_is_refused_in_words(make: Callable[[], object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make()


def takes_a_function(function: Callable[[int], int]) -> None: ...


def takes_what_is_not_there(thing: Nothing) -> None: ...  # noqa: F821 - that is the point
