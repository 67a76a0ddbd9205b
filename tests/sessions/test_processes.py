"""Sessions over several processes, some of which are killed: the conversation goes on, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.common.cancellation import stop_tasks
from foliot.kernel.run.feedback import user_message
from foliot.server.runs.takeover import TakingUp
from foliot.store.sessions.base import NewInput
from tests.sessions.kit import conversation, quiet
from tests.sessions.session_process import ANN, PLACE, helper

PROCESS = Path(__file__).with_name("session_process.py")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def runtime(store: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(store) as opened:
        opened.inside.know(helper(tmp_path))
        yield opened


@contextlib.asynccontextmanager
async def speaking(
    store: str, folder: Path, session: str, name: str, count: int
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that speaks to a session; it is killed at the end of the block at the latest."""
    words = [sys.executable, str(PROCESS), store, str(folder), session, name, str(count)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def heard(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(120):
        return await process.stdout.readline()


async def kept_going(runtime: Runtime, session: str) -> None:
    """Looks as a server does, again and again, until nothing is left to do."""
    looking = TakingUp(runtime, runtime.inside.background, clock=runtime.inside.clock)

    async def look() -> None:
        while True:
            await looking.look()
            await runtime.inside.sessions.keeper.sweep(patience=0.0)
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(look()), asyncio.create_task(quiet(runtime, session))]
    try:
        # A look that fails would leave what is waited for undone for ever.
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await stop_tasks(*tasks)


def users(said: list[tuple[str, str]]) -> list[str]:
    return [text for role, text in said if role == "user"]


async def test_a_turn_goes_on_when_its_process_is_killed_in_the_middle(
    runtime: Runtime, store: str, tmp_path: Path
) -> None:
    session = await runtime.inside.sessions.create(PLACE, identity=ANN)
    async with speaking(store, tmp_path, session.id, "a", 3) as process:
        for _ in range(3):
            assert (await heard(process)).startswith(b"said")
        while not (tmp_path / "calls").exists():
            await asyncio.sleep(0.01)
    (tmp_path / "go").touch()
    await kept_going(runtime, session.id)
    said = await conversation(runtime, session.id)
    assert users(said) == ["a-0", "a-1", "a-2"]
    assert [text for role, text in said if role == "assistant" and text] == [f"Answer to a-{n}" for n in range(3)]


async def test_what_was_stored_by_a_process_that_died_before_it_began_a_turn_is_answered(
    runtime: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    sessions = runtime.inside.sessions
    session = await sessions.create(PLACE, identity=ANN)
    left = NewInput("k", "followup", user_message("Hello?"), "d")
    said = await sessions.store.say(session.id, left, now=runtime.inside.clock())
    assert said.act == "start"  # which nobody did
    await kept_going(runtime, session.id)
    assert users(await conversation(runtime, session.id)) == ["Hello?"]


async def test_whoever_speaks_next_takes_up_the_turn_of_a_dead_process(
    runtime: Runtime, store: str, tmp_path: Path
) -> None:
    session = await runtime.inside.sessions.create(PLACE, identity=ANN)
    async with speaking(store, tmp_path, session.id, "a", 1) as process:
        await heard(process)
    (tmp_path / "go").touch()
    await runtime.inside.sessions.say(session.id, "b-0", identity=ANN)
    await quiet(runtime, session.id)
    assert users(await conversation(runtime, session.id)) == ["a-0", "b-0"]


async def test_two_processes_that_sweep_at_once_begin_one_turn(runtime: Runtime, store: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    sessions = runtime.inside.sessions
    made = [await sessions.create(PLACE, identity=ANN) for _ in range(5)]
    for session in made:
        left = NewInput("k", "followup", user_message("Hello?"), "d")
        await sessions.store.say(session.id, left, now=runtime.inside.clock())
    async with Runtime(store) as other:
        other.inside.know(helper(tmp_path))
        keepers = sessions.keeper, other.inside.sessions.keeper
        await asyncio.gather(*(keeper.sweep(patience=0.0) for keeper in keepers for _ in range(3)))
        for session in made:
            assert (await quiet(runtime, session.id)).turns == 1


async def test_many_who_write_and_are_killed_lose_and_double_nothing(
    runtime: Runtime, store: str, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    sessions = runtime.inside.sessions
    session = await sessions.create(PLACE, identity=ANN, options={"inbox": {"cap": 1000}})
    stored: list[str] = []

    async def speak(name: str) -> None:
        async with speaking(store, tmp_path, session.id, name, 6) as process:
            for number in range(chance.randrange(1, 7)):  # and then it is killed, whatever it is doing
                if not (await heard(process)).startswith(b"said"):
                    return
                stored.append(f"{name}-{number}")

    await asyncio.gather(*(speak(name) for name in ("a", "b", "c")))
    await kept_going(runtime, session.id)
    inputs = await sessions.inputs(session.id, identity=ANN)
    said = users(await conversation(runtime, session.id))
    assert [each.seq for each in inputs] == list(range(1, len(inputs) + 1)), f"seed {seed}"
    assert {each.status for each in inputs} == {"consumed"}, f"seed {seed}"
    assert said == [each.id for each in inputs], f"seed {seed}: each once, in the order of arrival"
    assert set(stored) <= set(said), f"seed {seed}: what was acknowledged is answered"
