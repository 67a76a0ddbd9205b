"""The memory that the runs of one task share, in the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foliot.store.base import Database
from foliot.store.transaction import Tx, one, run
from foliot.tools.base import ToolDenied, ToolError

MOST_ENTRIES: Final = 1000
LARGEST: Final = 4 * 1024 * 1024
# How far up a delegated run looks for the task of whoever delegated to it.
_GENERATIONS: Final = 8


class TaskMemory:
    """A `SharedMemory`. It lives as long as the task, and is forgotten with it."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock

    async def get(self, run_id: str, key: str) -> str | None:
        """Returns the value of a key in the memory of the run's task; None when there is none."""
        found = await self._db.read("memory_get", task=await self._task(run_id), name=key)
        return found[0]["value"] if found else None

    async def put(self, run_id: str, key: str, value: str) -> None:
        """Stores a value under a key in the memory of the run's task."""
        await self._db.write(_put, await self._task(run_id), key, value, run_id, self._clock())

    async def entries(self, run_id: str) -> Sequence[tuple[str, str]]:
        """Returns the keys and values in the memory of the run's task, `MOST_ENTRIES` at most."""
        found = await self._db.read("memory_list", task=await self._task(run_id), after="", count=MOST_ENTRIES)
        return [(row["name"], row["value"]) for row in found]

    async def _task(self, run_id: str) -> int:
        at = run_id
        for _ in range(_GENERATIONS):
            if found := await self._db.read("task_of_run", run_id=at):
                return found[0]["key"]
            above = await self._db.read("run_get", id=at)
            if not above or not above[0]["parent"]:
                break
            at = above[0]["parent"]
        raise ToolDenied("this run belongs to no task, so there is nobody to share a memory with")


def _put(task: int, key: str, value: str, run_id: str, now: float) -> Tx[None]:
    room = yield from one("memory_count", task=task)
    there = yield from one("memory_get", task=task, name=key)
    assert room is not None, "a count always has a row"
    count = room["count"] + (there is None)
    size = room["size"] + len(value) - (len(there["value"]) if there else 0)
    if count > MOST_ENTRIES or size > LARGEST:
        raise ToolError(
            f"the memory of this task is full ({MOST_ENTRIES} entries, {LARGEST} characters): replace something",
            retryable=False,
        )
    yield from run("memory_put", task=task, name=key, value=value, by_run=run_id, now=now)
