"""Journals that were written once and are replayed for ever: this version decides each of them as it was decided then.

The first line of a file has the spec, the history, how many of the events the kernel decided, and the digest of the
transcript that they add up to; each other line is one event with its time. No file ever changes. A change of what the
kernel decides on purpose, so that old runs would go on otherwise than they began, is one to think about twice.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw, Struct

from foliot.engine.explain.replay import Replay, replay
from foliot.kernel.messages import Message
from foliot.kernel.run.spec import decode_spec
from foliot.store.journal.base import Entry

JOURNALS = sorted((Path(__file__).parent / "golden_journals").glob("*.jsonl"))


class Head(Struct):
    decided: int
    transcript: str
    spec: Raw
    history: tuple[Message, ...]


def played(file: Path) -> tuple[Head, list[Entry], Replay]:
    first, *lines = file.read_bytes().splitlines()
    head = msgspec.json.decode(first, type=Head)
    facts = [msgspec.json.decode(line, type=tuple[float, Raw]) for line in lines]
    entries = [Entry(seq, at, "", bytes(data)) for seq, (at, data) in enumerate(facts, 1)]
    return head, entries, replay(decode_spec(bytes(head.spec)), "r1", entries, head.history)


@pytest.mark.parametrize("file", JOURNALS, ids=lambda file: file.stem)
def test_an_old_journal_is_decided_as_it_was_and_adds_up_to_what_it_did(file: Path) -> None:
    head, entries, found = played(file)

    assert found.difference is None
    assert found.events == len(entries)
    assert found.decided == head.decided
    assert found.state.ended is not None
    assert sha256(msgspec.json.encode(found.state.transcript)).hexdigest() == head.transcript


def test_there_are_journals_of_every_kind_of_end() -> None:
    assert {type(played(file)[2].state.ended).__name__ for file in JOURNALS} >= {
        "RunSucceeded",
        "RunFailed",
        "RunCancelled",
    }
