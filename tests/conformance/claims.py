"""What claiming from the queue must do on every database. Subclass it and give a `db` fixture."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.errors import InvalidInput, NotFound
from foliot.store.base import Database
from foliot.store.journal.base import Entry, Lease, LeaseLost, NewRun
from foliot.store.journal.database import SqlJournal, create_runs
from foliot.store.queue import claims, queue
from foliot.store.queue.claims import Claims, claim
from foliot.store.queue.limits import (
    COOL_DOWN,
    THRESHOLD,
    Limit,
    class_failed,
    class_succeeded,
    clear_limit,
    close_class,
    list_classes,
    list_limits,
    set_limit,
)
from foliot.store.queue.placement import Offer
from foliot.store.queue.queue import QueueItem, enqueue
from foliot.store.queue.workers import STALE_AFTER, beat, bury, list_workers, others, register
from foliot.store.transaction import Tx
from foliot.work.worker.worker import LookRound

NOW = 1_000.0
LEASE = 30.0


def offer(name: str = "w1", **changes: Any) -> Offer:
    return Offer(**{"name": name, "identity": f"id-of-{name}", "capacity": 10, **changes})


def _add(run_id: str, fields: dict[str, Any]) -> Tx[int]:
    namespace, agent = fields.get("namespace", "default"), fields.get("agent", "clerk")
    new = NewRun(run_id, namespace, agent, "sha256:00", NOW)
    (key,) = yield from create_runs([(new, [Entry(1, NOW, "x", b"{}")])], NOW)
    item = {
        "run": key,
        "run_id": run_id,
        "task": 1,
        "namespace": namespace,
        "agent": agent,
        "lane": "",
        "class_key": f"{namespace}/{agent}",
        "priority": 10,
        "due_at": NOW,
    }
    yield from enqueue([QueueItem(**{**item, **fields})])
    return key


async def add(db: Database, *run_ids: str, **fields: Any) -> None:
    """Queue runs, due at NOW if `due_at` does not say otherwise."""
    for run_id in run_ids:
        await db.write(_add, run_id, fields)


async def take(db: Database, want: int = 10, *, by: Offer | None = None, now: float = NOW, **options: Any) -> Claims:
    return await claim(db, by or offer(), want=want, now=now, until=now + LEASE, **options)


async def finish(db: Database, lease: Lease, phase: str = "succeeded", **options: Any) -> None:
    await SqlJournal(db).append(lease, [], phase=phase, **options)  # type: ignore[arg-type]


def ids(found: Claims) -> list[str]:
    return [lease.run_id for lease in found.leases]


class ClaimsConformance:
    # --- taking --------------------------------------------------------------------------------------------------

    async def test_a_due_run_is_taken_once_and_held_under_a_new_epoch(self, db: Database) -> None:
        await add(db, "r1")
        first, second = await take(db), await take(db, by=offer("w2"))

        (lease,) = first.leases
        assert (lease.epoch, lease.worker, lease.until, lease.queued) == (1, "id-of-w1", NOW + LEASE, True)
        info = await SqlJournal(db).get("r1")
        assert (info.phase, info.worker, info.epoch, info.lease_until) == ("running", "id-of-w1", 1, NOW + LEASE)
        assert second.leases == []
        assert second.next_due == NOW + LEASE

    async def test_an_empty_queue_gives_nothing_and_knows_of_nothing(self, db: Database) -> None:
        assert await take(db) == Claims([])

    async def test_no_more_is_taken_than_wanted_and_there_is_said_to_be_more(self, db: Database) -> None:
        await add(db, *(f"r{n}" for n in range(5)))
        found = await take(db, 3)
        assert len(found.leases) == 3
        assert found.more
        rest = await take(db, 3)
        assert len(rest.leases) == 2
        assert not rest.more

    async def test_a_worker_without_a_free_place_takes_nothing(self, db: Database) -> None:
        await add(db, "r1")
        assert (await take(db, 0)).leases == []
        assert ids(await take(db)) == ["r1"]

    async def test_who_is_due_longest_comes_first_and_what_is_not_due_waits(self, db: Database) -> None:
        await add(db, "later", due_at=NOW + 5)
        await add(db, "new", due_at=NOW - 1)
        await add(db, "old", due_at=NOW - 9)
        found = await take(db)
        assert ids(found) == ["old", "new"]
        assert found.next_due == NOW + 5
        assert ids(await take(db, now=NOW + 5)) == ["later"]

    async def test_a_run_that_waits_for_a_signal_is_not_due_before_it_comes(self, db: Database) -> None:
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await finish(db, lease, "waiting")
        assert await take(db, now=NOW + 1e6) == Claims([])

        assert await db.write(queue.wake, "r1", NOW + 10)
        (again,) = (await take(db, now=NOW + 10)).leases
        assert again.epoch == lease.epoch + 2  # letting go is a change of hands too

    async def test_a_timer_of_a_waiting_run_makes_it_due(self, db: Database) -> None:
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await finish(db, lease, "waiting", due=NOW + 7)
        assert (await take(db, now=NOW + 1)).next_due == NOW + 7
        assert ids(await take(db, now=NOW + 7)) == ["r1"]

    # --- leases that end -----------------------------------------------------------------------------------------

    async def test_a_run_whose_lease_ran_out_is_taken_over_and_its_old_holder_is_fenced_out(self, db: Database) -> None:
        await add(db, "r1")
        (lost,) = (await take(db)).leases
        assert (await take(db, by=offer("w2"), now=NOW + LEASE)).leases == []  # the lease ends after its last moment

        found = await take(db, by=offer("w2"), now=NOW + LEASE + 0.1)
        assert ids(found) == ["r1"]
        assert found.recovered == ("r1",)
        assert found.leases[0].epoch == lost.epoch + 1
        with pytest.raises(LeaseLost):
            await finish(db, lost)

    @pytest.mark.parametrize("second", ["died", "gave back"])
    @pytest.mark.parametrize("first", ["died", "gave back"])
    async def test_a_lease_says_how_the_writer_of_the_last_event_left_the_run(
        self, db: Database, first: str, second: str
    ) -> None:
        """The second holder leaves it before it has written anything: that says nothing of the first."""
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await SqlJournal(db).append(lease, [Entry(2, NOW, "run.claimed", b"{}")])
        now = NOW
        for how in (first, second):
            now += LEASE + 1
            if how == "gave back":
                await finish(db, lease, "pending", due=now)
            (lease,) = (await take(db, by=offer("w2"), now=now)).leases
            assert lease.released is (first == "gave back")
        recalled = await claims.recall(db, offer("w2"), until=lease.until)
        assert [(each.epoch, each.released) for each, _ in recalled] == [(lease.epoch, lease.released)]

    async def test_a_run_whose_holder_died_keeps_its_place_in_the_queue(self, db: Database) -> None:
        """The others came while it was at work."""
        await add(db, "first", due_at=NOW - 9)
        assert ids(await take(db)) == ["first"]
        await add(db, "second", "third", due_at=NOW + 1)
        assert ids(await take(db, 1, by=offer("w2"), now=NOW + LEASE + 1)) == ["first"]

    @pytest.mark.parametrize("found_by", ["a neighbour", "one that starts"])
    async def test_a_run_whose_holder_is_found_dead_keeps_its_place_too(self, db: Database, found_by: str) -> None:
        """On the machine of the dead nobody waits for the lease to end."""
        dead, neighbour = offer("dead"), offer("neighbour")
        for each in (dead, neighbour):
            await register(db, each, now=NOW, is_gone=lambda _: False)
        await add(db, "first", due_at=NOW - 9)
        await take(db, by=dead)
        await add(db, "second", due_at=NOW - 1)
        find = bury if found_by == "a neighbour" else register
        assert await find(db, neighbour, now=NOW, is_gone=lambda identity: identity == dead.identity) == 1
        assert ids(await take(db, 1, by=neighbour, now=NOW)) == ["first"]

    async def test_a_run_that_kills_each_of_its_workers_does_not_come_first_for_ever(self, db: Database) -> None:
        await add(db, "poison", due_at=NOW - 9)
        await add(db, "patient", due_at=NOW - 8)
        now, taken = NOW, list[str]()
        for number in range(queue.KEEPS_PLACE + 3):
            taken += ids(await take(db, 1, by=offer(f"w{number}"), now=now))
            now += LEASE + 1
        assert taken.index("patient") == queue.KEEPS_PLACE + 1
        assert taken[: queue.KEEPS_PLACE + 1] == ["poison"] * (queue.KEEPS_PLACE + 1)

    async def test_a_run_that_its_worker_hands_back_keeps_its_place(self, db: Database) -> None:
        """A worker that is stopped at once hands back what it has at work."""
        await add(db, "first", due_at=NOW - 9)
        (lease,) = (await take(db)).leases
        await add(db, "second", due_at=NOW - 8)
        await finish(db, lease, "pending")
        assert ids(await take(db, 1, by=offer("w2"))) == ["first"]

    async def test_the_place_of_a_run_is_forgotten_when_it_is_let_go(self, db: Database) -> None:
        """It is due anew then, as a timer or somebody's word says."""
        await add(db, "r1", due_at=NOW - 9)
        (lease,) = (await take(db)).leases
        await finish(db, lease, "waiting", due=NOW + 7)
        await add(db, "r2", due_at=NOW + 6)
        assert ids(await take(db, 1, now=NOW + 8)) == ["r2"]

    async def test_a_renewed_lease_is_not_taken_over(self, db: Database) -> None:
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await SqlJournal(db).renew([lease], until=NOW + 100)
        found = await take(db, by=offer("w2"), now=NOW + LEASE + 1)
        assert found.leases == []
        assert found.next_due == NOW + 100

    async def test_the_run_row_decides_when_the_queue_believes_a_lease_is_over(self, db: Database) -> None:
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await SqlJournal(db).renew([replace(lease, queued=False)], until=NOW + 100)  # renews the run alone
        assert (await take(db, by=offer("w2"), now=NOW + LEASE + 1)).leases == []
        assert (await take(db, by=offer("w2"), now=NOW + LEASE + 1)).next_due == NOW + 100

    async def test_a_queued_run_that_somebody_took_without_the_queue_is_left_to_him(self, db: Database) -> None:
        await add(db, "r1", "r2")
        lease = await SqlJournal(db).claim("r1", worker="someone", now=NOW, until=NOW + 50)
        await db.write(queue.let_go, lease.key, NOW)  # as if the queue had not heard of it
        assert ids(await take(db)) == ["r2"]
        assert ids(await take(db, now=NOW + 51, by=offer("w2"))) == ["r1", "r2"]

    async def test_a_run_that_ended_without_the_queue_leaves_it(self, db: Database) -> None:
        await add(db, "r1", "r2")
        lease = await SqlJournal(db).claim("r1", worker="someone", now=NOW, until=NOW + 50)
        await finish(db, replace(lease, queued=False), "cancelled")
        await db.write(queue.let_go, lease.key, NOW)
        assert ids(await take(db)) == ["r2"]
        assert len(await db.read("queue_depth", now=NOW)) == 1
        assert (await db.read("queue_depth", now=NOW))[0]["runs"] == 1

    async def test_an_ended_run_is_gone_from_the_queue(self, db: Database) -> None:
        await add(db, "r1")
        (lease,) = (await take(db)).leases
        await finish(db, lease)
        assert await take(db, now=NOW + 1e6) == Claims([])

    # --- order and fairness --------------------------------------------------------------------------------------

    async def test_the_urgent_come_first_whoever_is_due_longer(self, db: Database) -> None:
        await add(db, "low", priority=0, due_at=NOW - 100)
        await add(db, "normal", priority=10, due_at=NOW - 50)
        await add(db, "critical", priority=30)
        await add(db, "high", priority=20)
        assert ids(await take(db)) == ["critical", "high", "normal", "low"]

    async def test_a_namespace_with_much_to_do_does_not_starve_another(self, db: Database) -> None:
        await add(db, *(f"big{n}" for n in range(50)), namespace="big", due_at=NOW - 100)
        await add(db, "small1", "small2", namespace="small")
        found = await take(db, 4)
        assert Counter(run_id[:3] for run_id in ids(found)) == {"big": 2, "sma": 2}
        assert ids(await take(db, 2)) == ["big2", "big3"]

    async def test_what_a_namespace_has_at_work_counts_against_it(self, db: Database) -> None:
        await add(db, *(f"a{n}" for n in range(8)), namespace="a", due_at=NOW - 10)
        await take(db, 4)
        await add(db, *(f"b{n}" for n in range(8)), namespace="b")
        assert Counter(run_id[0] for run_id in ids(await take(db, 4))) == {"b": 4}
        assert Counter(run_id[0] for run_id in ids(await take(db, 4))) == {"a": 2, "b": 2}

    async def test_agents_and_lanes_of_a_namespace_get_the_same_share(self, db: Database) -> None:
        await add(db, *(f"a{n}" for n in range(9)), agent="a", due_at=NOW - 10)
        await add(db, *(f"b{n}" for n in range(9)), agent="b", lane="x")
        await add(db, *(f"c{n}" for n in range(9)), agent="b", lane="y")
        assert Counter(run_id[0] for run_id in ids(await take(db, 6))) == {"a": 2, "b": 2, "c": 2}

    async def test_places_that_a_line_cannot_use_go_to_the_others(self, db: Database) -> None:
        await add(db, "a0", namespace="a")
        await add(db, *(f"b{n}" for n in range(9)), namespace="b")
        assert Counter(run_id[0] for run_id in ids(await take(db, 8))) == {"a": 1, "b": 7}

    async def test_of_lines_of_different_length_each_run_is_taken_once(self, db: Database) -> None:
        for n in range(5):
            await add(db, *(f"a{n}-{m}" for m in range(n + 1)), agent=f"a{n}")
        found = await take(db, 13)
        assert len(set(ids(found))) == 13
        assert sorted(ids(found) + ids(await take(db, 13))) == sorted(
            f"a{n}-{m}" for n in range(5) for m in range(n + 1)
        )

    async def test_lines_behind_the_last_one_looked_at_get_their_turn(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims, "LOOKED_AT", 3)
        for n in range(7):
            await add(db, f"gpu{n}", agent=f"gpu{n}", requirements='{"gpu":true}', priority=30)
        await add(db, "plain", priority=0)
        seen, place, looks = [], LookRound(), 0
        while True:
            found = await take(db, after=place.place)
            place.looked(found)
            seen += ids(found)
            looks += 1
            if not found.more:
                break
        assert seen == ["plain"]
        assert looks <= 8

    async def test_a_namespace_with_very_many_lines_hides_no_other(self, db: Database) -> None:
        """Work of webhooks, for example, comes with a lane for every event."""
        for n in range(claims.LOOKED_AT + 10):
            await add(db, f"big{n}", namespace="big", lane=f"event-{n}", due_at=NOW - 10)
        await add(db, "small", namespace="small")
        first = await take(db, 4)
        assert "small" in ids(first)
        taken = set(ids(first))
        place = LookRound()
        for _ in range(200):
            found = await take(db, 10, after=place.place)
            place.looked(found)
            assert taken.isdisjoint(ids(found))
            taken.update(ids(found))
            if not found.more:
                break
        assert len(taken) == claims.LOOKED_AT + 11

    async def test_urgent_lines_come_first_while_a_look_goes_round(self, db: Database) -> None:
        for n in range(claims.EACH + 5):
            await add(db, f"slow{n}", lane=f"event-{n}", priority=0)
        place = LookRound()
        found = await take(db, 2, after=place.place)
        place.looked(found)
        await add(db, "urgent", priority=30)
        for _ in range(2):
            found = await take(db, 2, after=place.place)
            place.looked(found)
            if "urgent" in ids(found):
                return
        pytest.fail("two looks, and the urgent run is not taken")

    # --- placement -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("requirements", "has", "fits"),
        [
            ('{"region":"EU-west"}', {"region": "eu-WEST"}, True),
            ('{"region":"eu-west"}', {"region": "us"}, False),
            ('{"region":"eu-west"}', {}, False),
            ('{"gpu":true}', {"gpu": True}, True),
            ('{"gpu":true}', {}, False),
            ('{"gpu":false}', {}, True),
            ('{"model":"M-1"}', {}, True),
            ('{"model":"M-1"}', {"models": ("m-1", "m-2")}, True),
            ('{"model":"M-1"}', {"models": ("m-2",)}, False),
            ('{"labels":{"disk":"ssd"}}', {"labels": {"disk": "ssd", "zone": "a"}}, True),
            ('{"labels":{"disk":"ssd"}}', {"labels": {"disk": "hdd"}}, False),
            ('{"labels":{"disk":"ssd"}}', {}, False),
            ('{"isolation":["gvisor"]}', {"isolation": ("gvisor", "process")}, True),
            ('{"isolation":["process","process+memory"]}', {"isolation": ("process",)}, False),
            ('{"isolation":["gvisor"]}', {"isolation": ("container", "process")}, False),
            ('{"isolation":["process"]}', {"isolation": None}, False),
            ('{"isolation":[]}', {"isolation": ()}, True),
            ("not json", {}, False),
        ],
    )
    async def test_a_worker_takes_only_what_it_has_everything_for(
        self, db: Database, requirements: str, has: dict[str, Any], fits: bool
    ) -> None:
        await add(db, "special", requirements=requirements, priority=20)
        await add(db, "plain")
        found = await take(db, by=offer(**has))
        assert ids(found) == (["special", "plain"] if fits else ["plain"])
        assert found.refused == ({} if fits else {"placement": 1})

    async def test_what_another_worker_must_do_stands_in_nobodys_way(self, db: Database) -> None:
        await add(db, *(f"gpu{n}" for n in range(40)), requirements='{"gpu":true}', priority=30)
        await add(db, "plain", priority=0)
        assert ids(await take(db, 1)) == ["plain"]
        assert ids(await take(db, 1, by=offer("w2", gpu=True))) == ["gpu0"]

    # --- limits --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("scope", "name"), [("namespace", "default"), ("agent", "default/clerk"), ("lane", "default/main")]
    )
    async def test_a_limit_holds_over_all_workers_and_frees_with_the_run(
        self, db: Database, scope: Any, name: str
    ) -> None:
        await set_limit(db, Limit(scope, name, 2))
        await add(db, *(f"r{n}" for n in range(5)), lane="main", due_at=NOW - 1)
        await add(db, "other", namespace="elsewhere", agent="other", lane="main")
        first = await take(db)
        assert sorted(ids(first)) == ["other", "r0", "r1"]
        assert first.refused == {"limit": 1}
        second = await take(db, by=offer("w2"))
        assert (second.leases, second.refused) == ([], {"limit": 1})

        await finish(db, next(lease for lease in first.leases if lease.run_id == "r0"))
        assert ids(await take(db, by=offer("w2"))) == ["r2"]
        await clear_limit(db, scope, name)
        assert ids(await take(db)) == ["r3", "r4"]

    @pytest.mark.parametrize("own", [0, 3])
    async def test_a_limit_holds_when_many_claim_at_once(self, db: Database, own: int) -> None:
        if not own:
            await set_limit(db, Limit("agent", "default/clerk", 3))
        for n in range(12):
            await add(db, f"r{n}", lane=f"lane{n % 4}", max_running=own)
        found = await asyncio.gather(*(take(db, 2, by=offer(f"w{n}")) for n in range(12)))
        assert sum(len(each.leases) for each in found) <= 3
        rest = await take(db, 12)
        assert sum(len(each.leases) for each in (*found, rest)) == 3

    async def test_when_many_claim_at_once_each_run_goes_to_one_of_them(self, db: Database) -> None:
        await add(db, *(f"r{n}" for n in range(30)))
        found = await asyncio.gather(*(take(db, 4, by=offer(f"w{n}")) for n in range(8)))
        taken = [run_id for each in (*found, await take(db, 30)) for run_id in ids(each)]
        assert sorted(taken) == sorted(f"r{n}" for n in range(30))

    async def test_a_limit_of_nothing_stops_everything_and_drops_nothing(self, db: Database) -> None:
        await set_limit(db, Limit("namespace", "default", 0))
        await add(db, "r1")
        for n in range(20):
            assert (await take(db, now=NOW + n)).leases == []
        await set_limit(db, Limit("namespace", "default", 1))
        (lease,) = (await take(db, now=NOW + 21)).leases
        assert lease.epoch == 1  # waiting used up nothing

    async def test_an_agents_own_limit_travels_with_its_runs(self, db: Database) -> None:
        await add(db, *(f"a{n}" for n in range(4)), agent="a", max_running=1)
        await add(db, *(f"b{n}" for n in range(4)), agent="b")
        assert Counter(run_id[0] for run_id in ids(await take(db))) == {"a": 1, "b": 4}
        assert await list_limits(db) == []  # it is no limit that an operator has set

    async def test_the_agents_limit_holds_over_its_lanes_and_priorities(self, db: Database) -> None:
        await add(db, "r1", lane="x", max_running=2, priority=30)
        await add(db, "r2", lane="y", max_running=2)
        await add(db, "r3", lane="z", max_running=2)
        assert len((await take(db)).leases) == 2
        assert (await take(db, by=offer("w2"))).leases == []

    async def test_what_was_taken_over_does_not_count_twice(self, db: Database) -> None:
        await set_limit(db, Limit("agent", "default/clerk", 1))
        await add(db, "r1", "r2")
        assert ids(await take(db)) == ["r1"]
        assert ids(await take(db, by=offer("w2"), now=NOW + LEASE + 1)) == ["r1"]
        assert (await take(db, by=offer("w3"), now=NOW + LEASE + 1)).leases == []

    @pytest.mark.parametrize(
        ("scope", "name", "most"),
        [("namespace", "a/b", 1), ("agent", "clerk", 1), ("lane", "a/", 1), ("agent", "a/b", -1), ("task", "a/b", 1)],
    )
    async def test_a_limit_that_means_nothing_is_refused(self, db: Database, scope: Any, name: str, most: int) -> None:
        with pytest.raises(InvalidInput):
            await set_limit(db, Limit(scope, name, most))

    async def test_clearing_a_limit_that_is_not_there_is_told(self, db: Database) -> None:
        with pytest.raises(NotFound):
            await clear_limit(db, "agent", "default/nobody")

    # --- classes that keep failing -------------------------------------------------------------------------------

    async def test_a_class_opens_after_failures_in_a_row_and_warns_before(self, db: Database) -> None:
        states = [await db.write(class_failed, "default/clerk", NOW) for _ in range(THRESHOLD)]
        assert states == ["healthy", "healthy", "warning", "warning", "degraded"]
        await add(db, "r1")
        await add(db, "other", agent="other")
        found = await take(db)
        assert ids(found) == ["other"]
        assert found.refused == {"breaker": 1}
        assert found.next_due == NOW + COOL_DOWN

    async def test_a_success_in_between_starts_the_count_again(self, db: Database) -> None:
        for _ in range(THRESHOLD - 1):
            await db.write(class_failed, "default/clerk", NOW)
        await db.write(class_succeeded, "default/clerk")
        assert await db.write(class_failed, "default/clerk", NOW) == "healthy"
        await add(db, "r1")
        assert ids(await take(db)) == ["r1"]

    async def opened(self, db: Database) -> float:
        """An open class with three runs; when it may be tried."""
        for _ in range(THRESHOLD):
            await db.write(class_failed, "default/clerk", NOW, namespace="default", agent="clerk", lane="")
        await add(db, "r1", "r2", "r3")
        return NOW + COOL_DOWN

    async def test_after_a_while_one_run_is_let_through_and_its_success_closes_the_class(self, db: Database) -> None:
        later = await self.opened(db)
        assert (await list_classes(db))[0].state(later) == "half-open"
        first = await take(db, now=later)
        assert ids(first) == ["r1"]
        assert (await take(db, by=offer("w2"), now=later)).refused == {"breaker": 1}

        await db.write(class_succeeded, "default/clerk")
        await finish(db, first.leases[0])
        assert ids(await take(db, by=offer("w2"), now=later)) == ["r2", "r3"]
        assert await list_classes(db) == []

    async def test_one_is_let_through_when_many_claim_at_once(self, db: Database) -> None:
        later = await self.opened(db)
        found = await asyncio.gather(*(take(db, 2, by=offer(f"w{n}"), now=later) for n in range(8)))
        assert sum(len(each.leases) for each in found) == 1

    async def test_a_failure_of_that_run_begins_the_wait_anew(self, db: Database) -> None:
        later = await self.opened(db)
        (lease,) = (await take(db, now=later)).leases
        assert await db.write(class_failed, "default/clerk", later + 1) == "degraded"
        await finish(db, lease, "failed")
        assert (await take(db, now=later + COOL_DOWN)).leases == []
        assert ids(await take(db, now=later + 1 + COOL_DOWN)) == ["r2"]

    async def test_when_that_run_is_cancelled_or_waits_another_may_try(self, db: Database) -> None:
        later = await self.opened(db)
        (lease,) = (await take(db, now=later)).leases
        await finish(db, lease, "cancelled")
        (lease,) = (await take(db, now=later)).leases
        assert lease.run_id == "r2"
        await finish(db, lease, "waiting")
        assert ids(await take(db, now=later)) == ["r3"]

    async def test_when_the_holder_of_that_run_dies_one_other_is_let_through(self, db: Database) -> None:
        later = await self.opened(db)
        await take(db, now=later)
        assert len((await take(db, by=offer("w2"), now=later + LEASE + 1)).leases) == 1
        assert (await take(db, by=offer("w3"), now=later + LEASE + 1)).leases == []

    async def test_a_person_can_close_a_class(self, db: Database) -> None:
        await self.opened(db)
        await close_class(db, "default/clerk")
        assert len((await take(db)).leases) == 3
        with pytest.raises(NotFound):
            await close_class(db, "default/clerk")

    # --- workers -------------------------------------------------------------------------------------------------

    async def test_a_worker_is_known_from_its_registration_to_its_loss(self, db: Database) -> None:
        mine = offer(region="eu", gpu=True, models=("m",), labels={"a": "b"})
        await register(db, mine, now=NOW, is_gone=lambda _: False)
        await add(db, "r1", "r2", "r3")
        await take(db, 3, by=mine)
        assert await beat(db, mine, now=NOW + 10, phase="draining")
        (info,) = await list_workers(db)
        assert (info.name, info.region, info.gpu, info.models, info.labels) == ("w1", "eu", True, ("m",), {"a": "b"})
        assert (info.capacity, info.current, info.heartbeat_at, info.started_at) == (10, 3, NOW + 10, NOW)
        assert info.state(NOW + 20) == "draining"
        assert info.state(NOW + 11 + STALE_AFTER) == "lost"

    async def test_a_worker_whose_name_was_taken_hears_of_it(self, db: Database) -> None:
        old, new = offer(identity="old"), offer(identity="new")
        await register(db, old, now=NOW, is_gone=lambda _: False)
        await register(db, new, now=NOW, is_gone=lambda _: False)
        assert not await beat(db, old, now=NOW, phase="ready")
        assert await beat(db, new, now=NOW, phase="ready")
        assert len(await list_workers(db)) == 1

    async def test_a_restarted_worker_gets_the_runs_of_its_dead_self_at_once(self, db: Database) -> None:
        old, new = offer(identity="old"), offer(identity="new")
        await register(db, old, now=NOW, is_gone=lambda _: False)
        await add(db, "r1", "r2")
        held = (await take(db, by=old)).leases
        assert await register(db, new, now=NOW + 1, is_gone=lambda identity: identity == "old") == 2
        found = await take(db, by=new, now=NOW + 1)
        assert [(lease.run_id, lease.epoch) for lease in found.leases] == [("r1", 2), ("r2", 2)]
        for lease in held:
            with pytest.raises(LeaseLost):
                await finish(db, lease)

    async def test_what_a_living_one_of_that_name_holds_stays_with_it(self, db: Database) -> None:
        old, new = offer(identity="old"), offer(identity="new")
        await register(db, old, now=NOW, is_gone=lambda _: False)
        await add(db, "r1")
        (lease,) = (await take(db, by=old)).leases
        assert await register(db, new, now=NOW + 1, is_gone=lambda _: False) == 0
        assert (await take(db, by=new, now=NOW + 1)).leases == []
        await finish(db, lease)

    async def test_a_neighbour_buries_the_dead(self, db: Database) -> None:
        dead, neighbour = offer("dead"), offer("neighbour")
        for each in (dead, neighbour):
            await register(db, each, now=NOW, is_gone=lambda _: False)
        await add(db, "r1")
        await take(db, by=dead)
        assert await bury(db, neighbour, now=NOW, is_gone=lambda identity: identity == dead.identity) == 1
        assert await bury(db, neighbour, now=NOW, is_gone=lambda identity: identity == dead.identity) == 0
        assert ids(await take(db, by=neighbour)) == ["r1"]
        assert {info.name: info.phase for info in await list_workers(db)} == {"dead": "lost", "neighbour": "ready"}
        assert {info.name: info.state(NOW) for info in await list_workers(db)}["dead"] == "lost"
        assert await others(db, neighbour, holders=False) == set()  # nobody looks after it any more
