"""`foliot workspace`: the files of a run, step by step, and the folders that agents keep for users."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import IO, Any

import click
import msgspec

from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, run_argument, run_of
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.common.text import counted, one_line
from foliot.common.threads import on_thread
from foliot.engine.workspaces.restore import restore_into
from foliot.engine.workspaces.trees import Fetch, FileChange, WorkspaceTree, differences
from foliot.errors import UsageError

_at = click.option("--at", type=click.IntRange(min=0), metavar="STEP", help="As this step left it; the last one.")
_SIGNS = {"added": "A", "changed": "M", "deleted": "D"}


@click.group()
def workspace() -> None:
    """List, compare and export the files of a run, as its steps left them.

    \b
    foliot workspace list 01k3                  the steps that changed files
    foliot workspace diff 01k3 --at 4           what step 4 changed
    foliot workspace export 01k3 --at 4 --to a.tar
    foliot workspace restore 01k3 --at 4 --to ./before

    To have an agent go on from the files of an earlier step, fork its run there: `foliot fork`. What an agent keeps for
    a user in `data/`, over all runs and sessions, is `foliot workspace folder`.
    """


@workspace.command("list")
@run_argument(required=False)
@output_option("table", "json", default="table", help="table or json.")
def list_snapshots(run_id: str | None, output: str) -> int:
    """List the steps of a run after which its files were others than before, with how many there were."""
    return run(_list(run_id, output))


async def _list(word: str | None, output: str) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        steps = await client.runs.files(info.id)
    shown: list[dict[str, Any]] = []
    last = None
    for each in steps:
        if each.snapshot is not None and each.snapshot != last:
            last = each.snapshot
            shown.append({"step": each.step, "files": last.files, "size": last.size, "digest": last.digest})
    if output == "json":
        out(as_json({"run": info.id, "items": shown}))
    elif shown:
        rows = [(str(row["step"]), str(row["files"]), str(row["size"]), row["digest"][7:19]) for row in shown]
        out(table(("STEP", "FILES", "BYTES", "SNAPSHOT"), rows))
    else:
        out(f"Run {info.id} has changed no files of a workspace of its own.", err=True)
    return 0


@workspace.command()
@run_argument(required=False)
@_at
@click.option("--since", type=click.IntRange(min=0), metavar="STEP", help="From this step on; the one before.")
@click.option("--content", is_flag=True, help="Show the lines that differ, too.")
@output_option("text", "json", default="text", help="text or json.")
def diff(run_id: str | None, at: int | None, since: int | None, content: bool, output: str) -> int:
    """Show the files that were added (A), changed (M) or deleted (D) by a step, or since another one."""
    return run(_diff(run_id, at, since, content, output))


async def _diff(word: str | None, at: int | None, since: int | None, content: bool, output: str) -> int:
    from foliot.engine.workspaces.history import files_at, text_difference, tree_of

    async with reached() as client:
        info = await run_of(client, word)
        steps = await client.runs.files(info.id)
        until = steps[-1].step if at is None else at
        since = max(until - 1, 0) if since is None else since
        fetch = partial(client.runs.content, info.id)
        before = await tree_of(fetch, files_at(info.id, steps, since))
        after = await tree_of(fetch, files_at(info.id, steps, until))
        found = differences(before, after)
        texts = [await text_difference(fetch, each) if content and _has_text(each) else [] for each in found]
    if output == "json":
        rows = [_as_data(each, lines, content) for each, lines in zip(found, texts, strict=True)]
        out(as_json({"run": info.id, "since": since, "at": until, "items": rows}))
        return 0
    for each, lines in zip(found, texts, strict=True):
        out(f"{_SIGNS[each.change]} {_shown(each.path)}")
        for line in lines:
            out(one_line(line))
    if not found:
        out(f"Nothing differs between step {since} and step {until} of run {info.id}.", err=True)
    return 0


def _has_text(change: FileChange) -> bool:
    return any(entry is not None and entry.kind != "folder" for entry in (change.before, change.after))


def _as_data(change: FileChange, lines: list[str], content: bool) -> dict[str, Any]:
    entry = change.after or change.before
    assert entry is not None, "a change has a side"
    row: dict[str, Any] = {"path": _shown(change.path), "change": change.change, "kind": entry.kind}
    row |= {"size": entry.size, "mode": f"{entry.mode:o}"}
    return {**row, "lines": lines} if content else row


def _shown(path: str) -> str:
    """A path for people: names of hostile code cannot write to the terminal."""
    return one_line(path.encode("utf-8", "backslashreplace").decode())


@workspace.command()
@run_argument(required=False)
@_at
@click.option("--to", "file", required=True, type=click.File("wb", atomic=True), help="The archive; - prints it.")
def export(run_id: str | None, at: int | None, file: IO[bytes]) -> int:
    """Write the files of a run into a tar archive. Nothing in it leads out of the folder that it is unpacked in."""
    return run(_export(run_id, at, file))


async def _export(word: str | None, at: int | None, file: IO[bytes]) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        tree = await client.runs.tree(info.id, at=at)
        await _archive(partial(client.runs.content, info.id), tree, file)
    return 0


async def _archive(fetch: Fetch, tree: WorkspaceTree, file: IO[bytes]) -> None:
    from foliot.engine.workspaces.history import archived

    left_out: list[str] = []
    async for piece in archived(fetch, tree, left_out):
        file.write(piece)
    _name_left_out(left_out)


def _name_left_out(links: Sequence[str]) -> None:
    for path in links:
        out(f"Left out the link {_shown(path)}: it leads out of the workspace.", err=True)


@workspace.command()
@run_argument(required=False)
@_at
@click.option("--to", "place", required=True, type=click.Path(file_okay=False), help="The folder; it must be empty.")
def restore(run_id: str | None, at: int | None, place: str) -> int:
    """Put the files of a run into a folder, as a step left them, with permissions, empty folders and links.

    A link that leads out of the folder is left out, and named.
    """
    try:
        os.makedirs(place, exist_ok=True)
        there = os.listdir(place)
    except OSError as error:
        raise UsageError(f"{place} cannot be used: {error.strerror}") from None
    if there:
        raise UsageError(f"{place} is not empty", hint="name a new folder: what is in this one would be deleted")
    return run(_restore(run_id, at, place))


async def _restore(word: str | None, at: int | None, place: str) -> int:
    from foliot.engine.workspaces.history import links_out_of

    loop = asyncio.get_running_loop()
    async with reached() as client:
        info = await run_of(client, word)
        tree = await client.runs.tree(info.id, at=at)
        left_out = links_out_of(tree)

        async def get(digests: Sequence[str]) -> dict[str, bytes]:
            return {each: await client.runs.content(info.id, each) for each in digests}

        def fetch(digests: Sequence[str]) -> dict[str, bytes]:
            return asyncio.run_coroutine_threadsafe(get(digests), loop).result()

        try:
            await on_thread(restore_into, place, tree, fetch, frozenset(left_out))
        except OSError as error:
            raise UsageError(f"{place} cannot be written: {error.strerror}") from None
    _name_left_out(left_out)
    count = sum(1 for _ in tree.walk()) - len(left_out)
    out(f"Restored {counted(count, 'file')} of run {info.id} into {place}", err=True)
    return 0


# --- folders ---------------------------------------------------------------------------------------------------------

_whose = click.option("--user", default="", metavar="NAME", help="Whose folder; your own when not given.")
_system = click.option("--system", is_flag=True, help="The folder for runs without a user.")
_agent = click.argument("agent", metavar="AGENT")


@workspace.group()
def folder() -> None:
    """List, show, export and delete what agents keep for a user in `data/`, over all sessions and runs.

    \b
    foliot workspace folder list                    all that you may see
    foliot workspace folder show clerk              the files that clerk keeps for you
    foliot workspace folder export clerk --to a.tar
    foliot workspace folder delete clerk            nothing brings it back
    """


@folder.command("list")
@click.option("--agent", default="", metavar="NAME", help="Only those of this agent.")
@click.option("--user", default="", metavar="NAME", help="Only those of this user.")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many at most.")
@output_option("table", "json", default="table", help="table or json.")
def list_folders(agent: str, user: str, mine: bool, limit: int, output: str) -> int:
    """List folders by agent and user: your own, for an admin those of everybody."""
    return run(_list_folders(agent, user, mine, limit, output))


async def _list_folders(agent: str, user: str, mine: bool, limit: int, output: str) -> int:
    async with reached() as client:
        found, _ = await client.folders.list(namespace=namespace(), agent=agent, user=user, mine=mine, limit=limit)
    if output == "json":
        out(as_json({"items": msgspec.to_builtins(found)}))
    elif found:
        rows = [(each.agent, one_line(each.user) or "-", str(each.files), str(each.size)) for each in found]
        last = [(*row, each.run_id) for row, each in zip(rows, found, strict=True)]
        out(table(("AGENT", "USER", "FILES", "BYTES", "CHANGED BY"), last))
    else:
        out(f"No folders found in namespace {namespace()}.", err=True)
    return 0


@folder.command()
@_agent
@_whose
@_system
@output_option("text", "json", default="text", help="text or json.")
def show(agent: str, user: str, system: bool, output: str) -> int:
    """Show the files of a folder, with their sizes."""
    return run(_show(agent, user, system, output))


async def _show(agent: str, user: str, system: bool, output: str) -> int:
    given: dict[str, Any] = {"namespace": namespace(), "user": user, "system": system}
    async with reached() as client:
        found = await client.folders.get(agent, **given)
        tree = await client.folders.tree(agent, **given)
    files = sorted((each for each in tree.walk() if each[1].kind != "folder"), key=lambda each: each[0])
    if output == "json":
        shown = [{"path": _shown(path), "kind": entry.kind, "size": entry.size} for path, entry in files]
        out(as_json({**msgspec.to_builtins(found), "items": shown}))
        return 0
    for path, entry in files:
        out(f"{entry.size:>12,}  {_shown(path)}")
    if not files:
        out("The folder is empty.", err=True)
    return 0


@folder.command("export")
@_agent
@_whose
@_system
@click.option("--to", "file", required=True, type=click.File("wb", atomic=True), help="The archive; - prints it.")
def export_folder(agent: str, user: str, system: bool, file: IO[bytes]) -> int:
    """Write the files of a folder into a tar archive. Nothing in it leads out of the folder that it is unpacked in."""
    return run(_export_folder(agent, user, system, file))


async def _export_folder(agent: str, user: str, system: bool, file: IO[bytes]) -> int:
    given: dict[str, Any] = {"namespace": namespace(), "user": user, "system": system}
    async with reached() as client:
        tree = await client.folders.tree(agent, **given)
        await _archive(partial(client.folders.content, agent, **given), tree, file)
    return 0


@folder.command("delete")
@click.argument("agent", metavar="[AGENT]", default="")
@_whose
@_system
@click.option("--all-agents", is_flag=True, help="What all agents keep for the user, also those that are gone.")
@click.option("--all-users", is_flag=True, help="What the agent keeps for all users, also those that are gone.")
def delete_folder(agent: str, user: str, system: bool, all_agents: bool, all_users: bool) -> int:
    """Delete a folder with all that is in it. A run that had begun with it does not bring it back.

    \b
    foliot workspace folder delete clerk                     what clerk keeps for you
    foliot workspace folder delete clerk --all-users         before or after clerk is deleted
    foliot workspace folder delete --all-agents --user ann   when ann has left
    """
    if bool(agent) == all_agents:
        raise click.UsageError("name one agent, or say --all-agents")
    if all_users and (all_agents or user or system):
        raise click.UsageError("--all-users is for one agent, without --user and --system")
    if all_agents and system:
        raise click.UsageError("--all-agents is for a user, without --system")
    if all_agents or all_users:
        return run(_delete_folders(agent, user, mine=all_agents and not user))
    return run(_delete_folder(agent, user, system))


async def _delete_folders(agent: str, user: str, *, mine: bool) -> int:
    async with reached() as client:
        count = await client.folders.delete_all(namespace=namespace(), agent=agent, user=user, mine=mine)
    out(f"Deleted {count} folder{'' if count == 1 else 's'}.", err=True)
    return 0


async def _delete_folder(agent: str, user: str, system: bool) -> int:
    async with reached() as client:
        await client.folders.delete(agent, namespace=namespace(), user=user, system=system)
    out(f"Deleted what agent {one_line(agent)} kept.", err=True)
    return 0
