"""Tools of fenced and unfenced servers in a runtime: their risk, policies that demand a fence, and the audit log."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel
from foliot.catalog.mcp import sync_server
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.events import ToolFinished
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import Key, Put
from tests.tools.mcp.conftest import Recorded, document, fenced_connections

pytestmark = pytest.mark.fence

FENCED: dict[str, Any] = {}
UNFENCED = {"isolation": "none"}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    commands = f"{sys.executable},{sys.executable} *"
    async with Runtime(settings=load_settings({"home": str(tmp_path), "mcp_commands": commands}, {})) as opened:
        yield opened


async def declare(runtime: Runtime, kind: str, name: str, spec: dict[str, Any]) -> None:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert made is not None, problems
    await runtime.inside.resources.write([Put(made)])


async def serve(runtime: Runtime, *, risk: str = "medium", **spec: Any) -> None:
    """Declare the server, agree to its tool, and give that a risk."""
    store = runtime.inside.resources
    await store.write([Put(document("hostile", **spec))])
    async with fenced_connections(Recorded(), allowed_commands=[sys.executable, f"{sys.executable} *"]) as connections:
        await sync_server(store, await store.get(Key("McpServer", "default", "hostile")), connections)
    tool = (await store.get(Key("Tool", "default", "hostile--run")))["spec"]
    if risk == "high":  # whose default isolation is a fence
        tool["runtime"] = {name: value for name, value in tool["runtime"].items() if name != "isolation_mode"}
    await declare(runtime, "Tool", "hostile--run", {**tool, "risk_level": risk})


async def called(runtime: Runtime, **agent: Any) -> ToolResult:
    """The result of the one call of a run: code that says whether it sees the files of the worker."""
    code = f"import os; print('free' if os.path.exists({__file__!r}) else 'fenced')"
    turns = [{"call": {"hostile--run": {"code": code}}}, {"say": "done"}]
    run = await runtime.run(Agent("caller", model=ScriptedModel(turns), tools=["hostile--run"], **agent), "Go.")
    facts = await runtime.inside.runs.facts(run.run_id)
    (result,) = [event.result for _, event in facts if isinstance(event, ToolFinished)]
    return result


async def test_a_tool_of_high_risk_of_a_fenced_server_is_called(runtime: Runtime) -> None:
    await serve(runtime, risk="high", **FENCED)
    result = await called(runtime)
    assert (result.error, result.text) == (None, "fenced\n")


async def test_a_tool_of_high_risk_of_an_unfenced_server_is_refused(runtime: Runtime) -> None:
    await serve(runtime, risk="high", **UNFENCED)
    result = await called(runtime)
    assert result.error is not None
    assert result.error.details["layer"] == "isolation"


@pytest.mark.parametrize(("spec", "runs"), [(FENCED, True), (UNFENCED, False)], ids=["fenced", "unfenced"])
async def test_a_policy_that_demands_a_fence_is_met_by_fenced_servers_only(
    runtime: Runtime, spec: dict[str, Any], runs: bool
) -> None:
    await serve(runtime, **spec)
    await declare(runtime, "AgentPolicy", "careful", {"apply_mode": "global", "sandbox": {"isolation": "sandboxed"}})
    result = await called(runtime)
    assert (result.error is None) is runs
    if result.error is not None:
        assert "AgentPolicy/careful" in str((result.error.message, result.error.details))
        assert not await starts(runtime), "it was not even started"


async def starts(runtime: Runtime) -> list[dict[str, Any]]:
    """What the audit log says of programs that were started without a fence."""
    await runtime.inside.audit.flush()
    log = SqlAuditLog(runtime.inside.tasking.database)
    return [record.body for record in await log.find(AuditFilter(moment="unfenced"), limit=100)]


async def test_each_start_without_a_fence_is_in_the_audit_log_and_no_other(runtime: Runtime) -> None:
    await serve(runtime, **FENCED)
    assert (await called(runtime)).error is None
    assert await starts(runtime) == []
    await serve(runtime, **UNFENCED)
    assert (await called(runtime)).text == "free\n"
    (record,) = await starts(runtime)
    assert (record["tool"], record["namespace"]) == ("hostile", "default")
    assert record["resource"] == {"kind": "McpServer", "name": "hostile", "program": sys.executable}
