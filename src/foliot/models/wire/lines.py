"""Bytes to events: server-sent events and newline-delimited JSON, whatever way the network cut them.

Only the data of an event is kept: every format here repeats the event's name inside its data. Raw line ends cannot
stand inside JSON, so they can be normalised before anything else is looked at.
"""

from __future__ import annotations

_MARK = b"\xef\xbb\xbf"  # some servers begin their stream with a byte order mark


class SseLines:
    """`feed` returns the data of each event that is complete; `flush` what a server left without its blank line."""

    __slots__ = ("_after_return", "_begun", "_pending")

    def __init__(self) -> None:
        # Pieces without an event's end, kept in a list: joining at every piece would cost the square of their length.
        self._pending: list[bytes] = []
        self._after_return = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_return and chunk:
            self._after_return = False
            if chunk.startswith(b"\n"):  # the other half of a line end that was counted already
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pending = self._pending
        if b"\n\n" not in chunk and not (chunk.startswith(b"\n") and pending and pending[-1].endswith(b"\n")):
            if chunk:
                pending.append(chunk)
            return []
        if pending:
            pending.append(chunk)
            chunk = b"".join(pending)
            pending.clear()
        blocks = chunk.split(b"\n\n")
        if rest := blocks.pop():
            pending.append(rest)
        return self._events(blocks)

    def flush(self) -> list[bytes]:
        rest = b"".join(self._pending)
        self._pending.clear()
        return self._events([rest])

    def _events(self, blocks: list[bytes]) -> list[bytes]:
        if not self._begun:
            self._begun = True
            blocks[0] = blocks[0].removeprefix(_MARK)
        events: list[bytes] = []
        for block in blocks:
            data = block[6:] if block.startswith(b"data: ") and b"\n" not in block else _data(block)
            if data and not data.isspace():  # some servers keep the line awake with empty data
                events.append(data)
        return events


def _data(block: bytes) -> bytes:
    """The data lines of one event, joined; empty for comments, pings and events without data."""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return b"\n".join(lines)


class JsonLines:
    """The same two methods for one JSON value per line."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk:
            self._pending.append(chunk)
            return []
        self._pending.append(chunk)
        lines = b"".join(self._pending).split(b"\n")
        self._pending.clear()
        if rest := lines.pop():
            self._pending.append(rest)
        return [line for line in lines if line.strip()]

    def flush(self) -> list[bytes]:
        rest = b"".join(self._pending).strip()
        self._pending.clear()
        return [rest] if rest else []
