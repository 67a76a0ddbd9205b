"""Foliot itself, by its public Python API, on the store that is named: `memory:`, a file, or a PostgreSQL URL."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from harness import DONE, FOUND, QUESTION, STEPS, RunOnce, arguments, serve

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, ToolResult, Usage


@tool(effect="read")
async def lookup(key: str) -> str:
    """Look up the value of a key."""
    return FOUND


def answer(request: ModelRequest) -> ModelResponse:
    step = len(request.messages) // 2
    if step == STEPS:
        return ModelResponse(Message("assistant", (Text(DONE),)), Usage(400, 4))
    call = ToolCall(f"call_{step}", "lookup", json.dumps(arguments(step)))
    return ModelResponse(Message("assistant", (call,)), Usage(100 + 30 * step, 20), stop="tool_calls")


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[RunOnce]:
    limits = {"max_steps": STEPS + 1}
    agent = Agent("clerk", model=ScriptedModel(answer), prompt="You look up keys.", tools=[lookup], limits=limits)
    with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder:
        store = os.environ.get("BENCH_STORE") or str(Path(folder) / "foliot.db")
        async with Runtime(store) as runtime:

            async def run() -> int:
                result = await runtime.run(agent, QUESTION)
                parts = (part for message in result.messages for part in message.parts)
                return sum(isinstance(part, ToolResult) and part.error is None for part in parts)

            yield run


if __name__ == "__main__":
    kind = {"": "SQLite, fsync", "memory:": "in memory"}.get(os.environ.get("BENCH_STORE", ""), "PostgreSQL, fsync")
    serve(f"Foliot ({kind})", opened, packages=["foliot"], durable=kind != "in memory")
