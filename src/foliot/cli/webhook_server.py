"""A small HTTP server for deliveries to webhooks: one path, no token, bodies of at most 1 MiB."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from aiohttp import web

from foliot.work.triggers.deliveries import WebhookAnswer, Webhooks
from foliot.work.triggers.endpoints import PATH
from foliot.work.triggers.webhook import LARGEST_BODY

# Who sends more slowly than this is not a sender of webhooks.
READ_WITHIN: Final = 30.0
WEBHOOKS: Final = web.AppKey("webhooks", Webhooks)


def application(webhooks: Webhooks) -> web.Application:
    """Answers POST below the path of deliveries, and nothing else."""
    app = web.Application(client_max_size=LARGEST_BODY + 1)
    app[WEBHOOKS] = webhooks
    app.router.add_route("*", PATH + "{endpoint:[^/]*}", _deliver)
    app.router.add_route("*", "/{rest:.*}", _nothing_here)
    return app


async def _deliver(request: web.Request) -> web.Response:
    if request.method != "POST":
        return _response(WebhookAnswer(405, {"error": "method not allowed"}, {"Allow": "POST"}))
    body = await _body(request)
    return _response(await request.app[WEBHOOKS].deliver(request.match_info["endpoint"], request.headers, body))


async def _nothing_here(request: web.Request) -> web.Response:
    return _response(WebhookAnswer(404, {"error": "not found"}))


async def _body(request: web.Request) -> bytes | None:
    """All of it; None when it is too large, too slow, or breaks off. Nothing beyond the limit is read."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(READ_WITHIN):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > LARGEST_BODY:
                    return None
                chunks.append(chunk)
    except (TimeoutError, OSError, web.HTTPException):
        return None
    return b"".join(chunks)


def _response(answer: WebhookAnswer) -> web.Response:
    return web.Response(
        status=answer.status,
        text=json.dumps(answer.document, ensure_ascii=False),
        content_type="application/json",
        headers=answer.headers,
    )
