"""`foliot diff`: what apply would change, as a unified diff. Secret values are never shown, only that they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from foliot.cli.connect import connected, namespace, run
from foliot.cli.errors import tell, warn
from foliot.cli.manifests import Pruning, files_option, load, located, prune_requirements
from foliot.cli.output import ref_of
from foliot.cli.terminal import out, paint
from foliot.client.base import Applied, Outcome
from foliot.errors import FoliotError

SAME: Final = 0
DIFFERENT: Final = 1
TROUBLE: Final = 2


@click.command()
@files_option()
@click.option("--prune", is_flag=True, help="Also show what `apply --prune` would delete.")
@click.option("-l", "--selector", metavar="SELECTOR", help="Labels of what --prune may delete, e.g. `app=report`.")
@click.option("--allow-empty", is_flag=True, help="As of `apply`: no manifest need have the labels.")
@click.option("--force", is_flag=True, help="As of `apply`: also what open tasks use.")
def diff(files: tuple[str, ...], prune: bool, selector: str | None, allow_empty: bool, force: bool) -> int:
    """Show what apply would change. Exit code 0: nothing; 1: something; more: trouble.

    Status and what only the store says are left out. Secret values are never shown, only whether they differ.
    """
    try:
        applied = _planned(files, Pruning(prune_requirements(prune, selector), allow_empty, force))
    except FoliotError as error:
        # 1 has a meaning of its own here, so that scripts can tell a difference from a failure.
        return max(tell(error), TROUBLE)
    for warning in applied.warnings:
        warn(warning)
    texts = [text for outcome in applied.outcomes if (text := _text(outcome))]
    if texts:
        out("\n".join(_painted(text) for text in texts))
    changed = sum(outcome.action != "unchanged" for outcome in applied.outcomes)
    ended = sum(outcome.ends == "cancelled" for outcome in applied.outcomes)
    work = f"; the work of {ended} task{'s' if ended > 1 else ''} would end" if ended else ""
    out(f"{changed} of {len(applied.outcomes)} would change{work}", err=True)
    return DIFFERENT if changed else SAME


def _planned(files: tuple[str, ...], pruning: Pruning) -> Applied:
    loaded = load(files)
    try:
        return run(_plan([item.document for item in loaded], pruning))
    except FoliotError as error:
        raise located(error, loaded) from None


async def _plan(documents: Sequence[dict[str, Any]], pruning: Pruning) -> Applied:
    async with connected() as client:
        return await client.apply(
            documents,
            dry_run=True,
            prune=pruning.selector,
            prune_namespace=namespace(),
            allow_empty=pruning.allow_empty,
            force=pruning.force,
        )


def _text(outcome: Outcome) -> str:
    from foliot.catalog.diff import unified_diff
    from foliot.resources.yaml_dump import dump_yaml

    if outcome.action == "unchanged":
        return ""
    after = None if outcome.action == "deleted" else outcome.document
    return unified_diff(outcome.before, after, label=ref_of(outcome.document), render=dump_yaml).rstrip("\n")


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
