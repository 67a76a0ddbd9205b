"""`foliot task`: work that was asked for. List it, look at it, end it, try it again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from foliot.cli.commands.task_run import task_run, task_wait
from foliot.cli.commands.task_views import task_events, task_graph, task_logs, task_messages, task_trace
from foliot.cli.commands.wait import parse_seconds
from foliot.cli.errors import say, tell
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, whoami
from foliot.cli.show.output import as_json, as_list, as_yaml, output_option
from foliot.cli.show.tables import since, table
from foliot.cli.terminal import out, paint
from foliot.cli.watch.task_target import find_task, parse_pairs, task_argument
from foliot.common.text import lines_of, one_line
from foliot.engine.explain.amounts import duration, money
from foliot.errors import FoliotError, InvalidInput, UsageError
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES
from foliot.store.base import Document
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.document import outline, task_document
from foliot.work.views.drawing import tree
from foliot.work.views.story import TaskStory, nodes_of

_WORDS = {word.lower(): phase for phase, word in API_PHASES.items()}


@click.group()
def task() -> None:
    """Work that was asked for: have it done, follow it, end it, try it again.

    TASK is a name, or as much of its beginning or end as is unique. `foliot why TASK` says why one is where it is.
    """


def _phases(words: Sequence[str]) -> tuple[str, ...]:
    """`dead_lettered`, `dead-lettered` and `DeadLetter` mean the same. Raises `UsageError`."""
    found: list[str] = []
    for word in ",".join(words).split(","):
        plain = word.strip().lower().replace("-", "_")
        if not plain:
            continue
        phase = plain if plain in TASK_PHASES else _WORDS.get(plain.replace("_", ""))
        if phase is None:
            raise UsageError(f"There is no phase {word!r}.", hint=f"The phases are {', '.join(TASK_PHASES)}.")
        found.append(phase)
    return tuple(found)


@task.command(name="list")
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE", help=f"Only in: {', '.join(TASK_PHASES)}.")
@click.option("--target", metavar="NAME", help="Only of this system or agent.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only with this label.")
@click.option("--lane", metavar="LANE", help="Only of this lane.")
@click.option("--since", "age", metavar="TIME", help="Only those accepted in the last 30s, 5m, 1h, …")
@click.option("--archived", is_flag=True, help="Archived ones as well.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, metavar="N", help="At most N.")
@click.option("--continue", "cursor", metavar="CURSOR", help="Where the page before ended.")
def task_list(output: str, all_namespaces: bool, phases: tuple[str, ...], **rest: Any) -> int:
    """List tasks, newest first."""
    return run(_list(output, None if all_namespaces else namespace(), _phases(phases), **rest))


async def _list(
    output: str,
    space: str | None,
    phases: tuple[str, ...],
    *,
    target: str | None,
    labels: tuple[str, ...],
    lane: str | None,
    age: str | None,
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
            created_after=None if age is None else time.time() - parse_seconds(age),
            archived=archived,
            limit=limit,
            cursor=cursor,
        )
    match output:
        case "name":
            out("\n".join(info.name for info in found), nl=bool(found))
        case "json":
            out(as_json({**as_list([outline(info) for info in found]), "continue": more}))
        case "yaml":
            out(as_yaml([outline(info) for info in found]))
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
        API_PHASES[info.phase],  # type: ignore[index]  # the store holds no other
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
    if info.phase == "waiting":
        waiting: dict[str, Any] = summary.get("waiting") or {}
        return f"waits: {waiting.get('reason', '')} ({waiting.get('owner', '')})"
    return one_line(str(summary.get("error") or summary.get("output") or summary.get("reason") or ""), longest)


@task.command(name="show")
@task_argument(required=False)
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def task_show(name: str | None, output: str) -> int:
    """One task: what was asked for, its graph, its messages, how it stands. The newest when none is named."""
    return run(_show(name, output))


async def _show(name: str | None, output: str) -> int:
    async with reached() as client:
        info = await find_task(client, name)
        story = await client.tasks.story(info.name, namespace=info.namespace)
    document = task_document(story)
    if output == "json":
        out(as_json(document))
    elif output == "yaml":
        out(as_yaml([document]))
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
        raise UsageError("--edit changes a message of one task.", hint="Requeue the others by themselves.")
    payloads: dict[str, str] | None = None
    if edits:
        async with reached() as client:
            info = await find_task(client, words[0])
            story = await client.tasks.story(info.name, namespace=info.namespace, looks=False)
        payloads = {_lost(story, word): text for word, text in edits.items()}
    return await _each(words, "retry", "requeued", by=whoami(), payloads=payloads)


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
    """Try tasks again that ended badly: a new attempt that goes on behind what had succeeded."""
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
    """Try tasks again that ended badly: a new attempt that goes on behind what had succeeded.

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
    """Tasks that were given up: which message, why, and how to try again."""
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
