"""Control groups: those of dead owners are removed with what is in them, those of living ones are left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foliot.sandbox.cgroups import CONTROLLERS, PREFIX, Cgroups
from foliot.sandbox.process import ProcessSandbox

LEAVES_ONE = """
import subprocess
from foliot.sandbox.cgroups import Cgroups
group = Cgroups().make(memory=2**26, processes=10, cpus=0.5)
left = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
group.add(left.pid)
print(left.pid, *group._folders.values())
"""


@pytest.fixture
def cgroups() -> Cgroups:
    found = Cgroups()
    if found.missing:
        pytest.skip(f"this user cannot divide its control group: {found.missing}")
    return found


@pytest.mark.fence
async def test_what_a_dead_owner_left_is_killed_and_removed_when_the_next_one_looks(cgroups: Cgroups) -> None:
    mine = cgroups.make(memory=2**26, processes=10, cpus=0.5)
    assert mine is not None
    done = subprocess.run([sys.executable, "-c", LEAVES_ONE], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    pid, *folders = done.stdout.split()
    assert all(Path(each).is_dir() for each in folders)
    sandbox = ProcessSandbox()
    try:
        assert (await sandbox.enforces()).available
    finally:
        await sandbox.close()
    assert not any(Path(each).exists() for each in folders)
    assert not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    assert mine.controllers == set(CONTROLLERS)
    assert mine.pids() == set()
    assert mine.is_removed()


def test_a_system_without_control_groups_says_why_for_each(tmp_path: Path) -> None:
    found = Cgroups(tmp_path)
    assert found.missing.keys() == set(CONTROLLERS)
    assert found.make(memory=2**26, processes=1, cpus=1.0) is None
    assert found.sweep() == 0


def test_a_container_that_sees_a_part_of_the_tree_finds_its_own_group(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    for folder in (tree, tree / "inner"):
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu pids")
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/docker/abc/inner\n")
    (proc / "mountinfo").write_text(f"30 20 0:26 /docker/abc {tree} rw - cgroup2 cgroup rw\n")
    found = Cgroups(tmp_path / "proc")
    # A plain folder has no files of limits: it is tried, and found wanting, with a reason.
    assert found.missing.keys() == set(CONTROLLERS)
    assert all("cannot be divided" in why for why in found.missing.values())
    assert (tree / "inner" / "cgroup.subtree_control").read_text().startswith("+")
    assert not list(tmp_path.rglob(f"{PREFIX}*"))
