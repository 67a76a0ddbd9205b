"""A runtime with agents and a declared bot, for tests of channels."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from foliot import Agent, Runtime, ScriptedModel
from foliot.channels.keeper import ChannelKeeper
from foliot.common.cancellation import stop_tasks
from foliot.settings.settings import load_settings
from foliot.store.base import DeclaredBy, Put
from tests.channels.telegram_server import TOKEN

KEY = "whsec_" + base64.b64encode(b"a key of at least sixteen bytes").decode()
OPERATOR = DeclaredBy("root", operator=True)


@asynccontextmanager
async def opened(
    store: str, home: Path, agents: dict[str, Any], clock: Callable[[], float] | None = None
) -> AsyncIterator[Runtime]:
    """A runtime that may reach loopback, and knows these agents by their scripts."""
    given = {"store": store, "home": str(home), "outbound_allow": "127.0.0.1"}
    async with Runtime(settings=load_settings(given, environ={"FOLIOT_SECRET_KEY": "00" * 32}), clock=clock) as runtime:
        for name, model in agents.items():
            known = ScriptedModel(model) if isinstance(model, list) else model
            runtime.inside.know(Agent(name, model=known))
        yield runtime


async def declare(runtime: Runtime, kind: str, name: str, spec: dict[str, Any], by: DeclaredBy = OPERATOR) -> None:
    document = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}}
    await runtime.inside.resources.write([Put({**document, "spec": spec})], by=by)


async def declare_bot(runtime: Runtime, url: str, **more: Any) -> None:
    secret = base64.b64encode(TOKEN.encode()).decode()
    await declare(runtime, "Secret", "bot", {"data": {"value": secret}})
    spec = {
        "type": "telegram",
        "agent": "helper",
        "endpoint": url,
        "auth": {"secretRef": "bot"},
        "users": [{"id": "42", "user": "ann"}],
        "mode": "followup",
        **more,
    }
    await declare(runtime, "Channel", "bot", spec)


@asynccontextmanager
async def kept(runtime: Runtime, **options: Any) -> AsyncIterator[ChannelKeeper]:
    keeper = ChannelKeeper(runtime.inside, poll_seconds=1, **options)
    running = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        await stop_tasks(running)
