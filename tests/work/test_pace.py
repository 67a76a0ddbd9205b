from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.store.journal.base import Lease
from foliot.store.queue.claims import Claims
from foliot.work.worker.worker import LookPace, LookRound

LEASE = Lease("r1", 1, 1, "w", 30.0, queued=True)
NOTHING = Claims([])


@pytest.fixture
def pace() -> LookPace:
    return LookPace(lambda: 1.0)


def test_while_there_may_be_more_it_looks_at_once(pace: LookPace) -> None:
    assert pace.found(Claims([LEASE], more=True), 0.0) == 0.0
    assert pace.found(Claims([], more=True, cursor="x"), 0.0) == 0.0


def test_a_silence_makes_it_patient_up_to_a_bound_and_a_ring_or_a_run_ends_it(pace: LookPace) -> None:
    assert [pace.found(NOTHING, 0.0) for _ in range(5)] == [2.0, 3.0, 4.5, 5.0, 5.0]
    pace.rung()
    assert pace.found(NOTHING, 0.0) == 2.0
    assert pace.found(Claims([LEASE]), 0.0) == 2.0
    assert pace.found(NOTHING, 0.0) == 2.0


def test_it_looks_when_the_next_run_is_due_and_never_before(pace: LookPace) -> None:
    assert 1.0 < pace.found(Claims([], next_due=101.0), 100.0) < 1.1
    assert pace.found(Claims([], next_due=1e9), 100.0) == 3.0
    assert 0.0 < pace.found(Claims([], next_due=100.0), 100.0) < 0.1


def test_where_others_are_faster_it_waits_a_little_and_longer_every_time(pace: LookPace) -> None:
    crowded = Claims([], refused={"taken": 1})
    waits = [pace.found(crowded, 0.0) for _ in range(12)]
    assert waits[0] < 0.05
    assert waits == sorted(waits)
    assert max(waits) <= 2.0


def test_a_store_that_does_not_answer_is_asked_less_and_less_and_then_as_before(pace: LookPace) -> None:
    waits = [pace.failed() for _ in range(9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    pace.found(NOTHING, 0.0)
    assert pace.failed() == 0.5


@given(st.floats(0, 1))
def test_chance_spreads_waits_over_half_of_their_length(chance: float) -> None:
    assert 0.25 <= LookPace(lambda: chance).failed() <= 0.5


def test_looks_go_round_in_turns_with_looks_from_the_top() -> None:
    place = LookRound()
    seen: list[str] = []
    for cursor in (" ", "m", " ", "", " ", "x"):
        seen.append(place.place)
        place.looked(Claims([], cursor=cursor))
    assert seen == ["", " ", "", "m", "", " "]


def test_where_one_look_sees_everything_all_are_from_the_top() -> None:
    place = LookRound()
    for _ in range(3):
        assert place.place == ""
        place.looked(NOTHING)
