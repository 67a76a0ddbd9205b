"""A worker that lacks a tool, or the module of one, gives the run back: others take it, and `why` says so.

What is gone from the store is gone for all of them, and the run ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from foliot import Runtime, tool
from foliot.kernel.run.codec import type_of
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Delete, Key, Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from foliot.work.worker.performer import LACK_REST

ENDS = 60.0
ENDPOINT = {
    "provider": "scripted",
    "default_model": "scripted",
    "script": {"turns": [{"call": {"price": {}}}, {"say": "sold"}], "loop": True},
}
AGENT = {"model_ref": "script", "prompt": "", "tools": ["price"]}


@asynccontextmanager
async def working(runtime: Runtime, name: str) -> AsyncGenerator[None]:
    worker = runtime.inside.tasking.worker(Offer(name, f"{runtime.inside.runs.worker}/{name}", capacity=4), grace=0.0)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await asyncio.wait_for(task, ENDS)


async def declare(runtime: Runtime, **more: dict[str, object]) -> None:
    more = {"agent": ("Agent", "clerk", AGENT)} | more  # type: ignore[dict-item]
    for kind, name, spec in (("ModelEndpoint", "script", ENDPOINT), *more.values()):
        document, _ = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None
        await runtime.inside.resources.write([Put(document)])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(ENDS):
        while not await holds():
            await asyncio.sleep(0.02)


async def why(runtime: Runtime) -> str:
    told = await runtime.tasks.why("t1")
    return "\n".join(cause.text for cause in told.causes)


async def succeeded(runtime: Runtime) -> bool:
    return (await runtime.inside.tasking.tasks.get("default", "t1")).phase == "succeeded"


async def test_a_run_goes_to_the_worker_that_has_its_tool(tmp_path: Path) -> None:
    @tool(effect="read")
    async def price() -> str:
        return "7"

    settings = load_settings({"store": str(tmp_path / "foliot.db")})
    async with Runtime(settings=settings, tools=[price]) as able, Runtime(settings=settings) as unable:
        await declare(able)
        await able.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        async with working(unable, "bare"):

            async def told() -> bool:
                return "no worker can run it: tool price is missing on worker bare" in await why(able)

            await until(told)
            async with working(able, "whole"):
                await until(lambda: succeeded(able))
        (run,) = await able.inside.runs.journal.list()
        claims = [type_of(event) for _, event in await able.inside.runs.facts(run.id)].count("run.claimed")
        assert claims == 1, "what the worker lacks is no attempt of the run"


async def test_a_module_that_is_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    module = tmp_path / "corner_shop.py"
    module.write_text("def price() -> str:\n    return '7'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = load_settings({"store": str(tmp_path / "foliot.db")})
    async with Runtime(settings=settings, clock=lambda: time.time() + ahead) as runtime:
        spec = {"type": "function", "function": "corner_shop:price", "effect": "read"}
        await declare(runtime, tool=("Tool", "price", spec))  # type: ignore[arg-type]
        await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        text = module.read_text()
        module.unlink()
        sys.modules.pop("corner_shop")
        async with working(runtime, "here"):

            async def told() -> bool:
                return "module corner_shop is missing on worker here" in await why(runtime)

            await until(told)
            module.write_text(text)
            ahead = LACK_REST + 1
            await until(lambda: succeeded(runtime))
    sys.modules.pop("corner_shop", None)


@pytest.mark.parametrize(
    ("kind", "name", "spec", "used"),
    [
        ("Tool", "price", {"type": "http", "endpoint": "http://127.0.0.1:9/", "effect": "read"}, "price"),
        ("Agent", "helper", {"model_ref": "script", "prompt": ""}, "agent:helper"),
    ],
)
async def test_a_run_ends_whose_tool_is_deleted(
    kind: str, name: str, spec: dict[str, object], used: str, tmp_path: Path
) -> None:
    settings = load_settings({"store": str(tmp_path / "foliot.db")})
    async with Runtime(settings=settings) as runtime:
        agent = ("Agent", "clerk", {**AGENT, "tools": [used]})
        await declare(runtime, used=(kind, name, spec), agent=agent)  # type: ignore[arg-type]
        await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        await runtime.inside.resources.write([Delete(Key(kind, "default", name))])
        async with working(runtime, "here"):

            async def ended() -> bool:
                return (await runtime.inside.tasking.tasks.get("default", "t1")).phase == "dead_lettered"

            await until(ended)
        end = (await runtime.inside.tasking.tasks.events("default", "t1"))[-1].event
        assert f"uses tools that are not there: {used}" in str(end)


@pytest.mark.parametrize("lacks", ["command", "secret", "secret of the server"])
async def test_a_run_goes_to_the_worker_that_has_the_command_and_the_secret(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on one machine only is looked for there: nothing is counted, and nothing is a dead letter."""
    program = tmp_path / "bin" / "corner-mcp"
    settings = load_settings({"store": str(tmp_path / "foliot.db"), "mcp_commands": "corner-mcp"})
    server: dict[str, object] = {"transport": "stdio", "command": "corner-mcp"}
    spec: dict[str, object] = {"type": "mcp", "mcp_server_ref": "corner", "mcp_tool_name": "price", "effect": "read"}
    named = "command corner-mcp"
    if lacks == "secret":
        named, spec = (
            "secret till",
            {
                "type": "http",
                "endpoint": "http://127.0.0.1:9/",
                "effect": "read",
                "auth": {"profile": "bearer", "secretRef": "till"},
            },
        )
    elif lacks == "secret of the server":
        named, server["env"] = "secret till", [{"name": "TILL", "secretRef": "till"}]
        server["command"] = sys.executable
    # Whether the call itself succeeds is another matter: here the run begins, and ends, on the second worker.
    async with Runtime(settings=settings) as runtime:
        await declare(
            runtime,
            server=("McpServer", "corner", server),  # type: ignore[arg-type]
            tool=("Tool", "price", spec),  # type: ignore[arg-type]
        )
        await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        async with working(runtime, "bare"):

            async def told() -> bool:
                return f"no worker can run it: {named} is missing on worker bare" in await why(runtime)

            await until(told)
        (run,) = await runtime.inside.runs.journal.list()
        assert "run.claimed" not in [type_of(event) for _, event in await runtime.inside.runs.facts(run.id)]
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FOLIOT_SECRET_TILL", "sesame")
        async with Runtime(settings=settings) as whole, working(whole, "whole"):

            async def begun() -> bool:
                facts = [type_of(event) for _, event in await runtime.inside.runs.facts(run.id)]
                return facts.count("run.claimed") == 1 and "tool.started" in facts

            await until(begun)
