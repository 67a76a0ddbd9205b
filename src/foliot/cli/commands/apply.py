"""`foliot apply`: make the store say what the manifests say, all in one transaction."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from foliot.catalog.declared import declared, same
from foliot.cli.errors import tell, warn
from foliot.cli.manifests import Applying, applying_options, files_option, load, located
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, as_list, as_yaml, output_option, ref_of
from foliot.cli.terminal import out, paint
from foliot.common.text import counted
from foliot.errors import Conflict, FoliotError
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.runtime.outcomes import Applied, Outcome
from foliot.store.base import Document

if TYPE_CHECKING:
    from foliot.resources.reader import Loaded
    from foliot.runtime.outcomes import Taken

_COLORS: Final = {"created": "green", "updated": "yellow", "deleted": "red", "unchanged": "bright_black"}


@click.command()
@files_option()
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@applying_options
@output_option("text", "name", "json", "yaml", default="text", help="text, name, json or yaml.")
def apply(files: tuple[str, ...], dry_run: bool, applying: Applying, output: str) -> int:
    """Create or update resources from manifests: all of them, or none.

    \b
    foliot apply -f agents/ -f models.yaml
    cat agent.yaml | foliot apply -f -
    foliot apply -f . --dry-run
    foliot apply -f . --prune -l app=report

    What the manifests say is set; what they said before and no longer say goes; fields that others have set (by
    `foliot edit`, over HTTP, under another --field-manager) stay. Where those differ from the manifests, it is a
    conflict that names them, unless --force-conflicts.

    A Task is done once: applying it again changes nothing, and applying another one under its name is refused. --prune
    deletes as `foliot delete` does: the work of a Task ends, and what open tasks use stays unless --force.
    """
    loaded = load(files)
    try:
        applied, taken = run(_apply(loaded, dry_run, applying))
    except FoliotError as error:
        raise located(error, loaded) from None
    for warning in applied.warnings:
        warn(warning)
    out(_render(applied, output, dry_run=dry_run))
    for each in taken:
        _tell_taken(each, quiet=output != "text")
    return max(
        (each.error.exit_code if each.error is not None else int(_failed_now(each)) for each in taken), default=0
    )


async def _apply(loaded: Sequence[Loaded], dry_run: bool, applying: Applying) -> tuple[Applied, Sequence[Taken]]:
    documents = [item.document for item in loaded]
    async with connected() as client:
        _refuse(await client.resources.opposed(documents))
        applied = await applying.apply(client, loaded, dry_run=dry_run)
        if dry_run or not any(document["kind"] == "Task" for document in documents):
            return applied, ()
        return applied, await client.resources.accept(documents)


def _refuse(opposed: Sequence[Taken]) -> None:
    """Raises `Conflict` when work that was accepted before would have to be another: before anything is stored."""
    errors = [each.error for each in opposed if each.error is not None]
    if errors:
        message = "\n".join(error.message for error in errors)
        raise Conflict(f"{message}\nNothing was applied.", hint=errors[0].hint)


def _failed_now(taken: Taken) -> bool:
    """Whether the work failed as soon as it was accepted: what it is for is not there."""
    return taken.new and taken.task is not None and taken.task.phase == "failed"


def _tell_taken(taken: Taken, *, quiet: bool) -> None:
    """Reports the outcome for the work of an applied Task."""
    if taken.error is not None:
        hint = f"\n{taken.error.hint}" if taken.error.hint else ""
        warn(f"task/{taken.name} is stored, and its work was not accepted: {taken.error.message}{hint}")
    elif (task := taken.task) is not None and not taken.new and (task.archived_at or task.phase == "cancelled"):
        ended = "was cancelled" if task.phase == "cancelled" else "was done"
        warn(
            f"task/{taken.name} {ended} before, and is not done again.\n"
            f"`foliot task delete {taken.name}` frees its name; then apply it once more."
        )
    elif task is not None and _failed_now(taken):
        again = "apply it again when it exists"
        warn(f"task/{taken.name} was accepted and has failed: {task.summary.get('error', '')}\n{again}")
    elif taken.new and not quiet:
        out(f"task/{taken.name} accepted: `foliot task wait {taken.name}` follows it")


def _render(applied: Applied, output: str, *, dry_run: bool) -> str:
    documents = [outcome.document for outcome in applied.outcomes]
    match output:
        case "name":
            return "\n".join(ref_of(document) for document in documents)
        case "json":
            return as_json(as_list(documents))
        case "yaml":
            return as_yaml(documents)
        case _:
            here = namespace()
            lines = [_line(outcome, here=here, dry_run=dry_run) for outcome in applied.outcomes]
            return "\n".join([*lines, _summary(applied.outcomes, dry_run=dry_run)])


def _line(outcome: Outcome, *, here: str, dry_run: bool) -> str:
    space = outcome.document["metadata"]["namespace"]
    where = "" if space == here else f" in namespace {space}"
    action = paint(outcome.action, fg=_COLORS[outcome.action])
    ends = f", its work {outcome.ends}" if outcome.ends else ""
    if outcome.action == "updated" and only_owners(outcome):
        ends = ", only who owns its fields"
    return f"{ref_of(outcome.document)} {action}{where}{ends}{' (dry run)' if dry_run else ''}"


def only_owners(outcome: Outcome) -> bool:
    """Whether nothing of a resource changes but who owns its fields."""

    if outcome.before is None or not same(outcome.before, outcome.document):
        return False
    # Values of secrets are masked here and there; the generation counts what they say.
    return outcome.before["metadata"].get("generation") == outcome.document["metadata"].get("generation")


def _summary(outcomes: Sequence[Outcome], *, dry_run: bool) -> str:
    counts = Counter(outcome.action for outcome in outcomes)
    said = ", ".join(f"{counts[action]} {action}" for action in _COLORS if counts[action])
    return f"{said or 'nothing to do'}{'; nothing was changed (dry run)' if dry_run else ''}"


# --- diff ------------------------------------------------------------------------------------------------------------

# `foliot diff`: what apply would change, as a unified diff. Secret values are never shown, only that they differ.

SAME: Final = 0
DIFFERENT: Final = 1
TROUBLE: Final = 2


@click.command()
@files_option()
@applying_options
@click.option("--show-managed-fields", "show_owners", is_flag=True, help="Also show who owns which field.")
def diff(files: tuple[str, ...], applying: Applying, show_owners: bool) -> int:
    """Show what apply would change. Exit code 0: nothing; 1: something; more: trouble.

    It is what `apply` with the same options would do: fields that others own stay, and conflicts are the same. Status
    and what only the store says are left out. Secret values are never shown, only whether they differ.
    """
    try:
        applied = _planned(files, applying)
    except FoliotError as error:
        # 1 has a meaning of its own here, so that scripts can tell a difference from a failure.
        return max(tell(error), TROUBLE)
    for warning in applied.warnings:
        warn(warning)
    texts = [text for outcome in applied.outcomes if (text := _text(outcome, show_owners))]
    if texts:
        out("\n".join(_painted(text) for text in texts))
    changed = sum(outcome.action != "unchanged" for outcome in applied.outcomes)
    ended = sum(outcome.ends == "cancelled" for outcome in applied.outcomes)
    work = f"; the work of {counted(ended, 'task')} would end" if ended else ""
    out(f"{changed} of {len(applied.outcomes)} would change{work}", err=True)
    return DIFFERENT if changed else SAME


def _planned(files: tuple[str, ...], applying: Applying) -> Applied:
    loaded = load(files)
    try:
        return run(_plan(loaded, applying))
    except FoliotError as error:
        raise located(error, loaded) from None


async def _plan(loaded: Sequence[Loaded], applying: Applying) -> Applied:
    async with connected() as client:
        return await applying.apply(client, loaded, dry_run=True)


def _text(outcome: Outcome, show_owners: bool) -> str:
    if outcome.action == "unchanged":
        return ""
    after = None if outcome.action == "deleted" else outcome.document
    # Where nothing else would change, this is what would.
    owners = (outcome.owned, outcome.owners) if show_owners or only_owners(outcome) else ((), ())
    label = ref_of(outcome.document)
    return unified_diff(outcome.before, after, label=label, render=dump_yaml, owners=owners).rstrip("\n")


def _painted(text: str) -> str:
    return "\n".join(_paint(line) for line in text.splitlines())


def _paint(line: str) -> str:
    if line.startswith(("---", "+++")):
        return paint(line, bold=True)
    if line.startswith("@@"):
        return paint(line, fg="cyan")
    if line.startswith("+"):
        return paint(line, fg="green")
    if line.startswith("-"):
        return paint(line, fg="red")
    return line


# --- diff ------------------------------------------------------------------------------------------------------------

# The difference between two states of a resource, as a unified diff of their YAML.


def unified_diff(
    before: Document | None,
    after: Document | None,
    *,
    label: str,
    render: Callable[[Document], str],
    owners: tuple[Sequence[Document], Sequence[Document]] = ((), ()),
) -> str:
    """Empty when there is no difference that anyone declared. `before` is live, `after` is what manifests say.

    Secret values must be masked already; `catalog.plan` does so, and marks those that differ. `owners` are the
    `managedFields` before and after, when they are to be shown.
    """
    old = render(_with(before, owners[0])).splitlines(keepends=True) if before else []
    new = render(_with(after, owners[1])).splitlines(keepends=True) if after else []
    lines = difflib.unified_diff(
        old, new, f"{label} (live)" if before else "/dev/null", f"{label} (manifest)" if after else "/dev/null"
    )
    return "".join(lines)


def _with(document: Document, owners: Sequence[Document]) -> Document:
    shown = declared(document)
    return {**shown, "metadata": {**shown["metadata"], "managedFields": [*owners]}} if owners else shown
