"""What a provider is really sent: by a run that stays, and by one that goes from process to process, store and task.

The other half of test_request_bytes.py, with nothing left out: a declared agent, both databases, an approval in the
middle, and a provider on loopback that keeps the bytes of every request.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime, tool
from foliot.kernel.messages import Media, Message, ModelResponse, Text, ToolCall
from foliot.resources.validate import validate_document
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from simulators.provider import WireRequest, WireServer

# By provider, what stands between the address of the server and what the gateway adds.
PROVIDERS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta", "ollama": ""}
ANSWER = {"reasoning": "because", "answer": 42}
SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "answer": {"type": "integer"}},
    "required": ["reasoning", "answer"],
    "additionalProperties": False,
}


@tool(effect="once")
async def refund(to: str, amount: float) -> list[Text | Media]:
    """Give money back."""
    picture = Media("image/png", data=base64.b64encode(b"receipt").decode())
    return [Text(f'{{"to":"{to}","amount":{amount:g}}}'), picture, Text("paid")]


def answer(request: WireRequest) -> ModelResponse:
    """Calls the tool first, and answers when it has its result."""
    if b"paid" in request.body:
        return ModelResponse(Message("assistant", (Text('{"reasoning":"because","answer":42}'),)))
    call = ToolCall("call_1", "refund", '{"to":"zoe","amount":20}')
    return ModelResponse(Message("assistant", (Text("I pay."), call)), stop="tool_calls")


async def declare(runtime: Runtime, kind: str, name: str, **spec: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await runtime.inside.resources.write([Put(document)])


async def approve(runtime: Runtime) -> None:
    waiting = [each async for each in runtime.inside.approvals.list("default") if each["status"]["phase"] == "Pending"]
    for each in waiting:
        await runtime.inside.approvals.decide(each["metadata"]["name"], "approve", by="ana")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOLIOT_HOME", str(tmp_path / "home"))
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def test_a_provider_cannot_tell_whether_a_run_has_moved(url: str) -> None:
    def process() -> Runtime:
        return Runtime(url, tools=[refund])

    async with process() as runtime:
        rules = [{"operation_class": "*", "verdict": "approval_required"}]
        await declare(runtime, "ToolPermission", "refund", operation_rules=rules)
        await declare(runtime, "Secret", "key", stringData={"value": "k-1234567890"})
    few = url.startswith("postgres") and not os.environ.get("FOLIOT_CHAOS")  # the formats do not know the database
    for provider, path in list(PROVIDERS.items())[: 1 if few else None]:
        async with WireServer(answer) as server:
            async with process() as runtime:
                where: dict[str, Any] = {"base_url": server.url + path, "default_model": "m"}
                if provider != "ollama":
                    where["auth"] = {"secretRef": "key"}
                await declare(runtime, "ModelEndpoint", provider, provider=provider, **where)
                fields = {"prompt": "Be brief.", "tools": ["refund"], "output_schema": SCHEMA}
                await declare(runtime, "Agent", f"by-{provider}", model_ref=provider, **fields)
                stays = await runtime.run(f"by-{provider}", "go")
                await approve(runtime)
                stayed = await runtime.resume(stays.run_id)
            wanted = [request.body for request in server.requests]
            assert stayed.value == ANSWER
            assert list(stayed.value) == ["reasoning", "answer"]
            assert len(wanted) == 2

            async with process() as runtime:
                moves = await runtime.run(f"by-{provider}", "go")
            async with process() as runtime:
                await approve(runtime)
            async with process() as runtime:
                moved = await runtime.resume(moves.run_id)
            assert [request.body for request in server.requests[2:]] == wanted, provider
            assert list(moved.value) == ["reasoning", "answer"]

            async with process() as runtime:
                await runtime.inside.fork(moves.run_id, at=2)
            assert server.requests[4].body == wanted[1], provider

            async with process() as runtime:
                task = (
                    await runtime.inside.tasking.tasks.accept(Command("agent", f"by-{provider}", message="go"))
                ).task
            for _ in range(2):
                async with process() as runtime:
                    offer = Offer("w", runtime.inside.runs.worker, capacity=2)
                    await asyncio.wait_for(runtime.inside.tasking.worker(offer, grace=0, once=True).run(), 60)
                    await approve(runtime)
            assert [request.body for request in server.requests[5:]] == wanted, provider
            async with process() as runtime:
                assert (await runtime.inside.tasking.tasks.get("default", task.name)).phase == "succeeded"
