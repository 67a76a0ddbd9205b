"""What twenty tool calls cost in one program, beside twenty answers of a model that asks for one each.

    python benchmarks/bench_code.py [--rounds N]

The model is scripted and answers at once, so what is compared is Foliot's own work: with a real model each answer that
is saved is a second or more, and the whole conversation as tokens. Every call is journaled, on SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from foliot import Agent, Runtime, ScriptedModel, tool

CALLS = 20
ONE_BY_ONE = f"total = 0\nfor n in range({CALLS}):\n    total = await add(total, n)\ntotal"
AT_ONCE = f"import asyncio\nlen(await asyncio.gather(*[add(n, n) for n in range({CALLS})]))"


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def agents() -> dict[str, Agent]:
    steps = [*({"call": {"add": {"a": n, "b": 1}}} for n in range(CALLS)), {"say": "done"}]
    found = {
        f"{CALLS} answers of a model": Agent("a0", model=ScriptedModel(steps), tools=[add], limits={"max_steps": 99})
    }
    for runs_in in ("interpreter", "sandbox"):
        for name, program in (("one by one", ONE_BY_ONE), ("at once", AT_ONCE)):
            turns = [{"call": {"code": {"program": program}}}, {"say": "done"}]
            model, code = ScriptedModel(turns), {"runs_in": runs_in}
            found[f"a program, {runs_in}, {name}"] = Agent(
                f"a{len(found)}", model=model, tools=[add, "code"], code=code
            )
    return found


async def measured(rounds: int, folder: str) -> None:
    async with Runtime(Path(folder) / "bench.db") as runtime:
        times: dict[str, list[float]] = {}
        for _ in range(rounds + 1):
            for name, agent in agents().items():
                began = time.perf_counter()
                result = await runtime.run(agent, "Go.")
                times.setdefault(name, []).append(time.perf_counter() - began)
                assert result.output == "done", result
        for name, taken in times.items():
            typical, first = statistics.median(taken[1:]) * 1000, taken[0] * 1000
            print(f"{name:<40} {typical:8.1f} ms   first {first:8.1f} ms   {typical / CALLS:6.2f} ms a call")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measured(rounds, folder))


if __name__ == "__main__":
    main()
