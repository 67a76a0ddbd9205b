"""How callers are known: by a token, or on this machine alone, while there is no token yet, not at all."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from foliot.server.errors import Unauthenticated
from foliot.server.identity import EVERYWHERE, Caller, granted

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
ANONYMOUS: Final = Caller("anonymous", "anonymous", granted([EVERYWHERE], ["admin"]))


class Anonymous:
    """Lets in everybody who sits at this machine, with all rights: for trying things out, and for tests."""

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """See `Authenticator`."""
        client = scope.get("client")
        if client is not None and not is_loopback(client[0]):
            raise Unauthenticated("who are you?", hint="send a token: `Authorization: Bearer …`")
        return ANONYMOUS

    async def describe(self) -> str:
        """See `Authenticator`."""
        return "no token exists: everybody on this machine may do everything (`foliot tokens create` changes that)"


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine only."""
    if host.strip("[]").lower() in LOOPBACK:
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
