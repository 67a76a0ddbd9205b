"""How audit records are chained, and how a chain is checked. No I/O.

A record is canonical JSON (sorted keys, no spaces) that holds its own number (`seq`) and the hash of the record before
it (`previous`); its hash is the SHA-256 of exactly those bytes. So a record cannot be edited, removed, added or moved
without every later hash being wrong, and the stored head tells when the end is missing.

Who can write to the whole database can make a new chain. To be safe from that too, note a head elsewhere (`foliot audit
verify` prints it) and have the chain checked against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import msgspec

Fault: TypeAlias = Literal["edited", "removed", "reordered", "truncated", "head", "pruned"]
# What a record is that says how much of the beginning was forgotten: see log.py.
PRUNED: Final = "pruned"
# Columns that repeat what the record says.
COLUMNS: Final = ("at", "moment", "namespace", "agent", "tool", "run_id", "call_id", "outcome")

_canonical = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest record of a chain. An empty log has number 0 and no hash."""

    seq: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


@dataclass(frozen=True, slots=True)
class Link:
    """One stored record: its text, its hash, and the columns beside them."""

    seq: int
    data: str
    hash: str
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which a chain does not hold, and what it looks like."""

    seq: int
    fault: Fault
    message: str


class Shaped(Protocol):
    """An entry of a fixed shape: a struct whose members stand in the order of their names, these two among them."""

    seq: int
    previous: str


Entry: TypeAlias = dict[str, Any] | Shaped


def linked(entries: Sequence[Entry], head: ChainHead) -> Iterator[tuple[int, str, str, Entry]]:
    """Each entry as a record behind `head`: its number, its hash, its text, and the entry."""
    seq, digest = head.seq, head.hash
    for entry in entries:
        seq += 1
        if isinstance(entry, dict):
            data = _canonical({**entry, "seq": seq, "previous": digest})
        else:
            # Nobody reads these before they are written here, so writing them twice (a body is run again) is harmless.
            entry.seq, entry.previous = seq, digest
            data = _canonical(entry)
        digest = sha256(data).hexdigest()
        yield seq, digest, data.decode(), entry


class Check:
    """Goes along a chain from its first record. `found` is the first break, None as long as everything holds."""

    def __init__(self, anchor: ChainHead | None = None, base: ChainHead | None = None) -> None:
        """`anchor` is a head that was noted elsewhere: the chain has to lead over it.

        `base` is the last record that was forgotten, by what is stored: a record of the chain has to say the same.
        """
        self.head = self._base = base or ChainHead()
        self.found: Break | None = None
        self._anchor = anchor
        self._pruned = ChainHead()

    def follow(self, links: Sequence[Link]) -> None:
        """The next records in the order of their numbers."""
        for link in links:
            if self.found is not None:
                return
            self.found = self._broken(link)
            self.head = ChainHead(link.seq, link.hash)

    def end(self, head: ChainHead | None) -> Break | None:
        """Checks, after the last record, that the records begin and end where they should."""
        if self.found is None:
            self.found = self._wrong_beginning() or self._wrong_end(head)
        return self.found

    def _wrong_beginning(self) -> Break | None:
        base, anchor = self._base, self._anchor
        if self._pruned != base:
            said = f"the last record about that says {self._pruned.seq}" if self._pruned.seq else "no record says so"
            return Break(base.seq, "removed", f"the log begins behind record {base.seq}, and {said}")
        if anchor is None or anchor.seq > base.seq or (anchor.seq, anchor.hash) == (base.seq, base.hash):
            return None
        if anchor.seq == base.seq:
            return Break(base.seq, "edited", f"record {base.seq} was not the one whose hash was noted")
        return Break(
            anchor.seq, "pruned", f"record {anchor.seq} was noted, and the log was pruned up to {base.seq} since"
        )

    def _broken(self, link: Link) -> Break | None:
        expected = self.head.seq + 1
        if link.seq != expected:
            gone = str(expected) if link.seq == expected + 1 else f"{expected} to {link.seq - 1}"
            return Break(expected, "removed", f"record {gone} is missing")
        if sha256(link.data.encode("utf-8", "surrogatepass")).hexdigest() != link.hash:
            return Break(link.seq, "edited", f"record {link.seq} is not what was written: its hash does not fit")
        try:
            record = msgspec.json.decode(link.data, type=dict[str, Any])
        except msgspec.DecodeError:
            return Break(link.seq, "edited", f"record {link.seq} is not a record any more")
        if record.get("seq") != link.seq:
            return Break(link.seq, "reordered", f"in the place of record {link.seq} stands record {record.get('seq')}")
        if record.get("previous") != self.head.hash:
            return Break(link.seq, "edited", f"record {link.seq} does not follow record {self.head.seq} as it is now")
        wrong = [name for name in COLUMNS if name in link.columns and link.columns[name] != record.get(name)]
        if wrong:
            return Break(link.seq, "edited", f"record {link.seq} is listed with another {', '.join(wrong)}")
        if self._anchor is not None and self._anchor.seq == link.seq and self._anchor.hash != link.hash:
            return Break(link.seq, "edited", f"record {link.seq} is not the one whose hash was noted")
        if record.get("moment") == PRUNED and isinstance(said := record.get("pruned"), dict):
            cut = cast("dict[str, Any]", said)
            self._pruned = ChainHead(cut.get("to", 0), cut.get("hash", ""))
        return None

    def _wrong_end(self, head: ChainHead | None) -> Break | None:
        if self._anchor is not None and self._anchor.seq > self.head.seq:
            return Break(
                self.head.seq + 1,
                "truncated",
                f"the log ends at record {self.head.seq}, but record {self._anchor.seq} was noted",
            )
        if head is None:
            return Break(self.head.seq, "head", "the stored head of the log is missing")
        if head.seq > self.head.seq:
            gone = f"{self.head.seq + 1} to {head.seq}" if head.seq > self.head.seq + 1 else str(head.seq)
            return Break(self.head.seq + 1, "truncated", f"the end of the log is missing: record {gone}")
        if head != self.head:
            return Break(self.head.seq, "head", f"the stored head names record {head.seq}, not {self.head.seq}")
        return None
