"""A typed Python function as a tool: its schema comes from the signature, its description from the docstring.

    @tool(effect="read")
    async def weather(city: str, days: int = 1) -> str:
        '''Forecast for a city.

        Args:
            city: Name of the city, in English.
            days: How far to look ahead.
        '''

Parameters may have any type that pydantic understands; values arrive converted. A parameter annotated `Invocation`
receives the call itself (run id, idempotency key) and is not shown to the model.

A plain `def` runs on a thread, so it may block. When its time is over it is told to end by an exception, `ToldToEnd`,
which it hears at its next instruction of Python; while it blocks it goes on, and its call is not called stopped.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, cast, get_args, overload

from foliot.errors import InvalidInput
from foliot.tools.base import (
    Effect,
    Invocation,
    OnOutput,
    OnUnknown,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
)
from foliot.tools.pipeline.results import broke_off
from foliot.tools.pipeline.running import blocking

if TYPE_CHECKING:
    from pydantic import BaseModel


# --- docstring -------------------------------------------------------------------------------------------------------

# What a docstring says of a function and of its parameters, in the three styles people write.
#
# Google       Args:               NumPy    Parameters         Sphinx    :param city: Its name,
#                  city: Its name.          ----------                       in English.
#                                           city : str
#                                               Its name.

_SECTION: Final = re.compile(
    r"(?:Args|Arguments|(?:Other )?Param(?:eter)?s|Keyword Arg(?:ument)?s|Returns?|Yields?|Raises)[ \t]*:?[ \t]*$"
)
_OF_PARAMETERS: Final = re.compile(r"(?:Args|Arguments|(?:Other )?Param(?:eter)?s|Keyword)")
_RULE: Final = re.compile(r"\s*-{3,}\s*$")
_FIELD: Final = re.compile(r":(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b[^:]*:")
_FIELD_OF_PARAMETER: Final = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(.*)"
)
_GOOGLE: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


def summary(text: str) -> str:
    """Returns the text before the first section on parameters, results or errors.

    `text` is what `inspect.getdoc` gives.

    A heading counts when its section follows: something indented, or a rule of dashes.
    """
    lines = text.splitlines()
    starts = (number for number in range(len(lines)) if _begins_section(lines, number))
    return "\n".join(lines[: next(starts, len(lines))]).strip()


def parameters(text: str) -> dict[str, str]:
    """Parses the description of each parameter out of a docstring, by name; continuation lines are joined."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        rest = lines[number + 1 :]
        if (field := _FIELD_OF_PARAMETER.match(line)) is not None:
            found[field[1]] = _joined([field[2], *takewhile(lambda row: row[:1].isspace(), rest)])
        elif _OF_PARAMETERS.match(line) and _begins_section(lines, number):
            if _RULE.match(rest[0]):
                found |= _numpy(rest[1:])
            else:
                found |= _google(rest)
    return {name: said for name, said in found.items() if said}


def _begins_section(lines: list[str], number: int) -> bool:
    line = lines[number]
    if _FIELD.match(line):
        return True
    if not _SECTION.match(line):
        return False
    after = next((row for row in lines[number + 1 :] if row.strip()), "")
    return after[:1].isspace() or bool(_RULE.match(after))


def _google(lines: Iterable[str]) -> dict[str, str]:
    said: dict[str, list[str]] = {}
    depth, last = None, None
    for line in takewhile(lambda row: not row.strip() or row[:1].isspace(), lines):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        depth = indent if depth is None else depth
        named = _GOOGLE.match(line.strip()) if indent == depth else None
        if named is not None:
            last = said[named[1]] = [named[2]]
        elif last is not None:
            last.append(line)
    return {name: _joined(rows) for name, rows in said.items()}


def _numpy(lines: list[str]) -> dict[str, str]:
    said: dict[str, list[str]] = {}
    last: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        if line[:1].isspace():
            last.append(line)
            continue
        named = _NUMPY.match(line)
        if named is None or _begins_section(lines, number) or _is_heading(lines, number):
            break
        last = []
        for name in named[1].split(","):
            said[name.strip().lstrip("*")] = last
    return {name: _joined(rows) for name, rows in said.items()}


def _is_heading(lines: list[str], number: int) -> bool:
    """Whether the next line underlines this one: a section such as `Notes` or `Examples`."""
    return number + 1 < len(lines) and bool(_RULE.match(lines[number + 1]))


def _joined(rows: Iterable[str]) -> str:
    return " ".join(row.strip() for row in rows if row.strip())


# --- function --------------------------------------------------------------------------------------------------------

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The parameters of a function: checked by `model`, shown to models as `schema`.

    The fields of `model` stand for the parameters in `names`. `wants_call` is the parameter that receives the call.
    """

    model: type[BaseModel]
    schema: dict[str, Any]
    names: dict[str, str]
    wants_call: str | None


class FunctionTool:
    """A `Tool` around a function. Still callable as the function it was."""

    def __init__(self, function: Function, definition: ToolDefinition, arguments: _Arguments):
        self.function = function
        self._definition = definition
        self._arguments = arguments
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
        return FunctionTool(self.function, definition, self._arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        values = self._convert(call)
        if not self._is_async:
            value = await blocking(call, self.function, _called, self.function, values)
            return await value if inspect.isawaitable(value) else value  # a coroutine under a plain decorator
        try:
            return await self.function(**values)
        except SystemExit as error:
            raise _wanted_to_exit(error) from error

    def _convert(self, call: Invocation) -> dict[str, Any]:
        try:
            model = self._arguments.model.__pydantic_validator__.validate_python(call.arguments)
        except ValueError as error:
            from pydantic import ValidationError  # here, because a call that fits should not pay for it

            if not isinstance(error, ValidationError):
                raise
            places = "; ".join(f"{'/'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
            wrong = ToolArgumentsInvalid(f"arguments of {call.tool!r} do not fit: {places}")
            wrong.before_effect = True
            raise wrong from None
        values = {name: getattr(model, field) for field, name in self._arguments.names.items()}
        if self._arguments.wants_call:
            values[self._arguments.wants_call] = call
        return values


def _called(function: Function, values: dict[str, Any]) -> Any:
    """Call it on its thread. Nothing leaves but what a future can carry, and no order to end the whole process."""
    try:
        return function(**values)
    except StopIteration as error:
        raise RuntimeError(f"{function.__name__}() raised StopIteration") from error
    except (SystemExit, KeyboardInterrupt) as error:  # Ctrl-C itself is never heard on a thread
        raise _wanted_to_exit(error) from error
    except GeneratorExit as error:  # nobody closes what runs on a thread; whoever waits for it is closed by the same
        raise broke_off(error) from error


def _wanted_to_exit(error: BaseException) -> ToolError:
    return ToolError(f"the tool wanted to end the process: {type(error).__name__}({error})", retryable=False)


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

    Raises `InvalidInput` for what cannot be a tool.
    """
    if effect not in get_args(Effect):
        raise InvalidInput(f"{effect!r} is not an effect", hint=f"one of {', '.join(get_args(Effect))}")
    if on_unknown not in get_args(OnUnknown):
        raise InvalidInput(f"on_unknown={on_unknown!r} is not known", hint=f"one of {', '.join(get_args(OnUnknown))}")

    def wrap(function: Function) -> FunctionTool:
        _check_function(function, name)
        arguments = _arguments_of(function)
        definition = ToolDefinition(
            name=name or function.__name__,
            description=description or summary(inspect.getdoc(function) or ""),
            schema=arguments.schema,
            effect=effect,
            on_unknown=on_unknown,
            timeout=timeout,
            version=version,
        )
        return FunctionTool(function, definition, arguments)

    return wrap(function) if function is not None else wrap


def _check_function(function: object, name: str | None) -> None:
    if not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        raise InvalidInput(
            f"{function!r:.80} cannot be a tool", hint="Give a function, a method, or something made with @tool."
        )
    if name is None and function.__name__ == "<lambda>":
        raise InvalidInput("a lambda has no name by which a model could call it", hint="Use tool(name=…)(lambda …).")


def _arguments_of(function: Function) -> _Arguments:
    from pydantic import ConfigDict, PydanticUserError, create_model

    hints = _hints(function)
    said = parameters(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    wants: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                f"{function.__name__}() cannot be a tool: {parameter} has no name a model could use",
                hint="Use parameters that can be given by keyword.",
            )
        hint = hints.get(parameter.name, Any)
        if hint is Invocation or Invocation in typing.get_args(hint):
            wants = parameter.name
            continue
        # Under a name of our own: pydantic keeps some to itself, such as `schema`, `copy` and whatever begins with `_`.
        names[field := f"p{len(names)}"] = parameter.name
        fields[field] = _field(parameter, hint, said.get(parameter.name))
    try:
        model = create_model(f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise InvalidInput(
            f"{function.__name__}() cannot be a tool: {error.message.splitlines()[0]}",
            hint="Annotate its parameters with types that can be written as JSON.",
        ) from None
    _drop_titles(schema)
    return _Arguments(model, schema, names, wants)


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"a type in the signature of {function.__name__}() cannot be resolved: {error}") from None


def _field(parameter: inspect.Parameter, hint: Any, said: str | None) -> tuple[Any, Any]:
    """Type and default of a parameter. `Field(description=…)` goes before a note, `Annotated[str, "its name"]`, and
    both before what the docstring says."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    described = [each.description for each in extras if isinstance(each, FieldInfo) and each.description]
    notes = [each for each in extras if isinstance(each, str)]
    description = next(iter((*described, *notes)), said)
    if isinstance(parameter.default, FieldInfo):  # `limit: int = Field(10, ge=1)`
        return typing.Annotated[hint, Field(alias=parameter.name, description=description)], parameter.default
    default = ... if parameter.default is parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name, description=description)


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
