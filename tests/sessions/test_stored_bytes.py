"""What turns take in the store: counted in bytes, so that a message that is stored twice is found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from foliot import Agent, Runtime
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage

TURNS, WARM = 100, 10
SIZE = 425
# What a turn of 850 bytes takes besides its texts: rows, indices, links and, in a session, the inbox and search words.
AIM = 3.0


class Clerk:
    """Answers with words of its own, which nobody can pack by leaving out repeats."""

    def __init__(self) -> None:
        self._chance = random.Random(17)
        self._words = [f"{self._chance.randrange(36**5):05x}"[: 3 + n % 4] for n in range(4000)]

    def text(self) -> str:
        return " ".join(self._chance.choices(self._words, k=SIZE))[:SIZE]

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        return ModelResponse(Message("assistant", (Text(self.text()),)), Usage(100, 100, cost_usd=0.0))

    async def close(self) -> None: ...


def used(path: Path) -> dict[str, int]:
    """Returns the bytes in use in the pages of each table and index."""
    database = apsw.Connection(str(path))
    try:
        found = database.execute("SELECT name, SUM(pgsize - unused) FROM dbstat GROUP BY name").fetchall()
    finally:
        database.close()
    return dict(found)


def grown(before: dict[str, int], after: dict[str, int]) -> tuple[float, str]:
    """Returns the bytes that were stored for each byte said, and where they are."""
    per_turn = {name: (size - before.get(name, 0)) / TURNS for name, size in after.items()}
    shown = ", ".join(
        f"{name} {size:.0f}" for name, size in sorted(per_turn.items(), key=lambda each: -each[1]) if size
    )
    return sum(per_turn.values()) / (2 * SIZE), f"bytes per turn: {shown}"


@pytest.mark.parametrize(("kind", "most"), [("runs", 2.4), ("session", AIM)])
async def test_a_turn_stores_few_bytes_for_each_that_is_said(tmp_path: Path, kind: str, most: float) -> None:
    path = tmp_path / "foliot.db"
    model = Clerk()
    async with Runtime(str(path)) as rt:
        agent = Agent("clerk", model=model)
        rt.inside.know(agent)
        session = await rt.sessions.resolve("clerk", user="ann")
        last = ""
        sizes: list[dict[str, int]] = []
        for number in range(WARM + TURNS):
            if number == WARM:
                sizes.append(used(path))
            if kind == "runs":
                last = (await rt.inside.run(agent, model.text(), after=last)).run_id
            else:
                async for _ in rt.sessions.chat(session.id, model.text()):
                    pass
        sizes.append(used(path))

    ratio, where = grown(*sizes)
    assert ratio <= most, where


async def test_the_definition_of_a_run_is_stored_once_for_all_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    async with Runtime(str(path)) as rt:
        short, long = Agent("short", model=Clerk()), Agent("long", model=Clerk(), prompt="Be kind. " * 400)
        took: list[int] = []
        for agent in (short, long):
            await rt.inside.run(agent, "hello")
            before = used(path)
            for _ in range(20):
                await rt.inside.run(agent, "hello")
            took.append(sum(used(path).values()) - sum(before.values()))

    assert abs(took[1] - took[0]) < 2000, took
