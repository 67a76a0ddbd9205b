# ruff: noqa: T201 - printing is what these tests are about
"""What tools print while they are watched stays out of the answer and out of the picture."""

from __future__ import annotations

import io
import sys
import threading

import pytest
from rich.console import Console

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.cli.local import LocalClient
from foliot.cli.show.run import Opening, PlainView
from foliot.cli.show.run_terminal import TerminalView
from foliot.cli.watch.run import Watch, WatchOptions, aside
from foliot.kernel.identity import NOBODY


class Drawing:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def printed(self, line: str) -> None:
        self.lines.append(line)


def test_a_view_that_draws_gets_whole_lines() -> None:
    view = Drawing()

    with aside(view):
        print("one", "two")
        print("10%\r50%\r100%")
        print("a warning", file=sys.stderr)
        print("no end of line", end="")

    assert view.lines == ["one two", "100%", "a warning", "no end of line"]


def test_two_threads_do_not_share_a_line() -> None:
    view = Drawing()
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait(20)
        print("from the other")
        ended.set()

    thread = threading.Thread(target=other)
    with aside(view):
        thread.start()
        print("from the first, ", end="")
        begun.set()
        assert ended.wait(20)
        print("as well")
        thread.join(20)

    assert view.lines == ["from the other", "from the first, as well"]


def test_without_a_picture_it_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with aside(PlainView()):
        print("hello")

    assert capsys.readouterr() == ("", "    hello\n")


async def test_what_a_tool_prints_on_a_terminal_stands_above_the_part_that_moves() -> None:
    @tool(effect="read")
    def noisy() -> str:
        print("looked at [3] files")
        return "found"

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system=None, highlight=False, markup=False)
    agent = Agent("finder", model=ScriptedModel([{"call": "noisy"}, {"say": "Done."}]), tools=[noisy])
    async with Runtime("memory:") as runtime:
        client, view = LocalClient(runtime, caller=NOBODY), TerminalView(console, answer=True)
        await Watch(client, view, Opening("r1", "finder"), WatchOptions()).to_the_end(
            lambda: client.runs.drive("r1", runtime.inside.run(agent, "go", run_id="r1", stream=True, check=False))
        )

    # Above the moving part means: in a line of its own, with nothing of a spinner before it.
    rows = [row.rpartition("\x1b[2K")[2] for row in screen.getvalue().splitlines()]
    assert "    looked at [3] files" in [row.rstrip() for row in rows]
