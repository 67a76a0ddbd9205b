"""`foliot why`: the story of a run or a task in plain words."""

from __future__ import annotations

from contextlib import suppress

import click
import msgspec

from foliot.cli.connect import namespace, run
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import reached, run_of
from foliot.cli.task_names import find_task
from foliot.cli.terminal import out, paint
from foliot.client.work import Work
from foliot.engine.story.explain import Explanation, Hint
from foliot.errors import NotFound
from foliot.printable import one_line
from foliot.store.runs import TASK_LABEL, RunInfo
from foliot.work.base import TaskInfo
from foliot.work.story.why import TaskExplanation


@click.command()
@click.argument("name", metavar="[RUN|TASK]", required=False)
@output_option("text", "json", default="text", help="text or json.")
def why(name: str | None, output: str) -> int:
    """Say why a run or a task waits, why it failed, what it cost and what happened on the way.

    \b
    foliot why                               the newest run
    foliot why 01k3                          a run, by the beginning of its id
    foliot why weekly-brief                  a task, by its name

    Everything is read from what was recorded; nothing is guessed. RUN is an id or the beginning of one, TASK a name,
    or the beginning or end of one; the newest run when left out.
    """
    return run(_why(name, output))


async def _why(word: str | None, output: str) -> int:
    async with reached() as reach:
        work = reach.work
        info = await _run_or_task(work, word)
        if isinstance(info, RunInfo) and info.phase == "pending" and TASK_LABEL in info.labels:
            # It has no story of its own yet: what keeps it waiting is the business of its task.
            info = await work.task(info.namespace, info.labels[TASK_LABEL])
        if isinstance(info, TaskInfo):
            told = await work.why_task(info.namespace, info.name)
            out(as_json(msgspec.to_builtins(told)) if output == "json" else _task_text(info, told))
            return 0
        explanation = await work.why_run(info.id)
    if output == "json":
        out(as_json({"run": info.id, "phase": info.phase, **msgspec.to_builtins(explanation)}))
    else:
        out(_text(info, explanation))
    return 0


async def _run_or_task(work: Work, word: str | None) -> RunInfo | TaskInfo:
    """A task of exactly this name, else a run, else a task that is called like it. Raises `NotFound`."""
    if word is None:
        return await run_of(work, None)
    with suppress(NotFound):
        return await work.task(namespace(), word.removeprefix("task/"))
    try:
        return await run_of(work, word)
    except NotFound:
        try:
            return await find_task(work, word)
        except NotFound:
            hint = "`foliot runs` and `foliot task list` show what there is"
            raise NotFound(f"there is no run {word!r}, and no task", hint=hint) from None


def _task_text(info: TaskInfo, told: TaskExplanation) -> str:
    head = f"{paint(info.name, bold=True)}  {paint(f'{info.target_kind} {info.target}', dim=True)}"
    causes = [f"  {'  ' * cause.depth}{'← ' if cause.depth else ''}{one_line(cause.text)}" for cause in told.causes]
    parts = ["\n".join([head, one_line(told.headline), *causes]), _next(told.next)]
    return "\n\n".join(part for part in parts if part)


def _next(hints: list[Hint]) -> str:
    if not hints:
        return ""
    width = max(len(hint.command) for hint in hints)
    return _section(
        "What you can do",
        [f"{paint(hint.command.ljust(width), fg='cyan')}  {one_line(hint.effect)}" for hint in hints],
    )


def _text(info: RunInfo, told: Explanation) -> str:
    head = f"{paint(info.agent, bold=True)}  {paint(info.id, dim=True)}\n{one_line(told.headline)}"
    chain = "\n".join(
        f"  {'  ' * depth}{'← ' if depth else ''}{one_line(line)}" for depth, line in enumerate(told.chain)
    )
    parts = [f"{head}\n{chain}" if chain else head]
    parts.append(_section("What it cost", [one_line(line) for line in told.cost]))
    parts.append(_section("Where the time went", [one_line(told.time)] if told.time else []))
    parts.append(_section("On the way", [one_line(line) for line in told.way]))
    parts.append(_next(told.next))
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return "\n".join([paint(title, bold=True), *(f"  {line}" for line in lines)])
