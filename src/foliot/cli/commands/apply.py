"""`foliot apply`: make the store say what the manifests say, all in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import click

from foliot.cli.connect import connected, namespace, run
from foliot.cli.errors import warn
from foliot.cli.manifests import files_option, load, located, prune_requirements
from foliot.cli.output import as_json, as_list, as_yaml, output_option, ref_of
from foliot.client.base import Applied, Outcome
from foliot.errors import FoliotError
from foliot.store.base import Requirement

_COLORS: Final = {"created": "green", "updated": "yellow", "deleted": "red", "unchanged": "bright_black"}


@click.command()
@files_option()
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--prune", is_flag=True, help="Also delete what apply made before and is not among the manifests now.")
@click.option("-l", "--selector", metavar="SELECTOR", help="Labels of what --prune may delete, e.g. `app=report`.")
@output_option("text", "name", "json", "yaml", default="text", help="text, name, json or yaml.")
def apply(files: tuple[str, ...], dry_run: bool, prune: bool, selector: str | None, output: str) -> int:
    """Create or update resources from manifests: all of them, or none.

    \b
    foliot apply -f agents/ -f models.yaml
    cat agent.yaml | foliot apply -f -
    foliot apply -f . --dry-run
    foliot apply -f . --prune -l app=report
    """
    requirements = prune_requirements(prune, selector)
    loaded = load(files)
    try:
        applied = run(_apply([item.document for item in loaded], dry_run, requirements))
    except FoliotError as error:
        raise located(error, loaded) from None
    for warning in applied.warnings:
        warn(warning)
    click.echo(_render(applied, output, dry_run=dry_run))
    return 0


async def _apply(
    documents: Sequence[dict[str, object]], dry_run: bool, prune: tuple[Requirement, ...] | None
) -> Applied:
    async with connected() as client:
        return await client.apply(documents, dry_run=dry_run, prune=prune, prune_namespace=namespace())


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
    action = click.style(outcome.action, fg=_COLORS[outcome.action])
    return f"{ref_of(outcome.document)} {action}{where}{' (dry run)' if dry_run else ''}"


def _summary(outcomes: Sequence[Outcome], *, dry_run: bool) -> str:
    counts = Counter(outcome.action for outcome in outcomes)
    said = ", ".join(f"{counts[action]} {action}" for action in _COLORS if counts[action])
    return f"{said or 'nothing to do'}{'; nothing was changed (dry run)' if dry_run else ''}"
