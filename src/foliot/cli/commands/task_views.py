"""`foliot task logs|events|messages|trace|graph`: looking at a task from all sides."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import click
import msgspec

from foliot.cli.invocation import is_terminal
from foliot.cli.reach import run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.trace import WIDTH, Node, tree_of
from foliot.cli.show.trace import as_data as trace_data
from foliot.cli.terminal import out, paint
from foliot.cli.watch.task_target import find_task, task_argument
from foliot.common.text import visible, visible_json
from foliot.engine.explain.amounts import counted, duration
from foliot.engine.explain.trace import trace_of
from foliot.runtime.groups.groups import Groups
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskInfo
from foliot.work.views import drawing
from foliot.work.views.events import Batch, Happening, TaskHappening, as_data, log_line
from foliot.work.views.messages import message_records
from foliot.work.views.story import MessageStory, TaskStory, nodes_of

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
            for happening in batch.happenings:
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
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only behind event N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")
def task_events(name: str | None, follow: bool, after: int, limit: int | None) -> int:
    """The facts of the task itself as JSON lines: `{"seq", "at", "type", "data"}`. `seq` is where to go on."""
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
        while (batch := await client.tasks.events(task.name, namespace=task.namespace, cursor=cursor)).happenings:
            happenings += batch.happenings
            cursor = batch.cursor
    for record in message_records(happenings):
        line = record.audit(task) if audit else record.metering(task)
        out(visible_json(msgspec.json.encode(line).decode()))
    return 0


@click.command(name="graph")
@task_argument(required=False)
@output_option("text", "mermaid", "dot", "json", default="text", help="text, mermaid, dot or json.")
def task_graph(name: str | None, output: str) -> int:
    """The graph of a task with how each agent stands."""
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
    """All runs of a task as one tree: who handed what to whom, every step and call with its timing."""
    return run(_trace(name, output, full))


async def _trace(name: str | None, output: str, full: bool) -> int:
    async with reached() as client:
        task = await find_task(client, name)
        story = await client.tasks.story(task.name, namespace=task.namespace, looks=False)
        nodes: dict[str, Node] = {}
        data: list[dict[str, Any]] = []
        for each in story.messages.values():
            if each.run is None:
                continue
            found = trace_of(each.run.run_id, await client.runs.events(each.run.run_id))
            nodes[each.message.id] = tree_of(found, each.run.phase, full=full, width=_width())
            message = {"id": each.message.id, "from": each.message.sender, "to": each.message.to}
            data.append(
                {"message": message, "queued_seconds": _queued(each, found.steps), **trace_data(found, each.run.phase)}
            )
    if output == "json":
        out(as_json({"task": task.id, "phase": story.info.phase, "runs": data}))
        return 0
    for line in _forest(story, nodes).lines():
        out(line)
    return 0


def _queued(each: MessageStory, steps: list[Any]) -> float | None:
    """From the sending of a message to the first step of its run."""
    return round(max(0.0, steps[0].at - each.sent_at), 6) if steps else None


def _forest(story: TaskStory, nodes: dict[str, Node]) -> Node:
    """The runs in the order in which their messages were sent; who came before whom is said at each."""
    now = time.time()
    took = duration(max(0.0, (story.info.ended_at or now) - story.info.created_at))
    head = paint(f"{story.info.phase} · {counted(len(nodes), 'run')} · {took}", dim=True)
    root = Node(f"{paint(story.info.target, bold=True)}  {story.info.name}  {head}")
    for identity, node in nodes.items():
        each = story.messages[identity]
        senders = ", ".join(source.agent for source in each.message.sources) or each.message.sender
        sent = duration(max(0.0, each.sent_at - story.info.created_at))
        node.label = f"{paint(f'{senders} →', dim=True)} {node.label} {paint(f'+{sent}', dim=True)}"
        root.children.append(node)
    if story.output:
        root.children.append(Node(paint("✓ succeeded", fg="green")))
    elif (error := story.info.summary.get("error")) is not None:
        root.children.append(Node(f"{paint('✗', fg='red')} {story.info.phase}: {visible(str(error))}"))
    return root


def _width() -> int:
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else WIDTH
