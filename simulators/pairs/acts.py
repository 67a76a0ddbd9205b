"""The catalogue: what anybody may ask of the store at the same time as somebody else.

Each act calls the product as the product is called. Which transactions it plays is seen while it plays; a test holds
that against every transaction there is in the source (`tests/store/test_pairs.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import structs

from foliot.engine.budgets.wakeups import models_changed
from foliot.engine.definition.task_memory import TaskMemory
from foliot.engine.driver.journal import signal
from foliot.errors import NotFound
from foliot.kernel.routing import Address
from foliot.kernel.run.events import CancelRequested, RunFailed, RunSucceeded, UnknownDecided
from foliot.kernel.run.spec import digest as content_digest
from foliot.store import incarnation as life
from foliot.store import triggers
from foliot.store.audit.log import append_records, prune_audit
from foliot.store.base import Delete, Key, Put
from foliot.store.channel_links import ChannelLinks, ChannelPlace
from foliot.store.channels import ChannelReaders, Outbox
from foliot.store.folders import FolderKey, FolderMoved, SqlFolders
from foliot.store.journal.base import LockingBody
from foliot.store.ledger.budgets import Amount, BudgetAccount, Ceiling, PaidAct
from foliot.store.ledger.tool_limits import LeaseRequest, ToolRate
from foliot.store.portions import forget_old
from foliot.store.queue import claims, queue, workers
from foliot.store.queue import limits as bounds
from foliot.store.sessions.assets import Asset, SqlAssets
from foliot.store.sessions.base import NewSession, Place, SessionBusy
from foliot.store.sessions.database import SqlSessions, begin_turn, end_turn, input_id
from foliot.store.sessions.run_inputs import RunInputs, restarting
from foliot.store.taken import MessageKey, TakenMessages
from foliot.store.tasks import TaskDifference, drop, tell
from foliot.store.tasks import purge as purge_tasks
from foliot.store.transaction import Tx, run
from simulators.pairs.seats import Seat
from simulators.pairs.seed import (
    AGENT,
    ALIVE,
    ANCIENT,
    DEAD,
    GRANTS,
    KEPT,
    LEASE,
    LIFE,
    NO_TREE,
    NOW,
    PACE,
    Seed,
    Tools,
    ceilings,
    document,
    entry,
    folder_change,
    new_run,
    offer,
    record,
    said,
    talk_place,
)

Performance = Callable[[Tools], Awaitable[Any]]
ACTS: Final[dict[str, Performance]] = {}
# How long ago something must have ended to be purged.
BEFORE: Final = NOW - 3600.0


def act(name: str) -> Callable[[Performance], Performance]:
    def keep(performance: Performance) -> Performance:
        assert name not in ACTS, f"two acts are called {name}"
        ACTS[name] = performance
        return performance

    return keep


def performed(name: str, seed: Seed) -> Callable[[Seat, str], Awaitable[Any]]:
    """The act of this name, for a player called `who`. The second player's clock is a little ahead."""

    async def perform(seat: Seat, who: str) -> Any:
        return await ACTS[name](Tools(seat, seed, who, NOW + (0.5 if who == "b" else 0.0)))

    return perform


def _recorded() -> Tx[None]:
    """Appends the audit record of an act, in the transaction of the act."""
    yield from append_records([record("asked")])


def _recorded_task(name: str, uid: str) -> Tx[None]:
    yield from _recorded()


# --- runs ----------------------------------------------------------------------------------------------------------


@act("run.create")
async def _create(t: Tools) -> Any:
    return (await t.journal.create(new_run(f"new-{t.who}", t.now), [entry(1)], in_transaction=_recorded)) is None


@act("run.create.same")
async def _create_same(t: Tools) -> Any:
    made = await t.journal.create(new_run("new", t.now), [entry(1)], worker=f"w-{t.who}", lease_until=t.now + LEASE)
    return made is not None


@act("run.create.old-content")
async def _create_old(t: Tools) -> Any:
    return (await t.journal.create(new_run(f"new-{t.who}", t.now, content=ANCIENT), [entry(1)])) is None


@act("run.follow")
async def _follow(t: Tools) -> Any:
    follower = structs.replace(new_run(f"new-{t.who}", t.now), after="gone")
    return (await t.journal.create(follower, [entry(1)])) is None


@act("run.start-below")
async def _start_below(t: Tools) -> Any:
    """A run that another one starts: whoever cancels that one refuses it, or has it told."""
    child = structs.replace(new_run(f"new-{t.who}", t.now), parent="busy")
    lease = await t.journal.create(child, [entry(1)], worker=f"w-{t.who}", lease_until=t.now + LEASE)
    assert lease is not None
    await t.journal.append(lease, [entry(2)])


@act("run.claim")
async def _claim(t: Tools) -> Any:
    lease = await t.claim("idle", f"w-{t.who}")
    return lease.epoch, lease.worker


@act("run.claim.asleep")
async def _claim_asleep(t: Tools) -> Any:
    return (await t.claim("asleep", f"w-{t.who}")).epoch


@act("run.claim.parked")
async def _claim_parked(t: Tools) -> Any:
    return (await t.claim(t.seed.leases["parked"].run_id, f"w-{t.who}")).epoch


@act("run.claim.dead")
async def _claim_dead(t: Tools) -> Any:
    held = t.seed.leases["busy"]
    lease = await t.journal.claim("busy", worker=f"w-{t.who}", now=t.now, until=t.now + LEASE, dead=held.epoch)
    return lease.epoch


@act("run.renew")
async def _renew(t: Tools) -> Any:
    leases = [t.seed.leases["held"], t.seed.leases["busy"]]
    return sorted((await t.journal.renew(leases, until=t.now + 2 * LEASE)).lost)


@act("run.append")
async def _append(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["busy"], [entry(2)])


@act("run.append.large")
async def _append_large(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["busy"], [entry(2, size=200_000)])


@act("run.append.park")
async def _park(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["busy"], [entry(2)], phase="waiting", summary={"until": None})


@act("run.append.end")
async def _end(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["busy"], [entry(2)], phase="succeeded", summary={}, in_transaction=_recorded)


@act("run.append.park-task")
async def _park_task(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["held"], [entry(2)], phase="waiting", summary={"until": None})


@act("run.append.give-back")
async def _give_back_run(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["held"], [], phase="pending", due=t.now)


@act("run.append.end-task")
async def _end_task(t: Tools) -> Any:
    await t.end(t.seed.leases["held"], RunSucceeded("done"))


@act("run.append.fail-task")
async def _fail_task(t: Tools) -> Any:
    await t.end(t.seed.leases["held"], RunFailed("broken", "broken", "it broke"))


@act("run.append.batch")
async def _append_batch(t: Tools) -> Any:
    """Appends that are one statement."""
    leases = [t.seed.leases[name] for name in ("held", "busy")]
    done = await asyncio.gather(*(t.journal.append(each, [entry(2)]) for each in leases), return_exceptions=True)
    return [type(each).__name__ for each in done]


@act("run.append.end-batch")
async def _end_batch(t: Tools) -> Any:
    """Ends of two tasks that share a transaction, and its statements."""
    leases = [t.seed.leases[name] for name in ("held", "lapsed")]
    ends = [(lease, *await t.ending(lease, RunSucceeded("done"))) for lease in leases]
    done = await asyncio.gather(
        *(
            t.journal.append(lease, entries, phase="succeeded", summary={}, in_transaction=in_transaction)
            for lease, entries, in_transaction in ends
        ),
        return_exceptions=True,
    )
    return [type(each).__name__ for each in done]


@act("run.append.lapsed")
async def _append_lapsed(t: Tools) -> Any:
    await t.journal.append(t.seed.leases["lapsed"], [entry(2)])


def _cancel_of(t: Tools, run_id: str) -> Any:
    return signal(run_id, CancelRequested("ann", "enough"), t.now, signal_id=f"{run_id}-{t.who}")


@act("run.signal.busy")
async def _signal_busy(t: Tools) -> Any:
    await t.journal.signal(_cancel_of(t, "busy"), in_transaction=_recorded)


@act("run.signal.held")
async def _signal_held(t: Tools) -> Any:
    await t.journal.signal(_cancel_of(t, t.seed.leases["held"].run_id))


@act("run.signal.parked")
async def _signal_parked(t: Tools) -> Any:
    await t.journal.signal(_cancel_of(t, t.seed.leases["parked"].run_id))


@act("run.signal.decision")
async def _signal_decision(t: Tools) -> Any:
    fact = UnknownDecided("c1", "run", t.who)
    said = signal("asleep", fact, t.now, signal_id="asleep-c1")
    await t.journal.signal(said, after=1, in_transaction=_recorded)


@act("run.signal.asleep")
async def _signal_asleep(t: Tools) -> Any:
    await t.journal.signal(_cancel_of(t, "asleep"))


@act("run.blob")
async def _blob(t: Tools) -> Any:
    return await t.journal.put_blob(b"content")


@act("run.blob.old")
async def _old_blob(t: Tools) -> Any:
    return await t.journal.put_blob(ANCIENT)


@act("run.blobs")
async def _blobs(t: Tools) -> Any:
    return await t.journal.put_blobs([b"content", ANCIENT, b"more"])


@act("run.blobs.other")
async def _other_blobs(t: Tools) -> Any:
    return await t.journal.put_blobs([b"more", ANCIENT, b"content"])


@act("run.purge")
async def _purge(t: Tools) -> Any:
    return await t.journal.purge(ended_before=BEFORE)


@act("run.forget")
async def _forget(t: Tools) -> Any:
    await t.journal.forget("gone")


# --- tasks ---------------------------------------------------------------------------------------------------------


@act("task.accept")
async def _accept(t: Tools) -> Any:
    accepted = await t.tasks.accept(t.command(f"new-{t.who}"), in_transaction=_recorded_task)
    return accepted.duplicate


@act("task.accept.same")
async def _accept_same(t: Tools) -> Any:
    accepted = await t.tasks.accept(t.command("new", idempotency_key="key"))
    return accepted.task.name


@act("task.cancel")
async def _cancel(t: Tools) -> Any:
    return (await t.tasks.cancel("default", "held", by="ann", in_transaction=_recorded_task)).phase


@act("task.cancel.fresh")
async def _cancel_fresh(t: Tools) -> Any:
    return (await t.tasks.cancel("default", "fresh", by="ann")).phase


@act("task.cancel.parked")
async def _cancel_parked(t: Tools) -> Any:
    return (await t.tasks.cancel("default", "parked", by="ann")).phase


@act("task.end")
async def _end_work(t: Tools) -> Any:
    return (await t.tasks.end("default", "fresh")).phase


@act("task.end.ended")
async def _end_ended_work(t: Tools) -> Any:
    return (await t.tasks.end("default", "lettered")).phase


@act("task.requeue")
async def _requeue(t: Tools) -> Any:
    return (await t.tasks.requeue("default", "lettered", by="ann", in_transaction=_recorded_task)).attempt


@act("task.requeue.ancient")
async def _requeue_ancient(t: Tools) -> Any:
    return (await t.tasks.requeue("default", "ancient", by="ann")).attempt


@act("task.archive")
async def _archive(t: Tools) -> Any:
    return (await t.tasks.archive("default", "lettered", in_transaction=_recorded_task)).archived_at is not None


@act("task.delete")
async def _delete(t: Tools) -> Any:
    await t.tasks.delete("default", "lettered", in_transaction=_recorded_task)


@act("task.timers")
async def _timers(t: Tools) -> Any:
    await t.tasks.timers(t.now)


@act("queue.wake")
async def _wake(t: Tools) -> Any:
    return await t.db.write(queue.wake, t.seed.leases["parked"].run_id, t.now)


@act("queue.hasten")
async def _hasten(t: Tools) -> Any:
    return await models_changed(t.db, "default", clock=t.clock)


@act("task.purge")
async def _purge_tasks(t: Tools) -> Any:
    return await purge_tasks(t.db, BEFORE, 100)


@act("task.memory")
async def _memory(t: Tools) -> Any:
    await TaskMemory(t.db, clock=t.clock).put(t.seed.leases["held"].run_id, "key", t.who)


@act("task.feed.tell")
async def _feed_tell(t: Tools) -> Any:
    return len(await t.db.write(tell, [TaskDifference(2, 0, True, False, "{}")]))


@act("task.feed.drop")
async def _feed_drop(t: Tools) -> Any:
    return await t.db.write(drop, 1)


# --- workers -------------------------------------------------------------------------------------------------------


@act("worker.claim")
async def _take(t: Tools) -> Any:
    taken = await claims.claim(t.db, offer(f"w-{t.who}", f"id-{t.who}"), want=2, now=t.now, until=t.now + LEASE)
    return sorted(lease.run_id for lease in taken.leases)


@act("worker.claim.one")
async def _take_one(t: Tools) -> Any:
    taken = await claims.claim(t.db, offer(f"w-{t.who}", f"id-{t.who}"), want=1, now=t.now, until=t.now + LEASE)
    return sorted(lease.run_id for lease in taken.leases)


@act("worker.register")
async def _register(t: Tools) -> Any:
    return await workers.register(t.db, offer("w3", f"id-{t.who}"), now=t.now, is_gone=_is_gone)


@act("worker.beat")
async def _beat(t: Tools) -> Any:
    return bool(await workers.beat(t.db, offer("w1", ALIVE), now=t.now, phase="draining"))


@act("store.set_back")
async def _set_back(t: Tools) -> Any:
    await life.note_set_back(t.db, "it knows less than before", clock=lambda: t.now)


@act("worker.bury")
async def _bury(t: Tools) -> Any:
    return await workers.bury(t.db, offer("w1", ALIVE), now=t.now, is_gone=_is_gone)


def _is_gone(identity: str | None) -> bool:
    return identity == DEAD


@act("limit.set")
async def _set_limit(t: Tools) -> Any:
    await bounds.set_limit(t.db, bounds.Limit("namespace", "default", 1))


@act("limit.clear")
async def _clear_limit(t: Tools) -> Any:
    await bounds.clear_limit(t.db, "namespace", "default")


@act("class.close")
async def _close_class(t: Tools) -> Any:
    await bounds.close_class(t.db, "class")


# --- budgets and limits on tools -----------------------------------------------------------------------------------


async def _reserve(t: Tools, name: str, *books: int, run_id: str = "busy", holder: str = ALIVE, much: int = 10) -> Any:
    short = await t.ledger.reserve(
        PaidAct(run_id, name), ceilings(*books), Amount(much, much), holder=holder, now=t.now, until=t.now + 60
    )
    return len(short)


@act("budget.reserve")
async def _reserve_new(t: Tools) -> Any:
    return await _reserve(t, f"step/9/{t.who}", 0, 1)


@act("budget.reserve.most")
async def _reserve_most(t: Tools) -> Any:
    return await _reserve(t, f"step/9/{t.who}", 0, 1, 2, much=80)


@act("budget.reserve.same")
async def _reserve_same(t: Tools) -> Any:
    return await _reserve(t, "step/8", 1, 2)


@act("budget.reserve.takeover")
async def _reserve_takeover(t: Tools) -> Any:
    return await _reserve(t, "step/2", 0, 1, run_id="dead", holder=f"w-{t.who}")


@act("budget.reserve.batch")
async def _reserve_batch(t: Tools) -> Any:
    """Bodies that share a commit: the first by the accounts 0 and 1, the second by 2 and 0."""
    books = ((1, 2), (0,)) if t.who == "a" else ((2,), (0, 1))
    return await asyncio.gather(*(_reserve(t, f"step/{n}/{t.who}", *each) for n, each in enumerate(books)))


@act("budget.reserve.opening")
async def _reserve_opening(t: Tools) -> Any:
    """Two accounts that are new, before and behind one that is there."""
    fresh = [Ceiling(BudgetAccount("default", name, "2026"), micros=100) for name in ("atlas", "zoo")]
    act, until = PaidAct("busy", f"step/7/{t.who}"), t.now + 60
    return len(await t.ledger.reserve(act, [*fresh, *ceilings(2)], Amount(1, 1), holder=ALIVE, now=t.now, until=until))


@act("budget.settle")
async def _settle(t: Tools) -> Any:
    return await t.ledger.settle(PaidAct("busy", "step/1"), Amount(7, 7), now=t.now)


@act("budget.settle.dead")
async def _settle_dead(t: Tools) -> Any:
    return await t.ledger.settle(PaidAct("dead", "step/1"), Amount(7, 7), now=t.now)


@act("budget.release")
async def _release(t: Tools) -> Any:
    return await t.ledger.release(PaidAct("busy", "step/1"), now=t.now)


@act("budget.renew")
async def _renew_holds(t: Tools) -> Any:
    return await t.ledger.renew(DEAD, [PaidAct("dead", "step/1"), PaidAct("done", "step/1")], until=t.now + 60)


@act("budget.give-back")
async def _give_back(t: Tools) -> Any:
    return await t.ledger.give_back([DEAD, ALIVE], now=t.now)


@act("budget.sweep")
async def _sweep(t: Tools) -> Any:
    return await t.ledger.sweep(now=t.now)


@act("tool.ask")
async def _ask(t: Tools) -> Any:
    wish = LeaseRequest("default/saw", f"id-{t.who}", ToolRate(1, 1.0, 5), tokens=2, most=2, number=7)
    return await t.limits.ask(wish, now=NOW, lease_until=NOW + 10, place_until=NOW + 10)


@act("tool.ask.new")
async def _ask_new(t: Tools) -> Any:
    wish = LeaseRequest("default/plane", f"id-{t.who}", ToolRate(1, 1.0, 3), tokens=2, most=1, number=7)
    return await t.limits.ask(wish, now=NOW, lease_until=NOW + 10, place_until=NOW + 10)


@act("tool.leave")
async def _leave(t: Tools) -> Any:
    await t.limits.leave("default/saw", ALIVE, [1])


@act("tool.renew")
async def _renew_place(t: Tools) -> Any:
    await t.limits.renew(ALIVE, [("default/saw", 1)], until=t.now + 60)


@act("tool.forget")
async def _forget_places(t: Tools) -> Any:
    await t.limits.forget([ALIVE])


@act("tool.failed")
async def _tool_failed(t: Tools) -> Any:
    return await t.limits.failed("default/lathe", most=3, now=NOW)


@act("tool.well")
async def _tool_well(t: Tools) -> Any:
    await t.limits.well("default/lathe")


@act("tool.probe")
async def _probe(t: Tools) -> Any:
    return await t.limits.probe("default/drill", f"id-{t.who}", NOW - 100, now=t.now, until=t.now + 30)


@act("tool.unprobe")
async def _unprobe(t: Tools) -> Any:
    await t.limits.unprobe("default/drill", "id-a")


# --- resources and audit -------------------------------------------------------------------------------------------


@act("resource.put")
async def _put(t: Tools) -> Any:
    written = await t.store.write([Put(document("Agent", "one", model=t.who))])
    return [each.action for each in written]


@act("resource.create")
async def _create_resource(t: Tools) -> Any:
    written = await t.store.write(
        [Put(document("Agent", "three", model="m"), expect="absent")], in_transaction=_recorded_writes
    )
    return [each.action for each in written]


@act("resource.status")
async def _status(t: Tools) -> Any:
    changed = {**document("Agent", "one"), "status": {"said": t.who}}
    return [each.action for each in await t.store.write([Put(changed, only="status")])]


@act("resource.delete")
async def _delete_resource(t: Tools) -> Any:
    return [each.action for each in await t.store.write([Delete(Key("Agent", "default", "one"))])]


@act("resource.compact")
async def _compact(t: Tools) -> Any:
    return await t.store.compact(keep=1)


def _recorded_writes(written: Any) -> Tx[None]:
    yield from _recorded()


@act("audit.append")
async def _append_audit(t: Tools) -> Any:
    return [each.seq for each in await t.audit.append([record("one"), record("two")])]


@act("audit.prune")
async def _prune_audit(t: Tools) -> Any:
    return (await prune_audit(t.db, before=BEFORE, by="ann", now=t.now)) is None


# --- schedules and webhooks ----------------------------------------------------------------------------------------


@act("schedule.begin")
async def _begin(t: Tools) -> Any:
    await t.db.write(triggers.begin, "sch", "every hour", NOW - 600, NOW - 600)


@act("schedule.begin.new")
async def _begin_new(t: Tools) -> Any:
    await t.db.write(triggers.begin, "fresh", "every hour", NOW - 600, NOW - 600)


@act("schedule.decide")
async def _decide(t: Tools) -> Any:
    known = await triggers.known_of(t.db, "sch", upto=NOW)
    slot = triggers.NewSlot(int((NOW - 60) * 1000), "due")
    return await t.db.write(triggers.decide, "sch", known.last if known else None, [slot], t.now)


@act("schedule.manual")
async def _manual(t: Tools) -> Any:
    slot = triggers.NewSlot(int(NOW * 1000) + 1, "due", kind="manual")
    return await t.db.write(triggers.decide_manual, "sch", slot, t.now)


@act("schedule.settle")
async def _settle_slot(t: Tools) -> Any:
    return await t.db.write(triggers.settle, "sch", int((NOW - 120) * 1000), "fired", "", f"task-{t.who}", t.now)


@act("schedule.forget-slots")
async def _forget_slots(t: Tools) -> Any:
    return await t.db.write(triggers.forget_slots, "sch", 1)


@act("schedule.forget")
async def _forget_schedule(t: Tools) -> Any:
    await t.db.write(triggers.forget_schedule, "sch")


@act("webhook.ensure")
async def _ensure(t: Tools) -> Any:
    return bool(await t.db.write(triggers.ensure_endpoint, "fresh", "default", "fresh", f"address-{t.who}", t.now))


@act("webhook.rotate")
async def _rotate(t: Tools) -> Any:
    await t.db.write(triggers.rotate_endpoint, "hook", "default", "hook", f"address-{t.who}", t.now, 60.0)


@act("webhook.take")
async def _take_event(t: Tools) -> Any:
    return (await t.db.write(triggers.take_event, "hook", {"event-2": 600.0, "key-2": 600.0}, NOW)).new


@act("webhook.settle")
async def _settle_event(t: Tools) -> Any:
    await t.db.write(triggers.settle_event, "hook", ["event-1"], int(NOW * 1000), f"task-{t.who}")


@act("webhook.drop")
async def _drop_event(t: Tools) -> Any:
    await t.db.write(triggers.settle_event, "hook", ["event-1"], int(NOW * 1000), "")


@act("webhook.log")
async def _log(t: Tools) -> Any:
    told = triggers.WebhookDelivery(f"d-{t.who}", t.now, "rejected", "", "no", 401, "", "", 0, "", "{}")
    await t.db.write(triggers.log_delivery, "hook", told, keep=1)


@act("webhook.forget")
async def _forget_webhook(t: Tools) -> Any:
    await t.db.write(triggers.forget_webhook, "hook")


@act("webhook.prune")
async def _prune_webhooks(t: Tools) -> Any:
    await forget_old(t.db, "event_forget_old", now=NOW + 3600)
    await t.db.write(run, "endpoint_forget_old", now=NOW + 3600)


# --- channels ------------------------------------------------------------------------------------------------------

BOT: Final = Address("bot", "42")


@act("outbox.notice")
async def _notice(t: Tools) -> Any:
    return await Outbox(t.db).notice("notice-1", "default", BOT, "hello", now=t.now)


@act("outbox.draft")
async def _draft(t: Tools) -> Any:
    await Outbox(t.db).draft("run-draft", "default", BOT, "7", now=t.now)


@act("outbox.claim")
async def _claim_delivery(t: Tools) -> Any:
    return len(await Outbox(t.db).claim(now=t.now + 1, lease=60.0))


@act("outbox.deliver")
async def _deliver(t: Tools) -> Any:
    outbox = Outbox(t.db)
    # Long due, so that what another act stores meanwhile is not claimed by it: which of the two was first is no matter.
    await outbox.notice(f"notice-{t.who}", "default", Address("bot", t.who), "hello", now=t.now - 1000)
    done: list[bool] = []
    for each in await outbox.claim(now=t.now - 999, lease=60.0):
        await outbox.progress(each, "1")
        done.append(await outbox.settle(each, "failed", now=t.now, error="no"))
    return all(done)


@act("outbox.again")
async def _deliver_again(t: Tools) -> Any:
    outbox = Outbox(t.db)
    await outbox.notice(f"later-{t.who}", "default", Address("bot", t.who), "hello", now=t.now - 1000)
    return all(
        [await outbox.again(each, t.now + 5, "busy") for each in await outbox.claim(now=t.now - 999, lease=60.0)]
    )


@act("outbox.retry")
async def _retry_delivery(t: Tools) -> Any:
    with contextlib.suppress(NotFound):  # nothing failed
        await Outbox(t.db).retry("default", 1, now=t.now)


@act("outbox.take-back")
async def _take_back(t: Tools) -> Any:
    await t.db.write(run, "outbox_abandoned", holder="a dead process", now=t.now)


@act("outbox.prune")
async def _prune_outbox(t: Tools) -> Any:
    await Outbox(t.db).prune(before=NOW + 10)


# Two who take one message, to one session or to two; and one who ends it with words of the channel.
MESSAGE: Final = MessageKey("bot", "m1", "d1")


@act("message.begin")
async def _begin_message(t: Tools) -> Any:
    return await TakenMessages(t.db).begin(MESSAGE, "session", now=t.now)


@act("message.reply")
async def _reply_to_message(t: Tools) -> Any:
    # Who of two was first is no matter: one reply is stored.
    await TakenMessages(t.db).reply(MESSAGE, "channel:bot:m1", "default", BOT, "hello", now=NOW)


@act("message.prune")
async def _prune_messages(t: Tools) -> Any:
    await TakenMessages(t.db).prune(before=NOW - 10)


@act("channel.claim")
async def _claim_channel(t: Tools) -> Any:
    readers = ChannelReaders(t.db)
    place = await readers.claim("tg", t.who, now=t.now, lease=60.0)
    if place is not None:
        await readers.note("tg", t.who, "busy")
        await readers.move("tg", t.who, "8")
    return place is not None


@act("channel.release")
async def _release_channel(t: Tools) -> Any:
    await ChannelReaders(t.db).release("tg", t.who)


@act("channel.choose")
async def _choose_agent(t: Tools) -> Any:
    await ChannelReaders(t.db).choose("tg", "42", "clerk")


@act("channel.forget")
async def _forget_channel(t: Tools) -> Any:
    await ChannelReaders(t.db).forget("tg")


# Two who link one sender: the code of the first is worthless once the second was shown one.
LINKED: Final = ChannelPlace("default", "bot", "channel-uid", "terms")


@act("channel.link")
async def _link_channel(t: Tools) -> Any:
    links = ChannelLinks(t.db)
    code = await links.offer(LINKED, "zoe", now=t.now)
    with contextlib.suppress(NotFound):
        return (await links.enter(code, id=f"link-{t.who}", namespace="default", user=t.who, owner=False, now=t.now)).id


@act("channel.unlink")
async def _unlink_channel(t: Tools) -> Any:
    with contextlib.suppress(NotFound):  # nobody has linked it
        await ChannelLinks(t.db).delete("link-a", namespace="default")


# --- callers -------------------------------------------------------------------------------------------------------


@act("user.create")
async def _create_user(t: Tools) -> Any:
    return (await t.users.create("bob", password="hash", grants=GRANTS, now=t.now, in_transaction=_recorded)).name


@act("user.set-up")
async def _set_up(t: Tools) -> Any:
    return (await t.users.set_up(t.seed.setup_token, "zoe", password="hash", grants=GRANTS, now=t.now)).name


@act("user.setup-token")
async def _setup_token(t: Tools) -> Any:
    return bool(await t.users.new_setup_token(now=t.now, seconds=60))


@act("user.password")
async def _password(t: Tools) -> Any:
    return await t.users.set_password("ann", f"hash-{t.who}", now=t.now, instead_of="hash")


@act("user.rehash")
async def _rehash(t: Tools) -> Any:
    await t.users.rehash(t.seed.account, f"again-{t.who}")


@act("user.disable")
async def _disable(t: Tools) -> Any:
    return (await t.users.disable("ann", now=t.now, in_transaction=_recorded)).disabled_at


@act("user.enable")
async def _enable(t: Tools) -> Any:
    return (await t.users.enable("ann", in_transaction=_recorded)).disabled_at


@act("user.grant")
async def _grant(t: Tools) -> Any:
    return (await t.users.grant("ann", {"default": (f"role-{t.who}",)}, in_transaction=_recorded)).grants


@act("session.begin")
async def _begin_session(t: Tools) -> Any:
    return (await t.sessions.begin(t.seed.account, lifetime=LIFE, now=t.now))[0].name


@act("session.vouched")
async def _vouched(t: Tools) -> Any:
    return (await t.sessions.begin_vouched("eve", GRANTS, lifetime=LIFE, now=t.now))[0].name


@act("session.seen")
async def _seen(t: Tools) -> Any:
    await t.sessions.seen(t.seed.session, idle=7200, now=t.now)


@act("session.end")
async def _end_session(t: Tools) -> Any:
    await t.sessions.end(t.seed.session)


@act("session.prune")
async def _prune_sessions(t: Tools) -> Any:
    return await t.sessions.prune(now=t.now)


@act("token.create")
async def _create_token(t: Tools) -> Any:
    return (await t.tokens.create("bob", namespaces=["*"], roles=["viewer"], now=t.now))[0].name


@act("token.revoke")
async def _revoke(t: Tools) -> Any:
    await t.tokens.revoke("robot", now=t.now)


@act("token.used")
async def _used(t: Tools) -> Any:
    await t.tokens.used(t.seed.token.id, now=t.now)


@act("flow.begin")
async def _begin_flow(t: Tools) -> Any:
    await t.flows.begin(f"state-{t.who}", "browser", "/", now=t.now, seconds=600)


@act("flow.take")
async def _take_flow(t: Tools) -> Any:
    return await t.flows.take("state", "browser", now=t.now)


@act("attempt.charge")
async def _charge(t: Tools) -> Any:
    return await t.attempts.charge("ann", PACE, now=NOW)


@act("attempt.refund")
async def _refund(t: Tools) -> Any:
    await t.attempts.refund("ann", PACE)


@act("attempt.prune")
async def _prune_attempts(t: Tools) -> Any:
    return await t.attempts.prune(now=NOW + 60)


@act("key.claim")
async def _claim_key(t: Tools) -> Any:
    return type(await t.keys.claim("ann", "other", "request", now=t.now)).__name__


@act("key.claim.broken")
async def _claim_broken(t: Tools) -> Any:
    return type(await t.keys.claim("ann", "key", "request", now=t.now + 120)).__name__


@act("key.hold")
async def _hold_key(t: Tools) -> Any:
    return await t.keys.hold(t.seed.claimed, until=t.now + 300)


@act("key.answer")
async def _answer_key(t: Tools) -> Any:
    from foliot.store.access.request_keys import KeptAnswer

    await t.keys.answer(t.seed.claimed, KeptAnswer(200, [], b"{}"))


@act("key.drop")
async def _drop_key(t: Tools) -> Any:
    await t.keys.drop(t.seed.claimed)


# --- conversations -------------------------------------------------------------------------------------------------


@act("run.say.busy")
async def _say_busy(t: Tools) -> Any:
    return (await RunInputs(t.db).say("busy", said(t.who, "followup"), now=t.now, in_transaction=_recorded)).outcome


@act("run.say.same")
async def _say_to_run_again(t: Tools) -> Any:
    return (await RunInputs(t.db).say("asleep", said("same", "steer"), now=t.now)).outcome


@act("run.restart")
async def _restart(t: Tools) -> Any:
    """Goes on after a run that has ended; the slower of two hears who does."""
    gone, new = await t.journal.get("gone"), said(t.who, "steer")
    if (await RunInputs(t.db).say("gone", new, now=t.now)).act != "start":
        return False
    follower = structs.replace(new_run(f"new-{t.who}", t.now), after="gone")
    body = restarting("gone", gone.key, new, follower.id, now=t.now)
    return (await t.journal.create(follower, [entry(1)], in_transaction=body)) is None


@act("talk.create.same")
async def _create_talk(t: Tools) -> Any:
    return (await t.talks.create(NewSession("new", talk_place("new")), now=t.now)).id


@act("talk.resolve")
async def _resolve_talk(t: Tools) -> Any:
    session, _ = await t.talks.resolve(NewSession(f"new-{t.who}", talk_place("nobody's")), now=t.now)
    return session.archived_at


@act("talk.rotate")
async def _rotate_talk(t: Tools) -> Any:
    await t.talks.rotate(NewSession(f"new-{t.who}", talk_place("lively")), now=t.now)


@act("talk.archive")
async def _archive_talk(t: Tools) -> Any:
    await t.talks.archive("lively", now=t.now)


@act("talk.change")
async def _change_talk(t: Tools) -> Any:
    await t.talks.change("lively", model=t.who, now=t.now)


@act("talk.delete")
async def _delete_talk(t: Tools) -> Any:
    await t.talks.delete("quiet")


@act("talk.purge")
async def _purge_talks(t: Tools) -> Any:
    return await t.talks.purge(archived_before=BEFORE)


@act("talk.say.quiet")
async def _say_quiet(t: Tools) -> Any:
    told = await t.talks.say("quiet", said(t.who, "collect"), now=t.now, agent=AGENT)
    return told.outcome


@act("talk.say.same")
async def _say_same_to_talk(t: Tools) -> Any:
    return (await t.talks.say("lively", said("same", "followup"), now=t.now, agent=AGENT)).outcome


@act("talk.say.lively")
async def _say_lively(t: Tools) -> Any:
    for mode in ("followup", "steer"):
        await t.talks.say("lively", said(f"{t.who}-{mode}", mode), now=t.now, agent=AGENT)


@act("talk.say.once.quiet")
async def _say_once_quiet(t: Tools) -> Any:
    new = structs.replace(said("once", "followup"), once=MESSAGE)
    return (await t.talks.say("quiet", new, now=t.now, agent=AGENT)).again


@act("talk.say.once.lively")
async def _say_once_lively(t: Tools) -> Any:
    new = structs.replace(said("once", "followup"), once=MESSAGE)
    return (await t.talks.say("lively", new, now=t.now, agent=AGENT)).again


@act("talk.interrupt")
async def _interrupt(t: Tools) -> Any:
    return (await t.talks.say("lively", said(t.who, "interrupt"), now=t.now, agent=AGENT)).outcome


@act("talk.drop")
async def _drop_waiting(t: Tools) -> Any:
    return await t.talks.drop_waiting("quiet")


@act("talk.drop.lively")
async def _drop_offered(t: Tools) -> Any:
    await t.talks.drop_waiting("lively")


@act("talk.invalidate")
async def _invalidate_user(t: Tools) -> Any:
    return await t.talks.invalidate(talk_place("quiet").namespace, talk_place("quiet").user)


@act("talk.begin")
async def _begin_turn(t: Tools) -> Any:
    session = await t.talks.get("quiet")
    waiting = tuple(each.seq for each in await t.talks.waiting(session))
    body = begin_turn(session, f"turn-{t.who}", waiting, now=t.now, title="Words")
    try:
        await t.journal.create(new_run(f"turn-{t.who}", t.now), [entry(1)], in_transaction=body)
    except SessionBusy:
        return "busy"
    return "begun"


@act("talk.end")
async def _end_turn(t: Tools) -> Any:
    taken = [input_id("lively", 2)]
    body = end_turn("lively", "turn", taken, now=t.now, texts=["what was said"])
    await t.journal.append(t.seed.leases["turn"], [entry(2)], phase="succeeded", summary={}, in_transaction=body)


@act("talk.select")
async def _select_branch(t: Tools) -> Any:
    try:
        return (await t.talks.select("lively", 1, now=t.now)).head
    except SessionBusy:
        return "busy"


# --- files that people sent ----------------------------------------------------------------------------------------


@act("asset.add.old-content")
async def _add_asset(t: Tools) -> Any:
    await SqlSessions(t.db).resolve(NewSession("talk", Place("default", "a", "ann", "talk")), now=t.now)
    asset = Asset(content_digest(ANCIENT), f"{t.who}.txt", len(ANCIENT), "text/plain")
    await SqlAssets(t.db).add("talk", asset, {asset.digest: ANCIENT}, now=t.now)
    return await t.journal.get_blob(asset.digest) == ANCIENT


# --- folders of agents and users -----------------------------------------------------------------------------------


async def _changed(t: Tools, body: LockingBody) -> str:
    """A run that leaves something in a folder; whether it was what the change was worked out from."""
    made = await t.journal.create(new_run(f"new-{t.who}", t.now), [entry(1)], worker=t.who, lease_until=t.now + LEASE)
    assert made is not None, "it is claimed from birth"
    try:
        await t.journal.append(made, [entry(2)], in_transaction=body)
    except FolderMoved:
        return "moved"
    return "kept"


@act("folder.change")
async def _change_folder(t: Tools) -> Any:
    body = folder_change("ann", "life", content_digest(KEPT), t.who.encode(), f"new-{t.who}", t.now)
    return await _changed(t, body)


@act("folder.change.old-content")
async def _change_folder_to_old(t: Tools) -> Any:
    body = folder_change("ann", "life", content_digest(KEPT), ANCIENT, f"new-{t.who}", t.now)
    return await _changed(t, body)


@act("folder.begin")
async def _begin_folder(t: Tools) -> Any:
    return await _changed(t, folder_change("bob", "", NO_TREE, ANCIENT, f"new-{t.who}", t.now))


@act("folder.lend")
async def _lend_folder(t: Tools) -> Any:
    await t.journal.create(new_run(f"new-{t.who}", t.now), [entry(1)])
    lent = await SqlFolders(t.db).lend(FolderKey("default", "a", "ann"), f"new-{t.who}")
    return None if lent is None else bool(await t.journal.get_blob(lent.tree, run_id=f"new-{t.who}"))


@act("folder.delete")
async def _delete_folder(t: Tools) -> Any:
    try:
        await SqlFolders(t.db).delete(FolderKey("default", "a", "ann"), in_transaction=_recorded)
    except NotFound:
        return "gone"
    return "deleted"
