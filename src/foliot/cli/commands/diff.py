"""`foliot diff`: what apply would change, as a unified diff. Secret values are never shown, only that they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from foliot.cli.commands.apply import only_owners
from foliot.cli.connect import connected, run
from foliot.cli.errors import tell, warn
from foliot.cli.manifests import Applying, applying_options, files_option, load, located
from foliot.cli.output import ref_of
from foliot.cli.terminal import out, paint
from foliot.client.base import Applied, Outcome
from foliot.errors import FoliotError

if TYPE_CHECKING:
    from foliot.resources.reader import Loaded

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
    work = f"; the work of {ended} task{'s' if ended > 1 else ''} would end" if ended else ""
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
    from foliot.catalog.diff import unified_diff
    from foliot.resources.yaml_dump import dump_yaml

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
