"""The channel of a plug-in: made when it is enabled, used both ways, made anew when the plug-in is loaded anew."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.channels.kit import declare, kept, opened
from tests.engine.plugin_packages import install

SOURCE = """
from foliot.channels.base import Incoming

made = []

class Board:
    def __init__(self, context):
        self.declared, self.context, self.delivered, self.started = context.declared, context, [], False
        made.append(self)

    async def start(self):
        self.started = True

    async def stop(self):
        self.started = False

    async def deliver(self, notification):
        self.delivered.append(notification.text)
        await notification.progress("pinned")

async def board(context):
    assert await context.secret() == "sesame"
    return Board(context)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "site"
    found.mkdir()
    monkeypatch.syspath_prepend(str(found))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    install(found, SOURCE, {"foliot.channels": "notice_board:board"}, name="board", package="notice-board")
    return found


async def test_the_channel_of_a_plug_in_takes_messages_and_delivers_answers(folder: Path, tmp_path: Path) -> None:
    async with opened(str(tmp_path / "foliot.db"), tmp_path, {"helper": [{"say": "Hi, {input}"}]}) as runtime:
        await declare(runtime, "Secret", "key", {"data": {"value": "c2VzYW1l"}})
        users = [{"id": "7", "user": "ann"}]
        spec = {"type": "plugin", "plugin": "board", "agent": "helper", "auth": {"secretRef": "key"}, "users": users}
        await declare(runtime, "Channel", "wall", spec)
        async with kept(runtime) as keeper:
            await keeper.tick()
            assert "notice_board" not in sys.modules, "nothing is loaded that was not enabled"
            await runtime.plugins.use(["board"])
            await keeper.tick()
            module = sys.modules["notice_board"]
            (board,) = [each for each in module.made if each.started]
            received = await board.context.receive(module.Incoming(id="1", sender="7", text="Bob", chat="7"))
            assert received.session
            for _ in range(600):
                if board.delivered:
                    break
                await keeper.tick()
                await runtime.inside.next_change()()
            assert board.delivered == ["Hi, Bob"]
            await runtime.plugins.reload()
            await keeper.tick()
            assert not board.started
            assert [each.started for each in sys.modules["notice_board"].made] == [True]
            await runtime.plugins.use([])
            await keeper.tick()
            assert [each.started for each in sys.modules["notice_board"].made] == [False]
