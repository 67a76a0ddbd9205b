"""`foliot tools serve` as a process of its own, called over a real NATS server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from foliot.cli.main import cli
from foliot.tools.backends.nats import NatsTool
from foliot.tools.base import ToolArgumentsInvalid, ToolDefinition
from tests.tools.serving.bus import invocation, linked

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: shout}
spec: {type: function, function: "served_functions:shout", effect: idempotent}
"""
FUNCTIONS = '''\
def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.yaml").write_text(MANIFEST)
    (tmp_path / "served_functions.py").write_text(FUNCTIONS)
    (tmp_path / "callers.toml").write_text("[anybody]\nanonymous = true\n")
    (tmp_path / "callers.toml").chmod(0o600)
    return tmp_path


@asynccontextmanager
async def serving(folder: Path, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foliot.cli.main", "tools", "serve", "-f", str(folder / "tools.yaml")),
        *("--create-stream", "--callers", str(folder / "callers.toml")),
        env={**os.environ, "FOLIOT_HOME": str(folder / "home"), "FOLIOT_NATS": url},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stderr.readline()).decode()
        assert line.startswith("Serving 1 tool: shout."), line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.stderr.read()
        await process.wait()


async def test_a_declared_function_is_served_until_the_process_is_told_to_stop(folder: Path, nats_url: str) -> None:
    async with serving(folder, nats_url) as process, linked(nats_url) as link:
        tool = NatsTool(ToolDefinition("shout", type="queue"), link)
        assert await tool.invoke(invocation("shout", arguments={"text": "tick"})) == "TICK"
        with pytest.raises(ToolArgumentsInvalid, match="text"):
            await tool.invoke(invocation("shout", call_id="call_2", arguments={"words": 3}))

        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            said = (await process.stderr.read()).decode()
            assert await process.wait() == 0
    assert "Stopped after 1 call." in said


def callers(folder: Path) -> tuple[str, str]:
    return "--callers", str(folder / "callers.toml")


def invoke(folder: Path, *words: str) -> tuple[int, str]:
    environ = {"FOLIOT_HOME": str(folder / "home"), "FOLIOT_NATS": "", "NO_COLOR": "1"}
    result = CliRunner().invoke(cli, ["tools", "serve", *words], env=environ)
    return result.exit_code, result.output


def test_it_says_what_is_missing(folder: Path) -> None:
    code, said = invoke(folder, "-f", str(folder / "tools.yaml"))
    assert code == 2
    assert "--nats" in said

    code, said = invoke(folder, "--nats", "nats://127.0.0.1:1", "-f", str(folder / "tools.yaml"))
    assert code == 2
    assert "Who may call" in said

    code, said = invoke(folder, "--nats", "nats://127.0.0.1:1", *callers(folder))
    assert code == 3
    assert "no tools to serve" in said

    code, said = invoke(
        folder, "--nats", "nats://127.0.0.1:1", *callers(folder), "-f", str(folder / "tools.yaml"), "--tool", "whisper"
    )
    assert code == 3
    assert "whisper" in said
    assert "shout" in said


def test_a_tool_that_is_called_over_nats_is_not_served_over_nats(folder: Path) -> None:
    (folder / "tools.yaml").write_text(
        MANIFEST.replace('type: function, function: "served_functions:shout"', "type: queue")
    )
    code, said = invoke(folder, "--nats", "nats://127.0.0.1:1", *callers(folder), "-f", str(folder / "tools.yaml"))
    assert code == 5
    assert "circle" in said
