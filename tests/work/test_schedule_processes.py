"""Several scheduler processes on one store with real tasks, killed again and again: each slot once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.base import Key, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.triggers import Slot, slots_of
from foliot.work.triggers.scheduler import Scheduler
from tests.work.schedule_process import FIRST, RING, clock

PROCESS = Path(__file__).with_name("schedule_process.py")
SCALE = int(os.environ.get("FOLIOT_CHAOS", "1"))
SCHEDULES = ("fast", "other")
DECLARED: list[dict[str, Any]] = [
    {
        "kind": "ModelEndpoint",
        "metadata": {"name": "brain"},
        "spec": {"provider": "scripted", "default_model": "scripted", "script": [{"say": "done"}]},
    },
    {"kind": "Agent", "metadata": {"name": "writer"}, "spec": {"model_ref": "brain", "prompt": "Write."}},
    {
        "kind": "Task",
        "metadata": {"name": "brief"},
        "spec": {"agent": "writer", "mode": "template", "input": {"topic": "news"}},
    },
    *(
        {
            "kind": "TaskSchedule",
            "metadata": {"name": name},
            "spec": {
                "task_ref": "brief",
                "schedule": "* * * * *",
                "concurrency_policy": "allow",
                "missed": "all",
                "catch_up_limit": 1000,
                "input": {"topic": "At {{ slot }}"},
            },
        }
        for name in SCHEDULES
    ),
]


class Crew:
    """Scheduler processes. Each writes a dot for each look."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.members: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._count = 0

    def hire(self) -> None:
        self._count += 1
        file = self.folder / f"looks-{self._count}"
        command = [sys.executable, str(PROCESS), self.url, str(file)]
        self.members.append((subprocess.Popen(command, stderr=subprocess.PIPE), file))

    def kill(self, dice: random.Random) -> None:
        child, _ = self.members.pop(dice.randrange(len(self.members)))
        child.kill()
        child.communicate()

    def wait_for_looks(self, looks: int) -> None:
        """Until every member has looked so often."""
        self._wait(lambda: all(file.exists() and file.stat().st_size >= looks for _, file in self.members))

    def wait_for_time(self, at: float) -> None:
        """Until it is so late, by the time of the test."""
        self._wait(lambda: clock(self.folder) >= at)

    def _wait(self, holds: Callable[[], bool]) -> None:
        """Until it holds; fails when a member has ended."""
        deadline = time.monotonic() + 120
        while not holds():
            for child, _ in self.members:
                if child.poll() is not None:
                    assert child.stderr is not None
                    pytest.fail(f"a scheduler failed:\n{child.stderr.read().decode()}")
            assert time.monotonic() < deadline, "the schedulers do not get on"
            time.sleep(0.005)

    def dismiss(self) -> None:
        for child, _ in self.members:
            child.kill()
            child.communicate()


@pytest.mark.slow
def test_each_slot_makes_one_task_over_processes_that_are_killed(store_url: str, tmp_path: Path) -> None:
    dice = random.Random(None if os.environ.get("FOLIOT_CHAOS") else 20261117)
    asyncio.run(declare(store_url))
    crew = Crew(store_url, tmp_path)
    try:
        for _ in range(3):
            crew.hire()
        crew.wait_for_looks(2)
        for _ in range(4 * SCALE):
            crew.wait_for_time(clock(tmp_path) + dice.random() * 120)  # anywhere between two slots
            crew.kill(dice)
            crew.hire()
            crew.wait_for_looks(1 + dice.randrange(3))
        crew.wait_for_time(FIRST + 300)
        end = clock(tmp_path)
    finally:
        crew.dismiss()

    slots, made = asyncio.run(finish(store_url, end))

    first = int(FIRST) * 1000
    for name in SCHEDULES:
        found = [slot.slot for slot in slots[name]]
        assert len(found) > 3
        assert found == list(range(found[0], found[-1] + 1, 60_000)), "a slot is missing"
        assert found[0] <= first + 120_000
        assert {slot.state for slot in slots[name]} == {"fired"}
        assert sorted(slot.task for slot in slots[name]) == sorted(made[name]), "a task too many, or too few"
        assert max(Counter(made[name]).values()) == 1


async def declare(url: str) -> None:
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: RING, now=lambda: FIRST)
    for given in DECLARED:
        document, problems = validate_document({"apiVersion": "foliot.dev/v1", **given})
        assert document is not None, problems
        await store.write([Put(document)])
    await database.close()


async def finish(url: str, end: float) -> tuple[dict[str, list[Slot]], dict[str, list[str]]]:
    """One more scheduler settles what the killed ones left; then the slots and the tasks of each schedule."""
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: RING)
    slots: dict[str, list[Slot]] = {}
    made: dict[str, list[str]] = {}
    async with Runtime(settings=load_settings({"store": url})) as runtime:
        await Scheduler(database, store, runtime.inside.tasking.tasks, clock=lambda: end, takeover=0.0).tick(end)
        for name in SCHEDULES:
            uid = (await store.get(Key("TaskSchedule", "default", name)))["metadata"]["uid"]
            slots[name] = (await slots_of(database, uid, limit=100_000))[::-1]
            made[name], cursor = [], None
            while True:
                page, cursor = await runtime.inside.tasking.tasks.list(spawned_by=f"schedule:{uid}", cursor=cursor)
                made[name] += [task.id for task in page]
                if cursor is None:
                    break
    await database.close()
    return slots, made
