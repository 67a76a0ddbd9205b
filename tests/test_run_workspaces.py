"""Runs keep their files with their journals: what a call left is there after a crash, in a fork, on another machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.definition.backends import can_fence
from foliot.engine.workspaces.workspaces import RUNS, place_of
from foliot.kernel.run.events import RunCreated, ToolFinished, ToolUnknown
from foliot.resources.problems import ManifestError
from foliot.runtime.results import RunResult
from foliot.store.journal.database import SqlJournal

pytestmark = pytest.mark.skipif(not can_fence(), reason="bubblewrap is not here")
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=BOTH)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "foliot.db")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLIOT_WORKSPACES", str(tmp_path / "here"))


def shell(*commands: str, **spec: Any) -> Agent:
    """An agent that runs these commands one after the other, and says what the last one printed."""
    turns = [{"call": {"bash": {"command": command}}} for command in commands]
    return Agent("clerk", model=ScriptedModel([*turns, {"say": "{last_result}"}]), tools=["bash"], **spec)


def printed(result: RunResult) -> str:
    """What the last command printed."""
    return result.output.partition("[exit")[0]


async def test_a_call_finds_the_files_that_the_calls_before_it_left(store: str, tmp_path: Path) -> None:
    async with Runtime(store) as runtime:
        result = await runtime.run(shell("echo one > a; mkdir -p d; echo x > d/b", "cat a d/b"), "go")

        assert result.output.startswith("one\nx\n")
        events = [event for _, event in await runtime.runs.events(result.run_id)]
    kept = [event.workspace for event in events if isinstance(event, ToolFinished)]
    assert kept[0] is not None
    assert (kept[0].number, kept[0].files) == (1, 3)
    assert kept[1] is None  # it changed nothing
    assert list((tmp_path / "here" / RUNS).iterdir()) == [], "the run is over"


async def test_two_runs_do_not_see_each_others_files(store: str) -> None:
    async with Runtime(store) as runtime:
        await runtime.run(shell("echo one > a"), "go")
        assert (await runtime.run(shell("ls | wc -l"), "go")).output.startswith("0\n")


async def test_a_fork_begins_with_the_files_of_its_step_also_after_the_original_is_forgotten(store: str) -> None:
    agent = shell("echo one > a", "echo two > a; echo more > b", "cat a; ls")
    async with Runtime(store) as runtime:
        first = await runtime.run(agent, "go")
        await runtime.runs.fork(first.run_id, at=2, new_id="forked")
        second = await runtime.runs.wait("forked")
        journal = runtime.inside.runs.journal
        assert isinstance(journal, SqlJournal)
        await journal.forget(first.run_id)
        await journal.purge_content(before=time.time() + 3600)

        await runtime.runs.fork("forked", at=2, new_id="again")
        third = await runtime.runs.wait("again")
        created = (await runtime.runs.events("forked"))[0][1]
    assert isinstance(created, RunCreated)
    assert created.workspace is not None
    assert printed(first) == printed(second) == printed(third) == "two\na\nb\n"


async def test_another_machine_goes_on_with_the_files(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_while(store, tmp_path, "echo spoilt > a; echo > new; touch began; sleep 60")
    monkeypatch.setenv("FOLIOT_WORKSPACES", str(tmp_path / "elsewhere"))

    assert await resumed(store) == "one\na\n"
    assert (place_of(tmp_path / "here", "default", "r-1") / "files/new").exists()
    assert list((tmp_path / "elsewhere" / RUNS).iterdir()) == []


async def test_what_a_killed_call_did_to_files_is_undone(store: str, tmp_path: Path) -> None:
    killed_while(store, tmp_path, "echo spoilt > a; echo > new; touch began; sleep 60")
    assert (place_of(tmp_path / "here", "default", "r-1") / "files/a").read_text() == "spoilt\n"

    assert await resumed(store) == "one\na\n"


def mortal(command: str = "true") -> Agent:
    return shell("echo one > a", command, "cat a; ls")


def killed_while(store: str, tmp_path: Path, command: str) -> None:
    """Have another process drive a run, and kill it with SIGKILL while its second command runs."""
    program = (
        "import asyncio, sys; from foliot import Runtime; from tests.test_run_workspaces import mortal\n"
        "async def main():\n"
        "    async with Runtime(sys.argv[1]) as runtime:\n"
        "        await runtime.run(mortal(sys.argv[2]), 'go', run_id='r-1')\n"
        "asyncio.run(main())"
    )
    # Its output stays with pytest: a pipe that nobody reads could hold it up.
    driving = subprocess.Popen([sys.executable, "-c", program, store, command], env={**os.environ, "PYTHONPATH": "."})
    began = place_of(tmp_path / "here", "default", "r-1") / "files/began"
    try:
        for _ in range(1200):
            if began.exists():
                break
            assert driving.poll() is None, "it ended by itself"
            time.sleep(0.05)
        assert began.exists()
    finally:
        driving.send_signal(signal.SIGKILL)
        driving.wait()


async def resumed(store: str) -> str:
    """Go on with the run, after somebody has said that its second command happened; what the third one printed."""
    async with asyncio.timeout(60), Runtime(store) as runtime:
        result = await runtime.resume("r-1", agent=mortal())
        events = [event for _, event in await runtime.runs.events("r-1")]
        lost = next(event for event in events if isinstance(event, ToolUnknown))
        assert lost.workspace is None
        assert result.waiting is not None
        await runtime.runs.settle("r-1", lost.call_id, "happened", result="who knows")
        result = await runtime.runs.wait("r-1")
    return printed(result)


async def test_more_than_the_quota_is_a_failed_call_and_the_run_goes_on_without_it(store: str) -> None:
    agent = shell(
        "echo one > a", "head -c 5000 /dev/zero > big; rm a", "cat a; ls", workspace={"quota": 4000, "max_files": 20}
    )
    async with Runtime(store) as runtime:
        result = await runtime.run(agent, "go")
        events = [event for _, event in await runtime.runs.events(result.run_id)]

    failed = [event.result.error for event in events if isinstance(event, ToolFinished) and event.result.error]
    assert len(failed) == 1
    assert "4,000 bytes" in failed[0].message
    assert "undone" in failed[0].message
    assert result.output.startswith("one\na\n")


async def test_an_agent_that_may_only_read_has_a_folder_that_cannot_be_written(store: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("given\n")
    agent = shell("echo x > a || cat a", workspace={"access": "read_only", "source": str(source)})
    async with Runtime(store) as runtime:
        assert "given\n" in (await runtime.run(agent, "go")).output
    assert (source / "a").read_text() == "given\n"


async def test_an_agent_without_a_workspace_has_none(store: str, tmp_path: Path) -> None:
    async with Runtime(store) as runtime:
        await runtime.run(shell("echo x > a", workspace={"access": "none"}), "go")
    assert not (tmp_path / "here").exists()


async def test_a_shared_folder_is_worked_on_by_all_and_not_kept(store: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    async with Runtime(store, workspace=shared) as runtime:
        result = await runtime.run(shell("echo one > a"), "go")
        events = [event for _, event in await runtime.runs.events(result.run_id)]

    assert (shared / "a").read_text() == "one\n"
    assert all(event.workspace is None for event in events if isinstance(event, ToolFinished))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"source": "here"}, "absolute path"),
        ({"source": "/srv/../etc"}, "absolute path"),
        ({"quota": 0}, "quota"),
        ({"max_files": -1}, "max_files"),
        ({"mode": "mine"}, "mode"),
        ({"source": "/srv", "mode": "shared"}, "shared"),
    ],
)
def test_a_workspace_that_makes_no_sense_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ManifestError, match=complaint):
        shell("true", workspace=given)
