"""Ctrl-C at each moment of `foliot run`: the run is cancelled, that is said, and nothing is left to resume."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.cli.local import LocalClient
from foliot.cli.show.run import Opening
from foliot.cli.watch.run import WatchOptions, stay
from foliot.engine.live.hub import Recorded
from foliot.errors import NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.run.events import RunCancelled, RunWaiting
from tests.cli.conftest import Foliot
from tests.cli.test_answer import MANIFEST as ASKS
from tests.cli.test_answer import Terminal
from tests.cli.test_approvals import MANIFEST as GATED
from tests.cli.test_approvals import TOOLS as GATED_TOOLS


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    (tmp_path / "asks.yaml").write_text(ASKS)
    (tmp_path / "gated.yaml").write_text(GATED)
    (tmp_path / "gated_tools.py").write_text(GATED_TOOLS)
    return tmp_path


@pytest.mark.parametrize(
    ("manifest", "shown", "waits"),
    [
        ("gated.yaml", "waiting for approval", ["--wait"]),
        ("asks.yaml", "Answer: ", ["--wait"]),
        ("gated.yaml", "foliot approvals approve", []),
        ("asks.yaml", "Which colour?", []),
    ],
)
def test_ctrl_c_cancels_a_run_that_waits_for_a_person(
    foliot: Foliot, folder: Path, manifest: str, shown: str, waits: list[str]
) -> None:
    terminal = Terminal(folder, "run", manifest, "go", "--id", "r1", *waits)
    terminal.wait_for(shown)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130, terminal.drawn
    assert "cancelled" in terminal.drawn
    for inner in ("lease", "held", "given back", "Traceback", "Left before"):
        assert inner not in terminal.drawn
    assert "It was cancelled" in foliot("why", "r1").out
    assert "No interrupted runs" in foliot("resume").err
    assert "No run asks" in foliot("answer").err


@pytest.mark.parametrize("moment", ["before it is stored", "while it is stored", "when it is stored"])
async def test_ctrl_c_while_a_run_begins_leaves_nothing_that_resume_would_begin(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    asked: list[str] = []

    def look() -> str:
        asked.append("asked")
        return "hello"

    agent = Agent("clerk", model=ScriptedModel([{"call": "look"}, {"say": "done"}]), tools=[look])
    async with Runtime(tmp_path / "store.db") as runtime:
        client = LocalClient(runtime, caller=Identity("ann", via="cli"))
        journal = runtime.inside.runs.journal
        create = journal.create
        free = asyncio.Event()

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            asyncio.get_running_loop().call_soon(free.set)

        async def creating(*args: object, **options: object):
            if moment == "before it is stored":
                interrupt()
                await free.wait()
                await asyncio.Event().wait()
            storing = asyncio.ensure_future(create(*args, **options))  # type: ignore[arg-type]
            if moment == "while it is stored":
                interrupt()
                await free.wait()
            lease = await storing
            if moment == "when it is stored":
                interrupt()
                await free.wait()
                await asyncio.sleep(0)
            return lease

        monkeypatch.setattr(journal, "create", creating)
        begin = partial(client.runs.start, agent, "go", run_id="r1")
        code = await stay(client, Opening("r1", "clerk", "go"), begin, WatchOptions())
        monkeypatch.undo()
        assert (code, asked) == (130, [])
        assert await client.runs.interrupted(namespace=None) == []
        try:
            assert (await client.runs.find("r1")).phase == "cancelled"
        except NotFound:
            assert "Cancelled before it had begun." in capsys.readouterr().err
        assert "resume" not in capsys.readouterr().err


async def test_a_run_that_is_cancelled_where_it_rested_is_watched_to_its_end(home: Path, tmp_path: Path) -> None:
    agent = Agent("clerk", model=ScriptedModel([{"call": {"ask_user": {"question": "Go?"}}}]), tools=["ask_user"])
    async with Runtime(tmp_path / "store.db") as runtime:
        client = LocalClient(runtime, caller=Identity("ann", via="cli"))
        await client.runs.start(agent, "go", run_id="r1")
        async with aclosing(client.runs.watch("r1")) as live:
            async for item in live:
                if isinstance(item, Recorded) and isinstance(item.event, RunWaiting):
                    break
        assert (await client.runs.outcome("r1")).phase == "waiting"
        behind = (await client.runs.get("r1")).seq
        await client.runs.cancel("r1")
        async with asyncio.timeout(30):
            events = [item.event async for item in client.runs.watch("r1", after=behind) if isinstance(item, Recorded)]
        assert isinstance(events[-1], RunCancelled)
        assert (await client.runs.outcome("r1")).phase == "cancelled"
