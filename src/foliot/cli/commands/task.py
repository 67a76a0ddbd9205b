"""`foliot task`: work that was asked for. List it, look at it, end it, try it again."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from foliot.cli.commands.run import folders_of
from foliot.cli.commands.wait import moment_option, parse_seconds
from foliot.cli.errors import say, tell, warn
from foliot.cli.invocation import is_terminal
from foliot.cli.manifests import files_option
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, whoami
from foliot.cli.show.output import as_json, as_list, as_yaml, json_option, output_option
from foliot.cli.show.tables import since, table
from foliot.cli.show.trace import WIDTH, TraceNode, tree_of
from foliot.cli.show.trace import as_data as trace_data
from foliot.cli.terminal import out, paint
from foliot.cli.watch.questions import stays, wait_option
from foliot.cli.watch.run import leave
from foliot.cli.watch.task import choose_task_view, finish_task, follow
from foliot.cli.watch.task_target import (
    EXAMPLE,
    TaskArguments,
    choose_name,
    find_task,
    parse_pairs,
    parse_policy,
    task_argument,
    understand,
)
from foliot.cli.work_target import parse_words
from foliot.common.durations import duration
from foliot.common.suggestions import read_phases
from foliot.common.text import counted, lines_of, one_line, visible, visible_json
from foliot.engine.explain.amounts import money
from foliot.engine.explain.trace import trace_of
from foliot.errors import FoliotError, InvalidInput, Unavailable, UsageError
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES
from foliot.kernel.identity import acting
from foliot.resources.wording import as_written
from foliot.runtime.groups.groups import Groups
from foliot.store.base import Document
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import PRIORITIES, Accepted, TaskInfo
from foliot.work.views import drawing
from foliot.work.views.document import outline, shown_phase, task_document
from foliot.work.views.drawing import tree
from foliot.work.views.events import Batch, Happening, TaskHappening, as_data, log_line
from foliot.work.views.messages import message_records
from foliot.work.views.story import MessageStory, TaskStory, nodes_of
from foliot.work.views.why import cost_of

# --- task run --------------------------------------------------------------------------------------------------------

# `foliot task run` and `foliot task wait`: have work done, and stay until it is.


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How it is to be shown and done."""

    detach: bool
    here: bool | None
    as_json: bool
    quiet: bool
    stays: bool


@click.command(name="run")
@click.argument("words", nargs=-1, metavar="TARGET [MESSAGE]")
@files_option(required=False)
@click.option("-i", "--input", "inputs", multiple=True, metavar="KEY=VALUE", help="What every agent is given.")
@click.option("--name", default="", metavar="NAME", help="Name of the task.  [default: made up]")
@click.option("--key", default="", metavar="KEY", help="Asking again with the same key finds the same task.")
@click.option("--priority", type=click.Choice(list(PRIORITIES)), metavar="WORD", help="low, normal, high or critical.")
@click.option("--lane", metavar="LANE", help="A line of its own, for limits and fairness.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the task and its runs.")
@click.option(
    "--max-turns", type=click.IntRange(min=1), metavar="N", help="The longest chain of messages between agents."
)
@click.option("--timeout", metavar="TIME", help="Cancel it after this long (30s, 5m, 1h).")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A field of the execution policy, such as network_enabled=false; it only narrows what is declared.",
)
@click.option("-d", "--detach", is_flag=True, help="Only submit it, and print its name.")
@click.option("--here/--no-here", default=None, help="Do its work in this process.  [default: when no worker is alive]")
@json_option("text, or json: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@wait_option()
def task_run(
    words: tuple[str, ...],
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    name: str,
    key: str,
    detach: bool,
    here: bool | None,
    as_json: bool,
    quiet: bool,
    wait: bool | None,
    labels: tuple[str, ...],
    timeout: str | None,
    policies: tuple[str, ...],
    **options: Any,
) -> int:
    """Run a task of a system or an agent, and watch its graph fill in.

    TARGET is NAME or NAMESPACE/NAME of a declared system, agent or Task (system/NAME, agent/NAME and task/NAME tell
    them apart), or a manifest or folder of them, which is applied first: a path that begins with `.`, `/` or `~`, or
    ends in `.yaml`, `.yml` or `.json`. Any other path follows -f. MESSAGE is what the first agents are told; without
    it, the input `topic` is.

    \b
    foliot task run report "Three lines on clocks"
    foliot task run -f my-team                        a folder, such as `foliot init` writes
    foliot task run report -i topic=clocks -i tone=dry --detach
    foliot task run report "…" > result.txt           progress on stderr, the result on stdout

    The work is done by whatever workers there are (`foliot worker`); when none is alive that could, by this process.
    Ctrl-C cancels the task; a second one does not wait for its end.

    Exit code: 0 succeeded, 1 failed or dead-lettered, 8 waits for a person, 130 cancelled or Ctrl-C.
    """
    changes = {field: value for field, value in options.items() if value is not None}
    if timeout is not None:
        changes["timeout"] = parse_seconds(timeout)
    if key:
        changes["idempotency_key"] = key
    if policies:
        changes["execution_policy"] = parse_policy(policies)
    if not files and not words:
        raise UsageError("What should be done, and by whom? There is no TARGET.", hint=EXAMPLE)
    read = parse_words(words, files, example=EXAMPLE)
    pairs = parse_pairs(inputs, "input"), parse_pairs(labels, "label")
    order = TaskArguments(read.files, read.target, read.text or "", name, *pairs, changes)
    return run(_run(order, TaskOptions(detach, here, as_json, quiet, stays(wait))))


async def _run(order: TaskArguments, manner: TaskOptions) -> int:
    async with reached(*folders_of(order.files)) as client:
        command, declared = await understand(client, order, quiet=manner.quiet or manner.as_json)
        identity = acting("", whoami(), "cli").also_ordered_by(*command.identity.ordered_by)
        command = replace(await choose_name(client, command, declared, order), by=whoami(), identity=identity)
        try:
            accepted = await client.tasks.submit(command)
        except FoliotError as error:
            if error.message == "message is required":
                raise UsageError("What should be done? There is no message.", hint=EXAMPLE) from None
            raise
        if manner.detach:
            return _detached(accepted, as_json_=manner.as_json)
        if accepted.duplicate and not manner.quiet:
            warn(f"Task {accepted.task.name} was there already ({accepted.task.phase}).")
        view = choose_task_view(json=manner.as_json, quiet=manner.quiet)
        followed = await follow(client, view, accepted.task, here=manner.here, stays=manner.stays)
        code = await finish_task(client, view, accepted.task, followed)
    return leave(code)


def _detached(accepted: Accepted, *, as_json_: bool) -> int:
    if as_json_:
        out(as_json({**as_written(outline(accepted.task)), "duplicate": accepted.duplicate}))
    else:
        again = " (it was there already)" if accepted.duplicate else ""
        out(accepted.task.name)
        out(f"Accepted{again}. `foliot task wait {accepted.task.name}` follows it.", err=True)
    return 0


@click.command(name="wait")
@task_argument(required=False)
@click.option("--timeout", metavar="TIME", help="Give up waiting after this long (30s, 5m, 1h).")
@click.option("--here/--no-here", default=False, help="Also do its work in this process.")
@json_option("text, or json: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@wait_option()
def task_wait(name: str | None, timeout: str | None, here: bool, as_json: bool, quiet: bool, wait: bool | None) -> int:
    """Follow a task until it ends, and print its result. Ctrl-C cancels it; a second one does not wait.

    Exit code: as `foliot task run`; 7 when the time is over.
    """
    seconds = None if timeout is None else parse_seconds(timeout)
    return run(_wait(name, seconds, TaskOptions(False, here, as_json, quiet, stays(wait))))


async def _wait(name: str | None, seconds: float | None, manner: TaskOptions) -> int:
    view = choose_task_view(json=manner.as_json, quiet=manner.quiet)
    async with reached() as client:
        task = await find_task(client, name)
        try:
            async with asyncio.timeout(None if task.phase in ENDED else seconds):
                followed = await follow(client, view, task, here=manner.here, stays=manner.stays)
        except TimeoutError:
            phase = (await client.tasks.get(task.name, namespace=task.namespace)).phase
            raise Unavailable(
                f"Task {task.name} is still {phase} after {seconds:g} seconds.", hint=f"foliot why {task.name}"
            ) from None
        code = await finish_task(client, view, task, followed)
    return leave(code)


# --- task views ------------------------------------------------------------------------------------------------------

# `foliot task logs|events|messages|trace|graph`: looking at a task from all sides.

LOOK_EVERY = 1.0


@click.command(name="logs")
@task_argument(required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--cursor", metavar="CURSOR", help="Where an earlier look ended (--show-cursor).")
@click.option("--show-cursor", is_flag=True, help="Say on stderr where to go on.")
def task_logs(name: str | None, follow: bool, cursor: str | None, show_cursor: bool) -> int:
    """Show the events of all runs of the task, one line each, in order of time."""
    return run(_logs(name, follow, cursor, show_cursor))


async def _logs(name: str | None, follow: bool, cursor: str | None, show_cursor: bool) -> int:
    async with reached() as client:
        task = await find_task(client, name)
        place = cursor
        async for batch in _batches(client, task, cursor, follow=follow):
            place = batch.cursor
            for happening in batch.events:
                if (line := log_line(happening)) is not None:
                    out(visible(line))
    if show_cursor and place:
        out(f"--cursor {place}", err=True)
    return 0


async def _batches(work: Groups, task: TaskInfo, cursor: str | None, *, follow: bool) -> AsyncIterator[Batch]:
    """Yields the existing events, and with `follow` new ones until the task has ended."""
    if not follow:
        yield await work.tasks.events(task.name, namespace=task.namespace, cursor=cursor)
        return
    async with aclosing(work.tasks.follow(task.name, namespace=task.namespace, cursor=cursor)) as batches:
        async for batch in batches:
            yield batch


@click.command(name="events")
@task_argument(required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")
def task_events(name: str | None, follow: bool, after: int, limit: int | None) -> int:
    """Print the events of the task itself as JSON lines: `{"seq", "at", "type", "data"}`. `seq` is where to go on."""
    return run(_events(name, follow, after, limit))


async def _events(name: str | None, follow: bool, after: int, limit: int | None) -> int:
    shown = 0
    async with reached() as client:
        work, cursor = client, None
        task = await find_task(client, name)
        while True:
            ended = (await work.tasks.get(task.name, namespace=task.namespace)).phase in ENDED
            records = await work.tasks.records(task.name, namespace=task.namespace, after=after)
            for record in records:
                if limit is not None and shown >= limit:
                    return 0
                line = as_data(task.id, TaskHappening(record.at, record.seq, record.event))
                out(visible_json(msgspec.json.encode(line).decode()))
                after, shown = record.seq, shown + 1
            if ended or not follow:
                return 0
            cursor = (await work.tasks.events(task.name, namespace=task.namespace, cursor=cursor)).cursor
            await work.tasks.changed(task.name, namespace=task.namespace, cursor=cursor, timeout=LOOK_EVERY)


@click.command(name="messages")
@task_argument(required=False)
@click.option("--audit", is_flag=True, help="As an auditor reads them: who did what to which message, and how it went.")
def task_messages(name: str | None, audit: bool) -> int:
    """Print what each message between the agents took, as JSON lines: started, retried, handed on, ended.

    Worked out from the journals of the task and its runs, so nothing of it can be lost.
    """
    return run(_messages(name, audit))


async def _messages(name: str | None, audit: bool) -> int:
    async with reached() as client:
        task = await find_task(client, name)
        happenings: list[Happening] = []
        cursor: str | None = None
        while (batch := await client.tasks.events(task.name, namespace=task.namespace, cursor=cursor)).events:
            happenings += batch.events
            cursor = batch.cursor
    for record in message_records(happenings):
        line = record.audit(task) if audit else record.metering(task)
        out(visible_json(msgspec.json.encode(line).decode()))
    return 0


@click.command(name="graph")
@task_argument(required=False)
@output_option("text", "mermaid", "dot", "json", default="text", help="text, mermaid, dot or json.")
def task_graph(name: str | None, output: str) -> int:
    """Show the graph of a task with the state of each agent."""
    return run(_graph(name, output))


async def _graph(name: str | None, output: str) -> int:
    async with reached() as client:
        task = await find_task(client, name)
        story = await client.tasks.story(task.name, namespace=task.namespace)
    now = time.time()
    nodes = nodes_of(story, now)
    match output:
        case "json":
            out(as_json({"task": task.id, "phase": task.phase, **drawing.as_data(story.plan, nodes)}))
        case "mermaid":
            out(drawing.mermaid(story.plan, nodes, now))
        case "dot":
            out(drawing.dot(story.plan, nodes, now))
        case _:
            out(f"{task.name}  {story.info.phase}")
            for line in drawing.tree(story.plan, nodes, now, width=_width()):
                out(visible(line))
    return 0


@click.command(name="trace")
@task_argument(required=False)
@output_option("text", "json", default="text", help="text, or json with nothing shortened.")
@click.option("--full", is_flag=True, help="Whole texts, not one line of each.")
def task_trace(name: str | None, output: str, full: bool) -> int:
    """Show all runs of a task as one tree: every message, step and call with its timing."""
    return run(_trace(name, output, full))


async def _trace(name: str | None, output: str, full: bool) -> int:
    async with reached() as client:
        return await print_trace(client, await find_task(client, name), output, full)


async def print_trace(client: Groups, task: TaskInfo, output: str, full: bool) -> int:
    """Prints the runs of a task as a tree of messages; returns the exit code."""
    story = await client.tasks.story(task.name, namespace=task.namespace, looks=False)
    nodes: dict[str, TraceNode] = {}
    data: list[dict[str, Any]] = []
    for each in story.messages.values():
        if each.run is None:
            continue
        found = trace_of(each.run.run_id, await client.runs.events(each.run.run_id))
        nodes[each.message.id] = tree_of(found, each.run.phase, full=full, width=_width())
        message = {"id": each.message.id, "from": each.message.sender, "to": each.message.to}
        queued = _queued(each, found.steps)
        data.append({"message": message, "queued_seconds": queued, **trace_data(found, each.run.phase)})
    if output == "json":
        out(as_json({"task": task.id, "phase": story.info.phase, "runs": data}))
        return 0
    for line in _forest(story, nodes).lines():
        out(line)
    return 0


def _queued(each: MessageStory, steps: list[Any]) -> float | None:
    """From the sending of a message to the first step of its run."""
    return round(max(0.0, steps[0].at - each.sent_at), 6) if steps else None


def _forest(story: TaskStory, nodes: dict[str, TraceNode]) -> TraceNode:
    """The runs in the order in which their messages were sent; who came before whom is said at each."""
    now = time.time()
    took = duration(max(0.0, (story.info.ended_at or now) - story.info.created_at))
    head = paint(f"{story.info.phase} · {counted(len(nodes), 'run')} · {took}", dim=True)
    root = TraceNode(f"{paint(story.info.target, bold=True)}  {story.info.name}  {head}")
    for identity, node in nodes.items():
        each = story.messages[identity]
        senders = ", ".join(source.agent for source in each.message.sources) or each.message.sender
        sent = duration(max(0.0, each.sent_at - story.info.created_at))
        node.label = f"{paint(f'{senders} →', dim=True)} {node.label} {paint(f'+{sent}', dim=True)}"
        root.children.append(node)
    if story.output:
        root.children.append(TraceNode(paint("✓ succeeded", fg="green")))
    elif (error := story.info.summary.get("error")) is not None:
        root.children.append(TraceNode(f"{paint('✗', fg='red')} {story.info.phase}: {visible(str(error))}"))
    return root


def _width() -> int:
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else WIDTH


# --- task ------------------------------------------------------------------------------------------------------------


@click.group()
def task() -> None:
    """Run, follow, cancel and retry tasks: work for systems of agents.

    TASK is a name, or as much of its beginning or end as is unique. `foliot why TASK` says why one is where it is.
    """


@task.command(name="list")
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE", help=f"Only in: {', '.join(API_PHASES.values())}.")
@click.option("--target", metavar="NAME", help="Only of this system or agent.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only with this label.")
@click.option("--lane", metavar="LANE", help="Only of this lane.")
@moment_option("--since", help="Only those accepted from then on: 30m or 2h ago, 2026-01-31, or a full time.")
@moment_option("--until", help="Only those accepted until then.")
@click.option("--archived", is_flag=True, help="Archived ones as well.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, metavar="N", help="At most N.")
@click.option("--continue", "cursor", metavar="CURSOR", help="Where the page before ended.")
def task_list(output: str, all_namespaces: bool, phases: tuple[str, ...], **rest: Any) -> int:
    """List tasks, newest first."""
    named = read_phases(",".join(phases), TASK_PHASES, API_PHASES)
    return run(_list(output, None if all_namespaces else namespace(), named, **rest))


async def _list(
    output: str,
    space: str | None,
    phases: tuple[str, ...],
    *,
    target: str | None,
    labels: tuple[str, ...],
    lane: str | None,
    since: float | None,
    until: float | None,
    archived: bool,
    limit: int,
    cursor: str | None,
) -> int:
    async with reached() as client:
        found, more = await client.tasks.list(
            namespace=space,
            target=target,
            phases=phases,
            labels=parse_pairs(labels, "label"),
            lane=lane,
            created_after=since,
            created_before=until,
            archived=archived,
            limit=limit,
            cursor=cursor,
        )
    match output:
        case "name":
            out("\n".join(info.name for info in found), nl=bool(found))
        case "json":
            out(as_json({**as_list([as_written(outline(info)) for info in found]), "continue": more}))
        case "yaml":
            out(as_yaml([as_written(outline(info)) for info in found]))
        case _ if found:
            out(_table(found, wide=output == "wide", namespaced=space is None))
        case _:
            where = "any namespace" if space is None else f"namespace {space}"
            out(f"No tasks found in {where}.", err=True)
    if more and output in ("table", "wide"):
        say("more", f"--continue {more}", fg="cyan")
    return 0


def _table(found: Sequence[TaskInfo], *, wide: bool, namespaced: bool) -> str:
    headings = [*(["NAMESPACE"] if namespaced else []), "TASK", "TARGET", "PHASE", "ATTEMPT", "TOKENS", "TOOK", "AGE"]
    headings += ["PRIORITY", "LANE", "COST", "LABELS", "LAST"] if wide else ["LAST"]
    now = datetime.now(UTC)
    return table(headings, [_row(info, now, wide=wide, namespaced=namespaced) for info in found])


def _row(info: TaskInfo, now: datetime, *, wide: bool, namespaced: bool) -> list[str]:
    document, summary = outline(info), info.summary
    end = info.ended_at if info.ended_at is not None else now.timestamp()
    tokens = summary.get("tokens")
    cells = [
        info.name,
        one_line(info.target, 40),
        shown_phase(info),
        str(info.attempt),
        f"{tokens:,}" if tokens else "-",
        duration(max(0.0, end - info.created_at)),
        since(document["metadata"]["createdAt"], now=now),
    ]
    if wide:
        labels = ",".join(f"{key}={value}" for key, value in info.labels.items())
        cost = summary.get("cost_usd")
        cells += [document["spec"]["priority"], info.lane or "-", money(cost) if cost else "-", labels or "-"]
    cells.append(_last(info, 200 if wide else 48) or "-")
    return [info.namespace, *cells] if namespaced else cells


def _last(info: TaskInfo, longest: int) -> str:
    """Returns the last column of a task: what it waits for, why it failed, or its result."""
    summary = info.summary
    if waiting := summary.get("waiting"):
        return f"waits: {waiting.get('reason', '')} ({waiting.get('owner', '')})"
    return one_line(str(summary.get("error") or summary.get("output") or summary.get("reason") or ""), longest)


@task.command(name="show")
@task_argument(required=False)
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def task_show(name: str | None, output: str) -> int:
    """Show one task: its order, graph, messages and state. The newest when none is named."""
    return run(_show(name, output))


async def _show(name: str | None, output: str) -> int:
    async with reached() as client:
        info = await find_task(client, name)
        story = await client.tasks.story(info.name, namespace=info.namespace)
    document = task_document(story)
    if output == "json":
        out(as_json(as_written(document)))
    elif output == "yaml":
        out(as_yaml([as_written(document)]))
    else:
        out(_text(story, document))
    return 0


def _text(story: TaskStory, document: Document) -> str:
    info, status, now = story.info, document["status"], time.time()
    facts = {
        "Phase": status["phase"] + (" (archived)" if info.archived_at is not None else ""),
        "Target": f"{info.target_kind} {info.target}",
        "Attempt": str(info.attempt),
        "Priority": document["spec"]["priority"] + (f", lane {info.lane}" if info.lane else ""),
        "Accepted": status["history"][0]["timestamp"] if status["history"] else "-",
        "Took": duration(max(0.0, (info.ended_at or now) - info.created_at)),
        "Used": "".join(cost_of(story)),
        "Error": status.get("lastError", ""),
    }
    lines = [paint(info.name, bold=True)]
    lines += [f"  {name + ':':<10} {one_line(text, 200)}" for name, text in facts.items() if text]
    lines += ["", paint("Graph", bold=True)]
    lines += [f"  {line}" for line in tree(story.plan, nodes_of(story, now), now)]
    rows = [
        [
            message["from_agent"],
            message["to_agent"],
            message["phase"],
            str(message["attempts"] or "-"),
            message.get("run", "-"),
            one_line(message["last_error"] or message["content"], 60),
        ]
        for message in status["messages"]
    ]
    if rows:
        lines += ["", paint("Messages", bold=True)]
        lines += [f"  {line}" for line in table(["FROM", "TO", "PHASE", "TRIES", "RUN", "WHAT"], rows).splitlines()]
    if story.output:
        lines += ["", paint("Result", bold=True), *(f"  {line}" for line in lines_of(story.output))]
    elif story.state.ended is None:
        lines += ["", f"`foliot why {info.name}` says what it waits for."]
    return "\n".join(lines)


# --- changing ----------------------------------------------------------------------------------------------------


async def _each(names: Sequence[str], verb: str, done: str, **options: Any) -> int:
    """Do it to each by itself: one that cannot does not keep the others."""
    code = 0
    async with reached() as client:
        for word in names:
            try:
                info = await find_task(client, word)
                after = await getattr(client.tasks, verb)(info.name, namespace=info.namespace, **options)
            except FoliotError as error:
                code = tell(error)
                continue
            state = f" ({after.phase})" if isinstance(after, TaskInfo) else ""
            out(f"task/{info.name} {done}{state}")
    return code


@task.command(name="cancel")
@click.argument("names", metavar="TASK…", nargs=-1, required=True)
@click.option("--reason", default="", metavar="TEXT", help="Kept with the task.")
def task_cancel(names: tuple[str, ...], reason: str) -> int:
    """End tasks: what runs is interrupted, what waits is dropped, child tasks end too."""
    return run(_each(names, "cancel", "is told to stop", by=whoami(), reason=reason))


@task.command(name="archive")
@click.argument("names", metavar="TASK…", nargs=-1, required=True)
def task_archive(names: tuple[str, ...]) -> int:
    """Hide tasks from lists. A live one is cancelled first."""
    return run(_each(names, "archive", "archived", by=whoami()))


@task.command(name="delete")
@click.argument("names", metavar="TASK…", nargs=-1, required=True)
def task_delete(names: tuple[str, ...]) -> int:
    """Forget ended tasks with their events. Their runs stay until `foliot purge`."""
    return run(_each(names, "delete", "deleted"))


async def _again(words: Sequence[str], edits: dict[str, str]) -> int:
    if edits and len(words) > 1:
        raise UsageError("--edit changes a message of one task.", hint="Retry the others by themselves.")
    payloads: dict[str, str] | None = None
    if edits:
        async with reached() as client:
            info = await find_task(client, words[0])
            story = await client.tasks.story(info.name, namespace=info.namespace, looks=False)
        payloads = {_lost(story, word): text for word, text in edits.items()}
    return await _each(words, "retry", "retried", by=whoami(), payloads=payloads)


def _lost(story: TaskStory, word: str) -> str:
    """The failed message that is meant: by its id, the end of it, or the agent it was for. Raises `InvalidInput`."""
    lost = story.state.lost
    found = [
        identity
        for identity, each in lost.items()
        if identity == word or identity.endswith(word) or each.message.to == word
    ]
    if len(found) != 1:
        listed = "\n".join(f"{identity}  ({each.message.to})" for identity, each in lost.items()) or "none"
        what = "several messages" if found else "no failed message"
        raise InvalidInput(f"{what} of task {story.info.name} can be meant by {word!r}.", hint=f"Failed:\n{listed}")
    return found[0]


@task.command(name="requeue", hidden=True)  # what `retry` was called
@click.argument("names", metavar="TASK…", nargs=-1, required=True)
def task_requeue(names: tuple[str, ...]) -> int:
    """Retry tasks that failed: a new attempt that continues after what had succeeded."""
    return run(_again(names, {}))


@task.command(name="retry")
@click.argument("names", metavar="TASK…", nargs=-1, required=True)
@click.option(
    "--edit",
    "edits",
    multiple=True,
    metavar="MESSAGE=TEXT",
    help="Send a failed message with this text instead. MESSAGE is its id, or the agent it is for.",
)
def task_retry(names: tuple[str, ...], edits: tuple[str, ...]) -> int:
    """Retry tasks that failed: a new attempt that continues after what had succeeded.

    Failed messages can be changed first.

    \b
    foliot task retry report-7 --edit researcher="Look in the archive instead"
    """
    changed: dict[str, str] = {}
    for edit in edits:
        key, equals, text = edit.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{edit[:80]!r} is not MESSAGE=TEXT.", hint='Such as `--edit researcher="Try this"`.')
        changed[key.strip()] = text
    return run(_again(names, changed))


@task.command(name="dead-letters")
@output_option("text", "json", default="text", help="text or json.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, metavar="N", help="At most N.")
def task_dead_letters(output: str, all_namespaces: bool, limit: int) -> int:
    """List tasks that were given up: which message, why, and how to retry."""
    return run(_dead_letters(output, None if all_namespaces else namespace(), limit))


async def _dead_letters(output: str, space: str | None, limit: int) -> int:
    letters: list[dict[str, Any]] = []
    async with reached() as client:
        found, _ = await client.tasks.list(namespace=space, phases=("dead_lettered",), limit=limit)
        for info in found:
            story = await client.tasks.story(info.name, namespace=info.namespace, looks=False)
            letters.append({"task": info.name, "namespace": info.namespace, "messages": _letters(story)})
    if output == "json":
        out(as_json(letters))
        return 0
    if not letters:
        out("Nothing was dead-lettered.", err=True)
    for letter in letters:
        out(paint(letter["task"], bold=True))
        for message in letter["messages"]:
            out(f"  {message['to']}  {message['id']}  {message['attempts']} attempts")
            out(f"    error: {one_line(message['error'], 200)}")
            out(f"    said:  {one_line(message['payload'], 200)}")
        where = "" if letter["namespace"] == "default" else f" -n {letter['namespace']}"
        again = f"foliot task retry {letter['task']}{where}"
        out(f"  {paint(again, fg='cyan')}")
    return 0


def _letters(story: TaskStory) -> list[dict[str, Any]]:
    return [
        {
            "id": identity,
            "to": lost.message.to,
            "payload": lost.message.payload,
            "error": lost.error,
            "attempts": story.messages[identity].attempts if identity in story.messages else 0,
        }
        for identity, lost in story.state.lost.items()
        if not lost.tolerated
    ]


for _command in (task_run, task_wait, task_logs, task_trace, task_graph, task_events, task_messages):
    task.add_command(_command)
