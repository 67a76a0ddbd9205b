"""Events that a test writes by hand, chained as whoever drives a run chains them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from foliot.store.journal.base import Entry
from foliot.store.journal.chain import first_link, link_of


def linked(run_id: str, told: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Returns events with their links; `told` are those of the run before them."""
    link = told[-1].link if told else first_link(run_id)
    found: list[Entry] = []
    for each in entries:
        link = link_of(link, each.seq, each.at, each.type, each.data)
        found.append(replace(each, link=link))
    return found
