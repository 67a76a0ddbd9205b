"""Answering what a run asks right where it is watched: on a terminal, without a second one.

The line is read without a thread and without holding up the loop, because agents that run beside the one that asks go
on meanwhile. Whoever answers elsewhere first is as welcome.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import click

from foliot.cli.errors import tell
from foliot.cli.invocation import is_terminal
from foliot.cli.runtimes import whoami
from foliot.engine.approval.questions import OpenQuestion, check_answer, questions_of
from foliot.engine.story.amounts import safe
from foliot.errors import Conflict, InvalidInput
from foliot.results import RunResult
from foliot.runtime import Runtime

LOOK_EVERY: Final = 0.5


def can_ask() -> bool:
    """Whether somebody sits at a terminal who sees what is asked, and can type."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


async def answered_here(runtime: Runtime, result: RunResult | None) -> bool:
    """Ask the person at the terminal what the run asks. True when the run can go on, whoever answered.

    False for a run that asks nothing, and when the person ends the input (Ctrl-D).
    """
    if result is None or result.waiting is None or result.waiting.reason != "input":
        return False
    _, state = await runtime.runs.load(result.run_id)
    for asked in questions_of(state):
        if not await _ask(runtime, asked):
            return False
    return True


async def _ask(runtime: Runtime, asked: OpenQuestion) -> bool:
    print_question(asked)
    while True:
        click.echo("Answer: ", nl=False, err=True)
        line = await _line_unless(lambda: _is_over(runtime, asked))
        if line is None:
            click.echo("\nIt was answered elsewhere.", err=True)
            return True
        if not line:
            click.echo(err=True)
            return False
        try:
            check_answer(asked, line.rstrip("\n"))
            await runtime.questions.answer(asked.run_id, asked.call_id, line.rstrip("\n"), by=whoami())
        except InvalidInput as error:
            tell(error)
        except Conflict as error:
            tell(error)
            return True
        else:
            return True


def print_question(asked: OpenQuestion) -> None:
    click.echo(f"\n{click.style(safe(asked.question), bold=True)}", err=True)
    for number, choice in enumerate(asked.choices, 1):
        click.echo(f"  {number}  {safe(choice)}", err=True)


async def _is_over(runtime: Runtime, asked: OpenQuestion) -> bool:
    """Whether nothing has to be answered here any more."""
    if asked.expires_at is not None and asked.expires_at <= time.time():
        return True
    if (await runtime.runs.journal.get(asked.run_id)).phase != "waiting":
        return True
    return bool(await runtime.runs.journal.signals([asked.run_id]))


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
