"""How a client is known to a server of its own machine and home: see store/secrets/local_key.py.

Nothing but a nonce is sent to a server that has not shown that it knows the key of this home.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from foliot.common.threads import on_thread
from foliot.store.secrets.local_key import Introduction, LocalKey, place_of

if TYPE_CHECKING:
    from pathlib import Path

PATH: Final = "/v1/auth/local"
# `localhost` can be two addresses with two listeners. One is meant, so that what is proved is about that one.
LOCALHOST: Final = "127.0.0.1"


class _Offer(msgspec.Struct):
    boot: str
    expires_at: int
    proof: str


class LocalAccess:
    """The credentials for the server at `url`, which is on this machine."""

    def __init__(self, url: str, place: str, home: Path) -> None:
        self._url = url
        self._place = place
        self._home = home
        self._held: str | None = None
        self._asking = asyncio.Lock()

    @staticmethod
    def to(url: str, home: Path) -> LocalAccess | None:
        """Returns the local access to a server; None for a server elsewhere, as far as its address tells."""
        parts = urlsplit(url)
        host = LOCALHOST if parts.hostname == "localhost" else parts.hostname
        place = place_of((host, parts.port or (443 if parts.scheme == "https" else 80)))
        return LocalAccess(url, place, home) if place else None

    async def bearer(self, session: aiohttp.ClientSession, trust: ssl.SSLContext | bool) -> tuple[str | None, bool]:
        """Returns the token, and whether it was made just now; None when the server does not know the key.

        Raises what `aiohttp` does when there is no answer, `UsageError` for a key that others have a hand in.
        """
        async with self._asking:
            if self._held is not None:
                return self._held, False
            key = await on_thread(LocalKey.of, self._home)
            if key is None:
                return None, True
            nonce = secrets.token_hex(16)
            offer = await self._ask(session, trust, nonce)
            if offer is not None:
                about = Introduction(self._place, nonce, offer.boot, offer.expires_at)
                if key.vouches(about, offer.proof):
                    self._held = key.bearer(about)
            return self._held, True

    @property
    def family(self) -> socket.AddressFamily:
        """Over what the place is reached: `localhost` is not left to chance."""
        return socket.AF_INET6 if ":" in self._place else socket.AF_INET

    def forget(self) -> None:
        """The server does not take it any more: it was started anew, or an hour has passed."""
        self._held = None

    async def _ask(self, session: aiohttp.ClientSession, trust: ssl.SSLContext | bool, nonce: str) -> _Offer | None:
        limit = aiohttp.ClientTimeout(total=10.0)
        async with session.get(
            self._url + PATH, params={"nonce": nonce}, timeout=limit, allow_redirects=False, ssl=trust
        ) as response:
            # An offer is short; whatever else listens there is not read to its end.
            body = await response.content.read(4096)
            if response.status == 429 or response.status >= 500:
                raise ConnectionError("the server is not ready")
            if response.status != 200:
                return None
        try:
            return msgspec.json.decode(body, type=_Offer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
