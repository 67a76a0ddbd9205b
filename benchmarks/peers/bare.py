"""The floor: the same loop with nothing around it; with `durable`, its records go to SQLite under a shared commit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from harness import DONE, FOUND, QUESTION, STEPS, RunOnce, always, arguments, serve

Row = tuple[int, str]
Waiting = tuple[asyncio.Future[None], list[Row]]


async def lookup(key: str) -> str:
    return FOUND


async def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    step = len(messages) // 2
    if step == STEPS:
        return {"role": "assistant", "content": DONE}
    return {"role": "assistant", "call": {"id": f"call_{step}", "arguments": json.dumps(arguments(step))}}


async def run() -> int:
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    while True:
        said = await asyncio.create_task(answer(messages))
        messages.append(said)
        if "call" not in said:
            return STEPS if said["content"] == DONE else 0
        found = await asyncio.create_task(lookup(**json.loads(said["call"]["arguments"])))
        messages.append({"role": "tool", "id": said["call"]["id"], "content": found})


class Log:
    """One thread writes whatever waits, and commits it together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    async def append(self, rows: list[Row]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((future, rows))
        await future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        connection = sqlite3.connect(self._path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, run INTEGER, data TEXT)")
        while (first := self._queue.get()) is not None:
            batch = [first]
            with contextlib.suppress(Empty):
                while (more := self._queue.get_nowait()) is not None:
                    batch.append(more)
            with connection:
                connection.executemany(
                    "INSERT INTO event (run, data) VALUES (?, ?)", [r for _, rs in batch for r in rs]
                )
            self._loop.call_soon_threadsafe(_resolve, [future for future, _ in batch])
        connection.close()


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


@contextlib.asynccontextmanager
async def durable() -> AsyncIterator[RunOnce]:
    """An append before each effect: the answer with the start of the call, the result with the start of the step."""
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "log.db")

        async def run() -> int:
            messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
            key = id(messages)
            while True:
                await log.append([(key, json.dumps(messages[-1])), (key, '{"type": "step.started"}')])
                said = await asyncio.create_task(answer(messages))
                messages.append(said)
                if "call" not in said:
                    await log.append([(key, json.dumps(said))])
                    return STEPS if said["content"] == DONE else 0
                await log.append([(key, json.dumps(said)), (key, '{"type": "tool.started"}')])
                found = await asyncio.create_task(lookup(**json.loads(said["call"]["arguments"])))
                messages.append({"role": "tool", "id": said["call"]["id"], "content": found})

        try:
            yield run
        finally:
            log.close()


if __name__ == "__main__":
    if "durable" in sys.argv[1:]:
        serve("bare loop + group commit", durable, durable=True)
    else:
        serve("bare asyncio loop", always(run))
