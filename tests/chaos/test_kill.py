"""`kill -9` at random instants, over real processes on a real SQLite file: no run is lost, no card is charged twice.

`FOLIOT_CHAOS=1` kills 200 times instead of 15; `FOLIOT_CHAOS_SEED` chooses the instants again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal as signals
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from foliot import Runtime
from foliot.engine.driver.journal import signal
from foliot.kernel.run.codec import type_of
from foliot.kernel.run.events import UnknownDecided
from tests.chaos.child import CHARGES, SAVES

KILLS = 200 if os.environ.get("FOLIOT_CHAOS") else 15
RUNS_AT_ONCE = 5
CHILD = Path(__file__).with_name("child.py")
LONGEST_LIFE = 60.0


class Chaos:
    """The parent: starts children, kills them, answers for what nobody saw, and keeps count."""

    life = 0.06  # seconds that a child lives, on average

    def __init__(self, nursery: Process, effects: Path, runtime: Runtime, seed: int) -> None:
        self.nursery = nursery
        self.effects = effects
        self.runtime = runtime
        self.chance = Random(seed)
        self.runs: list[str] = []
        self.seen: Counter[str] = Counter()

    async def batch(self, run_ids: list[str]) -> None:
        """Drive these runs to their end, through as many deaths as it takes."""
        self.runs += run_ids
        while not await self.all_ended(run_ids):
            await self.answer_questions(run_ids)
            await self.live_and_die(run_ids)
            assert self.seen["lives"] < 20 * KILLS, "the runs do not get anywhere"

    async def live_and_die(self, run_ids: list[str]) -> None:
        assert self.nursery.stdin is not None
        self.nursery.stdin.write(f"{' '.join(run_ids)}\n".encode())
        self.seen["lives"] += 1
        word, pid = await self.heard()
        assert word == "ready"
        # Short lives mostly, so that death comes at every stage; now and then one that is left to finish.
        life = LONGEST_LIFE if self.chance.random() < 0.1 else self.chance.expovariate(1 / self.life)
        try:
            ended = await self.heard(life)
        except TimeoutError:
            os.kill(pid, signals.SIGKILL)
            ended = await self.heard()
        self.seen["kills"] += ended == ("ended", signals.SIGKILL)
        assert ended in (("ended", 0), ("ended", signals.SIGKILL)), "the child failed by itself"

    async def heard(self, within: float = LONGEST_LIFE) -> tuple[str, int]:
        """The next line of the processes that are killed."""
        assert self.nursery.stdout is not None
        word, number = (await asyncio.wait_for(self.nursery.stdout.readline(), within)).split()
        return word.decode(), int(number)

    async def all_ended(self, run_ids: list[str]) -> bool:
        rows = {row.id: row.phase for row in await self.runtime.inside.runs.journal.list(limit=1000)}
        return all(rows.get(run_id) in ("succeeded", "failed", "cancelled") for run_id in run_ids)

    async def answer_questions(self, run_ids: list[str]) -> None:
        """As a person who looks at the card company's books, and then says what is so."""
        journal = self.runtime.inside.runs.journal
        for row in await journal.list(phases=["waiting"], limit=1000):
            if row.id not in run_ids or await journal.signals([row.id]):
                continue
            _, state = await self.runtime.inside.runs.load(row.id)
            assert state.waiting is not None
            for call_id in state.waiting.calls:
                decision = "happened" if self.book()[f"charge {row.id}/{call_id}"] else "run"
                self.seen[decision] += 1
                await journal.signal(signal(row.id, UnknownDecided(call_id, decision, by="ann"), time.time()))

    def book(self) -> Counter[str]:
        return Counter(self.effects.read_text().splitlines()) if self.effects.exists() else Counter()

    async def check(self) -> None:
        """No run lost, no effect lost, none doubled; every journal decides the same again."""
        book = self.book()
        for run_id in self.runs:
            info = await self.runtime.inside.runs.journal.get(run_id)
            assert info.phase == "succeeded", run_id
            charges = {line: count for line, count in book.items() if line.startswith(f"charge {run_id}/")}
            assert len(charges) == CHARGES, f"{run_id} has lost effects: {charges}"
            assert set(charges.values()) == {1}, f"{run_id} has doubled effects: {charges}"
            assert sum(line.startswith(f"save {run_id}/") for line in book) == SAVES, run_id
            facts = [type_of(event) for _, event in await self.runtime.inside.runs.facts(run_id)]
            assert facts.count("run.succeeded") == 1
            assert facts.count("tool.finished") == 10
            replayed = await self.runtime.inside.replay(run_id)
            assert replayed.difference is None, f"{run_id}: {replayed.difference}"


@asynccontextmanager
async def opened_nursery(store: Path, effects: Path, *words: str) -> AsyncIterator[Process]:
    """The process that forks those that are killed."""
    nursery = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), str(store), str(effects), *words), stdin=PIPE, stdout=PIPE, cwd=store.parent
    )
    try:
        yield nursery
    finally:
        assert nursery.stdin is not None
        nursery.stdin.close()
        await nursery.wait()


@pytest.mark.slow
@pytest.mark.timeout(KILLS * 15 + 300)
async def test_runs_survive_being_killed_at_any_instant(tmp_path: Path) -> None:
    seed = int(os.environ.get("FOLIOT_CHAOS_SEED") or secrets.randbelow(2**32))
    sys.stdout.write(f"FOLIOT_CHAOS_SEED={seed}\n")  # shown by pytest when the test fails
    store, effects = tmp_path / "foliot.db", tmp_path / "effects.txt"
    async with Runtime(store) as runtime, opened_nursery(store, effects) as nursery:
        chaos = Chaos(nursery, effects, runtime, seed)
        number = 0
        while chaos.seen["kills"] < KILLS:
            number += 1
            await chaos.batch([f"run-{number}-{n}" for n in range(RUNS_AT_ONCE)])
        await chaos.check()
    sys.stdout.write(f"{dict(chaos.seen)}, {len(chaos.runs)} runs\n")
