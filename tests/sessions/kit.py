"""Parts that the tests of sessions share: a runtime with an agent, and waiting for a session to be done."""

from __future__ import annotations

import asyncio
from typing import Any

from foliot import Runtime
from foliot.kernel.messages import Message
from foliot.store.sessions.base import Place, Session

MOST_LOOKS = 600
WITHIN = 60.0


def place(agent: str = "helper", user: str = "ann", channel: str = "web", namespace: str = "default") -> Place:
    return Place(namespace, agent, user, channel)


async def quiet(runtime: Runtime, id: str) -> Session:
    """Returns the session once no turn is at work and nothing waits. Fails after a bounded time."""
    sessions = runtime.inside.sessions
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + WITHIN  # by the clock: anybody's commit ends a pause
    while loop.time() < ends_at:
        session = await sessions.store.get(id)
        if not session.turn and not await sessions.store.waiting(session):
            again = await sessions.store.get(id)
            if again == session:  # no turn began between the two looks
                return session
        await asyncio.wait({asyncio.ensure_future(runtime.inside.next_change()())}, timeout=0.1)
    raise AssertionError(f"session {id} never became quiet: {await sessions.store.get(id)}")


async def conversation(runtime: Runtime, id: str) -> list[tuple[str, str]]:
    """Returns who said what in a session, by role and text."""
    session = await runtime.inside.sessions.store.get(id)
    if not session.head:
        return []
    _, state = await runtime.inside.runs.load(session.head)
    return [(message.role, message.text) for message in state.settled_messages()]


def texts(messages: list[Message] | tuple[Message, ...]) -> list[Any]:
    return [message.text for message in messages]


class Gate:
    """A place that a tool comes to and leaves when the test lets it."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._open = asyncio.Event()
        self._exit = asyncio.Event()
        self._exit.set()

    async def passed(self) -> str:
        self._reached.set()
        try:
            await self._open.wait()
        finally:
            await self._exit.wait()
        return "passed"

    def hold(self) -> None:
        """Keeps who is here also when it is cancelled, until `release`."""
        self._exit.clear()

    def release(self) -> None:
        self._exit.set()

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            await self._reached.wait()

    def open(self) -> None:
        self._open.set()
