"""`foliot chat` on a server: the same as on a store, and the turn goes on without the chat."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.chat.test_terminal import PATIENCE, Place, Terminal
from tests.cli.conftest import Foliot


class Server:
    """`foliot up` on a port of its own, which can be killed and started again."""

    def __init__(self, place: Place) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._place = place
        self.start()

    def start(self) -> None:
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "foliot.cli", "up", "--port", str(self.port)],
            cwd=self._place.folder,
            env=self._place.environ,
            stdout=write,
            stderr=write,
        )
        os.close(write)
        said = b""
        while not re.search(rb"http://127.0.0.1", said):
            piece = os.read(read, 65536)
            assert piece, said.decode()
            said += piece
        self._said = read

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._said)


@pytest.fixture
def place(tmp_path: Path, foliot: Foliot) -> Place:
    return Place(tmp_path, foliot)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    made = Server(place)
    yield made
    made.kill()


@pytest.fixture
def start(place: Place, server: Server):
    opened: list[Terminal] = []

    def started(*words: str) -> Terminal:
        opened.append(Terminal(place, "--server", server.url, *words))
        opened[-1].wait_for("/help lists commands")
        return opened[-1]

    yield started
    for each in opened:
        each.close()


def test_steering_and_approving_are_the_same_on_a_server(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("work")
    terminal.wait_for("calls slow")
    terminal.enter("rather blue")
    terminal.wait_for("(steer: queued)")
    (place.folder / "go").touch()
    terminal.wait_for("heard: rather blue")
    terminal.wait_for("Blue it is.")
    terminal.wait_for_end()
    terminal.enter("pay")
    terminal.wait_for("Allow pay? [y/n]")
    terminal.enter("y")
    terminal.wait_for("The desk says: paid 5")
    assert place.paid == ["5"]


def test_what_a_sub_agent_asks_is_decided_the_same_way_on_a_server(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("order")
    terminal.wait_for("Answer: ")
    terminal.enter("the corner")
    terminal.wait_for("Allow pay? [y/n]")
    terminal.enter("y")
    terminal.wait_for("The buyer says: paid 7")
    assert place.paid == ["7"]


def test_a_turn_goes_on_at_the_server_when_its_chat_is_killed(place: Place, server: Server, start) -> None:
    killed = start("desk")
    killed.enter("work")
    killed.wait_for("calls slow")
    killed.kill()
    (place.folder / "go").touch()

    terminal = start("--resume")
    terminal.enter("hello")
    terminal.wait_for("You said: hello")
    session = place.foliot("--server", server.url, "sessions", "list", "-o", "name").strip()
    assert "Work is over: slow is done" in place.foliot("--server", server.url, "sessions", "history", session)


def test_a_chat_outlives_the_server(place: Place, server: Server, start) -> None:
    terminal = start("desk")
    terminal.enter("pay")
    terminal.wait_for("Allow pay? [y/n]")
    server.kill()
    server.start()
    terminal.enter("y")
    terminal.wait_for("The desk says: paid 5")
    terminal.wait_for_end()
    assert place.paid == ["5"]
    terminal.type("\x04")
    assert terminal.end() == 0, terminal.drawn
