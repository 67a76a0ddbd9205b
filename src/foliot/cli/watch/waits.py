"""Staying with a run that waits for an approval or an answer, or leaving it to whoever decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from foliot.cli.invocation import is_terminal
from foliot.cli.show.run import View
from foliot.runtime.groups.groups import Groups
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.results import RunResult
from foliot.runtime.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])


def wait_option() -> Callable[[F], F]:
    """`--wait/--no-wait`, given to the command as `wait`; None when neither was typed (see `stays`)."""
    return click.option(
        "--wait/--no-wait",
        default=None,
        help="Stay while an approval or an answer is waited for, and go on then.  [default: on a terminal]",
    )


def stays(wait: bool | None) -> bool:
    """A person at a terminal expects the command to go on; a script expects it to end and say so (exit code 8)."""
    return is_terminal(sys.stderr) if wait is None else wait


async def stay(runtime: Runtime, view: View, result: RunResult, *, stream: bool, ask_here: bool = False) -> RunResult:
    """Wait with the run until it has ended, or waits for something other than a person's word or a budget.

    With `ask_here` also until it asks something, which is answered where it is watched: see questions.py.
    """
    told: set[str] = set()
    while result.waiting is not None and result.waiting.reason in ("approval", "input", "budget"):
        if result.waiting.reason == "input" and ask_here:
            break  # the person at the terminal is asked, when the view is out of the way
        if result.waiting.reason == "budget" and result.waiting.message not in told:
            told.add(result.waiting.message)
            view.note(result.waiting.message)
        await note_what_is_asked(LocalGroups(runtime.inside, wakes=False), view, result.run_id, told)
        result = await runtime.inside.attend(result.run_id, stream=stream, check=False)
    return result


async def note_what_is_asked(work: Groups, view: View, run_id: str, told: set[str]) -> None:
    """Notes the commands by which people answer a waiting run, each once: ids that were noted are added to `told`."""
    space = (await work.runs.find(run_id)).namespace
    for asked in await work.questions.list(namespace=space):
        if asked.run_id == run_id and asked.call_id not in told:
            told.add(asked.call_id)
            view.note(f'waiting for an answer: foliot answer {asked.run_id} {asked.call_id} "…"')
    where = "" if space == "default" else f" -n {space}"
    for document in await work.approvals.list(namespace=space, run=run_id):
        name = document["metadata"]["name"]
        if document["status"]["phase"] == "Pending" and name not in told:
            told.add(name)
            view.note(f"waiting for approval: foliot approvals approve {name}{where}   (or show, deny, edit)")
