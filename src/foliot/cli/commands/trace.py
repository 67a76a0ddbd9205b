"""`foliot trace`: one run as a tree."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import Any

import click
import msgspec

from foliot.cli.invocation import is_terminal
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, run_argument, run_of
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.trace import WIDTH, as_data, tree_of
from foliot.cli.terminal import emit, out, paint
from foliot.cli.watch.task_target import find_task
from foliot.common.text import one_line
from foliot.engine.explain.trace import Trace, trace_of
from foliot.engine.explain.why import Explanation, Hint
from foliot.errors import Conflict, NotFound
from foliot.runtime.groups.groups import Groups
from foliot.store.journal.base import TASK_LABEL, RunInfo
from foliot.tools.backends.agent import RUNNING_CODE, child_id
from foliot.tools.builtin.results import CallResult, ResultPage
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.run_document import interrupted
from foliot.work.views.why import TaskExplanation


@click.command()
@run_argument(required=False)
@output_option("text", "json", default="text", help="text, or json with nothing shortened.")
@click.option("--full", is_flag=True, help="Whole texts, not one line of each.")
def trace(run_id: str | None, output: str, full: bool) -> int:
    """Show a run as a tree: steps, answers, calls with arguments, results, timings, and what went wrong on the way.

    \b
    foliot trace                             the newest run or task
    foliot trace 01k3 --full                 as much of its id as is unique
    foliot trace 01k3 -o json | jq '.steps[].seconds'

    RUN is an id or the beginning of one; what was started last when left out, as by `task trace` if that is a task.
    """
    return run(_trace(run_id, output, full))


async def _trace(word: str | None, output: str, full: bool) -> int:
    async with reached() as client:
        info = await run_of(client, word) if word is not None else await _newest(client)
        if isinstance(info, TaskInfo):
            from foliot.cli.commands.task import print_trace

            return await print_trace(client, info, output, full)
        found = trace_of(info.id, await client.runs.events(info.id))
        programs = await _programs(client, found)
        phase = await _phase(client, info)
    if output == "json":
        out(as_json(as_data(found, info.phase, programs)))
        return 0
    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else WIDTH
    for line in tree_of(found, phase, full=full, width=width, programs=programs).lines():
        out(line)
    return 0


async def _phase(client: Groups, info: RunInfo) -> str:
    """How a run stands: one whose process let it go while it waits for people below it is not interrupted."""
    if not interrupted(info, time.time()):
        return info.phase
    return "waiting" if info.phase == "pending" and (await client.runs.get(info.id)).asking else "interrupted"


async def _programs(client: Groups, trace: Trace) -> dict[str, Trace]:
    """The runs of the programs that a run has written, by the calls that began them."""
    found: dict[str, Trace] = {}
    for call in trace.calls:
        if call.name == RUNNING_CODE and call.starts:
            program = child_id(trace.namespace, trace.run_id, call.id)
            with suppress(NotFound):  # it was cut off before it began, or is not the built-in tool
                found[call.id] = trace_of(program, await client.runs.events(program))
    return found


# --- why -------------------------------------------------------------------------------------------------------------

# `foliot why`: the story of a run or a task in plain words.


@click.command()
@click.argument("name", metavar="[RUN|TASK]", required=False)
@output_option("text", "json", default="text", help="text or json.")
def why(name: str | None, output: str) -> int:
    """Say why a run or a task waits, why it failed, what it cost and what happened on the way.

    \b
    foliot why                               the newest run or task
    foliot why 01k3                          a run, by the beginning of its id
    foliot why weekly-brief                  a task, by its name, else a schedule

    Everything is read from what was recorded; nothing is guessed. RUN is an id or the beginning of one, TASK a name,
    or the beginning or end of one; what was started last when left out.
    """
    return run(_why(name, output))


async def _why(word: str | None, output: str) -> int:
    async with reached() as client:
        work = client
        try:
            info = await _run_or_task(work, word)
        except NotFound:
            if word is None or (told := await _schedule_text(client, word)) is None:
                raise
            out(as_json({"schedule": word, "text": told}) if output == "json" else told)
            return 0
        if isinstance(info, RunInfo) and info.phase == "pending" and TASK_LABEL in info.labels:
            # It has no story of its own yet: what keeps it waiting is the business of its task.
            info = await work.tasks.get(info.labels[TASK_LABEL], namespace=info.namespace)
        if isinstance(info, TaskInfo):
            told = await work.tasks.why(info.name, namespace=info.namespace)
            out(as_json(msgspec.to_builtins(told)) if output == "json" else _task_text(info, told))
            return 0
        explanation = await work.runs.why(info.id)
    if output == "json":
        out(as_json({"run": info.id, "phase": info.phase, **msgspec.to_builtins(explanation)}))
    else:
        out(_text(info, explanation))
    return 0


async def _schedule_text(client: Groups, word: str) -> str | None:
    """Says how a schedule of this name stands; None when there is none."""
    from foliot.cli.commands.schedule import neglect

    try:
        document = await client.schedules.get(word.removeprefix("schedule/"), namespace=namespace())
    except NotFound:
        return None
    name = document["metadata"]["name"]
    newest = await client.schedules.slots(name, namespace=namespace(), limit=20)
    status: dict[str, Any] = document.get("status") or {}
    error: str = status.get("lastError", "")
    last = f"Its last time was {newest[0].state}: {one_line(newest[0].task or newest[0].reason)}." if newest else ""
    said = [f"{paint(name, bold=True)}  {paint('schedule', dim=True)}", neglect(document), error, last]
    return "\n".join([each for each in said if each] + [f"`foliot schedule slots {name}` shows every time."])


async def _newest(work: Groups) -> RunInfo | TaskInfo:
    """The id of the work that was started last: a task, if a run works for one. Raises `NotFound`."""
    newest = await run_of(work, None)
    if name := newest.labels.get(TASK_LABEL):
        with suppress(NotFound):  # its task was deleted
            return await work.tasks.get(name, namespace=newest.namespace)
    return newest


async def _run_or_task(work: Groups, word: str | None) -> RunInfo | TaskInfo:
    """A task of exactly this name, else a run, else a task that is called like it. Raises `NotFound`."""
    if word is None:
        return await _newest(work)
    with suppress(NotFound):
        return await work.tasks.get(word.removeprefix("task/"), namespace=namespace())
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
    parts = ["\n".join([head, one_line(told.headline), *causes])]
    parts += [_section("What it cost", [one_line(line) for line in told.cost]), _next(told.next)]
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


# --- results ---------------------------------------------------------------------------------------------------------

# `foliot results`: what the calls of a run gave, whole, also where the model saw only a part.


@click.command()
@run_argument(required=False)
@click.argument("call", metavar="[CALL]", required=False)
@output_option("text", "json", default="text", help="text, or json with where it is from.")
def results(run_id: str | None, call: str | None, output: str) -> int:
    """Show what a call of a run gave, whole: also what was cut before the model saw it.

    \b
    foliot results 01k3                      the calls of a run, and how large their results are
    foliot results 01k3 call_2 > page.txt    one of them
    foliot results 01k3 call_2 | less

    RUN is an id or the beginning of one, the newest run when left out; CALL likewise, or the name of a tool that was
    called once.
    """
    return run(_results(run_id, call, output))


async def _results(word: str | None, call: str | None, output: str) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        found = await client.runs.results(info.id)
        if call is None:
            out(as_json({"run": info.id, "items": msgspec.to_builtins(found)}) if output == "json" else _listed(found))
            return 0
        pages = await _pages(client, info.id, _chosen(found, call, info.id).call)
    text = "".join(page.text for page in pages)
    if output == "json":
        about = msgspec.to_builtins(pages[0])
        out(as_json({key: value for key, value in about.items() if key not in ("offset", "next")} | {"text": text}))
    else:
        emit(text)
    return 0


async def _pages(work: Groups, run_id: str, call: str) -> list[ResultPage]:
    pages = [await work.runs.result(run_id, call)]
    while (after := pages[-1].next) is not None:
        pages.append(await work.runs.result(run_id, call, offset=after))
    return pages


def _chosen(found: list[CallResult], word: str, run_id: str) -> CallResult:
    """The result that a word means. Raises `NotFound`, `Conflict`."""
    for alike in (
        [each for each in found if each.call == word],
        [each for each in found if word and each.call.startswith(word)],
        [each for each in found if each.tool == word],
    ):
        if len(alike) == 1:
            return alike[0]
        if alike:
            calls = ", ".join(each.call for each in alike[:5])
            raise Conflict(f"{word!r} means several calls of run {run_id}: {calls}", hint="give more of the id")
    raise NotFound(f"Run {run_id} has no result of a call {word!r}.", hint=f"`foliot results {run_id}` lists them.")


def _listed(found: list[CallResult]) -> str:
    if not found:
        return "No call has given a result yet."
    rows = [("CALL", "TOOL", "BYTES", "")]
    for each in found:
        notes = [*(["failed"] if each.failed else []), *(["cut for the model"] if each.cut else [])]
        rows.append((one_line(each.call), one_line(each.tool), str(each.bytes), ", ".join(notes)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{call:<{widths[0]}}  {tool:<{widths[1]}}  {size:>{widths[2]}}  {notes}".rstrip()
        for call, tool, size, notes in rows
    )
