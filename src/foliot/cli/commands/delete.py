"""`foliot delete`: by name, by manifest, by label, or everything of a kind. Asks nothing; `--dry-run` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import click

from foliot.cli import complete
from foliot.cli.commands.get import Request, fetch_all
from foliot.cli.errors import tell
from foliot.cli.manifests import files_option, load
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import word_of
from foliot.cli.targets import Targets, parse_targets
from foliot.cli.terminal import out, paint
from foliot.errors import Conflict, NotFound, UsageError
from foliot.resources.kinds import Kind
from foliot.runtime.groups.groups import StoreGroups
from foliot.runtime.local.resources import USED_BY_WORK
from foliot.store.resources.selectors import parse_labels

TASK: Final = "Task"
# How work that has ended is shown in the status of its Task.
ENDED_PHASES: Final = frozenset({"Succeeded", "Failed", "DeadLetter", "Cancelled"})


@dataclass(frozen=True, slots=True, order=True)
class Doomed:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{word_of(self.kind)}/{self.name}"


@click.command()
@click.argument("what", nargs=-1, metavar="[KIND NAME… | KIND/NAME… | KIND]", shell_complete=complete.targets)
@files_option(required=False)
@click.option("-l", "--selector", metavar="SELECTOR", help="Those with these labels, e.g. `app=report`.")
@click.option("--all", "everything", is_flag=True, help="All of the kind in the namespace.")
@click.option("--ignore-not-found", is_flag=True, help="Succeed also when there is nothing to delete.")
@click.option(
    "--force", is_flag=True, help="Also what open tasks use: agents, systems, tools, endpoints. The tasks go on."
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
def delete(
    what: tuple[str, ...],
    files: tuple[str, ...],
    selector: str | None,
    everything: bool,
    ignore_not_found: bool,
    force: bool,
    dry_run: bool,
) -> int:
    """Delete resources. It asks nothing; try --dry-run first.

    \b
    foliot delete agent writer
    foliot delete agent/writer tool/web
    foliot delete -f folder/                   what these manifests declare
    foliot delete all -l app=report
    foliot delete tasks --all
    """
    if files and (what or selector or everything):
        raise UsageError("-f already says what to delete; leave out kinds, names, -l and --all.")
    if files:
        return run(_delete_files(files, ignore_not_found, dry_run, force))
    targets = parse_targets(what, verb="delete")
    if targets.named and (selector or everything):
        raise UsageError("Names cannot be combined with -l or --all.")
    if targets.named:
        return run(_delete_named(targets.named, ignore_not_found, dry_run, force))
    if not selector and not everything:
        raise UsageError(
            f"`foliot delete {' '.join(what)}` would delete every one of them.",
            hint="Give names or a selector (-l), or add --all if that is what you want.",
        )
    return run(_delete_matching(targets, selector, dry_run, force))


async def _delete_files(files: tuple[str, ...], ignore_not_found: bool, dry_run: bool, force: bool) -> int:
    loaded = load(files)
    doomed = [
        Doomed(item.document["kind"], item.document["metadata"]["namespace"], item.document["metadata"]["name"])
        for item in loaded
    ]
    async with connected() as client:
        return await _delete(client, doomed, ignore_not_found=ignore_not_found, dry_run=dry_run, force=force)


async def _delete_named(named: tuple[tuple[Kind, str], ...], ignore_not_found: bool, dry_run: bool, force: bool) -> int:
    space = namespace()
    doomed = [Doomed(kind.name, space, name) for kind, name in named]
    async with connected() as client:
        return await _delete(client, doomed, ignore_not_found=ignore_not_found, dry_run=dry_run, force=force)


async def _delete_matching(targets: Targets, selector: str | None, dry_run: bool, force: bool) -> int:
    labels = parse_labels(selector) if selector else ()
    request = Request(targets, namespace(), labels, ())
    async with connected() as client:
        documents, _ = await fetch_all(client, request.filters)
        if not documents:
            out(f"Nothing to delete in namespace {request.namespace}.", err=True)
        doomed = [Doomed(d["kind"], d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents]
        return await _delete(client, doomed, ignore_not_found=True, dry_run=dry_run, force=force)


async def _delete(
    client: StoreGroups, doomed: list[Doomed], *, ignore_not_found: bool, dry_run: bool, force: bool
) -> int:
    """Tasks first, because they use the rest. Nothing is deleted while another task uses a part of it.

    One that is missing does not keep the others.
    """
    order = sorted(doomed, key=lambda each: each.kind != TASK)
    code, ending = (0, set[Doomed]()) if force else await _refused(client, order)
    if code:
        return code
    for each in order:
        try:
            ends = await _ends(client, each)
            # What only tasks among them use is not in use any more, though work may take a moment to end.
            forced = force or each in ending
            await client.resources.delete(each.kind, each.name, namespace=each.namespace, force=forced, dry_run=dry_run)
        except Conflict as error:
            code = tell(error)
            continue
        except NotFound as error:
            if not ignore_not_found:
                code = tell(error)
            continue
        out(f"{each} {paint('deleted', fg='red')}{ends}{' (dry run)' if dry_run else ''}")
    return code


async def _refused(client: StoreGroups, doomed: list[Doomed]) -> tuple[int, set[Doomed]]:
    """Tell what is used by tasks that are not among those to be deleted.

    Returns the exit code, 0 when nothing is, and what is used by tasks that are among them.
    """
    code, ending = 0, set[Doomed]()
    tasks = {(each.namespace, each.name) for each in doomed if each.kind == TASK}
    for each in doomed:
        if each.kind not in USED_BY_WORK:
            continue
        try:
            await client.resources.delete(each.kind, each.name, namespace=each.namespace, dry_run=True)
        except NotFound:
            continue  # told when it is its turn
        except Conflict as error:
            users: list[str] = error.details.get("tasks") or []
            if not users or not {(each.namespace, name) for name in users} <= tasks:
                code = tell(error)
            else:
                ending.add(each)
    if code:
        out("Nothing was deleted.", err=True)
    return code, ending


async def _ends(client: StoreGroups, doomed: Doomed) -> str:
    """Say in words what becomes of the work of a Task that is deleted."""
    if doomed.kind != TASK:
        return ""
    document = await client.resources.get(TASK, doomed.name, namespace=doomed.namespace)
    status: dict[str, Any] = document.get("status") or {}
    if "attempts" not in status:  # a template, or a task that was never accepted
        return ""
    return "" if status["phase"] in ENDED_PHASES else ", its work cancelled"
