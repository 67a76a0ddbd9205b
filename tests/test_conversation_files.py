"""The turns of a conversation share one workspace: each begins with the files that the turn before it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.definition.backends import can_fence
from foliot.engine.workspaces.assets import path_of
from foliot.engine.workspaces.workspaces import place_of
from foliot.errors import NotFound
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.events import RunCreated
from foliot.store.journal.database import SqlJournal
from tests.test_run_workspaces import BOTH, printed

pytestmark = pytest.mark.skipif(not can_fence(), reason="bubblewrap is not here")


def shell(*commands: str, said: int = 0) -> Agent:
    """An agent that runs these commands and says what the last one printed; `said` messages of it came before."""
    calls = [{"call": {"bash": {"command": command}}} for command in commands]
    script = [*[{"say": "before"}] * said, *calls, {"say": "{last_result}"}]
    return Agent("clerk", model=ScriptedModel(script), tools=["bash"])


@pytest.fixture(params=BOTH)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "foliot.db")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLIOT_WORKSPACES", str(tmp_path / "here"))


async def test_a_turn_begins_with_the_files_of_the_turn_before_and_leaves_that_as_it_was(store: str) -> None:
    async with Runtime(store) as runtime:
        first = await runtime.inside.run(shell("echo one > a; mkdir d; echo x > d/b"), "go")
        second = await runtime.inside.run(shell("cat a d/b; echo two > a; rm -r d", said=2), "on", after=first.run_id)
        third = await runtime.inside.run(shell("cat a; ls", said=4), "on", after=second.run_id)
        other = await runtime.inside.run(shell("cat a d/b", said=2), "instead", after=first.run_id)

    assert [printed(each) for each in (second, third, other)] == ["one\nx\n", "two\na\n", "one\nx\n"]


async def test_a_turn_that_changed_no_file_hands_on_those_it_was_given(store: str) -> None:
    async with Runtime(store) as runtime:
        first = await runtime.inside.run(shell("echo one > a"), "go")
        second = await runtime.inside.run(shell(said=2), "only talk", after=first.run_id)
        third = await runtime.inside.run(shell("cat a", said=3), "on", after=second.run_id)

    assert printed(third) == "one\n"


async def test_files_are_there_when_the_turn_that_made_them_is_forgotten_or_they_are_elsewhere(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(store) as runtime:
        first = await runtime.inside.run(shell("echo one > a"), "go")
        second = await runtime.inside.run(shell(said=2), "talk", after=first.run_id)
        journal = runtime.inside.runs.journal
        assert isinstance(journal, SqlJournal)
        await journal.purge_content(before=time.time() + 3600)
    monkeypatch.setenv("FOLIOT_WORKSPACES", str(tmp_path / "elsewhere"))
    async with Runtime(store) as runtime:
        third = await runtime.inside.run(shell("cat a", said=3), "on", after=second.run_id)

    assert printed(third) == "one\n"


async def test_files_that_a_turn_was_only_given_can_be_read_of_it_and_of_no_other_conversation(store: str) -> None:
    async with Runtime(store) as runtime:
        first = await runtime.inside.run(shell("seq 50 | while read n; do echo $n > f$n; done"), "go")
        second = await runtime.inside.run(shell(said=2), "talk", after=first.run_id)
        alone = await runtime.inside.run(shell("true"), "go")
        tree = await runtime.runs.tree(second.run_id)
        entry = tree.find("f7")

        assert entry is not None
        assert await runtime.runs.content(second.run_id, entry.content) == b"7\n"
        with pytest.raises(NotFound):
            await runtime.runs.content(alone.run_id, entry.content)


async def test_a_killed_turn_is_taken_up_with_the_files_of_the_turn_before(store: str, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from foliot import Runtime; from tests.test_conversation_files import shell\n"
        "async def main():\n"
        "    async with Runtime(sys.argv[1]) as runtime:\n"
        "        first = await runtime.inside.run(shell('echo one > a'), 'go', run_id='r-1')\n"
        "        await runtime.inside.run(shell('echo spoilt > a; touch began; sleep 60', said=2), 'on',"
        " run_id='r-2', after='r-1')\n"
        "asyncio.run(main())"
    )
    driving = subprocess.Popen([sys.executable, "-c", program, store], env={**os.environ, "PYTHONPATH": "."})
    began = place_of(tmp_path / "here", "default", "r-2") / "files/began"
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

    async with Runtime(store) as runtime:
        waits = await runtime.resume("r-2", agent=shell("echo spoilt > a; touch began; sleep 60", said=2))
        assert waits.waiting is not None
        await runtime.runs.cancel("r-2")
        await runtime.runs.wait("r-2")
        third = await runtime.inside.run(shell("cat a; ls", said=3), "on", after="r-2")

    assert printed(third) == "one\na\n"


async def test_what_a_person_sent_is_in_the_folder_when_the_turn_begins(store: str) -> None:
    async with Runtime(store) as runtime:
        first = await runtime.inside.run(shell("echo one > a; ln -s /etc assets"), "go")
        asset = await runtime.inside.assets.save_asset("../report.txt", b"sent\n", run_id=first.run_id)
        agent = shell(f"cat a {path_of(asset)}; test -L assets || echo a folder", said=2)
        known = await runtime.inside._assembly.agent(agent)  # pyright: ignore[reportPrivateUsage]
        spec, tools = await runtime.inside._assembly.prepare(known)  # pyright: ignore[reportPrivateUsage]
        said = [Message("user", (Text("read it"),))]
        driver = await runtime.inside.runs.start(spec, said, after=first.run_id, assets=[asset], tools=tools)
        state = await runtime.inside.runs.drive(driver)

        created = state.created
        assert isinstance(created, RunCreated)
        assert created.workspace is not None
        assert (created.workspace.number, created.workspace.files) == (2, 3)
        assert state.transcript[-1].text.startswith("one\nsent\na folder\n")
