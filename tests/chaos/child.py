"""The process that is killed: drives several runs at once on a real store, with tools that leave traces on disk.

    python child.py <store> <effects file> [keeper]

The keeper's runs write into the folder of their user instead.

Each line that it reads holds the ids of runs. For each it forks a process, which drives them: so the modules are
imported once, not once for every life. The new process prints `ready <pid>` when it is about to work; the old one
prints `ended <exit code>` when that is over, and keeps the number of the dead until the next line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.messages import ModelRequest
from foliot.tools.base import Invocation, Tool

# What every run does: reads, repeatable writes and charges, alone and side by side.
STEPS = [
    {"call": {"look": {}}},
    {"call": [{"charge": {"amount": 1}}, {"save": {"version": 1}}, {"look": {}}]},
    {"call": {"charge": {"amount": 2}}},
    {"call": [{"charge": {"amount": 3}}, {"charge": {"amount": 4}}]},
    {"call": {"save": {"version": 2}}},
    {"call": [{"look": {}}, {"charge": {"amount": 5}}]},
    {"say": "all done"},
]
CHARGES, SAVES = 5, 2
# How long a refund may take at most, and how often it does.
SLOW, SLOW_ONES = 1.0, 0.02
chance = Random()


Act: TypeAlias = Callable[[str, Invocation], None]


def writing_to(effects: Path) -> Act:
    def act(kind: str, call: Invocation) -> None:
        line = f"{kind} {call.idempotency_key}\n".encode()
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    return act


def tools(act: Act) -> list[Tool]:
    """`act` is what they do to the world: it writes down that they did."""

    async def a_moment() -> None:
        await asyncio.sleep(chance.expovariate(200.0))

    @tool(effect="read")
    async def look(call: Invocation) -> str:
        await a_moment()
        return "nothing new"

    @tool(effect="idempotent")
    async def save(version: int, call: Invocation) -> str:
        await a_moment()
        act("save", call)
        await a_moment()
        return f"saved {version}"

    @tool(effect="once")
    async def charge(amount: int, call: Invocation) -> str:
        await a_moment()
        act("charge", call)
        await a_moment()
        return f"charged {amount}"

    @tool(effect="once")
    def bill(amount: int, call: Invocation) -> str:
        time.sleep(chance.expovariate(200.0))
        act("bill", call)
        time.sleep(chance.expovariate(200.0))
        return f"billed {amount}"

    @tool(effect="once", timeout=SLOW / 2)
    async def refund(call: Invocation, to: str = "") -> str:
        """Sometimes longer than it may take, and then it has acted or not."""
        await (asyncio.sleep(chance.uniform(0.0, SLOW)) if chance.random() < SLOW_ONES else a_moment())
        act("refund", call)
        await (asyncio.sleep(chance.uniform(0.0, SLOW)) if chance.random() < SLOW_ONES else a_moment())
        return "refunded"

    return [look, save, charge, bill, refund]


def clerk(effects: Path) -> Agent:
    script = {"turns": STEPS, "after": "3ms"}
    return Agent(
        "clerk", model=ScriptedModel(script), tools=tools(writing_to(effects)), prompt="You charge cards, once."
    )


def kept_by(run: str) -> list[tuple[str, str]]:
    """What a run of the keeper writes into the folder of its user, in this order."""
    return [
        (f"data/{run}.md", "first"),
        ("data/all.md", f"all {run}"),
        (f"data/{run}/deep/b.md", f"deep {run}"),
        (f"data/{run}.md", f"last {run}"),
    ]


def _keeps(request: ModelRequest) -> Any:
    """Writes what the run of this name has to write; the name is what it was told."""
    todo = kept_by(request.messages[0].text)
    done = sum(message.role == "tool" for message in request.messages)
    if done == len(todo):
        return "all done"
    path, content = todo[done]
    return {"call": {"write": {"path": path, "content": content}}}


def keeper() -> Agent:
    return Agent("keeper", model=ScriptedModel(_keeps), tools=["write"], prompt="You keep what people say.")


async def work(store: str, agent: Agent, run_ids: list[str]) -> None:
    async with Runtime(store) as runtime:
        say(f"ready {os.getpid()}")
        runs = (runtime.run(agent, run, run_id=run, user="ann", check=False) for run in run_ids)
        await asyncio.gather(*runs)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole, and unbuffered: nothing of it is printed again by a fork


def live(store: str, agent: Agent, run_ids: list[str]) -> int:
    """What a forked process does with its life; the exit code."""
    chance.seed()
    try:
        asyncio.run(work(store, agent, run_ids))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(store: str, agent: Agent) -> None:
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            os._exit(live(store, agent, line.split()))
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        say(f"ended {ended.si_status}")
        sys.stdin.buffer.peek(1)  # until the next line is there, nobody else gets the number of the dead
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], keeper() if sys.argv[3:] == ["keeper"] else clerk(Path(sys.argv[2])))
