"""Bytes to events: server-sent events and newline-delimited JSON, whatever way the network cut them.

Only the data of an event is kept: every format here repeats the event's name inside its data. Raw line ends cannot
stand inside JSON, so they can be normalised before anything else is looked at.
"""

from __future__ import annotations


class SseLines:
    """`feed` returns the data of each event that is complete; `flush` what a server left without its blank line."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk and b"\r" not in chunk:
            # Part of a long line. Kept in a list, because joining at every piece would cost the square of its length.
            self._pending.append(chunk)
            return []
        pending = self._pending
        if pending:
            pending.append(chunk)
            chunk = b"".join(pending)
            pending.clear()
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):
                pending.append(b"\r")  # its line feed may still be on the way
                chunk = chunk[:-1]
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        blocks = chunk.split(b"\n\n")
        if rest := blocks.pop():
            pending.insert(0, rest)
        events: list[bytes] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            elif data := _data(block):
                events.append(data)
        return events

    def flush(self) -> list[bytes]:
        rest = b"".join(self._pending).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._pending.clear()
        return [data for block in rest.split(b"\n\n") if (data := _data(block))]


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
