"""The parameters of handlers: said in their signatures, read from the request, told in the description of the API.

    Name = Annotated[str, Path(min_length=1, max_length=253, description="The name of the resource.")]

    async def get_agent(name: Name, services: Services, limit: Annotated[int, Query(ge=1)] = 50) -> Response:

A signature is the only place where a parameter is said. A parameter is one text of the path, the query or a header, and
becomes a `str`, `int`, `float`, `bool` or one of the words of a `Literal`; without a default it must be given. An
argument that is marked with `Fields` is one parameter for each field of a dataclass. Other arguments are known by
their type: the request, or a part of the server (`parts`).
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from math import inf, isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from starlette.requests import Request
from starlette.types import Scope

from foliot.common.times import read_moment
from foliot.server.errors import InvalidParameters, ParameterError
from foliot.server.http.query import query_of

Reader: TypeAlias = Callable[[str], Any]
"""Makes the value of a text. Raises `ValueError` with what it must be."""

REQUIRED: Final = inspect.Parameter.empty
_WHOLE: Final = re.compile(r"\s*([+-]?[0-9]+)(?:\.0*)?\s*")
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parameter of the query. `alias` is its name where that is not the name of the argument.

    `pattern` is of the whole text. `values` are told and not checked: the handler knows better what to say of others.
    `change` is applied to what was read and is within the bounds. With `moment` a number of seconds since 1970 may be
    written as a time, a date or an age too (`common/times.py`).
    """

    place: ClassVar[str] = "query"

    alias: str = ""
    description: str = ""
    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str = ""
    values: tuple[str, ...] = ()
    change: Callable[[Any], Any] | None = None
    moment: bool = False
    deprecated: bool = False

    def named(self, argument: str) -> str:
        """Return the name as it is sent."""
        return self.alias or argument

    def bounds(self) -> dict[str, Any]:
        """Return what is checked and told, in the words of JSON Schema."""
        said = {
            "minimum": self.ge,
            "maximum": self.le,
            "exclusiveMaximum": self.lt,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "pattern": self.pattern or None,
            "enum": [*self.values] or None,
        }
        return {word: value for word, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Path(Query):
    """A word of the path."""

    place: ClassVar[str] = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Query):
    """A header. The argument `if_match` is `If-Match`."""

    place: ClassVar[str] = "header"

    def named(self, argument: str) -> str:
        return self.alias or "-".join(word.capitalize() for word in argument.split("_"))


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """An argument that is a dataclass: each of its fields is a parameter of the query, with the marker of its type.

    A field with a name of its own over HTTP has it in its metadata, as `called`. Every field has a default.
    """

    markers: Mapping[type, Query]

    def parameters(self, made: type, words: Collection[str]) -> list[Parameter]:
        """Return the parameters, one for each field of the class that is `made`."""
        hints = get_type_hints(made)
        found: list[Parameter] = []
        for each in fields(made):
            if each.default is MISSING:
                raise TypeError(f"{made.__qualname__}.{each.name}: a field of a filter needs a default")
            kind = _without_none(hints[each.name])
            marker = replace(self.markers.get(kind, Query()), alias=each.metadata.get("called", ""))
            found.append(_parameter(made, each.name, Annotated[kind, marker], each.default, words))
        return found


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a handler. `name` is as it is sent, `default` is `REQUIRED` for one that must be given."""

    argument: str
    name: str
    marker: Query
    type: Any
    default: Any
    read: Reader

    @property
    def place(self) -> str:
        return self.marker.place

    def fault(self, message: str) -> ParameterError:
        return ParameterError(self.place, self.name.lower() if self.place == Header.place else self.name, message)

    def described(self) -> dict[str, Any]:
        """Return it as OpenAPI tells it."""
        schema = {"type": "string"} if self.marker.moment else {**_schema(self.type), **self.marker.bounds()}
        if self.default not in (REQUIRED, None, inf) and not self.marker.moment:
            schema["default"] = self.default
        told: dict[str, Any] = {"name": self.name, "in": self.place, "required": self.default is REQUIRED}
        if self.marker.description:
            told["description"] = self.marker.description
        if self.marker.deprecated:
            told["deprecated"] = True
        return {**told, "schema": schema}


class Signature:
    """The arguments of one handler, by where they come from."""

    def __init__(
        self,
        handler: Callable[..., Any],
        words: Collection[str],
        parts: Mapping[type, Callable[[Request], Any]],
    ) -> None:
        """`words` are the names in the path. Raises `TypeError` for an argument that cannot be read from a request."""
        hints = get_type_hints(handler, include_extras=True)
        found: list[Parameter] = []
        self._parts: list[tuple[str, Callable[[Request], Any]]] = []
        self._made: list[tuple[str, type, tuple[str, ...]]] = []
        for each in inspect.signature(handler).parameters.values():
            hint = hints.get(each.name, Any)
            if (part := parts.get(hint)) is not None:
                self._parts.append((each.name, part))
            elif (marked := _marked(hint)) is not None:
                made, marker = marked
                found += (parameters := marker.parameters(made, words))
                self._made.append((each.name, made, tuple(one.argument for one in parameters)))
            else:
                found.append(_parameter(handler, each.name, hint, each.default, words))
        order = (Path.place, Query.place, Header.place)
        self.parameters: Final = tuple(sorted(found, key=lambda each: order.index(each.place)))
        self._path = [each for each in found if each.place == Path.place]
        self._query = [each for each in found if each.place == Query.place]
        self._headers = {each.name.lower().encode("latin-1"): each for each in found if each.place == Header.place}
        self._defaults = {each.argument: each.default for each in found if each.default is not REQUIRED}
        self._required = [each for each in found if each.default is REQUIRED and each.place != Path.place]

    @property
    def query(self) -> frozenset[str]:
        """The names of the parameters of the query."""
        return frozenset(each.name for each in self._query)

    def read(self, request: Request) -> dict[str, Any]:
        """Return the arguments for a request. Raises `InvalidParameters`, which names every one that is wrong."""
        values = self._defaults.copy()
        wrong: list[ParameterError] = []
        scope = request.scope
        for each in self._path:
            _take(each, scope["path_params"][each.name], values, wrong)
        if self._query and (given := query_of(scope)):
            for each in self._query:
                if (text := given.get(each.name)) is not None:
                    _take(each, text, values, wrong)
        if self._headers:
            self._read_headers(scope, values, wrong)
        for each in self._required:
            if each.argument not in values and (missing := each.fault("is required"))[:2] not in {w[:2] for w in wrong}:
                wrong.append(missing)
        if wrong:
            raise InvalidParameters(wrong)
        for name, made, arguments in self._made:
            values[name] = made(**{argument: values.pop(argument) for argument in arguments})
        for name, part in self._parts:
            values[name] = part(request)
        return values

    def _read_headers(self, scope: Scope, values: dict[str, Any], wrong: list[ParameterError]) -> None:
        found: set[bytes] = set()
        for name, value in scope["headers"]:
            # Of several the first counts; where that would matter a second one is refused before (heads.py).
            if name in self._headers and name not in found:
                found.add(name)
                _take(self._headers[name], value.decode("latin-1"), values, wrong)


def _take(parameter: Parameter, text: str, values: dict[str, Any], wrong: list[ParameterError]) -> None:
    try:
        values[parameter.argument] = parameter.read(text)
    except ValueError as error:
        wrong.append(parameter.fault(str(error)))


def _marked(hint: Any) -> tuple[type, Fields] | None:
    """Return the dataclass and its marker, for an argument that is made of several parameters."""
    if get_origin(hint) is not Annotated:
        return None
    made, *said = get_args(hint)
    return next(((made, each) for each in said if isinstance(each, Fields)), None)


def _parameter(handler: Callable[..., Any], name: str, hint: Any, default: Any, words: Collection[str]) -> Parameter:
    marker: Query = Path() if name in words else Query()
    if get_origin(hint) is Annotated:
        hint, *said = get_args(hint)
        marker = next((each for each in said if isinstance(each, Query)), marker)
    kind = _without_none(hint)
    sent = marker.named(name)
    where = f"{handler.__qualname__}({name})"
    if isinstance(marker, Path) != (sent in words):
        raise TypeError(
            f"{where}: it is marked as a word of the path, and the path has none of this name, or vice versa"
        )
    if kind not in _READERS and get_origin(kind) is not Literal:
        raise TypeError(f"{where}: {hint!r} cannot be read from one text")
    return Parameter(name, sent, marker, kind, default, _reader(kind, marker))


def _without_none(hint: Any) -> Any:
    """Return the type of a value that is given, for one that may be missing."""
    if get_origin(hint) in (Union, UnionType):
        kept = [each for each in get_args(hint) if each is not NoneType]
        return kept[0] if len(kept) == 1 else hint
    return hint


# --- reading ---------------------------------------------------------------------------------------------------------


def _reader(kind: Any, marker: Query) -> Reader:
    """Put the steps together once: what becomes of the text, its bounds, and what is made of it then."""
    steps: list[Callable[[Any], Any]] = []
    if marker.moment:
        steps.append(_moment)
    elif get_origin(kind) is Literal:
        steps.append(_one_of(get_args(kind)))
    elif kind is not str:
        steps.append(_READERS[kind])
    if marker.min_length is not None or marker.max_length is not None:
        steps.append(_length(marker.min_length or 0, marker.max_length))
    if marker.pattern:
        steps.append(_matching(marker.pattern))
    if not (marker.ge is marker.le is marker.lt is None):
        steps.append(_between(marker.ge, marker.le, marker.lt))
    if marker.change is not None:
        steps.append(marker.change)
    if not steps:
        return str
    if len(steps) == 1:
        return steps[0]

    def read(text: str) -> Any:
        value: Any = text
        for step in steps:
            value = step(value)
        return value

    return read


def _whole(text: str) -> int:
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise ValueError("must be a whole number")
    return int(found[1])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _moment(text: str) -> float:
    return read_moment(text, now=time.time())


def _yes_no(text: str) -> bool:
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("must be true or false")


def _one_of(words: tuple[Any, ...]) -> Reader:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return read


def _length(least: int, most: int | None) -> Reader:
    def check(text: str) -> str:
        if len(text) < least:
            raise ValueError(f"must have at least {least} characters" if least > 1 else "must not be empty")
        if most is not None and len(text) > most:
            raise ValueError(f"must have at most {most} characters")
        return text

    return check


def _matching(pattern: str) -> Reader:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"must match {pattern}")
        return text

    return check


def _between(least: float | None, most: float | None, below: float | None) -> Callable[[float], float]:
    def check(value: float) -> float:
        if least is not None and value < least:
            raise ValueError(f"must be at least {least}")
        if most is not None and value > most:
            raise ValueError(f"must be at most {most}")
        if below is not None and value >= below:
            raise ValueError(f"must be less than {below}")
        return value

    return check


_READERS: Final[Mapping[Any, Reader]] = {str: str, int: _whole, float: _number, bool: _yes_no}
_SCHEMAS: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": [*cast("tuple[str, ...]", get_args(kind))]}
    return {"type": _SCHEMAS[kind]}
