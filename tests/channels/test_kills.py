"""kill -9 around polling and delivery: nothing that people wrote is lost or said twice, and every answer arrives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.server.runs.takeover import taking_up
from tests.channels.kit import declare_bot, kept, opened
from tests.channels.telegram_server import TelegramServer

PROCESS = Path(__file__).with_name("channel_process.py")
AGENTS = {"helper": [{"say": "Done."}] * 50}
ROOT = Path(__file__).parents[2]


class Killed:
    """A process that keeps channels, and dies when the bot makes a call that the test chose."""

    def __init__(self, store: str, home: Path, telegram: TelegramServer) -> None:
        self._arguments = (str(PROCESS), store, str(home))
        self._telegram = telegram

    async def until(self, method: str, count: int) -> None:
        """Runs it until the bot has made `count` more calls of `method`, and kills it in the middle of the last."""
        before = len(self._telegram.said(method))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._arguments, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        self._telegram.on_call = lambda: (
            process.send_signal(signal.SIGKILL)
            if process.returncode is None and len(self._telegram.said(method)) - before >= count
            else None
        )
        async with asyncio.timeout(90):
            await process.wait()
        self._telegram.on_call = None


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


async def said(runtime: Runtime) -> list[str]:
    """What was said to sessions, in order, by the number of the update that it came with."""
    sessions = runtime.inside.sessions
    found: list[tuple[int, str]] = []
    for session in (await sessions.list("default", identity=None, archived=True)).items:
        for each in await sessions.store.inputs(session.key):
            found.append((int(each.details["provenance"]["correlation_id"]), each.status))
    return [str(number) for number, _ in sorted(found)]


@pytest.mark.parametrize(("method", "count"), [("getUpdates", 2), ("sendMessage", 1), ("sendMessage", 2)])
async def test_what_people_wrote_is_said_once_and_answered_whenever_the_process_is_killed(
    store_url: str, tmp_path: Path, telegram: TelegramServer, method: str, count: int
) -> None:
    async with opened(store_url, tmp_path, AGENTS) as runtime:
        await declare_bot(runtime, telegram.url)
    numbers = [telegram.write(f"Message {number}") for number in range(4)]
    await Killed(store_url, tmp_path, telegram).until(method, count)
    # The dead process holds what it claimed until the time of that is over: this is an hour later.
    async with opened(store_url, tmp_path, AGENTS, clock=lambda: time.time() + 3600.0) as runtime:
        async with kept(runtime) as keeper, taking_up(runtime, runtime.inside.background), asyncio.timeout(90):
            while len(done := await keeper.outbox.list("default", state="sent")) < len(numbers):
                await runtime.inside.next_change()()
        assert await said(runtime) == [str(number) for number in numbers]
    assert len({delivery.run_id for delivery in done}) == len(numbers)
    assert len(telegram.shown) >= len(numbers)
