"""How events lie in the store: packed, and the long texts of large ones apart, each under its digest. Pure.

Ten runs that read the same document have ten events with ten times and call ids in them, and one document. So it is
the texts that are named by their content, not the events: equal ones are stored once. The bytes of an event come back
as they were: they are cut at the quotes around its texts and put together again, and never read as JSON.

The note beside such an event says where its texts belong: `12@sha256:… 99@sha256:…`, offsets into what is left. What
is left stands apart too when it is large; then its digest comes first, without an offset.

The end of a run repeats its last answer. The text stands in the answer alone, and the note `12@#4:100:430` says that
it is in the event 4 of the run, 430 bytes from its byte 100 on.

Written by:  the creation of a run and every append (database.py).
Read by:     whoever reads a journal; a worker, of the first events of the runs that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from foliot.kernel.json_texts import longest_text, texts_in
from foliot.kernel.run.spec import digest
from foliot.store.journal.base import Entry
from foliot.store.journal.packing import packed, unpacked
from foliot.store.transaction import Row

# A larger event is stored in pieces, so that the tables stay small.
LARGE: Final = 32 * 1024
# The texts in it that are worth a place of their own.
LONG: Final = 4 * 1024
# A text that another event has is worth a note from this length on, in bytes.
REPEATED: Final = 64
# The end of a run, and what it repeats.
_END: Final = "run.succeeded"
_ANSWER: Final = "model.responded"

# The sequence number, time, type, packed bytes, note and link of an event: its row but for the key of its run.
EventRow: TypeAlias = tuple[int, float, str, bytes, str | None, bytes]


class StoredEvents(NamedTuple):
    """Rows of events, in their order, and the content by digest that stands apart from them."""

    rows: Sequence[EventRow]
    content: Mapping[str, bytes]


def stored_events(entries: Sequence[Entry], pin: bytes = b"") -> StoredEvents:
    """Lays out events of a run that are stored together; the first one of all without the pin of its run."""
    rows: list[EventRow] = []
    content: dict[str, bytes] = {}
    answer: Entry | None = None
    for entry in entries:
        data, note = entry.data, None
        if len(data) > LARGE:
            data, note, apart = parted(data)
            content.update(apart)
        elif entry.type == _END and answer is not None and (left := without_repeat(data, answer)) is not None:
            data, note = left
        elif entry.type == _ANSWER:
            answer = entry
        data = packed(entry.type, data, pin if entry.seq == 1 else b"")
        rows.append((entry.seq, entry.at, entry.type, data, note, entry.link))
    return StoredEvents(rows, content)


def entry_of(row: Row) -> Entry:
    """Returns the event of a row, of which no text stands apart. `pin` is that of the run, for its first event.

    SQLite keeps whatever is put into a column. A value of another type than was stored is one that somebody changed,
    which the chain says: here it only must not be taken for a fault of this program.
    """
    data, pin, at, link = row["data"], row.get("pin") or b"", row["at"], row["link"]
    if not (data.__class__ is pin.__class__ is link.__class__ is bytes and at.__class__ is float):
        data, pin, link = _bytes(data), _bytes(pin), _bytes(link)
        at = float(at) if isinstance(at, int | float) else math.nan
    return Entry(row["seq"], at, row["type"], unpacked(row["type"], data, pin), link)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


# --- texts apart -----------------------------------------------------------------------------------------------------


class Parted(NamedTuple):
    """`data` stays with the event, `note` is written beside it, and `content` is stored by digest."""

    data: bytes
    note: str
    content: Mapping[str, bytes]


def parted(event: bytes) -> Parted:
    """Returns a large event in pieces."""
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


def without_repeat(event: bytes, earlier: Entry) -> tuple[bytes, str] | None:
    """Returns the event without its longest text, and the note on where an earlier one has it; None if it has not."""
    begin, stop = longest_text(event)
    if stop - begin < REPEATED or (at := earlier.data.find(event[begin:stop])) < 0:
        return None
    return event[:begin] + event[stop:], f"{begin}@#{earlier.seq}:{at}:{stop - begin}"


def names_in(note: str) -> Sequence[str]:
    """Returns the names of everything that stands apart: digests, and places in earlier events of the run."""
    return [place.rpartition("@")[2] for place in note.split()]


def joined(data: bytes, note: str, content: Mapping[str, bytes]) -> bytes:
    """Returns the event as it was. `content` is by the names in the note."""
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


class Repeat(NamedTuple):
    """The place of a text in an earlier event of the same run."""

    seq: int
    begin: int
    length: int

    def text_in(self, event: bytes) -> bytes:
        return event[self.begin : self.begin + self.length]


def repeat_of(name: str) -> Repeat | None:
    """Returns the place that a name in a note says; None for a digest."""
    return Repeat(*map(int, name[1:].split(":"))) if name.startswith("#") else None
