"""What the tests of tools over NATS share: a stream, a server of tools, and a tool written without Foliot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.tools.base import Caller, Invocation, Tool
from foliot.tools.nats_worker.callers import BusCallerEntry, Callers, new_callers
from foliot.tools.nats_worker.calls import AgentLookup
from foliot.tools.nats_worker.server import ServerConfig, ToolServer, ensure_stream
from foliot.tools.pipeline.pipeline import Pipeline

QUICK = {"fetch": 0.2, "redelivery": (0.1,), "ack_wait": 30.0, "stream_tries": 3}


@asynccontextmanager
async def linked(url: str, *, stream: bool = True) -> AsyncIterator[NatsLink]:
    link = NatsLink(NatsOptions(url))
    try:
        if stream:
            await ensure_stream(await link.jetstream())
        yield link
    finally:
        await link.close()


ANYBODY = new_callers({"anybody": BusCallerEntry(anonymous=True)})


@asynccontextmanager
async def served(
    link: NatsLink,
    *tools: Tool,
    pipeline: Pipeline | None = None,
    callers: Callers = ANYBODY,
    agents: AgentLookup | None = None,
    **config: Any,
) -> AsyncIterator[ToolServer]:
    settings = ServerConfig(**{**QUICK, **config})
    server = ToolServer(pipeline or Pipeline(tools), link, settings, callers=callers, agents=agents)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(within=5.0)


async def settled(client: Any) -> None:
    """Until the server knows of the subscriptions of a client.

    One flush is not enough: the client sends its question before what still waits to be sent, so the answer to the
    first says only that the rest is on its way.
    """
    await client.flush()
    await client.flush()


Reply = Callable[[Any, dict[str, Any]], Awaitable[None]]


@asynccontextmanager
async def foreign_tool(link: NatsLink, name: str, reply: Reply) -> AsyncIterator[list[dict[str, Any]]]:
    """A tool as any program in any language would serve it: a subscription, JSON, and nothing of ours.

    `reply(client, call)` answers; the list holds every call that came.
    """
    client: Any = await link.reached()
    calls: list[dict[str, Any]] = []

    async def hear(msg: Any) -> None:
        call = json.loads(msg.data)["payload"]
        calls.append(call)
        await reply(client, call)

    subscription = await client.subscribe(f"tool.execute.{name}", cb=hear)
    await settled(client)
    try:
        yield calls
    finally:
        await subscription.unsubscribe()


def envelope(payload: dict[str, Any]) -> bytes:
    kind = {"domain": "agentic", "category": "tool_result", "version": "v1"}
    return json.dumps({"id": "1", "type": kind, "meta": {}, "payload": payload}).encode()


def result(call: dict[str, Any], content: str = "", **more: Any) -> bytes:
    payload = {"call_id": call["id"], "execution_id": call["execution_id"], "name": call["name"], "content": content}
    return envelope({**payload, **more})


def invocation(tool: str = "search", call_id: str = "call_1", run: str = "run-1", **fields: Any) -> Invocation:
    caller = fields.pop("caller", Caller(agent="finder"))
    return Invocation(
        run, call_id, tool, fields.pop("arguments", {"q": "clocks"}), f"key-{run}-{call_id}", caller, **fields
    )


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
