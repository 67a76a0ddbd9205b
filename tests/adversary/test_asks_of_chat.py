"""Answers at the terminal of a chat are about what stood on the screen, and about nothing else."""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from foliot.cli.chat.asks import Asks
from foliot.cli.chat.line_editor import Entered, LineEditor
from foliot.cli.chat.screen import Screen
from foliot.errors import FoliotError, Unavailable
from foliot.sessions.chat_events import ChatAsk, WaitingEvent


class Approvals:
    """The approvals of a server that answers, or does not."""

    def __init__(self, error: FoliotError | None = None) -> None:
        self.error = error
        self.decided: list[tuple[str, str, str]] = []

    async def get(self, id: str, *, namespace: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        spec = {"tool": "pay", "arguments": {"to": id}, "arguments_digest": f"sha256:{id}"}
        return {"metadata": {"name": id}, "spec": spec, "status": {"phase": "Pending"}}

    async def approve(self, id: str, *, namespace: str, by: str, digest: str) -> None:
        self.decided.append(("approve", id, digest))

    async def deny(self, id: str, *, namespace: str, by: str, digest: str) -> None:
        self.decided.append(("deny", id, digest))


class Work:
    def __init__(self, error: FoliotError | None = None) -> None:
        self.approvals = Approvals(error)


@pytest.fixture
async def terminal(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Screen, int]]:
    """A screen on a real terminal, and the end at which a person types."""
    keys, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        screen = Screen(LineEditor(), color=False)
        with screen.opened():
            yield screen, keys
    os.close(keys)


def waiting(*ids: str) -> WaitingEvent:
    asks = tuple(ChatAsk(kind="approval", id=id, call_id=id, tool="pay") for id in ids)
    return WaitingEvent(run="r", reason="approval", asks=asks)


async def answer_next(screen: Screen, asks: Asks) -> str:
    async with asyncio.timeout(30):
        typed, asked = await screen.typed()
    assert isinstance(typed, Entered)
    if asked is not None:
        await asks.answer(typed.text, asked)
    return "asked" if asked is not None else "said"


async def test_what_is_typed_ahead_approves_no_call_that_was_not_on_the_screen(terminal: tuple[Screen, int]) -> None:
    screen, keys = terminal
    work = Work()
    asks = Asks(cast("Any", work), screen, namespace="default", by="ann")
    await asks.take(waiting("one", "two"))
    os.write(keys, b"y\ry\r")

    assert [await answer_next(screen, asks), await answer_next(screen, asks)] == ["asked", "asked"]
    assert [each[:2] for each in work.approvals.decided] == [("approve", "one")]


async def test_what_is_typed_before_any_question_is_no_answer_to_it(terminal: tuple[Screen, int]) -> None:
    screen, keys = terminal
    work = Work()
    asks = Asks(cast("Any", work), screen, namespace="default", by="ann")
    os.write(keys, b"y\ry")
    await asks.take(waiting("one"))
    assert await answer_next(screen, asks) == "said"
    os.write(keys, b"\r")  # the `y` before it was typed to nothing, and is gone

    await answer_next(screen, asks)
    assert work.approvals.decided == []


async def test_a_call_that_cannot_be_shown_is_not_approved(terminal: tuple[Screen, int]) -> None:
    screen, keys = terminal
    work = Work(Unavailable("the server does not answer"))
    asks = Asks(cast("Any", work), screen, namespace="default", by="ann")
    await asks.take(waiting("one"))
    os.write(keys, b"y\r")
    await answer_next(screen, asks)
    assert work.approvals.decided == []

    work.approvals.error = None
    for _ in range(2):  # the first one has it shown, the second one is about what is shown
        os.write(keys, b"y\r")
        await answer_next(screen, asks)
    assert [each[:2] for each in work.approvals.decided] == [("approve", "one")]
    assert work.approvals.decided[0][2]
