"""From the tools' own secrets and credentials to what connections ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from foliot.tools.base import AuthSpec, ToolPolicyInvalid, ToolSecretMissing
from foliot.tools.mcp.process import ResolveSecret

if TYPE_CHECKING:
    from foliot.tools.auth import Credentials, ToolAuth
    from foliot.tools.mcp.http import Authorize
    from foliot.tools.secrets import Secrets


def secret_values(secrets: Secrets) -> ResolveSecret:
    """Values for the environment of stdio servers, from the server's own namespace or one that has granted it."""

    async def resolve(reference: str, namespace: str) -> str:
        return await secrets.value(reference, namespace=namespace, by="McpServer")

    return resolve


def auth_headers(maker: ToolAuth) -> Authorize:
    """Headers for HTTP servers. A token that was refused is thrown away and fetched anew."""
    shown: dict[tuple[AuthSpec, str], Credentials] = {}

    async def authorize(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]:
        before = shown.get((auth, namespace))
        if rejected and before is not None:
            maker.evict(auth, before)
        made = await maker.credentials(auth, namespace=namespace, tool="an MCP server", by="McpServer")
        shown[auth, namespace] = made
        return made.headers

    return authorize


async def no_secrets(reference: str, namespace: str) -> str:
    raise ToolSecretMissing(f"the secret {reference!r} cannot be looked up here", hint="open a store")


async def no_headers(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]:
    raise ToolPolicyInvalid(f"nobody here can make credentials for the profile {auth.profile!r}", hint="open a store")
