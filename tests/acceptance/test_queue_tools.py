"""Tools of type `queue`: an agent calls them over a real NATS server, through everything in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.catalog.apply import apply_documents
from foliot.kernel.run.events import ToolFinished
from foliot.resources.validate import validate_document
from foliot.settings.settings import Settings, load_settings
from foliot.tools.function import tool
from tests.tools.serving.bus import foreign_tool, linked, result, served

pytestmark = pytest.mark.services

LOOK_UP = [{"call": {"search": {"q": "clocks"}}}, {"say": "It said: {last_result}"}]


@pytest.fixture
def settings(tmp_path: Path, nats_url: str) -> Settings:
    return load_settings({}, {"FOLIOT_HOME": str(tmp_path / "home"), "FOLIOT_NATS": nats_url})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as opened:
        yield opened


async def declare(runtime: Runtime, script: list[Any], /, **tool_spec: Any) -> None:
    wanted = [
        ("ModelEndpoint", "brain", {"provider": "scripted", "script": script}),
        ("Tool", "search", {"type": "queue", "input_schema": {"type": "object"}, **tool_spec}),
        ("Agent", "finder", {"model_ref": "brain", "tools": ["search"]}),
    ]
    documents = []
    for kind, name, spec in wanted:
        document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        documents.append(document)
    resources = runtime.inside._assembly.resources
    assert resources is not None
    await apply_documents(resources, documents)


async def finished(runtime: Runtime, run_id: str) -> list[ToolFinished]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]


async def test_a_program_that_knows_nothing_of_foliot_serves_an_agent(runtime: Runtime, nats_url: str) -> None:
    await declare(runtime, LOOK_UP)

    async def reply(client: Any, call: dict[str, Any]) -> None:
        await client.publish(f"tool.result.{call['id']}", result(call, f"found {call['arguments']['q']}"))

    async with linked(nats_url) as link, foreign_tool(link, "search", reply) as calls:
        done = await runtime.run("finder", "Look it up.")

    assert done.output == "It said: found clocks"
    (call,) = calls
    assert (call["name"], call["metadata"]["agent.name"]) == ("search", "finder")
    assert call["metadata"]["agent.run_id"] == done.run_id


async def test_a_tool_that_fails_over_there_is_a_failure_that_the_model_hears_of(
    runtime: Runtime, nats_url: str
) -> None:
    await declare(runtime, LOOK_UP)

    async def reply(client: Any, call: dict[str, Any]) -> None:
        said = result(call, error="the index is gone", error_kind="not_found")
        await client.publish(f"tool.result.{call['id']}", said)

    async with linked(nats_url) as link, foreign_tool(link, "search", reply):
        done = await runtime.run("finder", "Look it up.")

    assert done.phase == "succeeded"
    (fact,) = await finished(runtime, done.run_id)
    assert fact.result.error is not None
    assert "the index is gone" in fact.result.error.message


async def test_nobody_who_serves_it_is_a_timeout_within_the_tools_own_limit(runtime: Runtime, nats_url: str) -> None:
    await declare(runtime, LOOK_UP, effect="read", runtime={"timeout": "1s"})
    async with linked(nats_url):
        done = await runtime.run("finder", "Look it up.")
    (fact,) = await finished(runtime, done.run_id)
    assert fact.result.error is not None
    assert fact.result.error.code == "timeout"


CALLER = """
import asyncio, os, sys
from pathlib import Path
from foliot import Runtime
from foliot.settings.settings import load_settings

async def main():
    Path(sys.argv[2]).write_text(str(os.getpid()))
    settings = load_settings({}, {"FOLIOT_HOME": sys.argv[1], "FOLIOT_NATS": sys.argv[3]})
    async with Runtime(settings=settings) as runtime:
        await runtime.run("finder", "Look it up.", run_id="r-1")

asyncio.run(main())
"""


async def test_a_caller_that_is_killed_during_the_call_gets_its_answer_and_the_tool_acted_once(
    runtime: Runtime, settings: Settings, nats_url: str, tmp_path: Path
) -> None:
    await declare(runtime, LOOK_UP, effect="idempotent")
    pid, acted = tmp_path / "pid", list[str]()

    @tool(effect="idempotent")
    async def search(q: str) -> str:
        """Search."""
        acted.append(q)
        os.kill(int(pid.read_text()), signal.SIGKILL)  # whoever asked is gone before it can hear the answer
        return f"found {q}"

    async with linked(nats_url) as link, served(link, search):
        caller = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", CALLER, str(tmp_path / "home"), str(pid), nats_url],
            timeout=110,
            check=False,
            capture_output=True,
        )
        assert caller.returncode == -signal.SIGKILL, caller.stderr.decode()
        async with asyncio.timeout(60):
            done = await runtime.resume("r-1")

    assert done.output == "It said: found clocks"
    assert acted == ["clocks"]
    assert len(await finished(runtime, "r-1")) == 1
