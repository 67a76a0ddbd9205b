"""Deliveries to webhooks, and messages to channels. No token is asked for: the signature is who the caller is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from foliot.errors import NotFound
from foliot.server.auth.guard import new_router
from foliot.server.context import Services
from foliot.server.errors import TooLarge, TooSlow
from foliot.server.http.responses import Json

router = new_router("webhooks")


@router.post("/v1/webhook-deliveries/{endpoint_id}")
async def deliver(endpoint_id: str, request: Request, services: Services) -> Response:
    """Take one delivery: 202 with the task that it makes, or the one that the same event made before."""
    webhooks = services.webhooks
    if webhooks is None:
        from foliot.work.triggers.deliveries import Webhooks

        # Made once: it counts what comes to each webhook.
        webhooks = Webhooks(services.database, services.resources, services.runtime.inside.tasking.tasks)
        services.webhooks = webhooks
    answer = await webhooks.deliver(endpoint_id, request.headers, await _body(request))
    return Json(answer.document, answer.status, answer.headers)


@router.post("/v1/channel-messages/{namespace}/{name}")
async def say(namespace: str, name: str, request: Request, services: Services) -> Response:
    """Take one signed message of a Channel: 202 with the session that it was said to, or what it said before."""
    from foliot.channels.webhook import WebhookChannel, refused_signature

    body = await _body(request)
    try:
        channel = await services.channels.find(namespace, name)
    except NotFound:
        channel = None
    # Who cannot sign does not learn which channels there are.
    answer = await channel.take(request.headers, body) if isinstance(channel, WebhookChannel) else refused_signature()
    return Json(answer.document, answer.status)


async def _body(request: Request) -> bytes | None:
    """All of it; None when it is more than a delivery may be, or breaks off."""
    from foliot.work.triggers.webhook import LARGEST_BODY

    try:
        body = await request.body()
    except (TooLarge, TooSlow):
        return None
    return body if len(body) <= LARGEST_BODY else None
