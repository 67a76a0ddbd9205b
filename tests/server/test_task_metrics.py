"""What becomes of tasks and of the messages between their agents is counted at `/metrics` of a server with a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from foliot.testing.served import local_headers, served

TEAM = """
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: first}
      turns: [{say: "first"}]
    - match: {agent: second}
      turns: [{say: "second"}]
    - match: {agent: asker}
      turns: [{call: {ask_user: {question: "Which colour?"}}}, {say: "done"}]
---
kind: Agent
metadata: {name: first}
spec: {model_ref: brain}
---
kind: Agent
metadata: {name: second}
spec: {model_ref: brain}
---
kind: Agent
metadata: {name: asker}
spec: {model_ref: brain, tools: [ask_user]}
---
kind: AgentSystem
metadata: {name: duo}
spec: {agents: [first, second], graph: {first: {next: second}}}
"""


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        served(tmp_path) as url,
        aiohttp.ClientSession(url, headers=await local_headers(url, tmp_path)) as client,
    ):
        yield client


async def asked(http: aiohttp.ClientSession, name: str, phase: str, **spec: object) -> None:
    """Post a task, and wait until it is in a phase."""
    body = {"kind": "Task", "metadata": {"name": name}, "spec": {"input": {"topic": "x"}, **spec}}
    async with http.post("/v1/tasks", json=body) as answer:
        assert answer.status == 201, await answer.text()
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"/v1/tasks/{name}") as answer:
                if (await answer.json())["status"]["phase"] == phase:
                    return
            await asyncio.sleep(0.02)  # until it is there; bounded by the timeout above


async def scraped(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/metrics") as answer:
        lines = [line for line in (await answer.text()).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_tasks_and_messages_are_counted_where_they_are_done(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/apply", data=TEAM) as answer:
        assert answer.status == 200, await answer.text()
    await asked(http, "done", "Succeeded", system="duo")
    await asked(http, "waits", "Waiting", agent="asker")
    await asked(http, "missing", "Failed", system="nobody")

    found = await scraped(http)

    for prefix in ("foliot", "orloj"):
        took = f"{prefix}_task_duration_seconds_count"
        assert found[f'{took}{{namespace="default",status="succeeded",system="duo"}}'] == 1
        assert found[f'{took}{{namespace="default",status="failed",system="nobody"}}'] == 1
        messages = {
            (agent, phase): found.get(f'{prefix}_messages_total{{agent="{agent}",phase="{phase}"}}', 0.0)
            for agent in ("first", "second", "asker")
            for phase in ("queued", "running", "succeeded")
        }
        assert {key for key, count in messages.items() if count == 0} == {("asker", "succeeded")}
        assert messages["first", "succeeded"] == messages["second", "succeeded"] == 1
        assert found[f'{prefix}_inflight_messages{{agent="asker"}}'] == 1
        assert f'{prefix}_inflight_messages{{agent="first"}}' not in found
    assert found['foliot_message_latency_seconds_count{agent="second"}'] == 1
    assert found['foliot_message_latency_seconds_sum{agent="second"}'] > 0
