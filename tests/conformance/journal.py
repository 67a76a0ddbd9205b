"""What every journal must do. Subclass it and give a `journal` fixture."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
import pytest

from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, NotFound
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import CancelRequested, UnknownDecided
from foliot.store.journal.base import (
    CancelPending,
    DecidedBefore,
    Entry,
    Journal,
    JournalConflict,
    Lease,
    LeaseLost,
    NewRun,
    ParentCancelled,
    Renewal,
    RunHeld,
    Signal,
    SignalsPending,
    StoreSetBack,
)

# Chosen by users, so their order says nothing about their age.
NAMES = ["order-17", "zebra", "apple", "r3", "mango"]


def new_run(run_id: str = "r1", **changes) -> NewRun:
    fields = {"id": run_id, "namespace": "default", "agent": "clerk", "spec": "sha256:00", "created_at": 100.0}
    return NewRun(**{**fields, **changes})


def entry(seq: int, data: bytes = b"{}", *, type: str = "step.started") -> Entry:
    return Entry(seq, 100.0 + seq, type, data)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def born(journal: Journal, run_id: str = "r1", **changes) -> Lease:
    """A run with one event, held by worker w1 until 130."""
    lease = await journal.create(new_run(run_id, **changes), [entry(1)], worker="w1", lease_until=130.0)
    assert lease is not None
    return lease


class JournalConformance:
    async def test_what_was_appended_is_read_in_order_from_any_place(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.append(lease, [entry(2, b'{"a":1}'), entry(3)])

        assert await journal.read("r1") == [entry(1), entry(2, b'{"a":1}'), entry(3)]
        assert await journal.read("r1", after=2) == [entry(3)]
        assert await journal.read("r1", after=1, limit=1) == [entry(2, b'{"a":1}')]
        assert await journal.read("nobody") == []

    async def test_the_turns_of_a_conversation_are_read_at_once_from_any_of_them(self, journal: Journal) -> None:
        for run_id, after in (("zebra", None), ("apple", "zebra"), ("other", "zebra"), ("mango", "apple")):
            await born(journal, run_id, after=after)
        await born(journal, "stranger")
        last = await born(journal, "last", after="mango")
        await journal.append(last, [entry(2)])

        turns = await journal.turns("last")
        assert list(turns) == ["zebra", "apple", "other", "mango"], "branches are among them, the turn itself is not"
        assert turns["apple"] == [entry(1)]
        assert list(await journal.turns("last", first="other")) == ["other", "mango"]
        assert list(await journal.turns("last", first="nobody")) == list(turns)
        assert await journal.turns("zebra") == await journal.turns("stranger") == await journal.turns("nobody") == {}

    @pytest.mark.parametrize("text", ["word " * 30, 'quo\\"te \\u00e4 ' * 30, "short", ""])
    async def test_an_answer_that_the_end_of_its_run_repeats_is_read_as_it_was(
        self, journal: Journal, text: str
    ) -> None:
        answer = entry(2, f'{{"type":"model.responded","text":"{text}","n":1}}'.encode(), type="model.responded")
        end = entry(3, f'{{"type":"run.succeeded","output":"{text}","steps":1}}'.encode(), type="run.succeeded")
        await journal.append(await born(journal), [answer, end], phase="succeeded")

        assert await journal.read("r1") == [entry(1), answer, end]
        assert await journal.read("r1", after=2) == [end], "also without the answer beside it"
        await born(journal, "r2", after="r1")
        assert (await journal.turns("r2"))["r1"] == [entry(1), answer, end]

    async def test_a_second_run_with_the_same_id_is_refused(self, journal: Journal) -> None:
        await born(journal)
        with pytest.raises(Conflict):
            await journal.create(new_run(), [entry(1, b"other")])
        assert await journal.read("r1") == [entry(1)]

    @pytest.mark.parametrize("seqs", [(1,), (3,), (2, 4), (2, 2)])
    async def test_a_seq_that_does_not_follow_is_refused_whole(self, journal: Journal, seqs) -> None:
        lease = await born(journal)
        # A holder that has stored more than the store knows of has found a store that went back in time.
        with pytest.raises((JournalConflict, StoreSetBack)):
            await journal.append(lease, [entry(seq, b"bad") for seq in seqs])
        assert await journal.read("r1") == [entry(1)]

    async def test_who_lost_the_lease_can_write_nothing(self, journal: Journal) -> None:
        old = await born(journal)
        new = await journal.claim("r1", worker="w2", now=131.0, until=160.0)

        with pytest.raises(LeaseLost):
            await journal.append(old, [entry(2, b"zombie")])
        with pytest.raises(LeaseLost):
            await journal.append(old, [], phase="failed")
        await journal.append(new, [entry(2, b"alive")])

        assert await journal.read("r1", after=1) == [entry(2, b"alive")]
        assert (await journal.get("r1")).phase == "running"

    async def test_a_live_lease_is_respected_until_it_ends(self, journal: Journal) -> None:
        await born(journal)
        with pytest.raises(RunHeld):
            await journal.claim("r1", worker="w2", now=129.0, until=160.0)
        assert (await journal.claim("r1", worker="w2", now=130.5, until=160.0)).epoch == 2

    async def test_a_holder_known_to_be_dead_can_be_replaced_at_once(self, journal: Journal) -> None:
        old = await born(journal)
        await journal.claim("r1", worker="w2", now=101.0, until=160.0, dead=old.epoch)
        with pytest.raises(LeaseLost):
            await journal.append(old, [entry(2)])

    async def test_of_two_that_find_a_holder_dead_only_one_replaces_it(self, journal: Journal) -> None:
        old = await born(journal)
        new = await journal.claim("r1", worker="w2", now=101.0, until=160.0, dead=old.epoch)
        with pytest.raises(RunHeld):
            await journal.claim("r1", worker="w3", now=102.0, until=160.0, dead=old.epoch)
        await journal.append(new, [entry(2)])

    @pytest.mark.parametrize(
        ("holders", "released"),
        [
            (["died"], False),
            (["gave back"], True),
            (["waited"], True),
            (["died", "died"], False),
            (["died", "gave back"], False),
            (["died", "died", "gave back", "died"], False),
            (["gave back", "died"], True),
            (["gave back", "gave back", "died"], True),
            (["waited", "died", "gave back"], True),
        ],
    )
    async def test_a_lease_says_how_the_writer_of_the_last_event_left_the_run(
        self, journal: Journal, holders: list[str], released: bool
    ) -> None:
        """The first of these holders wrote that event, and the others left the run before they had written anything."""
        lease = await born(journal)
        for number in (1, 2):  # the second time after a holder that has written something
            for how in holders:
                if how == "waited":
                    entries = [entry(len(await journal.read("r1")) + 1)]
                    await journal.append(lease, entries, phase="waiting")
                elif how != "died":
                    await journal.append(lease, [], phase="pending")
                lease = await journal.claim("r1", worker="w2", now=lease.until + 1, until=lease.until + 30)
            assert lease.released is released
            await journal.append(lease, [entry(len(await journal.read("r1")) + 1, b"%d" % number)])

    async def test_the_same_worker_restarted_is_another_holder(self, journal: Journal) -> None:
        old = await born(journal)
        new = await journal.claim("r1", worker="w1", now=131.0, until=160.0)
        assert new.epoch > old.epoch
        with pytest.raises(LeaseLost):
            await journal.append(old, [entry(2)])

    async def test_an_owner_is_a_worker_and_an_epoch(self, journal: Journal) -> None:
        """A store that went back in time gives an epoch a second time, to somebody else."""
        mine = await born(journal)
        other = msgspec.structs.replace(mine, worker="w9")
        with pytest.raises(LeaseLost):
            await journal.append(other, [entry(2, b"not mine")])
        with pytest.raises(LeaseLost):
            await journal.append(other, [], phase="failed")
        assert (await journal.renew([other], until=500.0)).lost == {"r1"}
        await asyncio.gather(journal.append(mine, [entry(2)]), *[_ignored(journal, other) for _ in range(3)])
        assert await journal.read("r1") == [entry(1), entry(2)]

    async def test_renewal_tells_which_leases_are_lost(self, journal: Journal) -> None:
        kept, lost = await born(journal, "kept"), await born(journal, "lost")
        await journal.claim("lost", worker="w2", now=131.0, until=160.0)

        assert await journal.renew([kept, lost], until=200.0) == Renewal({"lost"})

        with pytest.raises(RunHeld):
            await journal.claim("kept", worker="w2", now=190.0, until=220.0)

    async def test_a_late_renewal_does_not_shorten_a_lease(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.renew([lease], until=200.0)

        assert await journal.renew([lease], until=150.0) == Renewal()

        with pytest.raises(RunHeld):
            await journal.claim("r1", worker="w2", now=180.0, until=220.0)

    @pytest.mark.parametrize("phase", ["waiting", "succeeded", "failed", "cancelled"])
    async def test_leaving_running_gives_the_lease_back(self, journal: Journal, phase) -> None:
        lease = await born(journal)
        await journal.append(lease, [entry(2)], phase=phase, summary={"steps": 3})

        info = await journal.get("r1")
        assert (info.phase, info.worker, info.lease_until, info.summary) == (phase, None, None, {"steps": 3})
        with pytest.raises(LeaseLost):
            await journal.append(lease, [entry(3)])

    async def test_an_ended_run_cannot_be_claimed_and_a_waiting_one_can(self, journal: Journal) -> None:
        ended, waiting = await born(journal, "ended"), await born(journal, "waiting")
        await journal.append(ended, [entry(2)], phase="succeeded")
        await journal.append(waiting, [entry(2)], phase="waiting")

        with pytest.raises(Conflict):
            await journal.claim("ended", worker="w2", now=500.0, until=600.0)
        lease = await journal.claim("waiting", worker="w2", now=101.0, until=160.0)
        await journal.append(lease, [entry(3)])
        with pytest.raises(NotFound):
            await journal.claim("nobody", worker="w2", now=0.0, until=1.0)

    async def test_signals_wait_until_they_are_taken(self, journal: Journal) -> None:
        lease = await born(journal)
        first = Signal("s1", "r1", 101.0, "cancel.requested", b"{}")
        second = Signal("s2", "r1", 102.0, "input.received", b'{"text":"hi"}')
        await journal.signal(first)
        await journal.signal(first)
        await journal.signal(second)
        assert await journal.signals(["r1"]) == [first, second]

        await journal.append(lease, [entry(2)], taken=["s1"])

        assert await journal.signals(["r1"]) == [second]
        assert await journal.signals([]) == []

    @pytest.mark.parametrize("length", [0, 40_000], ids=["short", "long"])
    @pytest.mark.parametrize("recorded", [False, True])
    async def test_of_two_decisions_about_a_call_one_is_taken(
        self, journal: Journal, recorded: bool, length: int
    ) -> None:
        """Also when the first one was taken up before the second one came: its signal is not there any more."""
        lease = await born(journal)
        ran = UnknownDecided("c1", "run", "ann", reason="x" * length)
        happened = UnknownDecided("c1", "happened", "bob")
        known = (await journal.read("r1"))[-1].seq
        word = signal("r1", ran, 101.0, signal_id="about-c1")
        await journal.signal(word, after=known)
        if recorded:
            event = Entry(known + 1, 102.0, word.type, word.data)
            await journal.append(lease, [event], taken=["about-c1"])

        await journal.signal(word, after=known)  # said again
        with pytest.raises(DecidedBefore) as refused:
            await journal.signal(signal("r1", happened, 103.0, signal_id="about-c1"), after=known)

        assert decode(refused.value.winner) == ran
        assert await journal.signals(["r1"]) == ([] if recorded else [word])
        other = signal("r1", UnknownDecided("c2", "fail", "bob"), 104.0, signal_id="about-c2")
        await journal.signal(other, after=known)
        if recorded:  # whoever knows of the first one decides about what came of it
            await journal.signal(signal("r1", happened, 105.0, signal_id="about-c1/2"), after=known + 1)

    async def test_nothing_can_be_signalled_to_what_has_ended_or_never_was(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.append(lease, [entry(2)], phase="succeeded")
        with pytest.raises(Conflict):
            await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        with pytest.raises(NotFound):
            await journal.signal(Signal("s1", "nobody", 101.0, "cancel.requested", b"{}"))

    async def test_a_refused_append_takes_no_signal(self, journal: Journal) -> None:
        lease = await born(journal)
        signal = Signal("s1", "r1", 101.0, "cancel.requested", b"{}")
        await journal.signal(signal)
        with pytest.raises(JournalConflict):
            await journal.append(lease, [entry(1)], taken=["s1"])
        assert await journal.signals(["r1"]) == [signal]

    async def test_a_run_is_not_let_go_to_wait_while_a_signal_is_there(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.signal(Signal("s1", "r1", 101.0, "approval.decided", b"{}"))

        with pytest.raises(SignalsPending):
            await journal.append(lease, [entry(2)], phase="waiting")
        assert await journal.read("r1") == [entry(1)]
        await journal.append(lease, [entry(2)], phase="waiting", taken=["s1"])

        assert (await journal.get("r1")).phase == "waiting"

    async def test_the_end_of_a_run_ends_its_signals(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        await journal.append(lease, [entry(2)], phase="succeeded")
        assert await journal.signals(["r1"]) == []

    async def test_a_run_does_not_succeed_before_it_has_heard_what_was_said_to_it(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.signal(Signal("s1", "r1", 101.0, "input.received", b"{}"))
        with pytest.raises(SignalsPending):
            await journal.append(lease, [entry(2)], phase="succeeded")
        assert len(await journal.read("r1")) == 1
        await journal.append(lease, [entry(2)], phase="failed")
        assert await journal.signals(["r1"]) == []

    async def test_signals_come_in_the_order_in_which_they_were_stored(self, journal: Journal) -> None:
        await born(journal)
        for number, at in enumerate((105.0, 103.0, 104.0)):
            await journal.signal(Signal(f"s{9 - number}", "r1", at, "input.received", b"{}"))
        assert [each.id for each in await journal.signals(["r1"])] == ["s9", "s8", "s7"]

    async def test_nothing_is_appended_between_a_cancel_and_the_moment_it_is_heard(self, journal: Journal) -> None:
        lease = await born(journal)
        cancel = Signal("s1", "r1", 101.0, "cancel.requested", b"{}")
        await journal.signal(cancel)
        for entries, taken in (([entry(2)], []), ([entry(2), entry(3)], ["s0"]), ([entry(2, b"x" * 300_000)], [])):
            with pytest.raises(CancelPending):
                await journal.append(lease, entries, taken=taken)
        assert await journal.read("r1") == [entry(1)]
        assert await journal.signals(["r1"]) == [cancel]

        heard = Entry(3, 103.0, "cancel.requested", b"{}")
        await journal.append(lease, [entry(2, type="tool.finished"), heard], taken=["s1"])

        await journal.signal(Signal("s2", "r1", 104.0, "cancel.requested", b"{}"))  # it is ending already
        await journal.append(lease, [entry(4, type="tool.finished")])
        assert [each.seq for each in await journal.read("r1")] == [1, 2, 3, 4]

    async def test_a_cancel_that_comes_too_late_to_be_recorded_is_heard_when_it_is_taken(
        self, journal: Journal
    ) -> None:
        lease = await born(journal)
        await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        await journal.signal(Signal("s2", "r1", 102.0, "cancel.requested", b"{}"))
        with pytest.raises(CancelPending):
            await journal.append(lease, [entry(2)], taken=["s1"])
        await journal.append(lease, [entry(2)], taken=["s1", "s2"])
        await journal.append(lease, [entry(3)])
        assert await journal.signals(["r1"]) == []

    async def test_a_cancel_that_was_heard_before_it_is_stored_holds_nothing_up(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.append(lease, [Entry(2, 102.0, "cancel.requested", b"{}")], taken=["s1"])
        await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        await journal.append(lease, [entry(3, type="tool.finished")])

    @pytest.mark.parametrize("phase", ["pending", "failed", "cancelled"])
    async def test_a_run_that_is_told_to_end_can_be_given_back_and_ended(self, journal: Journal, phase) -> None:
        lease = await born(journal)
        await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        await journal.append(lease, [] if phase == "pending" else [entry(2)], phase=phase)
        assert (await journal.get("r1")).phase == phase
        if phase == "pending":
            again = await journal.claim("r1", worker="w2", now=200.0, until=230.0)
            with pytest.raises(CancelPending):
                await journal.append(again, [entry(2)])

    async def test_whoever_lost_the_lease_is_told_so_and_not_of_a_cancel(self, journal: Journal) -> None:
        lease = await born(journal)
        await journal.claim("r1", worker="w2", now=131.0, until=160.0)
        await journal.signal(Signal("s1", "r1", 101.0, "cancel.requested", b"{}"))
        with pytest.raises(LeaseLost):
            await journal.append(lease, [entry(2)])

    async def test_a_cancel_is_for_all_that_a_run_has_started(self, journal: Journal) -> None:
        """Also below one that has ended; not for a fork, which a person has started, nor above or beside."""
        above = await born(journal, "above")
        await born(journal, "top", parent="above")
        leases = {name: await born(journal, name, parent=up) for name, up in (("one", "top"), ("two", "one"))}
        ended = await born(journal, "ended", parent="top")
        leases["deep"] = await born(journal, "deep", parent="ended")
        await journal.append(ended, [entry(2)], phase="succeeded")
        others = [above, await born(journal, "beside", parent="above")]
        others.append(await born(journal, "fork", parent="top", parent_seq=1))

        await journal.signal(Signal("s1", "top", 101.0, "cancel.requested", b"{}"))

        told = await journal.signals(["top", "one", "two", "ended", "deep", "above", "beside", "fork"])
        assert sorted((each.id, each.run_id) for each in told) == [
            ("deep/parent", "deep"),
            ("one/parent", "one"),
            ("s1", "top"),
            ("two/parent", "two"),
        ]
        assert {decode(each.data) for each in told if each.id != "s1"} == {
            CancelRequested("parent", "the run that started it has ended")
        }
        for name, lease in leases.items():
            with pytest.raises(CancelPending):
                await journal.append(lease, [entry(2)])
            await journal.append(lease, [Entry(2, 1.0, "cancel.requested", b"{}")], taken=[f"{name}/parent"])
        for lease in others:
            await journal.append(lease, [entry(2)])

    @pytest.mark.parametrize("heard", [False, True])
    async def test_nothing_is_started_below_a_run_that_was_told_to_end(self, journal: Journal, heard: bool) -> None:
        lease = await born(journal, "top")
        earlier = await born(journal, "earlier", parent="top")
        await journal.append(earlier, [entry(2)], phase="succeeded")
        await journal.signal(Signal("s1", "top", 101.0, "cancel.requested", b"{}"))
        if heard:
            await journal.append(lease, [Entry(2, 1.0, "cancel.requested", b"{}")], taken=["s1"])
        for more in ({}, {"after": "earlier"}):
            with pytest.raises(ParentCancelled):
                await born(journal, "new", parent="top", **more)
        assert await journal.many(["new"]) == []
        await born(journal, "fork", parent="top", parent_seq=1)  # by a person

    async def test_of_many_appends_and_cancels_at_once_none_is_appended_behind_its_cancel(
        self, journal: Journal
    ) -> None:
        """Whatever shares a transaction: what is there when the cancel is answered is all that there will be."""
        leases = [await born(journal, f"r{n:02}") for n in range(20)]
        children = [await born(journal, f"c{n:02}", parent=f"r{n:02}") for n in range(20)]
        answered: dict[str, int] = {}

        async def write(lease: Lease) -> int:
            for seq in range(2, 100):
                try:
                    await journal.append(lease, [entry(seq)])
                except CancelPending:
                    return seq - 1
                await asyncio.sleep(0)
            raise AssertionError("it was not told")

        async def cancel(number: int) -> None:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            await journal.signal(Signal("s", f"r{number:02}", 101.0, "cancel.requested", b"{}"))
            for name in (f"r{number:02}", f"c{number:02}"):
                answered[name] = len(await journal.read(name))

        both = [*leases, *children]
        ends = await asyncio.gather(*map(write, both), *map(cancel, range(20)))

        for lease, last in zip(both, ends, strict=False):
            assert last == answered[lease.run_id] == len(await journal.read(lease.run_id))

    async def test_a_child_that_is_started_at_the_moment_of_a_cancel_is_refused_or_told(self, journal: Journal) -> None:
        for number in range(20):
            top, name = f"top{number}", f"child{number}"
            await born(journal, top)
            stop = Signal("s", top, 101.0, "cancel.requested", b"{}")
            born_, _ = await asyncio.gather(
                born(journal, name, parent=top), journal.signal(stop), return_exceptions=True
            )
            if isinstance(born_, Lease):
                assert [each.id for each in await journal.signals([name])] == [f"{name}/parent"]
                with pytest.raises(CancelPending):
                    await journal.append(born_, [entry(2)])
            else:
                assert isinstance(born_, ParentCancelled)

    async def test_large_payloads_come_back_as_they_were(self, journal: Journal) -> None:
        lease = await born(journal)
        large = b'"' + b"x" * 300_000 + b'"'
        await journal.append(lease, [entry(2, large), entry(3, large)])
        assert [len(found.data) for found in await journal.read("r1")] == [2, len(large), len(large)]
        assert (await journal.read("r1", after=2))[0].data == large

    async def test_content_is_stored_once_under_its_digest(self, journal: Journal) -> None:
        digest = await journal.put_blob(b"same")
        assert digest == digest_of(b"same")
        assert await journal.put_blob(b"same") == digest
        assert await journal.get_blob(digest) == b"same"
        with pytest.raises(NotFound):
            await journal.get_blob("sha256:ff")

    async def test_content_stays_as_long_as_the_run_that_it_was_kept_for(self, journal: Journal) -> None:
        lease = await born(journal)
        digest = await journal.put_blob(b"a long result", run_id="r1")
        await journal.purge(ended_before=1e12)
        assert await journal.get_blob(digest) == b"a long result"
        await journal.append(lease, [entry(2)], phase="succeeded")
        assert await journal.purge(ended_before=1e12) == 1
        with pytest.raises(NotFound):
            await journal.get_blob(digest)

    async def test_content_is_read_for_a_run_only_if_it_refers_to_it(self, journal: Journal) -> None:
        await born(journal)
        await born(journal, "r2")
        mine, shared = await journal.put_blobs([b"mine", b"shared"], run_id="r1")
        await journal.put_blobs([b"shared"], run_id="r2")

        assert await journal.get_blob(mine, run_id="r1") == b"mine"
        assert await journal.get_blob(shared, run_id="r2") == b"shared"
        for run_id in ("r2", "nobody"):
            with pytest.raises(NotFound):
                await journal.get_blob(mine, run_id=run_id)

    async def test_runs_are_listed_newest_first_by_what_they_are(self, journal: Journal) -> None:
        for n in range(5):
            lease = await born(journal, NAMES[n], created_at=100.0 + n, agent="odd" if n % 2 else "even")
            if n == 4:
                await journal.append(lease, [entry(2)], phase="failed")
        await born(journal, "a9", namespace="other")

        async def ids(**filters) -> list[str]:
            return [info.id for info in await journal.list(**filters)]

        assert await ids(namespace="default") == NAMES[::-1]
        assert await ids(namespace="default", limit=2, before=NAMES[3]) == [NAMES[2], NAMES[1]]
        assert await ids(agent="odd") == [NAMES[3], NAMES[1]]
        assert await ids(phases=["failed"]) == [NAMES[4]]
        assert await ids(namespace="other", phases=["running", "failed"]) == ["a9"]

    async def test_a_run_is_found_by_the_start_of_its_id(self, journal: Journal) -> None:
        await born(journal, "run-abc")
        await born(journal, "run-abd")
        assert (await journal.find("run-abc")).id == "run-abc"
        with pytest.raises(Conflict):
            await journal.find("run-ab")
        with pytest.raises(NotFound):
            await journal.find("run-x%")

    async def test_all_runs_that_begin_alike_are_found_by_id_in_the_namespaces_asked_for(
        self, journal: Journal
    ) -> None:
        for run_id, namespace in (("ab2", "default"), ("ab1", "team"), ("ab3", "other"), ("b", "default")):
            await born(journal, run_id, namespace=namespace)

        assert [info.id for info in await journal.alike("ab", limit=9)] == ["ab1", "ab2", "ab3"]
        assert [info.id for info in await journal.alike("ab", limit=2)] == ["ab1", "ab2"]
        assert [info.id for info in await journal.alike("ab", namespaces=["team", "other"], limit=9)] == ["ab1", "ab3"]
        assert await journal.alike("ab%", limit=9) == []
        assert [info.id for info in await journal.many(["b", "none", "ab2"])] == ["ab2", "b"]

    async def test_every_way_to_a_run_names_the_spec_that_it_is_pinned_to(self, journal: Journal) -> None:
        for run_id, spec in (("one", "sha256:11"), ("two", "sha256:22")):
            await born(journal, run_id, spec=spec)

        for run_id, spec in (("one", "sha256:11"), ("two", "sha256:22")):
            ways = [await journal.get(run_id), await journal.find(run_id)]
            ways += [*(await journal.alike(run_id, limit=1)), *(await journal.many([run_id]))]
            ways += [info for info in await journal.list() if info.id == run_id]
            assert [info.spec for info in ways] == [spec] * 5

    async def test_runs_that_ask_people_come_oldest_first_with_what_they_ask(self, journal: Journal) -> None:
        for n, reason in enumerate(("input", "timer", "approval", "input", "budget")):
            lease = await born(journal, f"r{9 - n}", namespace="team" if n == 3 else "default")
            said = [entry(2, type="step.started"), entry(3, type="tool.started"), entry(4, type="question.asked")]
            waiting = {"reason": reason, "owner": "", "until": None}
            await journal.append(lease, said, phase="waiting", summary={"waiting": waiting})
        await journal.append(
            await born(journal, "over"), [entry(2, b"x" * 50_000, type="question.asked")], phase="succeeded"
        )

        found = await journal.asking(limit=9)
        assert [info.id for info, _ in found] == ["r9", "r7", "r6"]
        told = [[each.type for each in entries if each.seq > 1] for _, entries in found]
        assert told == [["step.started", "question.asked"]] * 3
        behind = await journal.asking(after=found[0][0].key, limit=1)
        assert [info.id for info, _ in behind] == ["r7"]
        assert [info.id for info, _ in await journal.asking(namespaces=["team"], limit=9)] == ["r6"]

    async def test_what_is_asked_below_a_run_is_asked_by_it_or_by_those_that_it_has_started(
        self, journal: Journal
    ) -> None:
        # All of one root, as the runs of a task are: a tree, a step of the graph beside it, and a fork.
        tree = {"top": None, "left": "top", "right": "top", "deep": "left", "beside": None, "fork": "left"}
        for run_id, parent in tree.items():
            forked = {"parent_seq": 1} if run_id == "fork" else {}
            lease = await born(journal, run_id, parent=parent, root="default/task/t", **forked)
            if run_id not in ("top", "left"):
                waiting = {"reason": "input", "owner": "", "until": None}
                said = [entry(2, type="step.started"), entry(3, type="question.asked")]
                await journal.append(lease, said, phase="waiting", summary={"waiting": waiting})

        async def below(run_id: str) -> list[str]:
            return [info.id for info, entries in await journal.asking_below(run_id) if len(entries) >= 2]

        assert await below("top") == ["right", "deep"]
        assert await below("left") == ["deep"]
        assert await below("deep") == ["deep"]
        assert await below("beside") == ["beside"]
        assert await below("none") == []

    async def test_purging_forgets_only_what_ended_long_ago(self, journal: Journal) -> None:
        large = b'"' + b"y" * 300_000 + b'"'
        shared, own = {digest_of(b"spec"): b"spec"}, {digest_of(b"mine"): b"mine"}
        old = await born(journal, "old", content=shared | own)
        await journal.append(old, [entry(2, large)], phase="succeeded")
        await born(journal, "live", content=shared)
        recent = await born(journal, "recent", content=shared)
        await journal.append(recent, [Entry(2, 900.0, "run.failed", large)], phase="failed")

        assert await journal.purge(ended_before=500.0) == 1

        assert await journal.read("old") == []
        assert (await journal.read("recent"))[1].data == large
        assert await journal.get_blob(digest_of(b"spec")) == b"spec"
        with pytest.raises(NotFound):
            await journal.get_blob(digest_of(b"mine"))
        with pytest.raises(NotFound):
            await journal.get("old")

    async def test_one_run_that_ended_can_be_forgotten(self, journal: Journal) -> None:
        over = await born(journal, "over", content={digest_of(b"spec"): b"spec"})
        await journal.append(over, [entry(2)], phase="succeeded")
        await born(journal, "live", content={digest_of(b"spec"): b"spec"})

        await journal.forget("over")

        assert await journal.read("over") == []
        assert len(await journal.read("live")) == 1
        assert await journal.get_blob(digest_of(b"spec")) == b"spec"
        for forgotten in (journal.get("over"), journal.forget("over")):
            with pytest.raises(NotFound):
                await forgotten
        with pytest.raises(Conflict, match="has not ended"):
            await journal.forget("live")

    async def test_a_child_remembers_where_it_came_from(self, journal: Journal) -> None:
        await born(journal)
        await born(journal, "fork", parent="r1", parent_seq=7, labels={"why": "what-if"})
        info = await journal.get("fork")
        assert (info.parent, info.parent_seq, info.labels) == ("r1", 7, {"why": "what-if"})

    async def test_delegated_runs_are_counted_by_their_root(self, journal: Journal) -> None:
        await born(journal, "top")
        await born(journal, "one", parent="top", root="default/run/top")
        await born(journal, "two", parent="one", root="default/run/top")
        await born(journal, "of-a-task", root="default/run/top")
        await born(journal, "elsewhere", parent="top", root="default/run/other")
        assert await journal.delegated("default/run/top") == 2
        assert await journal.delegated("default/run/nothing") == 0

    async def test_the_last_turn_that_another_run_started_is_found(self, journal: Journal) -> None:
        for name in ("top", "one", "two", "three", "person"):
            after = {"two": "one", "three": "two", "person": "three"}.get(name)
            parent = {} if name in ("top", "person") else {"parent": "top"}
            lease = await born(journal, name, after=after, **parent)
            await journal.append(lease, [entry(2)], phase="succeeded")
        assert await journal.last_turn("one") == "three"
        assert await journal.last_turn("top") == "top"

    async def test_many_runs_append_at_once_without_disturbing_each_other(self, journal: Journal) -> None:
        leases = [await born(journal, f"r{n:02}") for n in range(20)]

        async def write(lease: Lease) -> None:
            for seq in range(2, 12):
                await journal.append(lease, [entry(seq, lease.run_id.encode())])

        await asyncio.gather(*map(write, leases))

        for lease in leases:
            found = await journal.read(lease.run_id)
            assert [r.seq for r in found] == list(range(1, 12))
            assert {r.data for r in found[1:]} == {lease.run_id.encode()}

    async def test_of_two_holders_that_append_at_once_only_the_new_one_wins(self, journal: Journal) -> None:
        old = await born(journal)
        new = await journal.claim("r1", worker="w2", now=131.0, until=160.0)
        results = await asyncio.gather(
            journal.append(old, [entry(2, b"old")]),
            journal.append(new, [entry(2, b"new")]),
            return_exceptions=True,
        )
        assert isinstance(results[0], LeaseLost)
        assert (await journal.read("r1"))[1].data == b"new"


async def _ignored(journal: Journal, lease: Lease) -> None:
    with pytest.raises((LeaseLost, JournalConflict)):
        await journal.append(lease, [entry(2, b"not mine")])
