"""`foliot diff`: what apply would change, as a unified diff. Secret values are never shown, only that they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from foliot.cli.connect import connected, namespace, run
from foliot.cli.errors import tell, warn
from foliot.cli.manifests import files_option, load, located, prune_requirements
from foliot.cli.output import ref_of
from foliot.cli.terminal import out, paint
from foliot.client.base import Applied, Outcome
from foliot.errors import FoliotError
from foliot.store.base import Requirement

SAME: Final = 0
DIFFERENT: Final = 1
TROUBLE: Final = 2


@click.command()
@files_option()
@click.option("--prune", is_flag=True, help="Also show what `apply --prune` would delete.")
@click.option("-l", "--selector", metavar="SELECTOR", help="Labels of what --prune may delete, e.g. `app=report`.")
def diff(files: tuple[str, ...], prune: bool, selector: str | None) -> int:
    """Show what apply would change. Exit code 0: nothing; 1: something; more: trouble.

    Status and what only the store says are left out. Secret values are never shown, only whether they differ.
    """
    try:
        applied = _planned(files, prune, selector)
    except FoliotError as error:
        # 1 has a meaning of its own here, so that scripts can tell a difference from a failure.
        return max(tell(error), TROUBLE)
    for warning in applied.warnings:
        warn(warning)
    texts = [text for outcome in applied.outcomes if (text := _text(outcome))]
    if texts:
        out("\n".join(_painted(text) for text in texts))
    changed = sum(outcome.action != "unchanged" for outcome in applied.outcomes)
    out(f"{changed} of {len(applied.outcomes)} would change", err=True)
    return DIFFERENT if changed else SAME


def _planned(files: tuple[str, ...], prune: bool, selector: str | None) -> Applied:
    requirements = prune_requirements(prune, selector)
    loaded = load(files)
    try:
        return run(_plan([item.document for item in loaded], requirements))
    except FoliotError as error:
        raise located(error, loaded) from None


async def _plan(documents: Sequence[dict[str, Any]], prune: tuple[Requirement, ...] | None) -> Applied:
    async with connected() as client:
        return await client.apply(documents, dry_run=True, prune=prune, prune_namespace=namespace())


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
