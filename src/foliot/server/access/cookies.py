"""The cookies of logins: out of reach of scripts, of other sites, and over https also of other names of this domain."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from starlette.responses import Response

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
