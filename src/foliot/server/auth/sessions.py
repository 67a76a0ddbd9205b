"""The cookies of logins: out of reach of scripts, of other sites, and over https also of other names of this domain."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from foliot.errors import Denied, InvalidInput
from foliot.server.auth.identity import Caller
from foliot.store.access.logins import LoginSession

SESSION: Final = "foliot_session"
FLOW: Final = "foliot_login"
LONGEST: Final = 256


class Cookies:
    """Reads and writes them. `public_url` is how browsers reach the server, when something stands in between."""

    def __init__(self, public_url: str | None) -> None:
        self._behind_tls = (public_url or "").startswith("https://")

    def read(self, scope: MutableMapping[str, Any], name: str) -> str | None:
        """The value; None without one, and when there are two: somebody else may have put one of them there."""
        wanted = self._name(scope, name)
        found: set[str] = set()
        for header, value in scope["headers"]:
            if header == b"cookie":
                for part in value.decode("latin-1").split(";"):
                    given, _, text = part.strip().partition("=")
                    if given == wanted:
                        found.add(text)
        if len(found) != 1:
            return None
        text = found.pop()
        return text if 0 < len(text) <= LONGEST and text.isascii() else None

    def write(self, response: Response, scope: MutableMapping[str, Any], name: str, value: str, *, age: float) -> None:
        """Have the browser keep it for `age` seconds."""
        secure = "; Secure" if self._is_secure(scope) else ""
        text = f"{self._name(scope, name)}={value}; Max-Age={int(age)}; Path=/; HttpOnly; SameSite=Lax{secure}"
        response.headers.append("Set-Cookie", text)

    def clear(self, response: Response, scope: MutableMapping[str, Any], name: str) -> None:
        """Have the browser forget it."""
        self.write(response, scope, name, "", age=0)

    def _name(self, scope: MutableMapping[str, Any], name: str) -> str:
        # With this prefix a browser takes the cookie from this very host only, and only over TLS.
        return f"__Host-{name}" if self._is_secure(scope) else name

    def _is_secure(self, scope: MutableMapping[str, Any]) -> bool:
        return self._behind_tls or scope.get("scheme") == "https"


# --- csrf ------------------------------------------------------------------------------------------------------------

# Against pages of other sites that have a browser send requests with its cookie.
#
# A browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); what comes from another site is refused. And
# whoever writes must know a token that goes with the session, which only a page of this server can read. Callers with
# a bearer token need none of it: no page can make a browser send that header.

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


# --- held ------------------------------------------------------------------------------------------------------------

# The session that a request came with.

# Where a scope has it.
HELD: Final = "foliot.session"


class RequestSession(NamedTuple):
    """A good session, and the token that its writes must carry. That they do is checked apart."""

    caller: Caller
    session: LoginSession
    csrf: str
