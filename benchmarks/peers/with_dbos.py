"""DBOS on SQLite: the agent is a workflow, and each answer with its tool call is one step of it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from dbos import DBOS, DBOSConfig
from harness import DONE, FOUND, QUESTION, STEPS, RunOnce, arguments, serve

Transcript = list[dict[str, Any]]


async def lookup(key: str) -> str:
    return FOUND


def answer(messages: Transcript) -> dict[str, Any]:
    step = len(messages) // 2
    if step == STEPS:
        return {"role": "assistant", "content": DONE}
    return {"role": "assistant", "content": "", "call": {"id": f"call_{step}", "arguments": arguments(step)}}


@DBOS.step()
async def take_step(messages: Transcript) -> Transcript:
    """Ask, and call what was asked for: what the step added is what it stores."""
    said = answer(messages)
    if "call" not in said:
        return [said]
    found = await lookup(**said["call"]["arguments"])
    return [said, {"role": "tool", "id": said["call"]["id"], "content": found}]


@DBOS.workflow()
async def agent(question: str) -> int:
    messages: Transcript = [{"role": "user", "content": question}]
    while "call" in messages[-1] or messages[-1]["role"] != "assistant":
        messages += await take_step(messages)
    return sum(message["role"] == "tool" for message in messages)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[RunOnce]:
    with tempfile.TemporaryDirectory() as folder:
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "log_level": "ERROR",
            "enable_otlp": False,
        }
        DBOS(config=config)
        DBOS.launch()
        try:
            yield lambda: agent(QUESTION)
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    serve("DBOS + SQLite", opened, packages=["dbos"], durable=True, note="one DBOS step for each agent step")
