"""Files that people sent to a session: which there are, and that their content stays for as long as the session.

Content is named by its digest, and a digest alone opens nothing: what a message refers to must have been sent to the
same session (`find`). So a digest that somebody has heard of opens no files of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from foliot.errors import Conflict, NotFound
from foliot.store.base import Database
from foliot.store.content import keep_content
from foliot.store.sessions.base import SessionArchived
from foliot.store.transaction import Row, Tx, one, run

MOST_ASSETS: Final = 1000
LARGEST_IN_ALL: Final = 1024**3


class Asset(Struct, frozen=True):
    """A file of a session: the digest of its content, a name that is safe, its size, its media type."""

    digest: str
    name: str
    size: int
    media_type: str


class SqlAssets:
    """The files of the sessions of an installation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, session: str, asset: Asset, content: Mapping[str, bytes], *, now: float) -> None:
        """Stores a file with its content, of which `asset.digest` is one. The same file twice is one file.

        Raises `NotFound` without such a session, `SessionArchived`, `Conflict` when it keeps as much as it may.
        """
        await self._db.write(_add, session, asset, dict(sorted(content.items())), now)

    async def find(self, session: int, digest: str) -> list[Asset]:
        """Returns what a session, by the key of its row, calls this content; the first name first."""
        return [_asset(row) for row in await self._db.read("asset_find", session=session, digest=digest)]

    async def list(self, session: int) -> list[Asset]:
        """Returns the files of a session, by the key of its row, in the order in which they came."""
        return [_asset(row) for row in await self._db.read("asset_list", session=session)]


def _add(session: str, asset: Asset, content: Mapping[str, bytes], now: float) -> Tx[None]:
    there = yield from one("session_lock", id=session)
    if there is None:
        raise NotFound(f"there is no session {session!r}", hint="`foliot sessions` lists them")
    if there["archived_at"] is not None:
        raise SessionArchived(f"session {session} is archived", hint="begin another one")
    room = yield from one("asset_room", session=there["key"])
    assert room is not None, "a count always has a row"
    if room["files"] >= MOST_ASSETS or room["size"] + asset.size > LARGEST_IN_ALL:
        raise Conflict(
            f"session {session} keeps {room['files']:,} files of {room['size']:,} bytes, and may keep "
            f"{MOST_ASSETS:,} of {LARGEST_IN_ALL:,}",
            hint="begin another session",
        )
    yield from keep_content(content, now)
    for name in content:
        if name != asset.digest:
            yield from run("asset_add", session=there["key"], digest=name, name="", size=0, media_type="", at=now)
    yield from run(
        "asset_add",
        session=there["key"],
        digest=asset.digest,
        name=asset.name,
        size=asset.size,
        media_type=asset.media_type,
        at=now,
    )


def _asset(row: Row) -> Asset:
    return Asset(row["digest"], row["name"], row["size"], row["media_type"])
