"""Pictures and files of answers, kept as files of their own: a terminal shows a link to them.

The name of a file is made of the digest of its content and the type that it is said to have; nothing that a model or a
tool chose is part of it. Files and folder are private.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from foliot.errors import InvalidInput
from foliot.sessions.chat_events import FileEvent, ImageEvent

FOLDER: Final = "chat-files"
ENDINGS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
    "text/plain": ".txt",
    "application/json": ".json",
}


class Pictures:
    """`content` reads what a run keeps, by its digest."""

    def __init__(self, home: Path, content: Callable[[str, str], Awaitable[bytes]]) -> None:
        self._folder = home / FOLDER
        self._content = content

    async def link_of(self, event: ImageEvent | FileEvent) -> str:
        """Returns the address of a picture or file; what has none is stored as a file. Raises `InvalidInput`."""
        if event.url:
            return event.url
        return self._kept(await self._bytes(event), event.media_type).as_uri()

    async def _bytes(self, event: ImageEvent | FileEvent) -> bytes:
        if event.blob:
            return await self._content(event.run, event.blob)
        try:
            return base64.b64decode(event.data or "", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("its data is not base64") from None

    def _kept(self, data: bytes, media_type: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{sha256(data).hexdigest()[:24]}{ENDINGS.get(media_type.lower(), '.bin')}"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return path  # the same content
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        return path
