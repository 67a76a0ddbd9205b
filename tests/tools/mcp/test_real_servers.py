"""Servers that nobody here wrote, through the pipeline: two from npm and one from PyPI, over stdio and HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foliot.catalog.mcp import sync_server
from foliot.dev.service import free_port
from foliot.engine.definition.freeze import tool_definition
from foliot.kernel.messages import Media, ToolResult
from foliot.store.base import Key, Put
from foliot.tools.base import Invocation
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.tool import McpTool
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.mcp.conftest import document, fenced_connections, running, seen_at

pytestmark = pytest.mark.slow


class Deployed:
    """A server that was declared and synced; its tools can be called by its own names for them."""

    def __init__(self, store: Any, connections: McpConnections, name: str) -> None:
        self.store, self.connections, self.name = store, connections, name
        self.heard: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        name = f"{self.name}--{tool.replace('_', '-')}"
        stored = await self.store.get(Key("Tool", "default", name))

        async def find(namespace: str, server: str) -> Any:
            return await self.store.get(Key("McpServer", namespace, server))

        async def agreed(namespace: str, server: str, tool: str) -> Any:
            return (await self.store.agreed(namespace, server, tool))[0]

        made = McpTool(tool_definition(stored), stored, self.connections, find, agreed)
        invocation = Invocation("run-1", "call-1", name, arguments, "key-1")
        return await Pipeline([made]).call(invocation, on_output=self.heard.append)


async def deploy(store: Any, connections: McpConnections, name: str, **spec: Any) -> Deployed:
    (written,) = await store.write([Put(document(name, **spec))])
    await sync_server(store, written.document, connections)
    return Deployed(store, connections, name)


def text(result: ToolResult) -> str:
    assert result.error is None, result.error
    return "\n".join(getattr(part, "text", "") for part in result.content)


@pytest.mark.node
class TestFilesystem:
    async def test_files_are_written_read_and_fenced_in(self, store, node_tools, node_servers, tmp_path):
        node, folder = str(node_tools / "node"), tmp_path / "files"
        folder.mkdir()
        script = str(node_servers / "server-filesystem" / "dist" / "index.js")
        async with fenced_connections(allowed_commands=[node]) as connections:
            line = {"command": node, "args": [script, "/data"], "sandbox": seen_at(folder)}
            files = await deploy(store, connections, "files", **line)
            await files.call("write_file", path="/data/a.txt", content="héllo")
            assert (folder / "a.txt").read_text() == "héllo"
            assert "héllo" in text(await files.call("read_text_file", path="/data/a.txt"))
            outside = await files.call("read_text_file", path="/etc/hostname")
            assert outside.error is not None
            assert "denied" in outside.error.message.lower()

    async def test_its_hints_decide_what_may_be_repeated(self, store, node_tools, node_servers, tmp_path):
        node = str(node_tools / "node")
        script = str(node_servers / "server-filesystem" / "dist" / "index.js")
        async with fenced_connections(allowed_commands=[node]) as connections:
            await deploy(store, connections, "files", command=node, args=[script, "/tmp"])
        reading = (await store.get(Key("Tool", "default", "files--read-text-file")))["spec"]
        writing = (await store.get(Key("Tool", "default", "files--write-file")))["spec"]
        assert (reading["effect"], reading["operation_classes"]) == ("read", ["read"])
        assert (writing["effect"], writing["operation_classes"]) == ("idempotent", ["write", "delete"])


async def use_everything(everything: Deployed) -> None:
    assert "hello" in text(await everything.call("echo", message="hello"))
    assert "7" in text(await everything.call("get-sum", a=3, b=4))
    image = await everything.call("get-tiny-image")
    assert any(isinstance(part, Media) and part.media_type == "image/png" for part in image.content)
    structured = await everything.call("get-structured-content", location="Chicago")
    assert "temperature" in json.loads(structured.content[0].text)  # type: ignore[union-attr]
    text(await everything.call("trigger-long-running-operation", duration=0.2, steps=2))
    wrong = await everything.call("get-sum", a="three", b=4)
    assert wrong.error is not None
    assert wrong.error.code == "invalid_input"


@pytest.mark.node
class TestEverything:
    async def test_over_stdio(self, store, node_tools, node_servers):
        node = str(node_tools / "node")
        script = str(node_servers / "server-everything" / "dist" / "index.js")
        async with fenced_connections(allowed_commands=[node]) as connections:
            everything = await deploy(store, connections, "everything", command=node, args=[script, "stdio"])
            await use_everything(everything)
            assert everything.heard

    async def test_over_http(self, store, node_tools, node_servers):
        script, port = node_servers / "server-everything" / "dist" / "index.js", free_port()
        command = [str(node_tools / "node"), str(script), "streamableHttp"]
        with running(command, port, PORT=str(port)) as url:
            async with McpConnections() as connections:
                await use_everything(await deploy(store, connections, "everything", endpoint=url))
                assert connections.health()[0].protocol < "2026"


async def test_a_python_server_from_pypi(store, time_server: Path):
    async with fenced_connections(allowed_commands=[str(time_server)]) as connections:
        clock = await deploy(
            store, connections, "clock", command=str(time_server), args=["--local-timezone", "Europe/Oslo"]
        )
        now = json.loads(text(await clock.call("get_current_time", timezone="Asia/Tokyo")))
        assert now["timezone"] == "Asia/Tokyo"
        wrong = await clock.call("get_current_time", timezone="Mars/Olympus")
        assert wrong.error is not None
        assert "Mars/Olympus" in wrong.error.message
