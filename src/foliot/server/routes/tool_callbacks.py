"""Results that tools push. No token is asked for: the address is signed, and good for one call."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from foliot.errors import Gone, InvalidInput
from foliot.server.auth.guard import new_router
from foliot.server.context import Services
from foliot.server.http.responses import Json
from foliot.tools.base import ToolError

router = new_router("webhooks")


@router.post("/v1/tool-callbacks/{request_id:path}")
async def take(request_id: str, request: Request, services: Services, until: str = "", signature: str = "") -> Response:
    """Take the result of a call that answered 202: 410 when nobody waits for it any more, as after a first result."""
    if not (until.isascii() and until.isdigit() and len(until) < 20):
        raise InvalidInput("`until` must be a time in seconds", hint="push to the address as it was given")
    body = await request.body()
    try:
        taken = await services.runtime.inside.callbacks.take(request_id, until=until, signature=signature, body=body)
    except ToolError as error:
        raise InvalidInput(
            f"this is not a tool's response: {error}", hint="send contract v1, as the call asked"
        ) from error
    if not taken:
        raise Gone("nobody waits for this result", hint="it came before, or the call is over")
    return Json({"accepted": True}, 202)
