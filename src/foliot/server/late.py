"""A route that is analysed when it is first used.

FastAPI reads the signature of an endpoint, makes a field of each of its parameters and compiles a handler when a route
is declared. With a hundred routes that is a third of the time until a server is ready, and most servers never use
most of them. The path and the methods are there from the beginning, so that finding a route, guarding it and checking
it against the route table cost nothing of the kind.

A mistake in a declaration shows with its first request. So the tests ask for the description, which looks at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.routing import compile_path

from foliot.server.quick import shortcut

_OF_PATH: Final = frozenset(("path_regex", "path_format", "param_convertors"))


class LateRoute(APIRoute):
    """As its base, later."""

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
