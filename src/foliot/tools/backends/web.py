"""Everything that the backends over HTTP need, made once and shared, and which of them serves which type of tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from foliot.tools.auth import ToolAuth
from foliot.tools.backends.callbacks import Callbacks
from foliot.tools.backends.external import ExternalTool
from foliot.tools.backends.http import HttpTool
from foliot.tools.backends.webhook_callback import WebhookCallbackTool
from foliot.tools.base import Tool, ToolDefinition
from foliot.tools.oauth import TokenCache
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.secrets import Secrets
from foliot.waits import Waits

MakeTool: TypeAlias = Callable[[ToolDefinition], Tool]


class Web:
    """The way out of one runtime: one guard, one client, one cache of tokens. `close` it with the runtime."""

    def __init__(
        self,
        secrets: Secrets,
        policy: Outbound | None = None,
        *,
        guard: Guard | None = None,
        callbacks: Callbacks | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.guard = guard or Guard(policy or Outbound())
        self.client = OutboundClient(self.guard, waits=waits)
        self.auth = ToolAuth(secrets, TokenCache(self.client, secrets.masker))
        self.callbacks = callbacks or Callbacks()

    async def close(self) -> None:
        await self.client.close()


def http_backends(web: Web) -> Mapping[tuple[str, str], MakeTool]:
    """Who makes the tool for a (type, isolation)."""
    return {
        ("http", "none"): lambda definition: HttpTool(definition, web.client, web.auth),
        ("external", "none"): lambda definition: ExternalTool(definition, web.client, web.auth),
        ("webhook-callback", "none"): lambda definition: WebhookCallbackTool(
            definition, web.client, web.auth, web.callbacks
        ),
    }
