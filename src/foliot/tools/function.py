"""A typed Python function as a tool: its schema comes from the signature, its description from the docstring.

    @tool(effect="read")
    async def weather(city: str, days: int = 1) -> str:
        '''Forecast for a city.

        Args:
            city: Name of the city, in English.
            days: How far to look ahead.
        '''

Parameters may have any type that pydantic understands; values arrive converted. A parameter annotated `Invocation`
receives the call itself (run id, idempotency key) and is not shown to the model. A plain `def` runs on a thread, so it
may block.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

from foliot.errors import InvalidInput
from foliot.tools.base import Effect, Invocation, OnOutput, OnUnknown, ToolArgumentsInvalid, ToolDefinition

if TYPE_CHECKING:
    from pydantic import BaseModel

Function = Callable[..., Any]


class FunctionTool:
    """A `Tool` around a function. Still callable as the function it was."""

    def __init__(self, function: Function, definition: ToolDefinition, arguments: type[BaseModel], wants: str | None):
        self.function = function
        self._definition = definition
        self._arguments = arguments
        self._names = tuple(arguments.model_fields)
        self._wants_call = wants
        self._is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = definition.name

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    def with_schema(self, schema: Mapping[str, Any]) -> FunctionTool:
        """The same function, shown to models with another schema; arguments must still fit the signature."""
        return self.with_definition(replace(self._definition, schema=schema))

    def with_definition(self, definition: ToolDefinition) -> FunctionTool:
        """The same function under another definition: how it is named, limited and governed."""
        return FunctionTool(self.function, definition, self._arguments, self._wants_call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        values = self._convert(call)
        if self._is_async:
            return await self.function(**values)
        return await asyncio.to_thread(partial(self.function, **values))

    def _convert(self, call: Invocation) -> dict[str, Any]:
        try:
            model = self._arguments.model_validate(call.arguments)
        except ValueError as error:
            from pydantic import ValidationError  # here, because a call that fits should not pay for it

            if not isinstance(error, ValidationError):
                raise
            places = "; ".join(f"{'/'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
            raise ToolArgumentsInvalid(f"arguments of {call.tool!r} do not fit: {places}") from None
        values = {name: getattr(model, name) for name in self._names}
        if self._wants_call:
            values[self._wants_call] = call
        return values


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "once",
    on_unknown: OnUnknown = "ask",
    timeout: float | None = 30.0,
    version: str = "0.1.0",
) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "once",
    on_unknown: OnUnknown = "ask",
    timeout: float | None = 30.0,
    version: str = "0.1.0",
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a function a tool; with or without parentheses.

    `effect` says what a repeated call does: "read" changes nothing, "idempotent" may be repeated under the same key,
    "once" must never be repeated silently. It is "once" unless you say otherwise.
    """

    def wrap(function: Function) -> FunctionTool:
        arguments, wants = _arguments_model(function)
        schema = arguments.model_json_schema()
        _drop_titles(schema)
        definition = ToolDefinition(
            name=name or function.__name__,
            description=description or _summary(function),
            schema=schema,
            effect=effect,
            on_unknown=on_unknown,
            timeout=timeout,
            version=version,
        )
        return FunctionTool(function, definition, arguments, wants)

    return wrap(function) if function is not None else wrap


def _arguments_model(function: Function) -> tuple[type[BaseModel], str | None]:
    from pydantic import ConfigDict, Field, create_model

    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"a type in the signature of {function.__name__}() cannot be resolved: {error}") from None
    docs = _parameter_docs(function)
    fields: dict[str, Any] = {}
    wants: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                f"{function.__name__}() cannot be a tool: {parameter} has no name a model could use",
                hint="Use parameters that can be given by keyword.",
            )
        hint = hints.get(parameter.name, Any)
        if hint is Invocation:
            wants = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, Field(default, description=docs.get(parameter.name)))
    model = create_model(f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return model, wants


def _summary(function: Function) -> str:
    """The docstring up to its section on parameters."""
    text = inspect.getdoc(function) or ""
    return re.split(r"\n\s*(?:Args|Arguments|Parameters|Returns|Raises)\s*:?\s*\n", text)[0].strip()


def _parameter_docs(function: Function) -> dict[str, str]:
    """`name: text` lines of an `Args:` section, continuation lines joined."""
    text = inspect.getdoc(function) or ""
    found = re.search(r"(?:^|\n)(?:Args|Arguments|Parameters)\s*:\s*\n(.*?)(?=\n\S|\Z)", text, re.DOTALL)
    docs: dict[str, str] = {}
    last = ""
    indent: int | None = None
    for line in found.group(1).splitlines() if found else ():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        named = re.match(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)", line)
        if named and depth == indent:
            last = named.group(1)
            docs[last] = named.group(2).strip()
        elif last:
            docs[last] = f"{docs[last]} {line.strip()}".strip()
    return docs


def _drop_titles(schema: Any) -> None:
    """Pydantic's titles repeat the names; they would cost tokens in every request."""
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        if isinstance(node.get("title"), str):
            del node["title"]
        for key, value in node.items():
            if key not in ("default", "examples", "enum", "const"):  # those are data, not schema
                _drop_titles(value)
    elif isinstance(schema, list):
        for value in cast("list[Any]", schema):
            _drop_titles(value)
