"""Which pages of other sites may call this server from a browser: those of the setting `cors_origins`, and no others.

A browser asks first (a preflight). Only for an origin that is configured it is told yes; for all others the request is
answered like any OPTIONS, without a word about origins, which is a no. There is no wildcard, and cookies are never
allowed: a page elsewhere needs a token of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import Receive, Scope, Send

_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_MAY_SEND: Final = (
    b"Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, Last-Event-ID, MCP-Protocol-Version, "
    b"MCP-Session-Id, Traceparent, X-Request-ID"
)
_MAY_SEE: Final = b"ETag, Location, MCP-Session-Id, Retry-After, X-Request-ID"
_REMEMBERED: Final = b"600"  # seconds that a browser need not ask again

Headers = list[tuple[bytes, bytes]]


class CrossOrigin:
    """What pages of these origins are told."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, origin: str) -> Headers:
        """For an answer to a page of this origin; none when it may not see it."""
        # Caches must keep the answers to different pages apart, also that to a page which gets none.
        told: Headers = [(b"vary", b"Origin")]
        if origin in self._origins:
            told += [(b"access-control-allow-origin", origin.encode()), (b"access-control-expose-headers", _MAY_SEE)]
        return told

    def answers(self, scope: Scope, origin: str) -> bool:
        """Whether this is a preflight of a page that may call."""
        return (
            scope["method"] == "OPTIONS"
            and origin in self._origins
            and any(name == b"access-control-request-method" for name, _ in scope["headers"])
        )

    async def preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Yes, for a while. Who sends what follows is asked then: nothing is allowed by this."""
        told = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _MAY_SEND),
            (b"access-control-max-age", _REMEMBERED),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": told})
        await send({"type": "http.response.body", "body": b""})
