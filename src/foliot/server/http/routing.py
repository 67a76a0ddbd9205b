"""A route that is analysed when it is first used.

FastAPI reads the signature of an endpoint, makes a field of each of its parameters and compiles a handler when a route
is declared. With a hundred routes that is a third of the time until a server is ready, and most servers never use
most of them. The path and the methods are there from the beginning, so that finding a route, guarding it and checking
it against the route table cost nothing of the kind.

A mistake in a declaration shows with its first request. So the tests ask for the description, which looks at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from foliot.server.http.query import query_of

# --- quick -----------------------------------------------------------------------------------------------------------

# A short way through FastAPI for requests that have nothing unusual about them.
#
# For each request FastAPI opens three stacks, solves the dependencies of an endpoint one by one, and looks every
# parameter over again, whether or not it was given: several times what a read from the store takes. What that amounts
# to for most endpoints here is known beforehand: words of the path, single values of the query and of headers, the
# request, and parts of the server. Those are put together directly, each value still checked by FastAPI's own field of
# the parameter. Whenever one is missing or wrong, the request goes the long way, which says what is the matter.

_PLAIN: Final = (str, int, float, bool, type(None))
_NOT_HERE: Final = (
    "websocket_param_name",
    "http_connection_param_name",
    "response_param_name",
    "background_tasks_param_name",
    "security_scopes_param_name",
)


class _Field(Protocol):
    """The part of FastAPI's parameter field that is used here."""

    name: str
    field_info: Any

    @property
    def alias(self) -> str: ...
    @property
    def default(self) -> Any: ...
    def validate(self, value: Any, /) -> tuple[Any, list[dict[str, Any]]]: ...


class _Unusual(Exception):
    """The long way has to be gone."""


_Check = Callable[[Any], tuple[Any, list[dict[str, Any]]]]
# The name of the argument, where its value is, and what checks it.
_Given = tuple[str, str, _Check]


def shortcut(route: APIRoute) -> ASGIApp | None:
    """The application of a route that goes the short way where it can, or None for a route that never can."""
    dependant = route.dependant
    if not _is_simple(route):
        return None
    long_way = route.app
    endpoint: Callable[..., Awaitable[Response]] = route.endpoint
    reads = _Reads(dependant)
    parts = [(each.name, each.call) for each in dependant.dependencies if each.name and each.call]
    itself = dependant.request_param_name

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            values = reads.values(scope)
        except _Unusual:
            await long_way(scope, receive, send)
            return
        request = Request(scope, receive, send)
        for name, call in parts:
            values[name] = await call(request)
        if itself is not None:
            values[itself] = request
        response = await endpoint(**values)
        await response(scope, receive, send)

    return app


class _Reads:
    """The parameters of an endpoint, by where they come from."""

    def __init__(self, dependant: Dependant) -> None:
        self._path = [_given(each) for each in dependant.path_params]
        self._query = [_given(each) for each in dependant.query_params]
        self._headers = {
            each.alias.lower().encode("latin-1"): (each.name, each.validate) for each in dependant.header_params
        }
        optional = [*dependant.query_params, *dependant.header_params]
        self._defaults = {each.name: each.default for each in optional if not each.field_info.is_required()}
        self._required = {each.name for each in optional} - self._defaults.keys()

    def values(self, scope: Scope) -> dict[str, Any]:
        """The arguments of the endpoint. Raises `_Unusual` when one is missing or cannot be used."""
        values = self._defaults.copy()
        words: dict[str, Any] = scope["path_params"]
        for name, alias, check in self._path:
            values[name] = _checked(check, words[alias])
        if self._query and (given := query_of(scope)):
            for name, alias, check in self._query:
                if (value := given.get(alias)) is not None:
                    values[name] = _checked(check, value)
        if self._headers:
            self._read_headers(scope["headers"], values)
        if self._required and not self._required <= values.keys():
            raise _Unusual
        return values

    def _read_headers(self, headers: Sequence[tuple[bytes, bytes]], values: dict[str, Any]) -> None:
        wanted = self._headers
        found: set[str] = set()
        for key, value in headers:
            if key in wanted:
                name, check = wanted[key]
                if name not in found:  # of several the first counts; where it matters there are none (heads.py)
                    found.add(name)
                    values[name] = _checked(check, value.decode("latin-1"))


def _checked(check: _Check, value: Any) -> Any:
    checked, errors = check(value)
    if errors:
        raise _Unusual
    return checked


def _given(field: _Field) -> _Given:
    return field.name, field.alias, field.validate


def _is_simple(route: APIRoute) -> bool:
    """Whether everything about the endpoint is of a sort that is known here."""
    dependant = route.dependant
    fields = [*dependant.path_params, *dependant.query_params, *dependant.header_params]
    return (
        inspect.iscoroutinefunction(route.endpoint)
        and _returns_response(route.endpoint)
        and route.dependency_overrides_provider is None
        and route.status_code is None
        and not (dependant.body_params or dependant.cookie_params)
        and not any(getattr(dependant, name) for name in _NOT_HERE)
        and all(_is_single(each) for each in fields)
        and all(_takes_the_request(each) for each in dependant.dependencies)
    )


def _returns_response(endpoint: Callable[..., Any]) -> bool:
    returned = get_type_hints(endpoint).get("return")
    return isinstance(returned, type) and issubclass(returned, Response)


def _is_single(field: _Field) -> bool:
    """A parameter with one name and one plain value; and a default, if any, that may be shared between requests."""
    info = field.field_info
    return (
        _is_plain(info.annotation)
        and info.validation_alias in (None, info.alias)
        and not info.validate_default
        and info.default_factory is None
        and (info.is_required() or isinstance(field.default, _PLAIN))
    )


def _is_plain(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_plain(each) for each in get_args(annotation))
    return annotation in _PLAIN or get_origin(annotation) is Literal


def _takes_the_request(part: Dependant) -> bool:
    """A dependency that is a coroutine of the request alone."""
    fields = part.path_params, part.query_params, part.header_params, part.cookie_params, part.body_params
    return (
        inspect.iscoroutinefunction(part.call)
        and part.name is not None
        and part.request_param_name == next(iter(inspect.signature(part.call).parameters), "")
        and not any(fields)
        and not part.dependencies
        and not any(getattr(part, name) for name in _NOT_HERE)
    )


# --- late ------------------------------------------------------------------------------------------------------------

_OF_PATH: Final = frozenset(("path_regex", "path_format", "param_convertors"))


class LateRoute(APIRoute):
    """An APIRoute that analyses its endpoint's signature on first use."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        name: str | None = None,
        methods: Collection[str] | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> None:
        self.path = path
        self.endpoint = endpoint
        self.name = name or endpoint.__name__
        self.methods = {method.upper() for method in methods or ("GET",)}
        self.include_in_schema = include_in_schema
        self._options = options

    def __getattr__(self, name: str) -> Any:
        """Asked for something that is not there yet: the pattern of the path is made for itself, the rest together."""
        if name in _OF_PATH:
            self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
            return self.__dict__[name]
        options = self.__dict__.pop("_options", None)
        if options is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            super().__init__(
                self.path,
                self.endpoint,
                name=self.name,
                methods=self.methods,
                include_in_schema=self.include_in_schema,
                **options,
            )
        except BaseException:
            self._options = options  # so that the next request hears of the same mistake
            raise
        # One that handles requests in a way of its own, for instance their errors, goes the long way.
        if type(self).get_route_handler is APIRoute.get_route_handler and (app := shortcut(self)) is not None:
            self.app = app
        return getattr(self, name)
