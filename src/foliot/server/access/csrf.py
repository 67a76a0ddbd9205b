"""Against pages of other sites that have a browser send requests with its cookie.

A browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); what comes from another site is refused. And
whoever writes must know a token that goes with the session, which only a page of this server can read. Callers with a
bearer token need none of it: no page can make a browser send that header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import MutableMapping
from typing import Any, Final

from foliot.errors import Denied, InvalidInput

HEADER: Final = b"x-csrf-token"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FOR: Final = b"foliot csrf 1"


class CrossSite(Denied):
    """A request that a page of another site may have sent."""

    code = "cross_site"


class NotJson(InvalidInput):
    """A form of another site can send texts, but not say that they are JSON."""

    code, http = "unsupported_media_type", 415


def csrf_token(cookie: str) -> str:
    """The token that goes with a session. Who knows it does not know the session."""
    return base64.urlsafe_b64encode(hmac.digest(cookie.encode(), _FOR, hashlib.sha256)).decode().rstrip("=")


def check_token(scope: MutableMapping[str, Any], cookie: str) -> None:
    """Raises `CrossSite` unless the request carries the token of its session, once."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    if len(given) != 1 or not hmac.compare_digest(given[0], csrf_token(cookie).encode()):
        raise CrossSite(
            "the CSRF token of the session is missing or wrong",
            hint="send `X-CSRF-Token` with the `csrf_token` of /v1/auth/me",
        )


def check_origin(scope: MutableMapping[str, Any], public_url: str | None) -> None:
    """Raises `CrossSite` for a request that a browser says was made by another site."""
    host = origin = site = b""
    for name, value in scope["headers"]:
        if name == b"host":
            host = value
        elif name == b"origin":
            origin = value
        elif name == b"sec-fetch-site":
            site = value
    own = {host.lower(), _place((public_url or "").encode())}
    if site not in (b"", b"same-origin", b"none") or (origin and _place(origin) not in own - {b""}):
        raise CrossSite("this request was made by a page of another site")


def check_json(scope: MutableMapping[str, Any]) -> None:
    """Raises `NotJson` for a body that does not say that it is JSON."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("the body must be JSON, and say so", hint="Content-Type: application/json")


def _place(url: bytes) -> bytes:
    """Host and port of an address; what has none ("null") is no place."""
    return url.partition(b"://")[2].partition(b"/")[0].lower()
