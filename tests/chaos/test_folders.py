"""`kill -9` at random instants while runs write into the folder of their user: nothing of it is lost or kept twice.

`FOLIOT_CHAOS=1` kills 100 times instead of 5; `FOLIOT_CHAOS_SEED` chooses the instants again.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.kernel.run.events import FolderKept
from tests.chaos.child import kept_by
from tests.chaos.test_kill import Chaos, opened_nursery

KILLS = 100 if os.environ.get("FOLIOT_CHAOS") else 5
RUNS_AT_ONCE = 3
ALL = "all "


class KeeperChaos(Chaos):
    """The parent of runs that all write into one folder, some of it under the same name."""

    life = 0.2

    async def check(self) -> None:
        """Every run has ended and has all its files in the folder; of what all write, no version is there twice."""
        folders, runs = self.runtime.folders, self.runtime.inside.runs
        tree = await folders.tree("keeper", user="ann")
        files = {path: entry for path, entry in tree.walk() if entry.kind == "file"}
        said: dict[str, str] = {}
        for path, each in files.items():
            said[path] = (await folders.content("keeper", each.content, user="ann")).decode()
        for run_id in self.runs:
            assert (await runs.journal.get(run_id)).phase == "succeeded", run_id
            for path, content in dict(kept_by(run_id)).items():
                if not content.startswith(ALL):
                    assert said.pop(path.removeprefix("data/"), None) == content, (run_id, path)
            kept = [event for _, event in await runs.facts(run_id) if isinstance(event, FolderKept)]
            assert [event.refused for event in kept if event.refused] == [], run_id
            assert kept
            assert (await self.runtime.inside.replay(run_id)).difference is None, run_id
        versions = Counter(said.values())
        assert set(versions) <= {ALL + run_id for run_id in self.runs}, "something that nobody wrote, or wrote last"
        assert max(versions.values()) == 1, versions
        assert all(path == "all.md" or path.startswith("all.conflict-") for path in said), said
        folder = await folders.get("keeper", user="ann")
        assert folder.files == sum(1 for _ in tree.walk())
        assert folder.size == sum(entry.size for entry in files.values())


@pytest.mark.slow
@pytest.mark.timeout(KILLS * 15 + 300)
async def test_what_killed_runs_keep_for_a_user_is_in_the_folder_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("FOLIOT_CHAOS_SEED") or secrets.randbelow(2**32))
    sys.stdout.write(f"FOLIOT_CHAOS_SEED={seed}\n")  # shown by pytest when the test fails
    store = tmp_path / "foliot.db"
    async with Runtime(store) as runtime, opened_nursery(store, tmp_path / "effects.txt", "keeper") as nursery:
        chaos = KeeperChaos(nursery, tmp_path / "effects.txt", runtime, seed)
        number = 0
        while chaos.seen["kills"] < KILLS:
            number += 1
            await chaos.batch([f"run-{number}-{n}" for n in range(RUNS_AT_ONCE)])
        await chaos.check()
    sys.stdout.write(f"{dict(chaos.seen)}, {len(chaos.runs)} runs\n")
