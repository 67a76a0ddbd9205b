"""A call comes with the trace of its caller, also in a session that another request opened."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client

from foliot.kernel.run.events import RunCreated
from foliot.runtime.runtime import Runtime

FIRST = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
SECOND = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"


async def traces(runtime: Runtime) -> list[str]:
    events = [(await runtime.inside.runs.facts(each.id))[0][1] for each in await runtime.inside.runs.journal.list()]
    return [event.trace for event in events if isinstance(event, RunCreated)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_run_goes_on_in_the_trace_of_its_own_call(url: str, runtime: Runtime, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        for meta in ({"traceparent": FIRST}, None, {"traceparent": SECOND}, {"traceparent": 7}):
            result = await client.call_tool("agent-echo", {"message": "Hello"}, meta=meta)
            assert not result.is_error

    assert sorted(await traces(runtime)) == ["", "", FIRST, SECOND]
