"""Long conversations: how soon the first question of the next turn is ready, what a turn costs, and what it stores.

    python benchmarks/bench_conversations.py [--messages 10000] [--turns 1000] [--postgres URL] [--only-bytes]

A conversation that was compacted is continued in a process that has never seen it (`cold`) and in the one that had its
last turn (`warm`): from the call to the moment that the model is asked. Before, turns of 850 bytes, question and answer
together, are appended, and what the store has grown by is held against what was said: by runs that go on after each
other, and by the turns of a session, which also has an inbox and the words to search for. They speak in 8,000 words,
some often and most seldom, because a text that repeats itself takes less room than what people say. With `--postgres`
the same is said to an empty database there.

The aims: the question ready within 50 ms; the last hundred turns as fast as the first; at most 3 bytes for each said.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
from verdict import Verdict

from foliot import Agent, Runtime
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage

VERDICT = Verdict()

QUESTION_BYTES, ANSWER_BYTES = 420, 430
AIM = 3.0
READY_MS = 50.0
# "As fast as the first", on a machine that does other things too.
SLOWER = 1.25


class Speech:
    """Speaks in words that are as different, and as often the same, as those of people; the same each time."""

    def __init__(self) -> None:
        self._chance = random.Random(850)
        letters = "etaoinshrdlucmfwypvbgk"
        weights = range(len(letters), 0, -1)
        self._words = ["".join(self._chance.choices(letters, weights, k=2 + n % 8)) for n in range(8000)]
        self._weights = list(accumulate(1 / (place + 3) for place in range(len(self._words))))

    def text(self, size: int) -> str:
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=size // 2))[:size]


class Model:
    """Answers at once, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked_at = 0.0
        self._speech = Speech()

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked_at = time.perf_counter()
        said = "a summary" if "Summarise the segment" in request.messages[-1].text else self._speech.text(ANSWER_BYTES)
        tokens = sum(len(message.text) for message in request.messages) // 4
        return ModelResponse(Message("assistant", (Text(said),)), Usage(tokens, len(said) // 4, cost_usd=0.0))

    async def close(self) -> None: ...


def agent_of(model: Model) -> Agent:
    return Agent("clerk", model=model, compaction={"max_tokens": 20_000})


async def size_of(store: str, *, vacuum: bool = False) -> int:
    """Returns the bytes of a store on disk, when all of it is in its tables."""
    return await (postgres_size_of if store.startswith("postgres") else sqlite_size_of)(store, vacuum=vacuum)


async def sqlite_size_of(store: str, *, vacuum: bool) -> int:
    database = apsw.Connection(store)
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if vacuum:
            database.execute("VACUUM")
        pages, size = (database.execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("page_count", "page_size"))
    finally:
        database.close()
    return pages * size


async def postgres_size_of(url: str, *, vacuum: bool) -> int:
    import asyncpg

    client: Any = await asyncpg.connect(url)
    try:
        await client.execute("VACUUM FULL" if vacuum else "VACUUM")
        return await client.fetchval("SELECT pg_database_size(current_database())")
    finally:
        await client.close()


async def talk(store: str, turns: int, after: str = "") -> tuple[str, list[float], int]:
    """Have so many turns; the last run, what each took, and the bytes said."""
    took: list[float] = []
    speech = Speech()
    async with Runtime(store) as rt:
        agent = agent_of(Model())
        for _ in range(turns):
            text = speech.text(QUESTION_BYTES)
            began = time.perf_counter()
            after = (await rt.inside.run(agent, text, after=after)).run_id
            took.append(time.perf_counter() - began)
    return after, took, turns * (QUESTION_BYTES + ANSWER_BYTES)


async def talk_in_session(store: str, turns: int) -> int:
    """Have so many turns of a session; the bytes said."""
    speech = Speech()
    async with Runtime(store) as rt:
        rt.inside.know(agent_of(Model()))
        session = await rt.sessions.resolve("clerk", user="ann")
        for _ in range(turns):
            async for _ in rt.sessions.chat(session.id, speech.text(QUESTION_BYTES)):
                pass
    return turns * (QUESTION_BYTES + ANSWER_BYTES)


async def show_bytes(store: str, turns: int) -> tuple[str, list[float]]:
    """Print how much turns take, by runs and by a session; the last of the runs, and what each took."""
    await talk(store, 1)
    await talk_in_session(store, 1)
    empty, packed = await size_of(store), await size_of(store, vacuum=True)
    last, took, said = await talk(store, turns)
    show_ratio("runs", turns, said, await size_of(store) - empty, await size_of(store, vacuum=True) - packed)
    empty = packed = await size_of(store, vacuum=True)
    said = await talk_in_session(store, turns)
    show_ratio("a session", turns, said, await size_of(store) - empty, await size_of(store, vacuum=True) - packed)
    return last, took


def show_ratio(kind: str, turns: int, said: int, stored: int, packed: int) -> None:
    met = "met" if VERDICT.hold(f"stored for each byte said, {kind}", stored / said, most=AIM) else "MISSED"
    print(f"{turns:,} turns of {kind}, {said // turns} bytes each: {stored / said:.2f} bytes stored for each said "
          f"({packed / said:.2f} after a vacuum); the aim of {AIM:g} is {met}")  # fmt: skip


async def ready(path: str, after: str, times: int) -> tuple[list[float], list[float]]:
    """Measures the time until the model is asked: of a conversation that was not read before, and of one that was."""
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(times):
        async with Runtime(path) as rt:
            model = Model()
            agent = agent_of(model)
            await rt.inside.run(agent, "something else")  # the definition is known; the conversation is not
            for found in (cold, warm):
                began = time.perf_counter()
                after = (await rt.inside.run(agent, "and now?", after=after)).run_id
                found.append(model.asked_at - began)
    return cold, warm


async def main(messages: int, turns: int, postgres: str | None, only_bytes: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "foliot.db")
        last, took = await show_bytes(path, turns)
        if postgres is not None:
            print("on PostgreSQL:")
            await show_bytes(postgres, turns)
        if only_bytes:
            return
        first, end = (statistics.median(each) * 1000 for each in (took[:100], took[-100:]))
        VERDICT.hold("the last hundred turns beside the first", end / first, "times", most=SLOWER)
        print(f"a turn takes {first:.1f} ms at the beginning, {end:.1f} ms at the end")
        last, _, _ = await talk(path, max(0, messages // 2 - turns), last)
        cold, warm = await ready(path, last, 20)
        for name, found in (("cold", cold), ("warm", warm)):
            VERDICT.hold(f"the question is ready, {name}", statistics.median(found) * 1000, "ms", most=READY_MS)
            print(f"{messages:,} messages, compacted, {name}: asked after {statistics.median(found) * 1000:.1f} ms, "
                  f"at most {max(found) * 1000:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--postgres", metavar="URL", help="an empty database, to say the same to")
    parser.add_argument("--only-bytes", action="store_true", help="what is stored, and not how long it takes")
    given = parser.parse_args()
    asyncio.run(main(given.messages, given.turns, given.postgres, given.only_bytes))
    raise SystemExit(VERDICT.end())
