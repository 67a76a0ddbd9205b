"""The work of `foliot task run`: turns the arguments, and what is declared, into a command.

A system, an agent or a Task is named, or manifests are: then their one Task is what is asked for; without one, their
one system, or their one agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click
import msgspec
from msgspec.structs import replace

from foliot.cli.commands.run import parse_labels
from foliot.cli.errors import warn
from foliot.cli.manifests import load, located
from foliot.cli.reach import namespace
from foliot.cli.terminal import out, paint
from foliot.cli.work_target import WorkTarget, find_declared_beside
from foliot.common.text import counted
from foliot.errors import FoliotError, NotFound, UsageError
from foliot.kernel.execution import (
    RESOURCES,
    WORDS,
    ExecutionPolicy,
    ExecutionRetry,
    policy_problem,
    strictest,
)
from foliot.resources.reader import Loaded
from foliot.runtime.groups.groups import Groups, StoreGroups
from foliot.store.base import Document
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command, TaskInfo
from foliot.work.tasks.commands import command_of, from_template

RUNNABLE: Final = ("AgentSystem", "Agent", "Task")
EXAMPLE: Final = 'For example `foliot task run report "Three lines on clocks"`.'


@dataclass(frozen=True, slots=True)
class TaskArguments:
    """The arguments of `task run`. `changes` are fields of the command that were given by an option."""

    files: tuple[str, ...]
    target: WorkTarget | None
    message: str = ""
    name: str = ""
    input: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_plain(self) -> bool:
        """Whether only the target was given: the declared Task is run as it is."""
        return not (self.message or self.name or self.input or self.labels or self.changes)


async def understand(client: StoreGroups, order: TaskArguments, *, quiet: bool) -> tuple[Command, str]:
    """The command, and the name that a Task resource gives it, if one does. Applies manifests first.

    Raises `NotFound`, `UsageError`, `ManifestError`.
    """
    loaded = load(order.files) if order.files else []
    named = order.target
    documents = [item.document for item in loaded if named is None or _is_meant(item.document, named)]
    document = None
    if named is None or documents:
        document = _only(documents, ", ".join(order.files))  # before anything is stored
    if document is None:
        assert named is not None, "manifests without a name have a document, or raise"
        document = await find_declared_beside(client, named, RUNNABLE, namespace(), loaded)
    if loaded:
        await _apply(client, loaded, ", ".join(order.files), quiet=quiet)
    kind, metadata = document["kind"], document["metadata"]
    if kind == "Task":
        base = command_of(document)
        if document["spec"].get("mode") == "template":
            base = from_template(document, Command(base.target_kind, base.target))
            return _changed(base, order), ""
        return _changed(replace(base, name=""), order), metadata["name"]
    target_kind = "system" if kind == "AgentSystem" else "agent"
    base = Command(target_kind, metadata["name"], namespace=metadata["namespace"])
    return _changed(base, order), ""


async def choose_name(work: Groups, command: Command, declared: str, order: TaskArguments) -> Command:
    """A Task that is wanted as declared has its own name, as long as no work under it has ended already."""
    if order.name or not declared or not order.is_plain:
        return command
    try:
        there = await work.tasks.get(declared, namespace=command.namespace)
    except NotFound:
        return replace(command, name=declared)
    return command if there.phase in ENDED else replace(command, name=declared)


def _changed(base: Command, order: TaskArguments) -> Command:
    changes = {**order.changes}
    if given := changes.get("execution_policy"):
        changes["execution_policy"] = strictest(base.execution_policy, given)
    return replace(
        base,
        **changes,
        message=order.message
        or ("" if order.input else base.message),  # a Task without input begins with a word of ours
        name=order.name or base.name,
        input={**base.input, **order.input},
        labels={**base.labels, **order.labels},
    )


async def _apply(client: StoreGroups, loaded: Sequence[Loaded], path: str, *, quiet: bool) -> None:
    try:
        applied = await client.resources.apply([item.given for item in loaded])
    except FoliotError as error:
        raise located(error, loaded) from None
    for warning in applied.warnings:
        warn(warning)
    if not quiet:
        changed = sum(outcome.action != "unchanged" for outcome in applied.outcomes)
        text = f"applied {path}: {counted(len(applied.outcomes), 'resource')}, {changed} changed"
        out(paint(text, dim=True), err=True)


def _only(documents: Sequence[Document], path: str) -> Document:
    for kind, plural in (("Task", "tasks"), ("AgentSystem", "systems"), ("Agent", "agents")):
        found = [document for document in documents if document["kind"] == kind]
        if len(found) > 1:
            names = ", ".join(document["metadata"]["name"] for document in found)
            raise UsageError(
                f"{path} declares {len(found)} {plural}: {names}.",
                hint=f"Name one: `foliot task run -f {path} {found[0]['metadata']['name']} MESSAGE`.",
            )
        if found:
            return found[0]
    raise NotFound(f"There is no Task, AgentSystem or Agent in {path}.", hint="`foliot init --help` writes some.")


def _is_meant(document: Document, named: WorkTarget) -> bool:
    metadata = document["metadata"]
    return (
        document["kind"] in ((named.kind,) if named.kind else RUNNABLE)
        and metadata["name"] == named.name
        and named.namespace in ("", metadata["namespace"])
    )


def parse_pairs(pairs: Sequence[str], what: str) -> dict[str, str]:
    """`key=value` pairs. Raises `UsageError`."""
    if what == "label":
        return parse_labels(pairs)
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{pair[:80]!r} is not KEY=VALUE.", hint=f"Such as `--{what} topic=clocks`.")
        found[key.strip()] = value
    return found


_POLICY_FIELDS: Final = (
    *(name for name in ExecutionPolicy.__struct_fields__ if name not in ("resources", "retry")),
    *(f"resources.{name}" for name in RESOURCES),
    *(f"retry.{name}" for name in ExecutionRetry.__struct_fields__),
)


def parse_policy(pairs: Sequence[str]) -> ExecutionPolicy:
    """An execution policy from `field=value` pairs, such as `resources.cpu=500`. Raises `UsageError`."""
    given: dict[str, Any] = {}
    for path, text in parse_pairs(pairs, "policy").items():
        if path not in _POLICY_FIELDS:
            raise UsageError(
                f"The execution policy has no {path[:80]!r}.", hint=f"It has: {', '.join(_POLICY_FIELDS)}."
            )
        outer, dot, inner = path.partition(".")
        if dot:
            given.setdefault(outer, {})[inner] = _scalar(text)
        else:
            given[outer] = _scalar(text)
    try:
        policy = msgspec.convert(given, ExecutionPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"--policy: {error}") from None
    if (wrong := policy_problem(policy)) is not None:
        words = WORDS.get(wrong[0][0])
        raise UsageError(f"invalid policy: {wrong[1]}", hint=f"One of {', '.join(words)}." if words else None)
    return policy


def _scalar(text: str) -> Any:
    """`false` and `500` as what they are; anything else is text."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text


# --- task names ------------------------------------------------------------------------------------------------------

# Finding the task that a person means.

F = TypeVar("F", bound=Callable[..., Any])


def task_argument(*, required: bool = True) -> Callable[[F], F]:
    """TASK, given to the command as `name`: a name, or as much of its beginning or end as is unique."""
    return click.argument("name", metavar="TASK" if required else "[TASK]", required=required)


async def find_task(work: Groups, word: str | None) -> TaskInfo:
    """The task of this name, `namespace/name`, or the only one that begins or ends so; the newest when none is named.

    Raises `NotFound`, `InvalidInput` with the candidates, `UsageError` for an empty name.
    """
    if word is None:
        newest, _ = await work.tasks.list(namespace=namespace(), limit=1)
        if not newest:
            raise NotFound(
                f"There are no tasks in namespace {namespace()} yet.", hint="`foliot task run --help` says how."
            )
        return newest[0]
    word = word.removeprefix("task/")
    space, _, name = word.rpartition("/")
    if not name.strip():
        raise UsageError("An empty text does not name a task.", hint="`foliot task list` shows them.")
    return await work.tasks.find(name, namespace=space or namespace())
