"""`foliot skills`: check folders of skills, see what is stored, and allow what is in quarantine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.findings import render_findings
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.common.pages import read_all
from foliot.common.text import counted, one_line, visible, visible_json
from foliot.errors import Conflict, NotFound, UsageError
from foliot.resources.kinds import phase_of
from foliot.resources.problems import manifest_error
from foliot.resources.skill_files import SKILL_FILE, builtin_skills, read_skills
from foliot.resources.skill_trust import digest_of_skill, in_quarantine
from foliot.store.base import Document, Filter

# Begins each line of a text that others wrote: nothing that Foliot says itself does.
TEXT_MARK: Final = "  | "
_path = click.argument("path", type=click.Path(exists=True))


@click.group()
def skills() -> None:
    """Check, list, install and allow skills: manuals that agents load on demand.

    \b
    foliot skills check ./skills                 what is wrong with each file
    foliot apply -f ./skills                     store them
    foliot skills list                           with their digests, and what is in quarantine
    foliot skills install ./downloaded           store what somebody else wrote, in quarantine
    foliot skills show pdf-forms                 read it
    foliot skills allow pdf-forms --digest sha256:…
    """


@skills.command()
@_path
@output_option("text", "json", default="text", help="text, or json for editors and CI.")
def check(path: str, output: str) -> int:
    """Check the skills in a folder, and report every problem with its file. Changes nothing; needs no store.

    Exit code 5 when anything is wrong.
    """
    found, findings = read_skills(path)
    errors = [each for each in findings if each.severity == "error"]
    if output == "json":
        rows = [_row(document) | {"path": place} for place, document in found]
        problems = [{"file": each.file, "severity": each.severity, "message": str(each.problem)} for each in findings]
        out(as_json({"skills": rows, "problems": problems}))
    else:
        if findings:
            out(render_findings(findings))
        for place, document in found:
            files = counted(len(document["spec"].get("files", {})) + 1, "file")
            out(f"{visible(place)}: {document['metadata']['name']} ({files}, {digest_of_skill(document)})")
    return manifest_error(findings).exit_code if errors else 0


@skills.command("list")
@output_option("table", "json", default="table", help="table or json.")
def list_skills(output: str) -> int:
    """List stored and built-in skills, with their digests and files. No agent is shown anything in quarantine."""
    return run(_list(output))


async def _list(output: str) -> int:
    async with connected() as client:
        stored = await read_all(client.resources.list, Filter("Skill", namespace()))
    taken = {each["metadata"]["name"] for each in stored}
    rows = [_row(each) for each in stored]
    rows += [{**_row(each), "state": "Built-in"} for name, each in builtin_skills().items() if name not in taken]
    if output == "json":
        out(as_json({"items": rows}))
        return 0
    lines = [
        (
            row["resource"],
            row["state"],
            row["status"],
            row["user"],
            row["digest"],
            one_line(row["description"], 60),
            ", ".join((SKILL_FILE, *sorted(row["files"]))),
        )
        for row in rows
    ]
    out(table(("NAME", "STATE", "STATUS", "USER", "DIGEST", "DESCRIPTION", "FILES"), lines))
    return 0


def _row(document: Document) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]
    return {
        "resource": document["metadata"]["name"],
        "name": spec.get("name") or document["metadata"]["name"],
        "description": spec.get("description", ""),
        "status": spec.get("status", "active"),
        "state": phase_of(document),
        "digest": digest_of_skill(document),
        "allow": spec.get("allow", ""),
        "origin": spec.get("origin", ""),
        "user": spec.get("user", ""),
        "files": {path: len(text.encode("utf-8", "surrogatepass")) for path, text in spec.get("files", {}).items()},
    }


@skills.command()
@click.argument("name")
@click.argument("path", required=False, default=SKILL_FILE)
def show(name: str, path: str) -> int:
    """Show what a skill says of itself, all its files, and the text of SKILL.md or of another one.

    Each line of the text is set in behind a bar, and what is invisible in it is made visible.
    """
    return run(_show(name, path))


async def _show(name: str, path: str) -> int:
    async with connected() as client:
        try:
            document = await client.resources.get("Skill", name, namespace=namespace())
        except NotFound:
            if name not in builtin_skills():
                raise
            document = builtin_skills()[name]
    spec: dict[str, Any] = document["spec"]
    text = spec.get("body", "") if path == SKILL_FILE else spec.get("files", {}).get(path)
    if text is None:
        known = ", ".join([SKILL_FILE, *spec.get("files", {})])
        raise NotFound(f"skill/{name} has no file {path!r}", hint=f"it has: {known}")
    out(f"skill/{name}: {phase_of(document)}")
    _tell(document)
    out(f"{visible(path)}:")
    for line in visible_json(text).split("\n"):
        out(f"{TEXT_MARK}{line}")
    return 0


def _tell(document: Document) -> None:
    """Print what somebody who allows a skill allows: each line is set in, and what others wrote in it is one line."""
    row, spec = _row(document), document["spec"]
    told = {"digest": row["digest"], "called": row["name"], "description": row["description"]}
    told |= {"origin": row["origin"], "user": row["user"]}
    for word, value in told.items():
        if value:
            out(f"  {word}: {one_line(str(value))}")
    out("  files:")
    for file, size in {SKILL_FILE: len(spec.get("body", "").encode("utf-8", "surrogatepass")), **row["files"]}.items():
        out(f"    {visible(file)} ({size:,} bytes)")


@skills.command()
@_path
@click.option("--origin", default="", metavar="TEXT", help="Where it came from; the path when not given.")
@click.option("--replace", is_flag=True, help="Put them in the place of skills that are there under the same names.")
@click.option("--dry-run", is_flag=True, help="Show what would be stored, and store nothing.")
def install(path: str, origin: str, replace: bool, dry_run: bool) -> int:
    """Add the skills of a folder that somebody else wrote. They stay in quarantine until somebody allows them.

    A skill that is there with other words is replaced only with --replace. The same words change nothing.
    """
    found, findings = read_skills(path)
    if findings:
        out(render_findings(findings), err=True)
    if any(each.severity == "error" for each in findings):
        return manifest_error(findings).exit_code
    documents = [document for _, document in found]
    return run(_install(documents, origin or os.path.abspath(path), replace=replace, dry_run=dry_run))


async def _install(documents: list[Document], origin: str, *, replace: bool, dry_run: bool) -> int:
    where = namespace()
    given = [
        {**each, "metadata": {**each["metadata"], "namespace": where}, "spec": {**each["spec"], "origin": origin}}
        for each in documents
    ]
    dry = " (dry run)" if dry_run else ""
    async with connected() as client:
        stored = {
            each["metadata"]["name"]: each for each in await read_all(client.resources.list, Filter("Skill", where))
        }
        there = {name: stored[name] for each in given if (name := each["metadata"]["name"]) in stored}
        same = [each for each in given if _is_same(each, there)]
        given = [each for each in given if each not in same]
        others = [there[name] for each in given if (name := each["metadata"]["name"]) in there]
        if others and not replace:
            raise _would_replace(others)
        if given:
            await client.resources.apply(given, dry_run=dry_run)
    for each in same:
        out(f"skill/{each['metadata']['name']} {digest_of_skill(each)}{dry}: unchanged, these words are there already")
    for each in others:
        name = each["metadata"]["name"]
        out(
            f"replaces skill/{name}, which was {phase_of(each)}{dry}; it is in quarantine until "
            f"`foliot skills allow {name}`"
        )
    for each in given:
        out(f"skill/{each['metadata']['name']}{dry}: in quarantine")
        _tell(each)
    if given:
        out("Read them with `foliot skills show NAME`, and then `foliot skills allow NAME --digest DIGEST`.", err=True)
    return 0


def _is_same(given: Document, there: Mapping[str, Document]) -> bool:
    known = there.get(given["metadata"]["name"])
    return known is not None and digest_of_skill(known) == digest_of_skill(given)


def _would_replace(others: Sequence[Document]) -> Conflict:
    names = ", ".join(
        f"skill/{each['metadata']['name']} ({phase_of(each)}, "
        f"{'from ' + visible(each['spec']['origin']) if each['spec'].get('origin') else 'your own'})"
        for each in others
    )
    return Conflict(
        f"this would replace {names} with other words",
        hint="nothing was stored. Look at both, or give --replace: what is installed is in quarantine until allowed",
    )


@skills.command()
@click.argument("name")
@click.option("--digest", required=True, metavar="DIGEST", help="Exactly what you have read.")
def allow(name: str, digest: str) -> int:
    """Let a skill out of quarantine, as it is now. Needs the role approver, beside author; any change puts it back."""
    return run(_allow(name, digest))


async def _allow(name: str, digest: str) -> int:
    async with connected() as client:
        document = await client.resources.get("Skill", name, namespace=namespace())
        now = digest_of_skill(document)
        if digest != now:
            if not digest.startswith("sha256:") or len(digest) != len(now):
                raise UsageError("--digest takes a whole digest: sha256: and 64 hexadecimal digits.")
            raise Conflict(f"skill/{name} is not what you have read: its digest is {now}", hint="read it again")
        if not in_quarantine(document) and document["spec"].get("allow") == digest:
            out(f"skill/{name} is allowed already:")
            _tell(document)
            return 0
        # At the version that was read: if a byte changes meanwhile, nothing is allowed.
        await client.resources.replace({**document, "spec": {**document["spec"], "allow": digest}})
    out(f"skill/{name} allowed:")
    _tell(document)
    return 0
