"""Files that people send: named safely, stored as content by digest, and laid into the folder of a run.

An asset is at `assets/DIGEST_NAME` of the workspace, so two files never meet at one path, and the same file under the
same name is the same asset however often it is sent. It is laid there when a turn begins (`with_assets`): by adding to
the snapshot that the turn begins with, not by writing to a folder, so there is no path that a link could redirect.
What an agent made of an asset meanwhile is replaced when the person sends it again: `assets/` is what people sent.

A message names its files as `Attachment`: with their content while they are small, else by the digest of an asset that
was saved before (`check_attachments`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.common.text import one_line
from foliot.common.threads import unhurried
from foliot.engine.workspaces.trees import (
    EMPTY,
    NOT_STORED,
    PIECE,
    TreeEntry,
    encode_pieces,
    entries_of,
    fetching,
    newest,
    put_folder,
)
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import Text
from foliot.kernel.run.events import WorkspaceSnapshot
from foliot.kernel.run.spec import digest as digest_of
from foliot.store.journal.base import Journal
from foliot.store.sessions.assets import Asset, SqlAssets
from foliot.store.sessions.base import Session

FOLDER: Final = "assets"
MOST_ATTACHMENTS: Final = 20
LARGEST_ATTACHMENTS: Final = 64 * 1024
LARGEST_ASSET: Final = 64 * 1024 * 1024
# In bytes of UTF-8: file systems allow 255, of which the digest takes some.
LONGEST_NAME: Final = 120
LONGEST_SUFFIX: Final = 16
_PREFIX: Final = 16
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")
# What shells, file systems and archives give a meaning to. The rest of what is refused is refused by its category.
_RESERVED: Final = frozenset("<>:\"|?*$`&;!'(){}[]#%^~\\/")
# Controls, format characters (which reorder or hide), half characters, private ones, and separators of lines.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DEFAULT_TYPE: Final = "application/octet-stream"


class Attachment(Struct, frozen=True, omit_defaults=True):
    """A file that comes with a message: its content in base64, or the `digest` of an asset that was saved before."""

    name: str
    media_type: str = _DEFAULT_TYPE
    data: str = ""
    digest: str = ""


def file_name(asset: Asset) -> str:
    """Returns the name of an asset's file: no other asset of a session has it."""
    return f"{asset.digest.removeprefix('sha256:')[:_PREFIX]}_{asset.name}"


def path_of(asset: Asset) -> str:
    """Returns where an asset is in a workspace."""
    return f"{FOLDER}/{file_name(asset)}"


def asset_name(name: str) -> str:
    """Returns a name that is safe for a file, of whatever somebody called it; the same name for the same text.

    Of a path only the last part counts, with the separators of any system. What cannot be seen is dropped, what means
    something to a shell or a file system becomes `_`. A name of nothing else is `file`.
    """
    last = re.split(r"[/\\]", name)[-1]
    kept = [each for each in unicodedata.normalize("NFC", last) if unicodedata.category(each) not in _UNSEEN]
    plain = "".join("_" if each in _RESERVED or each.isspace() else each for each in kept).strip("._- ")
    stem, dot, suffix = plain.rpartition(".")
    if not dot or not stem or len(suffix.encode()) > LONGEST_SUFFIX:
        stem, dot, suffix = plain, "", ""
    room = LONGEST_NAME - len(f"{dot}{suffix}".encode())
    return f"{_cut(stem, room) or 'file'}{dot}{suffix}"


def _cut(text: str, room: int) -> str:
    return text.encode()[:room].decode("utf-8", "ignore")


def check_attachments(given: Sequence[Mapping[str, Any]], *, field: str = "attachments") -> tuple[Attachment, ...]:
    """Reads the attachments of one message. Raises `InvalidInput` that names the place and what to do instead."""
    if len(given) > MOST_ATTACHMENTS:
        raise InvalidInput(
            f"{field}: {len(given)} attachments, and a message may have {MOST_ATTACHMENTS}",
            hint="send several messages, or one archive",
        )
    try:
        size = len(json.dumps(list(map(dict, given)), ensure_ascii=False).encode())
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"{field} cannot be written as JSON: {one_line(str(error), 200)}") from None
    if size > LARGEST_ATTACHMENTS:
        raise InvalidInput(
            f"{field}: {size:,} bytes of JSON, and a message may have {LARGEST_ATTACHMENTS:,}",
            hint="save the file as an asset first, and give its `digest` in place of `data`",
        )
    return tuple(_attachment(each, f"{field}[{at}]") for at, each in enumerate(given))


def _attachment(given: Mapping[str, Any], place: str) -> Attachment:
    try:
        found = msgspec.convert(dict(given), Attachment)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{place}: {error}", hint="an attachment has a name, and data or a digest") from None
    if unknown := sorted(set(given) - set(Attachment.__struct_fields__)):
        raise InvalidInput(f"{place}: there is no field {one_line(str(unknown[0]), 40)!r} in an attachment")
    if bool(found.data) == bool(found.digest):
        raise InvalidInput(f"{place}: give either data or a digest")
    if found.digest and not _DIGEST.fullmatch(found.digest):
        raise InvalidInput(f"{place}.digest is no digest", hint="sha256: and 64 hexadecimal digits in lower case")
    if not _MEDIA_TYPE.fullmatch(found.media_type):
        raise InvalidInput(f"{place}.media_type is no media type", hint="such as image/png")
    if found.data:
        attached_bytes(found, place)
    return found


def attached_bytes(attachment: Attachment, place: str = "attachment") -> bytes:
    """Returns the content of an attachment that brings it along. Raises `InvalidInput` for what is no base64."""
    try:
        return base64.b64decode(attachment.data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{place}.data must be base64", hint="the standard alphabet, with padding") from None


def make_asset(name: str, data: bytes, media_type: str = "") -> tuple[Asset, dict[str, bytes]]:
    """Returns a file as an asset, and the content to be stored for it. Raises `InvalidInput` for one that is too large.

    A large file is stored in pieces, as files of snapshots are; its digest is then that of the list of them.
    """
    if len(data) > LARGEST_ASSET:
        raise InvalidInput(
            f"{asset_name(name)} has {len(data):,} bytes, and an asset may have {LARGEST_ASSET:,}",
            hint="put it where the agent can fetch it, or mount the folder that it is in",
        )
    media_type = media_type or _DEFAULT_TYPE
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise InvalidInput("the media type of an asset is none", hint="such as image/png")
    if len(data) <= PIECE:
        content = {digest_of(data): data}
        return Asset(digest_of(data), asset_name(name), len(data), media_type), content
    pieces = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
    digests = [digest_of(piece) for piece in pieces]
    listed = encode_pieces(digests)
    content = {**dict(zip(digests, pieces, strict=True)), digest_of(listed): listed}
    return Asset(digest_of(listed), asset_name(name), len(data), media_type), content


class Assets:
    """The files that people send to sessions, and to runs that others go on after."""

    def __init__(self, journal: Journal, stored: SqlAssets | None, *, clock: Callable[[], float]) -> None:
        """`stored` are the files of sessions; without a database there are none."""
        self._journal = journal
        self._stored = stored
        self._clock = clock

    async def save_asset(
        self, name: str, data: bytes, *, session: str = "", run_id: str = "", media_type: str = ""
    ) -> Asset:
        """Stores a file for a session, or for a run. The same file twice is one asset.

        Its content stays for as long as that one. Raises `InvalidInput`, `NotFound`, `Conflict`.
        """
        assert bool(session) != bool(run_id), "an asset is of a session or of a run"
        asset, content = await unhurried(len(data), make_asset, name, data, media_type)
        if session:
            await self.add(session, asset, content)
        else:
            await self._journal.get(run_id)
            await self._journal.put_blobs(list(content.values()), run_id=run_id)
        return asset

    async def add(self, session: str, asset: Asset, content: Mapping[str, bytes]) -> None:
        """Stores a file that `make_asset` made for a session. Raises `NotFound`, `SessionArchived`, `Conflict`."""
        await self._of_sessions.add(session, asset, content, now=self._clock())

    async def resolve(self, attachments: Sequence[Attachment], session: Session) -> tuple[Asset, ...]:
        """Returns the assets that a message to a session brings along or refers to; what it brings is stored.

        Raises `NotFound` for a digest of nothing that was sent to this very session, and as `save_asset`.
        """
        found: list[Asset] = []
        for at, each in enumerate(attachments):
            if each.data:
                data = attached_bytes(each, f"attachments[{at}]")
                found.append(await self.save_asset(each.name, data, session=session.id, media_type=each.media_type))
                continue
            known = await self._of_sessions.find(session.key, each.digest)
            if not known:
                raise NotFound(
                    f"attachments[{at}]: no file of this digest was sent to session {session.id}",
                    hint="save the file as an asset of the session first",
                )
            wanted = asset_name(each.name)
            found.append(next((asset for asset in known if asset.name == wanted), known[0]))
        return tuple(found)

    @property
    def _of_sessions(self) -> SqlAssets:
        if self._stored is None:
            raise InvalidInput("sessions keep files in a database, and this runtime has none")
        return self._stored


def asset_text(assets: Sequence[Asset]) -> Text | None:
    """Returns the block that tells an agent of files that came with a message; None without any."""
    if not assets:
        return None
    lines = [f"- {path_of(each)} ({each.media_type}, {each.size:,} bytes)" for each in assets]
    return Text("\n".join(["[Files that came with this message, in your workspace:", *lines, "]"]))


async def left_by(journal: Journal, run_id: str) -> WorkspaceSnapshot | None:
    """Returns the files as a run left them, which the turn after it begins with; None for an empty folder."""
    return newest(await journal.read(run_id))


async def with_assets(
    journal: Journal,
    snapshot: WorkspaceSnapshot | None,
    assets: Iterable[Asset],
    known: Mapping[str, bytes] = NOT_STORED,
) -> tuple[WorkspaceSnapshot | None, dict[str, bytes]]:
    """Returns a snapshot with these assets in it, and what of its content is new and names other content.

    Only the two folders that change are read, however much else there is. `known` is content that is not stored yet.
    Raises `NotFound` when content of the snapshot or of an asset is gone.
    """
    wanted = {file_name(each): each for each in assets}
    if not wanted:
        return snapshot, {}
    content: dict[str, bytes] = {}
    fetch = fetching(journal, known)
    root = await entries_of(fetch, EMPTY if snapshot is None else snapshot.digest)
    there = root.get(FOLDER)
    # Something else that an agent called `assets` is in the way; what people sent is not to be lost for that.
    kept = there is not None and there.kind == "folder"
    below = await entries_of(fetch, there.content) if there is not None and kept else {}
    before = [*below.values(), *([] if there is None or kept else [there])]
    for name, asset in wanted.items():
        data = await journal.get_blob(asset.digest)
        if asset.size > PIECE:
            content[asset.digest] = data
        below[name] = TreeEntry(name, "file", 0o644, asset.size, asset.digest)
    mode = there.mode if there is not None and kept else 0o755
    root[FOLDER] = TreeEntry(FOLDER, "folder", mode, 0, put_folder(below, content))
    digest = put_folder(root, content)
    number, files, size = (0, 0, 0) if snapshot is None else (snapshot.number, snapshot.files, snapshot.size)
    files += len(below) - len(before) + (not kept)
    size += sum(entry.size for entry in below.values()) - sum(entry.size for entry in before)
    return WorkspaceSnapshot(digest, number + 1, files, size, None if snapshot is None else snapshot.data), content
