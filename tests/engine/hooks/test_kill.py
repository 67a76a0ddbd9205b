"""Killed between a decision of hooks and the act: whoever goes on does what was decided, and asks nobody again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, HookAct, Runtime, ScriptedModel, hook, tool
from foliot.kernel.messages import ModelRequest
from foliot.kernel.run.events import HookDecided, ToolFinished

DIES = """
import asyncio, sys
from pathlib import Path
from foliot import Runtime
from tests.engine.hooks.test_kill import agent

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        await runtime.run(agent(Path(sys.argv[2])), "Go.", run_id="r-1")

asyncio.run(main())
"""


def agent(folder: Path) -> Agent:
    """Dies once, where the file `die` says; every hook writes down what it was asked."""

    def die_at(place: str) -> None:
        if (folder / "die").exists() and (folder / "die").read_text() == place:
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    @hook("before_run", "before_message", "before_model", "before_tool", "after_message", on_failure="abort")
    def counts(act: HookAct) -> Any:
        with (folder / "asked").open("a") as asked:
            asked.write(f"{act.point} {act.step} {act.call_id}\n")
        time = (folder / "asked").read_text().count(f"{act.point} {act.step} ")
        die_at(act.point)
        match act.point:
            case "before_message":
                return act.change(text=f"said {time}")
            case "before_model":
                return act.change(system=f"asked {time}")
            case "before_tool":
                return act.change(arguments={"place": f"decided {time}"})
            case "after_message":
                return act.change(text=f"{act.text} / {time}")
            case _:
                return None

    @tool(effect="idempotent")
    def look(place: str) -> str:
        """Look at a place."""
        die_at("tool")
        return place

    class Model:
        async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> Any:
            die_at("model")
            assert request.system == "asked 1"
            return await ScriptedModel([{"call": {"look": {"place": "Rome"}}}, {"say": "{last_result}"}]).respond(
                request
            )

        async def close(self) -> None:
            pass

    return Agent("a", model=Model(), tools=[look], hooks=[counts])


@pytest.mark.parametrize("place", ["model", "tool", "before_tool", "after_message"])
async def test_after_a_kill_what_hooks_decided_is_done_and_nobody_is_asked_again(tmp_path: Path, place: str) -> None:
    (tmp_path / "die").write_text(place)
    store = str(tmp_path / "foliot.db")
    done = subprocess.run(
        [sys.executable, "-c", DIES, store, str(tmp_path)],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with Runtime(store) as runtime:
        result = await runtime.resume("r-1", agent=agent(tmp_path))
        facts = [event for _, event in await runtime.inside.runs.facts("r-1")]
        assert (await runtime.inside.replay("r-1")).difference is None
    asked = (tmp_path / "asked").read_text().split("\n")[:-1]
    again = {line for line in asked if asked.count(line) > 1}
    # Only who was killed in the middle of its answer is asked again: nothing of it had been decided.
    assert {line.partition(" ")[0] for line in again} == (
        {place} if place in ("before_tool", "after_message") else set()
    )
    decided = [(each.point, each.act) for each in facts if isinstance(each, HookDecided)]
    assert len(decided) == len(set(decided)) == 6
    looked = "decided 2" if place == "before_tool" else "decided 1"
    finished = next(each for each in facts if isinstance(each, ToolFinished))
    assert finished.result.text == looked
    assert result.output == f"{looked} / {2 if place == 'after_message' else 1}"
