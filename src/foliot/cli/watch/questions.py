"""Answering what a run asks right where it is watched: on a terminal, without a second one.

The line is read without a thread and without holding up the loop, because agents that run beside the one that asks go
on meanwhile. Whoever answers elsewhere first is as welcome.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from foliot.cli.errors import tell
from foliot.cli.invocation import is_terminal
from foliot.cli.runtimes import whoami
from foliot.cli.terminal import out, paint
from foliot.common.text import visible
from foliot.engine.approval.questions import OpenQuestion, check_answer
from foliot.errors import Conflict, InvalidInput
from foliot.runtime.groups.groups import Groups
from foliot.runtime.results import RunResult

LOOK_EVERY: Final = 0.5
Told: TypeAlias = Callable[[str], Awaitable[bool]]


def can_ask() -> bool:
    """Whether somebody sits at a terminal who sees what is asked, and can type."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


async def answered_here(work: Groups, result: RunResult | None, *, told: Told) -> bool:
    """Ask the person at the terminal what the run asks. True when the run can go on, whoever answered.

    False for a run that asks nothing, and when the person ends the input (Ctrl-D). `told` says whether somebody has
    told a run something that it has not heard yet.
    """
    if result is None or result.waiting is None or result.waiting.reason != "input":
        return False
    space = (await work.runs.find(result.run_id)).namespace
    for asked in [each for each in await work.questions.list(namespace=space) if each.run_id == result.run_id]:
        if not await _ask(work, asked, told):
            return False
    return True


async def _ask(work: Groups, asked: OpenQuestion, told: Told) -> bool:
    print_question(asked)
    while True:
        out("Answer: ", nl=False, err=True)
        line = await _line_unless(lambda: _is_over(work, asked, told))
        if line is None:
            out("\nIt was answered elsewhere.", err=True)
            return True
        if not line:
            out(err=True)
            return False
        try:
            check_answer(asked, line.rstrip("\n"))
            await work.questions.answer(asked.run_id, line.rstrip("\n"), call=asked.call_id, by=whoami())
        except InvalidInput as error:
            tell(error)
        except Conflict as error:
            tell(error)
            return True
        else:
            return True


def print_question(asked: OpenQuestion) -> None:
    out(f"\n{paint(visible(asked.question), bold=True)}", err=True)
    for number, choice in enumerate(asked.choices, 1):
        out(f"  {number}  {visible(choice)}", err=True)


async def _is_over(work: Groups, asked: OpenQuestion, told: Told) -> bool:
    """Whether nothing has to be answered here any more."""
    if asked.expires_at is not None and asked.expires_at <= time.time():
        return True
    return (await work.runs.find(asked.run_id)).phase != "waiting" or await told(asked.run_id)


async def _line_unless(over: Callable[[], Awaitable[bool]]) -> str | None:
    """The next line that is typed, empty at the end of input; None as soon as `over`."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not typed.done():
            typed.set_result(None)

    loop.add_reader(sys.stdin.fileno(), ready)  # a terminal is readable when a whole line is there
    try:
        while not typed.done():
            await asyncio.wait({typed}, timeout=LOOK_EVERY)
            if not typed.done() and await over():
                return None
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()
