"""The files of a run step by step, from its journal: where snapshots are, what differs, and archives of them.

Everything here needs two things of a run: its events, and its content by digest. So it is the same on a store and over
HTTP, and shows nothing that whoever may read the run could not read anyway.
"""

from __future__ import annotations

import difflib
import io
import posixpath
import tarfile
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from foliot.engine.workspaces.trees import (
    EMPTY,
    PIECE,
    Fetch,
    FileChange,
    TreeEntry,
    WorkspaceTree,
    decode_pieces,
    newest_after,
)
from foliot.errors import NotFound
from foliot.kernel.run.events import Event, ModelResponded, StepStarted, WorkspaceSnapshot

# Larger files are compared by their digests alone.
LARGEST_COMPARED: Final = 256 * 1024
MOST_LINES: Final = 2_000
# As many as Linux follows in one path.
MOST_LINKS: Final = 40


class StepFiles(Struct, frozen=True):
    """The files of a run as a step left them. Step 0 is what it began with; None is an empty folder."""

    step: int
    snapshot: WorkspaceSnapshot | None = None


def files_by_step(facts: Iterable[tuple[float, Event]]) -> list[StepFiles]:
    """The files of a run as each of its steps left them, from step 0 on."""
    found: dict[int, WorkspaceSnapshot | None] = {0: None}
    step = 0
    newest: WorkspaceSnapshot | None = None
    for _, event in facts:
        if isinstance(event, StepStarted | ModelResponded):
            step = event.step
        found[step] = newest = newest_after(event, newest)
    return [StepFiles(number, found[number]) for number in sorted(found)]


def files_at(run_id: str, steps: Sequence[StepFiles], at: int | None) -> WorkspaceSnapshot | None:
    """The files as step `at` left them, or the last one. Raises `NotFound` for a step that the run never had."""
    if at is None:
        return steps[-1].snapshot
    for each in steps:
        if each.step == at:
            return each.snapshot
    raise NotFound(f"run {run_id} has no step {at}", hint=f"it has steps 0 to {steps[-1].step}; 0 is its beginning")


async def tree_of(fetch: Fetch, snapshot: WorkspaceSnapshot | None) -> WorkspaceTree:
    """The folders of a snapshot; without one, of an empty folder. Raises `NotFound` when its content is gone."""
    return await WorkspaceTree.load(fetch, EMPTY if snapshot is None else snapshot.digest)


async def contents_of(fetch: Fetch, entry: TreeEntry) -> AsyncGenerator[bytes]:
    """The bytes of a file, piece by piece."""
    if entry.size <= PIECE:
        yield await fetch(entry.content)
        return
    for piece in decode_pieces(await fetch(entry.content)):
        yield await fetch(piece)


# The links of a tree by name, folder by folder: the target of a link, or the links of a folder.
_Links: TypeAlias = dict[str, "str | _Links"]
NO_LINKS: Final[_Links] = {}


def leads_out(path: str, target: str, links: _Links = NO_LINKS) -> bool:
    """Whether a link at a path of an archive would lead out of where the archive is unpacked.

    It must stay inside as it is written, and also when the links on its way are followed, as whoever opens it does.
    One that takes more than `MOST_LINKS` of them to follow is taken for one that leads out.
    """
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or joined == ".." or joined.startswith("../"):
        return True
    place = [links]
    names = [*reversed(target.split("/")), *reversed(path.split("/")[:-1])]
    followed = 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place.pop()
            if not place:
                return True
            continue
        found = place[-1].get(name, NO_LINKS)
        if not isinstance(found, str):
            place.append(found)
            continue
        followed += 1
        if followed > MOST_LINKS or found.startswith("/"):
            return True
        names += reversed(found.split("/"))
    return False


def _links_of(tree: WorkspaceTree) -> _Links:
    links: _Links = {}
    for path, entry in tree.walk():
        if entry.kind == "link":
            *above, name = path.split("/")
            here = links
            for each in above:
                below = here.setdefault(each, {})
                assert not isinstance(below, str), "nothing lies below a link"
                here = below
            here[name] = entry.target
    return links


def links_out_of(tree: WorkspaceTree) -> list[str]:
    """The paths of the links of a snapshot that would lead out of wherever it is unpacked, in their order."""
    links = _links_of(tree)
    return sorted(path for path, entry in tree.walk() if entry.kind == "link" and leads_out(path, entry.target, links))


async def archived(fetch: Fetch, tree: WorkspaceTree, left_out: list[str]) -> AsyncGenerator[bytes]:
    """A tar archive of a snapshot, piece by piece. Paths in it are relative and nothing in it leads out.

    Links that lead out are left out; their paths are added to `left_out`. The same files give the same bytes.
    """
    left_out += links_out_of(tree)
    buffer, outside = io.BytesIO(), frozenset(left_out)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(tree.walk(), key=lambda each: each[0]):
            member = tarfile.TarInfo(path)
            member.mode = entry.mode
            if entry.kind == "folder":
                member.type = tarfile.DIRTYPE
            elif entry.kind == "link":
                if path in outside:
                    continue
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
            else:
                member.size = entry.size
            # The header alone: the content follows piece by piece, which `addfile` of Python 3.13 does not take.
            buffer.write(member.tobuf(tarfile.PAX_FORMAT, str(archive.encoding), archive.errors))
            yield _taken(buffer)
            if entry.kind == "file":
                async for piece in contents_of(fetch, entry):
                    yield piece
                yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)
    yield _taken(buffer)


def _taken(buffer: io.BytesIO) -> bytes:
    data = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data


async def text_difference(fetch: Fetch, change: FileChange) -> list[str]:
    """The lines that differ, as `diff -u` shows them. Of what is no text, or large, one line that says so."""
    texts: list[list[str]] = []
    for entry in (change.before, change.after):
        if entry is not None and entry.kind == "file" and entry.size > LARGEST_COMPARED:
            return [f"{change.path}: too large to compare line by line"]
        data = b""
        if entry is not None and entry.kind == "file":
            data = await fetch(entry.content)
        elif entry is not None and entry.kind == "link":
            data = f"-> {entry.target}\n".encode("utf-8", "surrogateescape")
        if b"\0" in data:
            return [f"{change.path}: not a text"]
        texts.append(data.decode("utf-8", "replace").splitlines())
    before = "/dev/null" if change.before is None else f"a/{change.path}"
    after = "/dev/null" if change.after is None else f"b/{change.path}"
    lines = list(difflib.unified_diff(texts[0], texts[1], before, after, lineterm=""))
    more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return [*lines[:MOST_LINES], *more]
