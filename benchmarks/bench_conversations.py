"""Long conversations: how soon the first question of the next turn is ready, what a turn costs, and what it stores.

    python benchmarks/bench_conversations.py [--messages 10000] [--turns 1000]

A conversation that was compacted is continued in a process that has never seen it (`cold`) and in the one that had its
last turn (`warm`): from the call to the moment that the model is asked. Then turns of 850 bytes, question and answer
together, are appended, and what the store has grown by is held against what was said.

The aims: the question ready within 50 ms; the last hundred turns as fast as the first; at most 3 bytes for each said.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw

from foliot import Agent, Runtime
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage

ANSWER = "I heard you. " * 33


class Model:
    """Answers at once, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked_at = 0.0

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked_at = time.perf_counter()
        said = "a summary" if "Summarise the segment" in request.messages[-1].text else ANSWER
        tokens = sum(len(message.text) for message in request.messages) // 4
        return ModelResponse(Message("assistant", (Text(said),)), Usage(tokens, len(said) // 4, cost_usd=0.0))

    async def close(self) -> None: ...


def agent_of(model: Model) -> Agent:
    return Agent("clerk", model=model, compaction={"max_tokens": 20_000})


def size_of(path: Path) -> int:
    database = apsw.Connection(str(path))
    try:
        for _ in database.execute("PRAGMA wal_checkpoint(TRUNCATE)"):
            pass
        database.execute("VACUUM")
    finally:
        database.close()
    return os.path.getsize(path)


async def talk(path: Path, turns: int, after: str = "") -> tuple[str, list[float], int]:
    """Have so many turns; the last run, what each took, and the bytes said."""
    took: list[float] = []
    said = 0
    async with Runtime(str(path)) as rt:
        agent = agent_of(Model())
        for number in range(turns):
            text = f"{number:4} " + "word " * 83
            began = time.perf_counter()
            after = (await rt.inside.run(agent, text, after=after)).run_id
            took.append(time.perf_counter() - began)
            said += len(text) + len(ANSWER)
    return after, took, said


async def ready(path: Path, after: str, times: int) -> tuple[list[float], list[float]]:
    """Measures the time until the model is asked: of a conversation that was not read before, and of one that was."""
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(times):
        async with Runtime(str(path)) as rt:
            model = Model()
            agent = agent_of(model)
            await rt.inside.run(agent, "something else")  # the definition is known; the conversation is not
            for found in (cold, warm):
                began = time.perf_counter()
                after = (await rt.inside.run(agent, "and now?", after=after)).run_id
                found.append(model.asked_at - began)
    return cold, warm


async def main(messages: int, turns: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "foliot.db"
        await talk(path, 1)
        empty = size_of(path)
        last, took, said = await talk(path, turns)
        stored = size_of(path) - empty
        first, end = (statistics.median(each) * 1000 for each in (took[:100], took[-100:]))
        print(f"{turns:,} turns of {said // turns} bytes: {stored / said:.2f} bytes stored for each said")
        print(f"a turn takes {first:.1f} ms at the beginning, {end:.1f} ms at the end")
        last, _, _ = await talk(path, max(0, messages // 2 - turns), last)
        cold, warm = await ready(path, last, 20)
        for name, found in (("cold", cold), ("warm", warm)):
            print(f"{messages:,} messages, compacted, {name}: asked after {statistics.median(found) * 1000:.1f} ms, "
                  f"at most {max(found) * 1000:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=1_000)
    given = parser.parse_args()
    asyncio.run(main(given.messages, given.turns))
