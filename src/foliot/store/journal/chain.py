"""Chains the events of a journal, so that a changed byte is noticed. No I/O.

Each event is stored with a link: a digest over the link before it, its number, time, type and bytes. The first one
follows the id of its run. So an event cannot be edited, moved, left out or taken from another run without its link, or
that of the next one, being wrong; and the row of the run says how many there are. A change by somebody who can write to
the whole database and makes new links is not found: the audit log, which can be held against a head that was noted
elsewhere, is there for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct as Layout
from typing import Final, NamedTuple

from foliot.errors import Conflict
from foliot.store.journal.base import Entry

SIZE: Final = 16
_place: Final = Layout(">Qd").pack
# A copy of an empty digest is made in a third of the time that its options take to be read again for every event.
_begin: Final = blake2b(digest_size=SIZE).copy


class JournalChanged(Conflict):
    """The stored events of a run are not the ones that were recorded."""

    code, exit_code = "journal_changed", 1


class Checked(NamedTuple):
    """The result of a check: the link to continue from, and the number of the first event that was changed, or 0."""

    link: bytes
    changed: int = 0


def first_link(run_id: str) -> bytes:
    """The link that the first event of a run follows."""
    return run_id.encode("utf-8", "surrogatepass")


def link_of(previous: bytes, seq: int, at: float, type: str, data: bytes) -> bytes:
    """The link of an event that follows the one with the link `previous`."""
    digest = _begin()
    digest.update(previous + _place(seq, at) + type.encode() + b"\0" + data)
    return digest.digest()


def check(run_id: str, entries: Sequence[Entry]) -> Checked:
    """Go along a journal from its first event."""
    link = first_link(run_id)
    changed = 0
    for number, entry in enumerate(entries, 1):
        link = link_of(link, entry.seq, entry.at, entry.type, entry.data)
        if entry.link != link or entry.seq != number:
            changed = changed or number
            link = entry.link  # what came later was chained to what stood here then
    return Checked(link, changed)


def changed_journal(run_id: str, seq: int) -> JournalChanged:
    """The error that says which event of a run was changed in the store."""
    return JournalChanged(
        f"the journal of run {run_id} was changed in the store: event {seq} is not what was recorded",
        hint="restore the store from a backup; its raw events are still listed by GET /v1/runs/ID/events",
        run=run_id,
        seq=seq,
    )
