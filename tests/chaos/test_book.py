"""The books of the chaos tests: a charge is explained by the journal, or it is not in order."""

from __future__ import annotations

import pytest

from foliot.kernel.run.events import RunClaimed, ToolStarted, UnknownDecided
from foliot.tools.base import Invocation
from tests.chaos.book import Mark, Pen, by_key, explain, read_marks

STORY = [
    RunClaimed(1, "w1", 1),
    ToolStarted("c1", "charge", "r1/c1", 1),
    RunClaimed(2, "w2", 2),
    UnknownDecided("c1", "run", "ann"),
    ToolStarted("c1", "charge", "r1/c1", 2),
    RunClaimed(3, "w3", 4),
    ToolStarted("c1", "charge", "r1/c1", 3),
]
FACTS = [(float(at), fact) for at, fact in enumerate(STORY)]


@pytest.mark.parametrize(
    ("attempt", "epoch", "why", "in_order"),
    [
        (1, 1, "first", True),
        (2, 2, "ordered by a person", True),
        (2, 1, "ordered by a person", False),  # by someone who did not hold the run then
        (3, 4, "recovered", False),  # nobody ordered that
        (4, 4, "unknown to the journal", False),
    ],
)
def test_the_journal_says_why_a_charge_was_made(attempt: int, epoch: int, why: str, in_order: bool) -> None:
    found = explain(Mark("charge", "r1/c1", attempt, "w", epoch, 1.0), FACTS)
    assert (found.why, found.in_order) == (why, in_order)
    assert f"under epoch {epoch}: {why}" in str(found)


def test_what_a_pen_wrote_is_read_and_a_broken_line_is_not(tmp_path) -> None:
    pen = Pen(tmp_path, "w1", lambda run_id: 7)
    pen("charge", Invocation("r1", "c1", "charge", {}, "r1/c1", attempt=2))
    (file,) = tmp_path.iterdir()
    with file.open("a") as torn:
        torn.write("charge r9/c")
    pen("save", Invocation("r1", "c2", "save", {}, "r1/c2"))
    marks = read_marks(tmp_path)
    assert [(mark.kind, mark.run_id, mark.call_id, mark.attempt, mark.epoch) for mark in marks] == [
        ("charge", "r1", "c1", 2, 7),
        ("save", "r1", "c2", 1, 7),
    ]
    assert list(by_key(marks, "charge")) == ["r1/c1"]
