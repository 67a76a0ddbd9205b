"""People whom a run waits for: whether a command stays for them, and answering right where the run is watched.

The line is read without a thread and without holding up the loop, because agents that run beside the one that asks go
on meanwhile. Whoever answers elsewhere first is as welcome.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from foliot.cli.errors import tell
from foliot.cli.invocation import is_terminal
from foliot.cli.show.run import View
from foliot.cli.terminal import out, paint
from foliot.common.text import visible
from foliot.engine.approval.questions import OpenQuestion, check_answer
from foliot.errors import Conflict, InvalidInput
from foliot.runtime.groups.groups import Groups
from foliot.runtime.local.groups import whoami
from foliot.runtime.results import RunResult

LOOK_EVERY: Final = 0.5
F = TypeVar("F", bound=Callable[..., Any])


def wait_option() -> Callable[[F], F]:
    """`--wait/--no-wait`, given to the command as `wait`; None when neither was typed (see `stays`)."""
    return click.option(
        "--wait/--no-wait",
        default=None,
        help="Stay while the run waits for an approval or an answer.  [default: on a terminal]",
    )


def stays(wait: bool | None) -> bool:
    """A person at a terminal expects the command to go on; a script expects it to end and say so (exit code 8)."""
    return is_terminal(sys.stderr) if wait is None else wait


def can_ask() -> bool:
    """Whether somebody sits at a terminal who sees what is asked, and can type."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def asks_something(result: RunResult | None) -> bool:
    """Whether the run waits for an answer."""
    return result is not None and result.waiting is not None and result.waiting.reason == "input"


async def answered_here(work: Groups, run_id: str) -> bool:
    """Ask the person at the terminal what the run asks. True when the run can go on, whoever answered.

    False when the person ends the input (Ctrl-D).
    """
    for asked in await work.questions.list(namespace=None, run=run_id):
        if not await _ask(work, asked):
            return False
    return True


async def _ask(work: Groups, asked: OpenQuestion) -> bool:
    print_question(asked)
    while True:
        out("Answer: ", nl=False, err=True)
        line = await _line_unless(lambda: _is_over(work, asked))
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


async def _is_over(work: Groups, asked: OpenQuestion) -> bool:
    """Whether nothing has to be answered here any more: a run that was answered elsewhere goes on by itself."""
    if asked.expires_at is not None and asked.expires_at <= time.time():
        return True
    return (await work.runs.find(asked.run_id)).phase != "waiting"


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


async def note_what_is_asked(work: Groups, view: View, run_id: str, told: set[str]) -> None:
    """Notes the commands by which people answer a waiting run, each once: ids that were noted are added to `told`."""
    space = (await work.runs.find(run_id)).namespace
    for asked in await work.questions.list(namespace=None, run=run_id):
        if asked.call_id not in told:
            told.add(asked.call_id)
            view.note(f'waiting for an answer: foliot answer {asked.run_id} {asked.call_id} "…"')
    where = "" if space == "default" else f" -n {space}"
    for document in await work.approvals.list(namespace=space, run=run_id):
        name = document["metadata"]["name"]
        if document["status"]["phase"] == "Pending" and name not in told:
            told.add(name)
            view.note(f"waiting for approval: foliot approvals approve {name}{where}   (or show, deny, edit)")
