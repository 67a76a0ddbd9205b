"""The headers of the profiles that need no token exchange, from secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

from foliot.tools.base import AuthSpec, ToolPolicyInvalid
from foliot.tools.mcp.process import ResolveSecret

if TYPE_CHECKING:
    from foliot.tools.mcp.http import Authorize


def static_headers(resolve_secret: ResolveSecret) -> Authorize:
    """`bearer`, `api_key_header` and `basic` (a secret `user:password`); the secret is read at every request."""

    async def authorize(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]:
        if auth.profile == "oauth2_client_credentials":
            raise ToolPolicyInvalid(
                "this process has nobody who gets OAuth 2 tokens", hint="give `authorize` to the connections"
            )
        secret = (await resolve_secret(auth.secret_ref, namespace)).strip()
        match auth.profile:
            case "bearer":
                return {"Authorization": f"Bearer {secret}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}
            case "api_key_header":
                return {auth.header_name: secret}

    return authorize
