"""Large events: their long texts stand apart, each under its digest, so that equal ones are stored once.

Ten runs that read the same document have ten events with ten times and call ids in them, and one document. So it is the
texts that are named by their content, not the events. The bytes of an event come back as they were: they are cut at the
quotes around its texts and put together again, and never read as JSON.

The note beside such an event says where its texts belong: `12@sha256:… 99@sha256:…`, offsets into what is left. What
is left stands apart too when it is large; then its digest comes first, without an offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from foliot.kernel.json_texts import texts_in
from foliot.kernel.spec import digest

# A larger event is stored in pieces, so that the tables stay small.
LARGE: Final = 32 * 1024
# The texts in it that are worth a place of their own.
LONG: Final = 4 * 1024


class Parted(NamedTuple):
    """`data` stays with the event, `note` is written beside it, and `content` is stored by digest."""

    data: bytes
    note: str
    content: Mapping[str, bytes]


def parted(event: bytes) -> Parted:
    """A large event in pieces."""
    content: dict[str, bytes] = {}
    places: list[str] = []
    left: list[bytes] = []
    kept = end = 0
    for begin, stop in texts_in(event):
        if stop - begin < LONG:
            continue
        piece = event[begin:stop]
        name = digest(piece)
        content[name] = piece
        left.append(event[end:begin])
        kept += begin - end
        places.append(f"{kept}@{name}")
        end = stop
    rest = b"".join((*left, event[end:]))
    if len(rest) <= LARGE:
        return Parted(rest, " ".join(places), content)
    name = digest(rest)
    return Parted(b"", " ".join((name, *places)), {**content, name: rest})


def names_in(note: str) -> Sequence[str]:
    """The digests of everything that stands apart."""
    return [place.rpartition("@")[2] for place in note.split()]


def joined(data: bytes, note: str, content: Mapping[str, bytes]) -> bytes:
    """The event as it was."""
    pieces: list[bytes] = []
    at = 0
    for place in note.split():
        offset, apart, name = place.rpartition("@")
        if not apart:
            data = content[name]
            continue
        until = int(offset)
        pieces += (data[at:until], content[name])
        at = until
    return b"".join((*pieces, data[at:]))
