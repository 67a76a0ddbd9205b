"""Killed in the middle of a compaction: the conversation is continued, and nothing of it is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage
from foliot.kernel.run.events import SessionCompacted
from foliot.tools.builtin.recall import conversation_of

DIES = """
import asyncio, sys
from pathlib import Path
from foliot import Runtime
from tests.engine.test_compaction_kill import conversation

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        await conversation(runtime, Path(sys.argv[2]), sys.argv[3])

asyncio.run(main())
"""
SAID = [f"{'word ' * 60}{number}" for number in range(6)]


class Model:
    """Answers, and writes summaries; dies in the middle of the first one while there is a file `die`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        summarises = "Summarise the segment" in request.messages[-1].text
        if summarises and (self.folder / "die").exists():
            (self.folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        said = "a summary" if summarises else f"heard {request.messages[-1].text.split()[-1]}"
        return ModelResponse(Message("assistant", (Text(said),)), Usage(cost_usd=0.0))

    async def close(self) -> None: ...


def agent(folder: Path, how: str) -> Agent:
    most = 400 if how == "size" else -1
    return Agent("clerk", model=Model(folder), compaction={"max_tokens": most, "keep_tail": 4})


async def conversation(rt: Runtime, folder: Path, how: str) -> str:
    """Have all turns, each under an id of its own: what was begun is continued. Returns the last."""
    clerk, after = agent(folder, how), ""
    for number, text in enumerate(SAID):
        after = (await rt.inside.run(clerk, text, run_id=f"turn-{number}", after=after)).run_id
    if how == "asked":
        after = (await rt.inside.compact(clerk, after=after, run_id="compaction")).run_id
    return (await rt.inside.run(clerk, "last", run_id="turn-last", after=after)).run_id


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("how", ["size", "asked"])
async def test_after_a_kill_the_conversation_goes_on_and_nothing_is_lost_or_doubled(
    tmp_path: Path, store: str, how: str
) -> None:
    (tmp_path / "die").touch()
    died = subprocess.run(
        [sys.executable, "-c", DIES, store, str(tmp_path), how],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()

    async with Runtime(store) as rt:
        last = await conversation(rt, tmp_path, how)
        said = await conversation_of(rt.inside.runs.journal, last)
        runs = [f"turn-{number}" for number in range(len(SAID))] + ["turn-last"]
        facts = [
            event for run in (*runs, *(["compaction"] if how == "asked" else [])) for event in await _facts(rt, run)
        ]
        live = (await rt.inside.runs.conversations.read(last)).messages

    users = [each.words for each in said if each.role == "user"]
    assert users == [*SAID, "last"]
    assert [each.words for each in said if each.role == "assistant"] == [f"heard {text.split()[-1]}" for text in users]
    summaries = [event for event in facts if isinstance(event, SessionCompacted)]
    assert [event.first for event in summaries] == [1, *(event.last + 1 for event in summaries[:-1])]
    assert live[0] == summaries[-1].summary


async def _facts(rt: Runtime, run_id: str) -> list[Any]:
    return [event for _, event in await rt.inside.runs.facts(run_id)]
