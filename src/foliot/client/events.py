"""Server-sent events: from bytes to events, without looking at the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from foliot.errors import Unavailable

# One event is one resource or one batch of facts; a server that sends more without an end is none.
LONGEST: Final = 64 * 1024 * 1024


class ServerEvent(Struct, frozen=True):
    """`id` is where to go on after it; it stays that of the last event that had one."""

    name: str
    data: str
    id: str | None


class EventReader:
    """Takes bytes as they come, in pieces of any size, and gives events as they are complete."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self._rest = bytearray()
        self._searched = 0
        self._name = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that this piece completes. Raises `Unavailable` for a line that does not end."""
        self._rest += piece
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._searched))) >= 0:
            line = self._rest[start:end].rstrip(b"\r").decode("utf-8", "replace")
            start = end + 1
            if (event := self._take(line)) is not None:
                yield event
        del self._rest[:start]
        self._searched = len(self._rest)  # what was looked through is not looked through again
        if len(self._rest) > LONGEST:
            raise Unavailable("the server sends an event that does not end")

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._complete()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment is a sign of life, and what is not known is for newer clients
        return None

    def _complete(self) -> ServerEvent | None:
        # Only now: whoever breaks off in the middle of an event must get it again.
        if self._id is not None:
            self.last_id, self._id = self._id, None
        name, data, self._name, self._data = self._name, self._data, "", []
        return ServerEvent(name or "message", "\n".join(data), self.last_id) if data else None
