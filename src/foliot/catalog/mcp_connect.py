"""Connections to MCP servers as the settings allow them, on the secrets of a store."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager

from foliot.engine.endpoints import stored_secrets
from foliot.settings import Settings
from foliot.store.base import ResourceStore
from foliot.tools.auth import ToolAuth
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.credentials import auth_headers, secret_values
from foliot.tools.oauth import TokenCache
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.waits import Waits


@asynccontextmanager
async def opened_connections(
    store: ResourceStore,
    settings: Settings,
    *,
    allow: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    patient: bool = True,
) -> AsyncGenerator[McpConnections]:
    """Connections for one command, closed at its end. `allow`: what may be started besides the settings' commands."""
    secrets = stored_secrets(store, environ)
    client = OutboundClient(Guard(Outbound(allow_hosts=settings.outbound_allow)), waits=Waits(settings.lease))
    connections = McpConnections(
        allowed_commands={*settings.mcp_commands, *allow},
        resolve_secret=secret_values(secrets),
        authorize=auth_headers(ToolAuth(secrets, TokenCache(client, secrets.masker))),
        guard=client.guard.addresses,
        environ=environ,
        patient=patient,
    )
    try:
        yield connections
    finally:
        await connections.close()
        await client.close()
