"""The official client starts `foliot mcp serve` and talks to it over its standard streams."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from foliot.runtime.runtime import Runtime

BOTH = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture
def command(runtime: Runtime, tools_module: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "foliot.cli", "mcp", "serve"],
        env={**os.environ, "FOLIOT_HOME": str(tools_module), "PYTHONPATH": str(tools_module)},
        cwd=tools_module,
    )


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


@BOTH
async def test_a_client_lists_and_calls_agents_and_tools(
    command: StdioServerParameters, runtime: Runtime, mode: Any
) -> None:
    told: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def approve(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with Client(stdio_client(command), mode=mode, elicitation_callback=approve) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        spoken = await client.call_tool("agent-clerk", {"message": "add"}, progress_callback=progress)
        added = await client.call_tool("add", {"one": 2, "other": 40})
        paid = await client.call_tool("agent-careful", {"message": "pay"})
        wrong = await client.call_tool("add", {"one": "two"})
        with pytest.raises(MCPError, match="cannot be used"):
            await client.call_tool("agent-clerk", {"text": "add"})
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("nothing", {})

    assert {"agent-clerk", "system-line", "add"} <= names
    assert text_of(spoken) == "It is 5."
    assert "Let me look." in "".join(told)
    assert text_of(added) == "42"
    assert text_of(paid) == "Done: paid 5"
    assert wrong.is_error
    runs = await runtime.inside.runs.journal.list()
    assert {info.phase for info in runs} == {"succeeded"}
    assert {info.labels["foliot.dev/via"] for info in runs} == {"mcp"}


def test_without_a_client_it_ends(foliot_home: Path) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "foliot.cli", "mcp", "serve"],
        input=b"this is not JSON\n",
        env={**os.environ, "FOLIOT_HOME": str(foliot_home)},
        capture_output=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.fixture
def foliot_home(tmp_path: Path) -> Path:
    return tmp_path
