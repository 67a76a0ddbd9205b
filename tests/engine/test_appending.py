"""An append whose answer was lost: what became of it, and when it is tried again."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.engine.driver.appends import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LeaseClock,
    append_again,
    judge,
    pause_before,
    persist,
)
from foliot.errors import Conflict, Unavailable
from foliot.store.journal.base import Entry, JournalConflict, Lease, LeaseLost, NewRun, Signal, SignalsPending
from foliot.store.journal.memory import MemoryJournal
from simulators.engine.virtual_loop import VirtualLoop

LEASE = Lease("r1", 1, 4, "w1", 30.0)
MINE = [Entry(3, 1.5, "a", b"{}"), Entry(4, 1.5, "b", b"{}")]
OTHERS = [Entry(3, 1.6, "a", b"{}"), Entry(4, 1.6, "b", b"{}")]


@pytest.mark.parametrize(
    ("lets_go", "epoch", "found", "verdict"),
    [
        (False, 4, MINE, "stored"),
        (False, 4, [], "absent"),
        (False, 4, OTHERS, "conflict"),
        (False, 4, MINE[:1], "conflict"),
        (False, 5, MINE, "lost"),  # stored, and then taken over: what follows from it is for others to do
        (False, 5, [], "lost"),
        (False, 5, OTHERS, "lost"),
        (True, 5, MINE, "stored"),  # the new epoch is what letting go brings about
        (True, 6, MINE, "stored"),  # and somebody has taken it up since
        (True, 4, MINE, "stored"),  # it was committed between the two looks
        (True, 4, [], "absent"),
        (True, 5, [], "lost"),
        (True, 5, OTHERS, "lost"),
    ],
)
def test_epoch_and_events_say_what_became_of_an_append(lets_go, epoch, found, verdict) -> None:
    assert judge(LEASE, MINE, lets_go=lets_go, epoch=epoch, found=found) == verdict


@pytest.mark.parametrize("lets_go", [True, False])
def test_an_append_without_events_is_known_by_its_epoch_alone(lets_go: bool) -> None:
    assert judge(LEASE, [], lets_go=lets_go, epoch=4, found=[]) == "absent"
    assert judge(LEASE, [], lets_go=lets_go, epoch=5, found=[]) == "lost"


@given(st.integers(1, 10_000), st.text(max_size=20))
def test_pauses_grow_up_to_a_bound_and_are_always_the_same(attempt: int, run_id: str) -> None:
    pause = pause_before(attempt, run_id)
    assert FIRST_PAUSE / 2 <= pause <= LONGEST_PAUSE
    assert pause == pause_before(attempt, run_id)


def test_runs_do_not_all_come_back_at_once() -> None:
    assert len({pause_before(3, f"r{n}") for n in range(100)}) > 90


class Faulty(MemoryJournal):
    """Fails as often as it is told, before or after it has stored what it was given."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        self.blind = 0

    async def append(self, lease, entries, **kwargs):
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise Unavailable("away")
        await super().append(lease, entries, **kwargs)
        if fault == "after":
            raise Unavailable("the answer was lost")

    async def read(self, run_id, **kwargs):
        if self.blind:
            self.blind -= 1
            raise Unavailable("still away")
        return await super().read(run_id, **kwargs)


def play(work):
    """In virtual time: a lease of thirty seconds is over at once."""
    return VirtualLoop(Random(1), latest=1000.0).run(work)


def clock() -> float:
    return 1000.0


async def held(journal: MemoryJournal) -> Lease:
    lease = await journal.create(
        NewRun("r1", "default", "clerk", "sha256:0", 0.0), [Entry(1, 0.0, "x", b"1")], worker="w1", lease_until=1030.0
    )
    assert lease is not None
    return lease


async def append(journal: MemoryJournal, lease: Lease, entries: list[Entry], phase=None) -> None:
    """As a driver does."""
    tenure = LeaseClock(lease.until, clock=clock, seconds=30.0)

    async def once() -> None:
        await journal.append(lease, entries, phase=phase)

    try:
        await once()
    except Unavailable as error:
        await append_again(once, error, journal=journal, lease=lease, entries=entries, phase=phase, tenure=tenure)


@pytest.mark.parametrize("phase", [None, "running", "waiting", "succeeded", "pending"])
@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["before"] * 5 + ["after"]])
@pytest.mark.parametrize("blind", [0, 3])
def test_whatever_was_lost_the_events_are_stored_once(phase, faults: list[str], blind: int) -> None:
    async def scene() -> None:
        journal = Faulty(list(faults))
        lease = await held(journal)
        journal.blind = blind
        entries = [Entry(2, 1.0, "y", b"2"), Entry(3, 1.0, "z", b"3")]
        await append(journal, lease, entries, phase)
        journal.blind = 0
        assert [entry.seq for entry in await journal.read("r1")] == [1, 2, 3]
        assert (await journal.get("r1")).phase == (phase or "running")

    play(scene())


def test_an_append_that_is_stored_behind_the_look_is_not_refused() -> None:
    """A server may commit what it was sent before the connection broke, after the next one has looked."""

    class Late(MemoryJournal):
        tried = 0

        async def append(self, lease, entries, **kwargs):
            self.tried += 1
            if self.tried == 1:
                raise Unavailable("the answer was lost")
            await super().append(lease, entries, **kwargs)  # the one that was under way
            await super().append(lease, entries, **kwargs)

    async def scene() -> None:
        for phase in (None, "succeeded"):
            journal = Late()
            lease = await held(journal)
            await append(journal, lease, [Entry(2, 1.0, "y", b"2")], phase)
            assert journal.tried == 2
            assert len(await journal.read("r1")) == 2

    play(scene())


def test_whoever_was_replaced_meanwhile_is_told_so() -> None:
    class TakenOver(Faulty):
        async def append(self, lease, entries, **kwargs):
            try:
                await super().append(lease, entries, **kwargs)
            except Unavailable:
                await self.claim("r1", worker="w2", now=2000.0, until=2030.0)
                raise

    async def scene(fault: str) -> None:
        journal = TakenOver([fault])
        lease = await held(journal)
        with pytest.raises(LeaseLost, match="no longer held by w1"):
            await append(journal, lease, [Entry(2, 1.0, "y", b"2")])

    play(scene("before"))
    play(scene("after"))


def test_events_of_somebody_else_under_the_same_lease_are_a_conflict() -> None:
    async def scene() -> None:
        journal = Faulty(["before"])
        lease = await held(journal)
        await MemoryJournal.append(journal, lease, [Entry(2, 9.0, "other", b"?")])
        with pytest.raises(JournalConflict):
            await append(journal, lease, [Entry(2, 1.0, "y", b"2")])

    play(scene())


def test_a_signal_that_came_meanwhile_is_taken_before_the_run_is_let_go() -> None:
    async def scene() -> None:
        journal = Faulty(["before"])
        lease = await held(journal)
        await journal.signal(Signal("s1", "r1", 1.0, "x", b"{}"))
        with pytest.raises(SignalsPending):
            await append(journal, lease, [Entry(2, 1.0, "y", b"2")], "waiting")
        assert len(await journal.read("r1")) == 1

    play(scene())


def test_it_is_tried_until_the_lease_ends_and_no_longer() -> None:
    async def scene() -> None:
        tries: list[float] = []
        tenure = LeaseClock(1030.0, clock=clock, seconds=30.0)
        began = tenure.left()

        async def away() -> None:
            tries.append(began - tenure.left())
            raise Unavailable(f"away, {len(tries)}")

        with pytest.raises(Unavailable, match=r"away, \d\d"):
            await persist(away, Unavailable("away"), run_id="r1", tenure=tenure)
        assert tries == sorted(tries)
        assert 29.0 < tries[-1] <= 30.0
        assert tenure.left() <= 0
        assert 30 <= len(tries) <= 80, "it neither hurries nor gives up early"

    play(scene())


def test_what_will_not_pass_is_not_waited_for() -> None:
    async def scene() -> None:
        tenure = LeaseClock(1030.0, clock=clock, seconds=30.0)
        tries = 0

        async def closed() -> None:
            nonlocal tries
            tries += 1
            raise Unavailable("the store is closed", retryable=False)

        with pytest.raises(Unavailable, match="closed"):
            await persist(closed, Unavailable("away"), run_id="r1", tenure=tenure)
        assert tries == 1
        assert tenure.left() > 29.0

    play(scene())


def test_other_errors_end_the_trying() -> None:
    async def scene() -> None:
        tenure = LeaseClock(1030.0, clock=clock, seconds=30.0)

        async def refused() -> None:
            raise Conflict("no")

        with pytest.raises(Conflict):
            await persist(refused, Unavailable("away"), run_id="r1", tenure=tenure)

    play(scene())
