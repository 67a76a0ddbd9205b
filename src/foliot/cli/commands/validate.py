"""`foliot validate`: are these manifests good? Changes nothing, tells everything at once, and needs no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from foliot.cli.invocation import current
from foliot.cli.manifests import files_option, located, read
from foliot.cli.reach import connected, run
from foliot.cli.show.findings import render_findings, summary
from foliot.cli.show.output import as_json, output_option, ref_of
from foliot.cli.terminal import out, paint
from foliot.common.text import counted
from foliot.resources.problems import ManifestError, manifest_error

if TYPE_CHECKING:
    from foliot.resources.problems import Finding
    from foliot.resources.reader import Bundle


# Flags that name a place in which it is known what is there.
_PLACES: Final = frozenset({"context", "server", "store"})


@click.command()
@files_option()
@output_option("text", "json", default="text", help="text, or json for editors and CI.")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("-q", "--quiet", is_flag=True, help="Only problems, no list of what is valid.")
def validate(files: tuple[str, ...], output: str, strict: bool, quiet: bool) -> int:
    """Check manifests, and report every problem at once.

    References between the manifests are checked too. One to something that is not among them is a warning, because a
    store may have it; with --store, --server or --context on the command line it is held against what is there, and is
    an error when it is not. Exit code 5 when anything is invalid, 3 when only files are missing.
    """

    bundle = read(files, namespace=current().namespace)
    findings = [*bundle.findings, *_references(bundle)]
    if current().flags.keys() & _PLACES and not any(finding.severity == "error" for finding in findings):
        findings = run(_held_against(bundle, findings))
    if strict:
        findings = [replace(f, problem=replace(f.problem, severity="error")) for f in findings]
    errors = [finding for finding in findings if finding.severity == "error"]
    if output == "json":
        out(as_json(_report(bundle, findings)))
    else:
        _print(bundle, findings, quiet=quiet)
    return manifest_error(findings).exit_code if errors else 0


async def _held_against(bundle: Bundle, findings: Sequence[Finding]) -> list[Finding]:
    """The findings where it is known what is there: what `foliot apply` would say, in the places of the manifests."""
    known = [finding for finding in findings if not finding.problem.missing]
    async with connected() as client:
        try:
            await client.resources.apply([item.given for item in bundle.items], dry_run=True)
        except ManifestError as error:
            located(error, bundle.items)
            return [*bundle.findings, *error.findings]
    return known


def _references(bundle: Bundle) -> list[Finding]:
    from foliot.catalog.checks import check_documents

    problems = check_documents([loaded.document for loaded in bundle.items], None)
    return [bundle.items[index].place(problem) for index, problem in problems]


def _print(bundle: Bundle, findings: Sequence[Finding], *, quiet: bool) -> None:
    faulty = {(finding.file, finding.kind, finding.name) for finding in findings if finding.severity == "error"}
    valid = [
        item
        for item in bundle.items
        if (item.file, item.document["kind"], item.document["metadata"]["name"]) not in faulty
    ]
    if not quiet:
        for item in valid:
            out(f"{paint('valid', fg='green')}  {ref_of(item.document)}  ({item.file}:{item.line})")
    if findings:
        out(render_findings(findings), err=True)
    if any(finding.severity == "error" for finding in findings):
        out(f"{counted(len(valid), 'resource')} valid; {summary(findings)}", err=True)
    elif not quiet:
        if any(finding.problem.missing for finding in findings):
            out("what is not among these manifests a store may have: `foliot --store STORE validate` looks", err=True)
        warnings = f", {counted(len(findings), 'warning')}" if findings else ""
        out(f"{counted(len(valid), 'resource')} valid{warnings}")


def _report(bundle: Bundle, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "valid": not any(finding.severity == "error" for finding in findings),
        "resources": [
            {
                "kind": item.document["kind"],
                "namespace": item.document["metadata"]["namespace"],
                "name": item.document["metadata"]["name"],
                "file": item.file,
                "line": item.line,
            }
            for item in bundle.items
        ],
        "findings": [
            {
                "severity": finding.severity,
                "file": finding.file,
                "line": finding.line,
                "column": finding.column,
                "field": finding.field,
                "message": finding.message,
                "expected": finding.problem.expected,
                "hint": finding.problem.hint,
                "kind": finding.kind,
                "name": finding.name,
            }
            for finding in findings
        ],
    }
