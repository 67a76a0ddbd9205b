"""The history of chats: what was typed, kept between starts in a file that only its owner reads.

One JSON text per line, so that a text of several lines is one entry. A file that cannot be read or written costs the
history and never the chat. Commands that a secret may follow are not kept (`is_private`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from foliot.cli.chat.commands import is_private

NAME: Final = "chat_history"
MOST: Final = 1000
# A text as long as a book is not typed again; and this bounds the file.
LONGEST: Final = 10_000
LARGEST: Final = 4 * 1024 * 1024


class HistoryFile:
    """The history in the home folder of Foliot."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME

    def read(self) -> list[str]:
        """Returns the last texts, oldest first; shortens a file that has grown too long."""
        try:
            found = self._texts()
            if len(found) > 2 * MOST:
                self._rewrite(found[-MOST:])
        except OSError:
            return []
        return found[-MOST:]

    def add(self, text: str) -> bool:
        """Keeps a text; returns whether it is one that is kept."""
        if not text.strip() or len(text) > LONGEST or is_private(text):
            return False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A link that somebody put there is not followed, and the bits are set at once: nobody else reads it.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o600)
            try:
                os.fchmod(file, 0o600)
                os.write(file, msgspec.json.encode(text) + b"\n")
            finally:
                os.close(file)
        except (OSError, UnicodeEncodeError):
            return True
        return True

    def _texts(self) -> list[str]:
        file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            opened.seek(max(0, os.fstat(file).st_size - LARGEST))
            lines = opened.read(LARGEST).splitlines()
        return [text for line in lines if (text := _decoded(line))]

    def _rewrite(self, texts: list[str]) -> None:
        other = self._path.with_name(f"{NAME}.{os.getpid()}")
        file = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.writelines(msgspec.json.encode(text) + b"\n" for text in texts)
        os.replace(other, self._path)


def _decoded(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=str)
    except msgspec.MsgspecError:
        return ""
