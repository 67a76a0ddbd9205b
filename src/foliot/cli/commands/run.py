"""`foliot run`: run an agent and watch it work."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click

from foliot.cli.errors import warn
from foliot.cli.manifests import files_option, load, located
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import json_option
from foliot.cli.show.run import Opening
from foliot.cli.terminal import out, paint
from foliot.cli.watch.questions import can_ask, stays, wait_option
from foliot.cli.watch.run import Client, WatchOptions, going_on, leave, stay
from foliot.cli.work_target import WorkTarget, find_declared_beside, parse_name, parse_words
from foliot.common.text import counted
from foliot.engine.definition.run_options import EVERY_TOOL, UNCHANGED, RunOptions, read_schema
from foliot.engine.driver.ids import check_run_id
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound, UsageError
from foliot.kernel.identity import is_name
from foliot.kernel.run.events import RunCreated
from foliot.resources.reader import Loaded
from foliot.runtime.groups.groups import Groups, StoreGroups
from foliot.runtime.outcomes import Applied

EXAMPLE: Final = 'For example `foliot run writer "Three lines on clocks"`.'


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The run to start: `files` are applied first; `agent` may then be left out if they declare only one."""

    files: tuple[str, ...]
    agent: WorkTarget | None
    input: str | None


@click.command(name="run")
@click.argument("words", nargs=-1, metavar="AGENT|PATH INPUT")
@files_option(required=False)
@click.option("--agent", metavar="NAME", help="Which agent, when the manifests declare several.")
@click.option("--id", "run_id", metavar="ID", help="The id of the run. If there is a run of this id, it goes on.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the run. Can be repeated.")
@click.option("--user", default="", metavar="NAME", help="Who it is run for: a budget can limit each user.")
@click.option(
    "--schema",
    metavar="FILE",
    help="Ask once, without tools, for an answer that is JSON of this JSON Schema.",
)
@json_option("text, or json: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
@wait_option()
def run_command(
    words: tuple[str, ...],
    files: tuple[str, ...],
    agent: str | None,
    run_id: str | None,
    labels: tuple[str, ...],
    user: str,
    schema: str | None,
    as_json: bool,
    quiet: bool,
    wait: bool | None,
) -> int:
    """Run an agent and watch it work. INPUT is what it is told; - reads it from standard input.

    AGENT is NAME or NAMESPACE/NAME of a declared agent. PATH is a manifest or a folder of them: it begins with `.`, `/`
    or `~`, or ends in `.yaml`, `.yml` or `.json`. Any other path follows -f.

    \b
    foliot run writer "Three lines on clocks"
    foliot run team.yaml --agent editor - < draft.txt
    foliot run -f examples/first-run "Order A-1007 arrived broken"
    git diff | foliot run reviewer -
    foliot run writer "Which cities?" --schema cities.json      one question, an answer in JSON
    foliot run writer "…" > answer.txt     progress on stderr, the answer on stdout

    Manifests are applied first, as by `foliot apply`. Tools of type `function` are imported from the current
    folder too, and from that of the manifests. Ctrl-C cancels the run; a second one does not wait for its end.
    With --server the run is driven there, tools included, and goes on when you leave.
    A run that needs an approval or asks a question waits here (--wait), or the command ends with code 8 and the run
    is resumed after the decision: `foliot approvals --help`, `foliot answer --help`. On a terminal you can answer here.

    Exit code: 0 succeeded, 1 failed, 8 waits for a person or a budget, 130 Ctrl-C.
    """
    order = _understand(words, files, agent)
    if run_id is not None:
        try:
            check_run_id(run_id)
        except InvalidInput as error:
            raise UsageError(error.message, hint=error.hint) from None
    elif order.input is None:
        raise _no_input()
    if user and not is_name(user):
        raise UsageError("--user is one line of printable characters, at most 253")
    options = UNCHANGED if schema is None else _one_shot(schema)
    return run(_run(order, run_id, parse_labels(labels), user, options, as_json=as_json, quiet=quiet, wait=stays(wait)))


# --- what was typed ----------------------------------------------------------------------------------------------


def _one_shot(path: str) -> RunOptions:
    """The options of a prompt whose answer has the schema in a file. Raises `UsageError`, `InvalidInput`."""
    try:
        with open(path, "rb") as file:
            schema = read_schema(file.read())
    except OSError as error:
        raise UsageError(f"--schema {path}: {(error.strerror or str(error)).lower()}") from None
    return RunOptions((EVERY_TOOL,), output_schema=schema)


def _understand(words: Sequence[str], files: tuple[str, ...], agent: str | None) -> RunArguments:
    if not files and not words and agent is None:
        raise UsageError("`foliot run` needs to know which agent, or which manifest.", hint=EXAMPLE)
    named = None if agent is None else parse_name(agent, example=EXAMPLE)
    read = parse_words(words, files, named=named, example=EXAMPLE)
    return RunArguments(read.files, read.target, _input(read.text, taken="-" in read.files))


def _input(word: str | None, *, taken: bool) -> str | None:
    """The text that was typed or piped; None when there is none, which is right for a run that exists already."""
    piped = not taken and not sys.stdin.isatty()
    if word == "-":
        if taken:
            raise UsageError("Standard input cannot be both the manifest and the input.")
        word = read_stdin()
    elif word is None and piped:
        word = read_stdin() or None
    if word is not None and not word.strip():
        raise UsageError("The input is empty: there is nothing to do.", hint=EXAMPLE)
    return word


def _no_input() -> UsageError:
    return UsageError("What should the agent do? There is no input.", hint=EXAMPLE)


def read_stdin() -> str:
    """Returns the text of standard input. Raises `InvalidInput` when it is none."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The input is not UTF-8 text (byte {error.start}).") from None


def parse_labels(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` pairs. Raises `UsageError`."""
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or key.endswith("!") or value.startswith("="):
            raise UsageError(f"{pair!r} is not a label.", hint="Write KEY=VALUE, such as `--label team=docs`.")
        labels[key.strip()] = value.strip()
    return labels


# --- doing it ----------------------------------------------------------------------------------------------------


async def _run(
    order: RunArguments,
    run_id: str | None,
    labels: dict[str, str],
    user: str,
    options: RunOptions,
    *,
    as_json: bool,
    quiet: bool,
    wait: bool,
) -> int:
    loaded = load(order.files) if order.files else []
    space, name = agent_of(order, loaded)  # a mistake in what was typed is told before anything is opened or stored
    look = WatchOptions(as_json=as_json, quiet=quiet, wait=wait, ask_here=wait and not as_json and can_ask())
    async with reached(*folders_of(order.files)) as client:
        if order.agent is not None and ("Agent", space, name) not in {item.key for item in loaded}:
            space, name = await agent_named(client, order.agent, loaded)
        if loaded:
            await apply_files(client, order, loaded, quiet=quiet)
        opening = await _opening(client, f"{space}/{name}", order.input, run_id)
        if opening.done:  # it exists: what it was asked for is not asked again
            code = await stay(client, opening, lambda: client.runs.resume(opening.run_id), look)
        else:
            chosen: dict[str, Any] = {"run_id": opening.run_id, "labels": labels, "user": user, "options": options}
            start = partial(client.runs.start, name, opening.input, namespace=space, **chosen)
            code = await stay(client, opening, start, look)
    return leave(code)


def folders_of(files: Sequence[str]) -> list[str]:
    """Returns the folders that manifests lie in: function tools are imported from there."""
    paths = [os.path.abspath(file) for file in files if file != "-"]
    return [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]


async def apply_files(client: Client, order: RunArguments, loaded: Sequence[Loaded], *, quiet: bool) -> None:
    """Applies the manifests of a command. Raises what is wrong with them, with its place."""
    try:
        applied = await client.resources.apply([item.given for item in loaded])
    except FoliotError as error:
        raise located(error, loaded) from None
    for warning in applied.warnings:
        warn(warning)
    if not quiet:
        out(paint(_applied(order.files, applied), dim=True), err=True)


def agent_of(order: RunArguments, loaded: Sequence[Loaded]) -> tuple[str, str]:
    """Finds the namespace and name of the agent that is meant. Raises `UsageError`, `NotFound`."""
    declared = [(space, name) for kind, space, name in (item.key for item in loaded) if kind == "Agent"]
    if order.agent is not None:
        space, name = order.agent.namespace, order.agent.name
        within = [pair for pair in declared if pair[1] == name and (not space or pair[0] == space)]
        return within[0] if within else (space or namespace(), name)
    if len(declared) == 1:
        return declared[0]
    source = ", ".join(order.files)
    if not declared:
        raise NotFound(f"There is no Agent in {source}.", hint="Name one with --agent.")
    names = ", ".join(name for _, name in declared)
    raise UsageError(f"{source} declares {len(declared)} agents: {names}.", hint="Choose one with --agent NAME.")


async def agent_named(client: StoreGroups, target: WorkTarget, loaded: Sequence[Loaded] = ()) -> tuple[str, str]:
    """Returns namespace and name of an agent that is declared there already. Raises `NotFound` with near names.

    `loaded` are the manifests of the command, which do not declare it.
    """
    metadata = (await find_declared_beside(client, target, ("Agent",), namespace(), loaded))["metadata"]
    return metadata["namespace"], metadata["name"]


def _applied(files: Sequence[str], applied: Applied) -> str:
    counts = Counter(outcome.action for outcome in applied.outcomes)
    actions = ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))
    return f"applied {', '.join(files)}: {counted(len(applied.outcomes), 'resource')} ({actions})"


async def _opening(work: Client, agent: str, input: str | None, run_id: str | None) -> Opening:
    """Describes the run: a new one, with an id of its own unless one was chosen, or one that is resumed.

    Raises `Conflict` when the id belongs to other work.
    """
    created = await _created(work, run_id) if run_id is not None else None
    if run_id is None or created is None:
        if input is None:
            raise _no_input()
        return Opening(run_id or work.runs.new_id(), agent.removeprefix("default/"), input)
    if f"{created.namespace}/{created.agent}" != agent:
        raise Conflict(
            f"Run {run_id} is one of agent {created.namespace}/{created.agent}, not of {agent}.",
            hint="Choose another --id.",
        )
    if input is not None and "\n".join(message.text for message in created.input) != input:
        raise Conflict(
            f"Run {run_id} was started with another input.",
            hint="Leave the input out to go on with it, or choose another --id.",
        )
    return await going_on(work, run_id)


async def _created(work: Groups, run_id: str) -> RunCreated | None:
    """How the run of exactly this id began; None when there is none."""
    try:
        info = await work.runs.find(run_id)
    except (NotFound, Conflict):
        return None
    facts = await work.runs.events(run_id) if info.id == run_id else []
    first = facts[0][1] if facts else None
    return first if isinstance(first, RunCreated) else None
