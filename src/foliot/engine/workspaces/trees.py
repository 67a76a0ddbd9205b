"""The form of a snapshot: folders that name their entries by content, as in a Merkle tree.

A snapshot is the digest of its root folder. A folder is a JSON document with its entries in the order of their names;
a file is named by the digest of its bytes, and a large one by that of a list of its pieces. All of them are content of
the journal, stored once however many snapshots and runs have it. Two folders with the same digest are equal all the
way down, so comparing snapshots costs what differs between them.

Kept are folders, files with their permissions, and symbolic links as they are written. Not kept are times, owners, and
what is neither a file, a folder nor a link.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from foliot.errors import InvalidInput
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import Event, WorkspaceSnapshot
from foliot.kernel.run.spec import digest as digest_of
from foliot.store.journal.base import Entry, Journal

Kind: TypeAlias = Literal["file", "folder", "link"]
Change: TypeAlias = Literal["added", "changed", "deleted"]
# A larger file is stored in pieces of this size.
PIECE: Final = 4 * 1024 * 1024
# A name that is no UTF-8 is written as base64 behind a NUL, which no name can hold.
_RAW: Final = "\0"


# The types of events that can say how they left the files of a run.
_WITH_FILES: Final = tuple(each for each in get_args(Event) if "workspace" in each.__struct_fields__)
# Their names in a journal, for whoever reads only these.
SNAPSHOT_EVENTS: Final = frozenset(str(each.__struct_config__.tag) for each in _WITH_FILES)


def newest_after(event: Event, known: WorkspaceSnapshot | None) -> WorkspaceSnapshot | None:
    """The newest snapshot of a run after this event; `known` is the newest before it. Later events may have older ones.

    Calls of a step end in any order, so the number decides.
    """
    found: WorkspaceSnapshot | None = getattr(event, "workspace", None) if isinstance(event, _WITH_FILES) else None
    return found if found is not None and (known is None or found.number > known.number) else known


def newest(entries: Sequence[Entry]) -> WorkspaceSnapshot | None:
    """The newest snapshot that a journal, or the beginning of one, has."""
    found: WorkspaceSnapshot | None = None
    for entry in entries:
        if entry.type in SNAPSHOT_EVENTS:
            found = newest_after(decode(entry.data), found)
    return found


class TreeEntry(Struct, frozen=True, array_like=True, gc=False):
    """One name in a folder. `content` is a digest, or the target of a link; `size` is 0 but for files."""

    name: str
    kind: Kind
    mode: int = 0
    size: int = 0
    content: str = ""

    @property
    def path_name(self) -> str:
        """The name as the file system of this machine knows it, for `os` functions."""
        return from_stored(self.name)

    @property
    def target(self) -> str:
        """The target of a link, for `os` functions."""
        return from_stored(self.content)


class Folder(Struct, frozen=True, tag="folder@1"):
    entries: tuple[TreeEntry, ...] = ()


class Pieces(Struct, frozen=True, tag="pieces@1"):
    pieces: tuple[str, ...]


class FileChange(Struct, frozen=True, omit_defaults=True):
    """A path that differs between two snapshots. `before` and `after` are None where it is not there."""

    path: str
    change: Change
    before: TreeEntry | None = None
    after: TreeEntry | None = None


_encoder = msgspec.json.Encoder()
_folders = msgspec.json.Decoder(Folder)
_pieces = msgspec.json.Decoder(Pieces)


def to_stored(name: str) -> str:
    """A name of this file system as it is stored."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return _RAW + base64.b64encode(name.encode("utf-8", "surrogateescape")).decode()
    return name


def from_stored(name: str) -> str:
    """The opposite of `to_stored`. Raises `InvalidInput` for what no snapshot has."""
    if not name.startswith(_RAW):
        return name
    try:
        return base64.b64decode(name[1:], validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error:
        raise InvalidInput("a snapshot of a workspace has a name that cannot be read") from None


def encode_folder(entries: Sequence[TreeEntry]) -> bytes:
    """The bytes of a folder; `entries` are in the order of their names."""
    return _encoder.encode(Folder(tuple(entries)))


EMPTY: Final = digest_of(encode_folder(()))


def decode_folder(data: bytes) -> tuple[TreeEntry, ...]:
    """The entries of a folder. Raises `InvalidInput` for a name that could lead out of it, or what is no folder."""
    try:
        entries = _folders.decode(data).entries
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"a snapshot of a workspace cannot be read: {error}") from None
    for entry in entries:
        name = entry.path_name
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise InvalidInput(f"a snapshot of a workspace has the name {name!r}, which leads out of its folder")
    return entries


def encode_pieces(pieces: Sequence[str]) -> bytes:
    return _encoder.encode(Pieces(tuple(pieces)))


def decode_pieces(data: bytes) -> tuple[str, ...]:
    """The digests of a large file's pieces. Raises `InvalidInput`."""
    try:
        return _pieces.decode(data).pieces
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"a snapshot of a workspace cannot be read: {error}") from None


NOT_STORED: Final[Mapping[str, bytes]] = {}
Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]


class WorkspaceTree:
    """The folders of one snapshot, by digest, without the contents of files."""

    def __init__(self, root: str, folders: Mapping[str, tuple[TreeEntry, ...]], blobs: Mapping[str, bytes]) -> None:
        self.root = root
        self._folders = folders
        # Folders as they are stored, for whoever begins another run with them.
        self.blobs = blobs

    @classmethod
    async def load(cls, fetch: Fetch, root: str) -> WorkspaceTree:
        """Read all folders below `root`, one after the other. Raises what `fetch` raises, and `InvalidInput`."""
        folders: dict[str, tuple[TreeEntry, ...]] = {EMPTY: ()}
        blobs: dict[str, bytes] = {}
        wanted = [root]
        while wanted:
            digest = wanted.pop()
            if digest in folders:
                continue
            blobs[digest] = data = await fetch(digest)
            folders[digest] = entries = decode_folder(data)
            wanted += (entry.content for entry in entries if entry.kind == "folder")
        return cls(root, folders, blobs)

    def entries(self, digest: str) -> tuple[TreeEntry, ...]:
        return self._folders[digest]

    def walk(self) -> Iterator[tuple[str, TreeEntry]]:
        """All entries with their paths, each folder before what is in it."""
        left = [("", self.root)]
        while left:
            prefix, digest = left.pop()
            for entry in self._folders[digest]:
                path = prefix + entry.path_name
                yield path, entry
                if entry.kind == "folder":
                    left.append((f"{path}/", entry.content))

    def find(self, path: str) -> TreeEntry | None:
        """The entry at a path; links on the way are not followed."""
        digest, found = self.root, None
        for name in path.split("/"):
            if found is not None and found.kind != "folder":
                return None
            found = next((entry for entry in self._folders[digest] if entry.path_name == name), None)
            if found is None:
                return None
            digest = found.content
        return found


def fetching(journal: Journal, known: Mapping[str, bytes]) -> Fetch:
    """Reads content that is `known` and not stored yet from there, and all else from the journal."""

    async def fetch(digest: str) -> bytes:
        return known[digest] if digest in known else await journal.get_blob(digest)

    return fetch


async def content_of(
    journal: Journal, snapshot: WorkspaceSnapshot, known: Mapping[str, bytes] = NOT_STORED
) -> dict[str, bytes]:
    """The content of a snapshot that names other content: folders, and the lists of large files' pieces.

    `known` is content of it that is not stored yet.
    """
    tree = await WorkspaceTree.load(fetching(journal, known), snapshot.digest)
    found = dict(tree.blobs)
    for _, entry in tree.walk():
        if entry.kind == "file" and entry.size > PIECE and entry.content not in found:
            found[entry.content] = await journal.get_blob(entry.content)
    return found


async def entries_of(fetch: Fetch, digest: str) -> dict[str, TreeEntry]:
    """Reads one folder: its entries by name, as it is stored. Raises what `fetch` raises, and `InvalidInput`."""
    return {entry.name: entry for entry in (() if digest == EMPTY else decode_folder(await fetch(digest)))}


def put_folder(entries: Mapping[str, TreeEntry], content: dict[str, bytes]) -> str:
    """Puts a folder of these entries into `content`; its digest."""
    data = encode_folder([entries[name] for name in sorted(entries)])
    content[digest_of(data)] = data
    return digest_of(data)


def differences(before: WorkspaceTree, after: WorkspaceTree) -> list[FileChange]:
    """Compares two snapshots; returns what differs, by path. Equal folders are not looked into."""
    found: list[FileChange] = []
    left = [("", before.root, after.root)]
    while left:
        prefix, old_digest, new_digest = left.pop()
        if old_digest == new_digest:
            continue
        old = {entry.name: entry for entry in before.entries(old_digest)}
        new = {entry.name: entry for entry in after.entries(new_digest)}
        for name in old.keys() | new.keys():
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            path = prefix + from_stored(name)
            both = was is not None and now is not None and was.kind == now.kind == "folder"
            if both and was is not None and now is not None:
                left.append((f"{path}/", was.content, now.content))
                if was.mode == now.mode:
                    continue
            change: Change = "added" if was is None else "deleted" if now is None else "changed"
            found.append(FileChange(path, change, was, now))
            if not both:  # all below a folder that came or went
                left += _one_sided(path, was, now)
    return sorted(found, key=lambda each: each.path)


def _one_sided(path: str, was: TreeEntry | None, now: TreeEntry | None) -> Iterator[tuple[str, str, str]]:
    if was is not None and was.kind == "folder":
        yield f"{path}/", was.content, EMPTY
    if now is not None and now.kind == "folder":
        yield f"{path}/", EMPTY, now.content
