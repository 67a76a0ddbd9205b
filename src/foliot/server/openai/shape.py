"""Routes whose errors have the shape that clients of OpenAI read, those of the guard included."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foliot.errors import FoliotError
from foliot.server.access.guard import GuardedRoute
from foliot.server.access.login_acts import tell_denied
from foliot.server.openai.errors import BadRequest, error_response


class OpenAiRoute(GuardedRoute):
    """As its base, but for errors."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(scope, receive, send)
        except FoliotError as error:  # of the guard: what the endpoint raises has been answered
            await tell_denied(Request(scope), error)
            await error_response(error)(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handler(request)
            except FoliotError as error:
                await tell_denied(request, error)
                return error_response(error)
            except RequestValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(step) for step in first["loc"][1:])
                return error_response(BadRequest(str(first["msg"]), param=place))

        return answered


def openai_router() -> APIRouter:
    return APIRouter(route_class=OpenAiRoute, tags=["openai"])
