"""A process that speaks to a session and that a test can kill.

Run as: session_process.py STORE FOLDER SESSION NAME COUNT. It says COUNT texts, `NAME-0` and so on, and prints `said N`
when each is stored. A file `go` in FOLDER lets the tool of the agent return.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.identity import Identity
from foliot.store.sessions.base import Place

PLACE = Place("default", "helper", "ann", "web")
ANN = Identity("ann")


def helper(folder: Path) -> Agent:
    """Returns an agent whose every turn calls a tool, which waits for the file `go`, and says what it was asked."""

    @tool(effect="idempotent")
    async def work() -> str:
        """Works until it may go on."""
        with (folder / "calls").open("a") as calls:
            calls.write("call\n")
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        return "worked"

    turns: list[dict[str, Any]] = [{"call": {"work": {}}}, {"say": "Answer to {input}"}]
    return Agent("helper", model=ScriptedModel({"turns": turns, "count": "input"}), tools=[work])


async def main(store: str, path: str, session: str, name: str, count: str) -> None:
    async with Runtime(store) as runtime:
        runtime.inside.know(helper(Path(path)))
        for number in range(int(count)):
            text = f"{name}-{number}"
            await runtime.inside.sessions.say(session, text, identity=ANN, key=text)
            sys.stdout.write(f"said {number}\n")
            sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
