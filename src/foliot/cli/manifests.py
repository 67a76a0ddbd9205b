"""Reading what `-f` names, for every command that takes manifests."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foliot.cli.invocation import current
from foliot.errors import FoliotError, UsageError
from foliot.resources.field_owners import APPLY
from foliot.resources.problems import Problem
from foliot.store.base import Requirement

if TYPE_CHECKING:
    from foliot.resources.problems import Finding
    from foliot.resources.reader import Bundle, Loaded
    from foliot.runtime.groups.groups import StoreGroups
    from foliot.runtime.outcomes import Applied

F = TypeVar("F", bound=Callable[..., Any])


def files_option(*, required: bool = True) -> Callable[[F], F]:
    """`-f/--filename`, as often as one likes, given to the command as `files`."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="PATH",
        type=click.Path(),
        help="A manifest, a folder of them, or - for standard input. Can be repeated.",
    )


def read(files: Sequence[str], *, namespace: str | None) -> Bundle:
    """Everything in `files`; `namespace` is for those that name none. Problems are findings, nothing is raised.

    When a namespace was typed on this command line, a manifest that names another one is wrong: silently moving it,
    or silently ignoring what was typed, would both be a surprise.
    """
    from foliot.resources.reader import read_manifests

    bundle = read_manifests(files, stdin=sys.stdin.buffer, namespace=namespace)
    typed = current().namespace
    for loaded in bundle.items:
        named = loaded.document["metadata"]["namespace"]
        if typed is not None and named != typed:
            message = f"the manifest names namespace {named!r}, the command line {typed!r}"
            hint = "leave out -n, or take the namespace out of the manifest"
            bundle.findings.append(loaded.place(Problem(("metadata", "namespace"), message, hint)))
    return bundle


def load(files: Sequence[str]) -> list[Loaded]:
    """All resources in `files`, in the namespace to work in. Raises `ManifestError` with every finding."""
    from foliot.cli.reach import namespace

    bundle = read(files, namespace=namespace())
    bundle.raise_for_errors()
    return bundle.items


def located(error: FoliotError, loaded: Sequence[Loaded]) -> FoliotError:
    """`error`, whose findings were made where no file is known (see catalog), with each at its place in a file."""
    findings: list[Finding] | None = getattr(error, "findings", None)
    if findings:
        by_file = {_handle(item.document): item for item in loaded}
        findings[:] = [
            by_file[finding.file].place(finding.problem) if finding.file in by_file else finding for finding in findings
        ]
        findings.sort(key=lambda finding: (finding.file, finding.line or 0, finding.column or 0))
    return error


def _handle(document: dict[str, Any]) -> str:
    from foliot.catalog.checks import handle_of

    return handle_of(document)


@dataclass(frozen=True, slots=True)
class Applying:
    """The options of `apply` and `diff` besides files: what prune may delete (None without it), and who applies."""

    prune: tuple[Requirement, ...] | None = None
    allow_empty: bool = False
    allow_missing: bool = False
    force: bool = False
    field_manager: str = APPLY
    force_conflicts: bool = False

    async def apply(self, client: StoreGroups, loaded: Sequence[Loaded], *, dry_run: bool) -> Applied:
        """Apply what the manifests say, or with `dry_run` find out what that would do."""
        from foliot.cli.reach import namespace

        return await client.resources.apply(
            [item.given for item in loaded],
            dry_run=dry_run,
            prune=self.prune,
            prune_namespace=namespace(),
            allow_empty=self.allow_empty,
            allow_missing=self.allow_missing,
            force=self.force,
            field_manager=self.field_manager,
            force_conflicts=self.force_conflicts,
        )


def applying_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `apply` and `diff`, given to the command as `applying`."""

    @functools.wraps(command)
    def told(
        prune: bool,
        selector: str | None,
        allow_empty: bool,
        allow_missing: bool,
        force: bool,
        field_manager: str,
        force_conflicts: bool,
        **rest: Any,
    ) -> int:
        labels = prune_requirements(prune, selector)
        return command(
            applying=Applying(labels, allow_empty, allow_missing, force, field_manager, force_conflicts), **rest
        )

    for option in reversed(_APPLYING):
        told = option(told)
    return told


_APPLYING: Final = (
    click.option("--prune", is_flag=True, help="Also delete what apply made and is no longer among the manifests."),
    click.option("-l", "--selector", metavar="SELECTOR", help="Labels of what --prune may delete, e.g. `app=report`."),
    click.option("--allow-empty", is_flag=True, help="Let --prune delete everything when no manifest has its labels."),
    click.option(
        "--allow-missing", is_flag=True, help="Take manifests that name something that does not exist, with a warning."
    ),
    click.option("--force", is_flag=True, help="Let --prune delete also what open tasks use."),
    click.option(
        "--field-manager", default=APPLY, show_default=True, metavar="NAME", help="Who owns what the manifests set."
    ),
    click.option(
        "--force-conflicts",
        is_flag=True,
        help="Take over fields that other managers own with other values; prune what they share.",
    ),
)


def prune_requirements(prune: bool, selector: str | None) -> tuple[Requirement, ...] | None:
    """Parses the scope of `--prune -l SELECTOR`; None without --prune.

    Raises `UsageError` for one without the other.
    """
    if prune and not selector:
        raise UsageError(
            "--prune needs a selector that says what it may delete.", hint="For example `--prune -l app=report`."
        )
    if selector and not prune:
        raise UsageError("-l says what --prune may delete; without --prune it means nothing.")
    if not prune or not selector:
        return None
    from foliot.store.resources.selectors import parse_labels

    return parse_labels(selector)
