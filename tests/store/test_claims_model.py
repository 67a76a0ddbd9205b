"""Whatever happens in whatever order, a run has at most one holder whose lease lives, and none after its end."""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from foliot.store import queries
from foliot.store.journal.base import Lease, LeaseLost, RunHeld
from foliot.store.journal.database import SqlJournal
from foliot.store.queue import queue
from foliot.store.queue.limits import Limit, class_failed, class_succeeded, set_limit
from foliot.store.queue.workers import bury, register
from foliot.store.sqlite import file as sqlite_file
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import add, offer, take

WORKERS = ("w1", "w2", "w3")
LIMIT = 3


class ClaimMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.db = self.runner.run(SqliteDatabase.open(Path(self.folder.name) / "foliot.db"))
        self.journal = SqlJournal(self.db)
        self.now = 1_000.0
        self.added = 0
        self.ended: set[str] = set()
        self.holders: dict[str, Lease] = {}
        self.until: dict[str, float] = {}
        self.runner.run(set_limit(self.db, Limit("agent", "ns0/clerk", LIMIT)))
        for name in WORKERS:
            self.runner.run(register(self.db, offer(name), now=self.now, is_gone=lambda _: False))

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.runner.run(self.db.close())
            self.runner.close()
            self.folder.cleanup()

    def write(self, body, *args: object) -> None:
        self.done(partial(self.db.write, body, *args))

    def done(self, begin) -> None:
        """For what has to be begun in the loop, and is awaited there."""

        async def done() -> None:
            await begin()

        self.runner.run(done())

    def lives(self, run_id: str) -> bool:
        return run_id in self.holders and self.until[run_id] >= self.now

    @rule(
        space=st.integers(0, 1),
        lane=st.sampled_from(["", "x", "y"]),
        priority=st.sampled_from([0, 10]),
        delay=st.sampled_from([-1, 0, 0, 20]),
        own=st.integers(0, 1),
        count=st.integers(1, 3),
    )
    def add(self, space: int, lane: str, priority: int, delay: int, own: int, count: int) -> None:
        fields = {"namespace": f"ns{space}", "lane": lane, "priority": priority, "max_running": LIMIT * own}
        for _ in range(count):
            self.added += 1
            self.runner.run(add(self.db, f"r{self.added}", due_at=self.now + delay, **fields))

    @rule(seconds=st.integers(1, 45))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(target=leases, name=st.sampled_from(WORKERS), want=st.integers(1, 9))
    def claim(self, name: str, want: int):
        found = self.runner.run(take(self.db, want, by=offer(name), now=self.now))
        for lease in found.leases:
            assert lease.run_id not in self.ended, "a run that has ended was given out"
            assert not self.lives(lease.run_id), "a run was given out while its holder's lease lives"
            self.hold(lease)
        return multiple(*found.leases)

    @rule(target=leases, name=st.sampled_from(WORKERS))
    def claim_by_name(self, name: str):
        """As `foliot resume` does, without looking at the queue."""
        if not self.added:
            return multiple()
        run_id = f"r{1 + self.added // 2}"
        try:
            lease = self.runner.run(
                self.journal.claim(run_id, worker=f"id-of-{name}", now=self.now, until=self.now + 20)
            )
        except RunHeld:
            assert self.lives(run_id)
            return multiple()
        except Exception:
            assert run_id in self.ended
            return multiple()
        assert not self.lives(run_id)
        self.hold(lease)
        return lease

    def hold(self, lease: Lease) -> None:
        self.holders[lease.run_id] = lease
        self.until[lease.run_id] = lease.until

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        lost = self.runner.run(self.journal.renew([lease], until=self.now + 30)).lost
        assert bool(lost) == (self.holders.get(lease.run_id) != lease)
        if not lost:
            self.until[lease.run_id] = max(self.until[lease.run_id], self.now + 30)

    @rule(
        lease=consumes(leases),  # one that is never drawn here is of a worker that died
        phase=st.sampled_from(["succeeded", "failed", "cancelled", "pending", "waiting"]),
        due=st.integers(0, 30) | st.none(),
    )
    def let_go(self, lease: Lease, phase, due: int | None) -> None:
        try:
            at = None if due is None else self.now + due
            self.done(partial(self.journal.append, lease, [], phase=phase, due=at))
        except LeaseLost:
            assert self.holders.get(lease.run_id) != lease, "the holder was fenced out"
            return
        assert self.holders[lease.run_id] == lease, "one who had lost the run was believed"
        del self.holders[lease.run_id]
        if phase in ("succeeded", "failed", "cancelled"):
            self.ended.add(lease.run_id)

    @rule()
    def wake_all(self) -> None:
        for number in range(self.added):
            self.write(queue.wake, f"r{number + 1}", self.now)

    @rule(well=st.booleans(), space=st.integers(0, 1))
    def judge_class(self, well: bool, space: int) -> None:
        key = f"ns{space}/clerk"
        if well:
            self.write(class_succeeded, key)
        else:
            self.write(class_failed, key, self.now)

    @rule(name=st.sampled_from(WORKERS))
    def restart(self, name: str) -> None:
        """The worker was killed and is started again under its name; its machine knows that it is dead."""
        identity = f"id-of-{name}"
        self.runner.run(bury(self.db, offer("someone"), now=self.now, is_gone=lambda each: each == identity))
        for run_id, lease in self.holders.items():
            if lease.worker == identity:
                self.until[run_id] = 0.0
        self.runner.run(register(self.db, offer(name), now=self.now, is_gone=lambda _: False))

    @invariant()
    def no_more_are_held_than_the_limit_allows(self) -> None:
        """Those that are held by name are not asked about limits, so only what the queue gave out is counted."""
        if hasattr(self, "db"):
            rows = self.runner.run(self.db.read("queue_depth", now=self.now))
            assert all(row["runs"] >= row["running"] for row in rows)

    @invariant()
    def the_queue_holds_what_has_not_ended(self) -> None:
        if hasattr(self, "db"):
            rows = self.runner.run(self.db.read("queue_depth", now=self.now))
            assert sum(row["runs"] for row in rows) == self.added - len(self.ended)


TestClaims = ClaimMachine.TestCase
TestClaims.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("name", ["queue_take", "queue_lapsed", "queue_lines"])
def test_the_price_of_a_look_does_not_depend_on_how_much_is_queued(name: str, tmp_path: Path) -> None:
    """Every table is entered through an index that leads straight to the row, or holds only what is at work."""
    connection = sqlite_file.prepare(tmp_path / "foliot.db")
    values = {"line": "x", "now": 0.0, "count": 1, "after": "", "each": 1}
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + queries.load()[name], values)]
    connection.close()
    scanned = [step for step in plan if step.startswith("SCAN") and step.split()[1] in ("q", "s", "r")]
    assert all("queue_held_by_due" in step for step in scanned)
    assert any("queue_by_line (held=? AND line" in step for step in plan)
