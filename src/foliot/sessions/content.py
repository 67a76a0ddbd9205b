"""Messages to sessions: texts, pictures and files of people; checked, named safely, and stored once.

The content of a file is stored as an asset of the session before the message is. The message refers to it by its
digest, so neither the inbox nor any turn stores it again. What a model may be able to look at (pictures, PDF, text,
recordings, each up to 4 MiB) stays a part of the message, and is sent to the model with it. Everything else is named in
words: it lies in the workspace of the turn, for tools.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from foliot.common.threads import unhurried
from foliot.engine.driver.attachments import FetchesFiles
from foliot.engine.workspaces.assets import Assets, Attachment, asset_name, asset_text, make_asset
from foliot.engine.workspaces.trees import PIECE
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import Media, Message, Text
from foliot.kernel.run.state import State
from foliot.store.journal.base import Journal
from foliot.store.sessions.assets import Asset, SqlAssets
from foliot.store.sessions.base import Session
from foliot.store.sessions.database import SqlSessions

LONGEST_TEXT: Final = 1_000_000
MOST_FILES: Final = 20
LARGEST_FILE: Final = 20 * 1024 * 1024
LARGEST_MESSAGE: Final = 64 * 1024 * 1024
LONGEST_URL: Final = 2048
LONGEST_NAME: Final = 1024
# Where the digests of the files of an input stand in its details.
ASSETS: Final = "assets"
_OCTETS: Final = "application/octet-stream"
_SIGNS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_WRITTEN: Final = frozenset({"application/json", "application/xml", "application/pdf"})
# Characters that no keyboard makes and no text needs. A text with several of them is a file that somebody pasted.
_CONTROLS: Final = frozenset(map(chr, range(32))) - frozenset("\t\n\r\f\v\x1b")
MOST_CONTROLS: Final = 8


class SentFile(Struct, frozen=True):
    """A file of a message as it was checked: with its content, or the digest of an asset that was sent before."""

    name: str
    media_type: str
    data: bytes = b""
    digest: str = ""


Unsaved: TypeAlias = tuple[Asset, dict[str, bytes]]


async def kept_message(
    said: Message, session: Session, assets: Assets
) -> tuple[Message, tuple[str, ...], list[Unsaved]]:
    """Returns a message as it is kept, the digests of its files, and those files that are to be stored before it is.

    Raises `InvalidInput` for what cannot be said, `NotFound` for a digest that is no file of this session.
    """
    size = sum(len(part.data or "") for part in said.parts if isinstance(part, Media))
    parts = await unhurried(size, check_parts, said)
    kept: list[Text | Media] = []
    named: list[Asset] = []
    digests: list[str] = []
    unsaved: list[Unsaved] = []
    for part in parts:
        if not isinstance(part, SentFile):
            kept.append(part)
            continue
        if part.digest:
            (asset,) = await assets.resolve([Attachment(part.name, part.media_type, digest=part.digest)], session)
        else:
            asset, content = await unhurried(len(part.data), make_asset, part.name, part.data, part.media_type)
            unsaved.append((asset, content))
        digests.append(asset.digest)
        if is_shown(asset):
            kept.append(Media(asset.media_type, blob=asset.digest, name=asset.name))
        else:
            named.append(asset)
    if (listing := asset_text(named)) is not None:
        kept.append(listing)
    return Message(said.role, tuple(kept)), tuple(dict.fromkeys(digests)), unsaved


class SessionFiles:
    """The files of sessions, for the turns that need their content."""

    def __init__(self, journal: Journal, sessions: SqlSessions, stored: SqlAssets) -> None:
        self._journal = journal
        self._sessions = sessions
        self._stored = stored

    def of_run(self, state: State) -> FetchesFiles:
        """Returns what brings the files of a turn's session, and of no other; for `Runs.turn_files`."""
        assert state.created is not None, "only a run that was created is driven"
        return partial(self._fetch, state.created.session)

    async def _fetch(self, id: str, digests: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        with contextlib.suppress(NotFound):  # the session was deleted, and its files with it
            session = await self._sessions.get(id)
            there = {asset.digest for asset in await self._stored.list(session.key) if is_shown(asset)}
            for digest in digests:
                if digest in there:
                    found[digest] = await self._journal.get_blob(digest)
        return found

    async def of_inputs(self, session: Session, numbers: Sequence[int]) -> list[Asset]:
        """Returns the files that came with these inputs."""
        wanted: set[str] = set()
        for seq in numbers:
            for each in await self._sessions.inputs(session.key, after=seq - 1, limit=1):
                wanted.update(each.details.get(ASSETS, ()))
        return [asset for asset in await self._stored.list(session.key) if asset.digest in wanted] if wanted else []


def is_shown(asset: Asset) -> bool:
    """Whether a file is sent to models as it is. Larger ones are stored in pieces, and are for tools."""
    kind = asset.media_type
    readable = kind in _PICTURES or kind in _WRITTEN or kind.startswith(("text/", "audio/"))
    return readable and 0 < asset.size <= PIECE


def check_length(said: Message) -> None:
    """Raises `InvalidInput` for more text than one message may have."""
    if len(said.text) > LONGEST_TEXT:
        raise InvalidInput(
            f"the text has {len(said.text):,} characters, and may have {LONGEST_TEXT:,}", hint="send it as a file"
        )


def check_parts(said: Message) -> list[Text | Media | SentFile]:
    """Reads the parts of a message. Raises `InvalidInput` that names the part and what to do instead."""
    files = [part for part in said.parts if isinstance(part, Media)]
    if len(files) > MOST_FILES:
        raise InvalidInput(
            f"{len(files)} files come with the message, and {MOST_FILES} may",
            hint="send several messages, or one archive",
        )
    check_length(said)
    found: list[Text | Media | SentFile] = []
    for at, part in enumerate(said.parts):
        place = f"parts[{at}]"
        if isinstance(part, Text):
            found.append(_text(part, place))
        elif isinstance(part, Media):
            found.append(_file(part, place))
        else:
            raise InvalidInput(f"{place}: people say texts and send files", hint="leave it out")
    total = sum(len(each.data) for each in found if isinstance(each, SentFile))
    if total > LARGEST_MESSAGE:
        raise InvalidInput(
            f"the files of the message have {total:,} bytes, and may have {LARGEST_MESSAGE:,}",
            hint="send several messages",
        )
    return found


def _text(part: Text, place: str) -> Text:
    controls = sum(part.text.count(each) for each in _CONTROLS)
    if "\x00" in part.text or controls > MOST_CONTROLS:
        raise InvalidInput(f"{place} is not text: it holds control characters", hint="send it as a file")
    return part


def _file(part: Media, place: str) -> Media | SentFile:
    given = [name for name in ("data", "url", "blob") if getattr(part, name)]
    if len(given) != 1:
        raise InvalidInput(f"{place}: a file has its data, or a blob, or a url, and one of them only")
    if part.name is not None and len(part.name) > LONGEST_NAME:
        raise InvalidInput(f"{place}.name is longer than {LONGEST_NAME} characters")
    kind = part.media_type.strip().lower()
    if part.url:
        return _link(part, kind, place)
    name = part.name or _name_for(kind)
    if part.blob:
        return SentFile(name, kind or _OCTETS, digest=part.blob)
    data = _decoded(part.data or "", place)
    seen = sniffed(data)
    if kind.startswith("image/") and kind != "image/svg+xml" and kind in (*_PICTURES, "image/jpg", "image/*"):
        if not seen:
            raise InvalidInput(
                f"{place}: the data of {asset_name(name)} is no picture that models read",
                hint="send PNG, JPEG, GIF or WebP; or say that it is application/octet-stream",
            )
        kind = seen
    return SentFile(name, kind or seen or _OCTETS, data)


def _decoded(text: str, place: str) -> bytes:
    # Checked before it is decoded: whoever sends a gigabyte is not to be given three.
    if len(text) > LARGEST_FILE * 4 // 3 + 4:
        raise InvalidInput(
            f"{place}: the file is larger than {LARGEST_FILE:,} bytes",
            hint="save it as an asset of the session first, or put it where the agent can fetch it",
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{place}.data must be base64", hint="the standard alphabet, with padding") from None
    if not data:
        raise InvalidInput(f"{place}: the file is empty")
    return data


def _link(part: Media, kind: str, place: str) -> Media:
    """A picture elsewhere, which the provider of the model fetches by itself."""
    url = part.url or ""
    try:
        parsed = urlsplit(url)
        host = parsed.hostname
    except ValueError:
        parsed = host = None
    if parsed is None or parsed.scheme != "https" or not host or parsed.username or len(url) > LONGEST_URL:
        raise InvalidInput(f"{place}.url is no address of a picture", hint="give an https address, or the data")
    if not kind.startswith("image/"):
        raise InvalidInput(f"{place}: only pictures are sent by their address", hint="give the data of the file")
    return Media(kind, url=url, name=asset_name(part.name) if part.name else None)


def sniffed(data: bytes) -> str:
    """Returns the media type of a picture by its first bytes; blank for anything else."""
    for sign, kind in _SIGNS:
        if data.startswith(sign):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def _name_for(kind: str) -> str:
    return f"file.{kind.rpartition('/')[2]}" if kind else "file"
