"""What a server is, and whom it takes the caller for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from foliot.client.asking import Asking


class Me(Struct, frozen=True):
    """Who one is to a server, and the roles by namespace (`*` is all of them)."""

    authenticated: bool
    username: str
    roles: dict[str, list[str]] = {}


class Health(Struct, frozen=True):
    """Part by part; each has a `status`."""

    status: str
    parts: dict[str, dict[str, Any]] = {}


class Capability(Struct, frozen=True):
    id: str
    enabled: bool
    description: str = ""


class _Version(Struct, frozen=True):
    version: str


class _Capabilities(Struct, frozen=True):
    capabilities: list[Capability]


class RemoteAbout(Asking):
    """Questions to a server about itself."""

    async def version(self) -> str:
        """Needs no token."""
        return (await self._get("/v1/version", _Version)).version

    async def me(self) -> Me:
        """Raises `Denied` when the server does not know the token."""
        return await self._get("/v1/auth/me", Me)

    async def health(self) -> Health:
        """Raises `Unavailable` while it cannot reach its store."""
        return await self._get("/v1/health", Health)

    async def capabilities(self) -> list[Capability]:
        return (await self._get("/v1/capabilities", _Capabilities)).capabilities
