"""The work: who does it, and what is stuck."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from foliot.cli.doctor.findings import Finding, Findings, listed
from foliot.common.durations import age
from foliot.common.text import counted
from foliot.engine.telemetry.standing import StoreSnapshot, look, waits_for
from foliot.resources.kinds import phase_of
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Filter, Requirement
from foliot.store.database_clock import NOTABLE
from foliot.store.queue.limits import list_classes
from foliot.store.queue.placement import fits, lacked_by
from foliot.work.triggers.schedule import NOBODY_KEEPS, neglected_since

if TYPE_CHECKING:
    from foliot.store.base import Database, ResourceStore

AREA: Final = "work"
SOME: Final = 20
# A lease is renewed every few seconds: one that ended so long ago belongs to nobody.
LAPSED: Final = 120.0
OVERDUE: Final = 300.0
SOON: Final = 3600.0
QUICK: Final = 5_000
# So many sorts of runs are held against the workers.
LINES: Final = 128
# For how long it is told that the store went back in time.
TOLD_FOR: Final = 7 * 24 * 3600.0


async def look_at_work(database: Database, resources: ResourceStore) -> Findings:
    now = database.clock()
    standing = await look(database, None, now=now)
    yield _workers(standing)
    yield _clocks(standing)
    yield await _set_back(database, now)
    yield _queue(standing)
    yield await _placement(database, standing)
    yield await _lapsed(database, now)
    yield await _left_alone(database, now)
    yield _dead_letters(standing)
    yield await _waiting(database, now)
    yield await _approvals(resources, now)
    yield await _schedules(database, resources, now)
    yield await _classes(database, now)


def _workers(standing: StoreSnapshot) -> Finding:
    states = [worker.state(standing.at) for worker in standing.workers]
    ready, lost = states.count("ready"), states.count("lost")
    queued = sum(each.due for each in standing.queue)
    told = f"{ready} workers are ready, {lost} are lost"
    if not ready and queued:
        return Finding(AREA, "work.workers", "error", f"{told}, and {queued} runs are due", "start `foliot worker`")
    if lost:
        names = listed([w.name for w in standing.workers if w.state(standing.at) == "lost"])
        then = "others take over what they had" if ready else "start `foliot worker`, which takes over what they had"
        return Finding(AREA, "work.workers", "warning", f"{told}: {names}", f"see why they ended; {then}")
    if not ready:
        return Finding(AREA, "work.workers", "note", "no worker runs, and nothing waits for one", "")
    return Finding(AREA, "work.workers", "ok", told)


def _clocks(standing: StoreSnapshot) -> Finding:
    """Leases go by the store's clock, so a wrong one loses nothing; but what that machine shows and signs is off."""
    off = [
        f"{worker.name} by {worker.clock_off:+.1f} s"
        for worker in standing.workers
        if abs(worker.clock_off) > NOTABLE and worker.state(standing.at) in ("ready", "draining")
    ]
    if off:
        told = f"{counted(len(off), 'worker has', 'workers have')} a wrong clock: {listed(off)}"
        return Finding(AREA, "work.clocks", "warning", told, "set them by NTP; leases go by the store's clock")
    return Finding(AREA, "work.clocks", "ok", "no worker's clock is off")


async def _set_back(database: Database, now: float) -> Finding:
    from foliot.store.incarnation import store_life

    life = await store_life(database)
    if life.set_back_at is None or now - life.set_back_at > TOLD_FOR:
        return Finding(
            AREA, "work.store", "ok", f"the store has not gone back in time (incarnation {life.incarnation[:8]})"
        )
    return Finding(
        AREA,
        "work.store",
        "error",
        f"the store went back in time, as was found {age(now - life.set_back_at)} ago: {life.set_back}",
        "compare what was done since with what the store knows (`foliot runs`, `foliot audit`); calls may happen again",
    )


def _queue(standing: StoreSnapshot) -> Finding:
    oldest = min((each.oldest_due for each in standing.queue if each.oldest_due is not None), default=None)
    due, held = sum(each.due for each in standing.queue), sum(each.held for each in standing.queue)
    told = f"{due} runs of tasks are due and {held} under way"
    if oldest is not None and standing.at - oldest > OVERDUE:
        return Finding(
            AREA,
            "work.queue",
            "warning",
            f"{told}; the first has been due for {age(standing.at - oldest)}",
            "start more workers; `foliot why TASK` says what a task waits for",
        )
    return Finding(AREA, "work.queue", "ok", told)


async def _placement(database: Database, standing: StoreSnapshot) -> Finding:
    """Runs that are due while every worker that is ready lacks something that they need."""

    ready = [worker.offer for worker in standing.workers if worker.state(standing.at) == "ready"]
    rows = await database.read("queue_lines", after="", now=standing.at, count=LINES, each=LINES) if ready else []
    nobody = {
        f"{row['namespace']}/{row['agent']}"
        for row in rows
        if row["ready_at"] is not None
        and row["ready_at"] <= standing.at
        and not any(fits(offer, row["requirements"]) and not lacked_by(offer, row["requirements"]) for offer in ready)
    }
    if nobody:
        return Finding(
            AREA,
            "work.placement",
            "warning",
            f"no worker that is ready can do the runs of {listed(sorted(nobody))}",
            "`foliot why TASK` says what each worker lacks",
        )
    return Finding(AREA, "work.placement", "ok", "no run waits for a worker of another sort")


async def _lapsed(database: Database, now: float) -> Finding:
    rows = await database.read("telemetry_expired", before=now - LAPSED, count=SOME)
    if not rows:
        return Finding(AREA, "work.leases", "ok", "nobody holds a run without a sign of life")
    return Finding(
        AREA,
        "work.leases",
        "warning",
        f"the leases of {_at_least(rows)} runs ended long ago: {listed([row['id'] for row in rows])}",
        "`foliot resume` goes on with runs; a worker takes those of tasks",
    )


async def _left_alone(database: Database, now: float) -> Finding:
    rows = await database.read("telemetry_pending", before=now - OVERDUE, count=SOME)
    if not rows:
        return Finding(AREA, "work.pending", "ok", "no run waits for somebody to take it up")
    return Finding(
        AREA,
        "work.pending",
        "warning",
        f"nobody drives {_at_least(rows)} runs: {listed([row['id'] for row in rows])}",
        "`foliot resume` goes on with runs; a worker takes those of tasks",
    )


def _dead_letters(standing: StoreSnapshot) -> Finding:
    dead = standing.tasks.get("dead_lettered", 0)
    if dead:
        return Finding(
            AREA,
            "work.dead_letters",
            "warning",
            f"{dead} tasks were given up",
            "`foliot task dead-letters` shows them, `foliot why` says why, `foliot task retry` tries again",
        )
    return Finding(AREA, "work.dead_letters", "ok", "no task was given up")


async def _waiting(database: Database, now: float) -> Finding:
    rows = await database.read("telemetry_waiting", count=QUICK)
    for_people = [row for row in rows if waits_for(row["summary"]) in ("approval", "input", "unknown_effect")]
    if not for_people:
        return Finding(
            AREA, "work.waiting", "ok", f"{counted(len(rows), 'run waits', 'runs wait')}, none of them for a person"
        )
    longest = now - min(row["updated_at"] for row in for_people)
    return Finding(
        AREA,
        "work.waiting",
        "note",
        f"{counted(len(for_people), 'run waits', 'runs wait')} for a person, the longest for {age(longest)}",
        "`foliot approvals`, `foliot answer` and `foliot settle` deal with them",
    )


async def _approvals(resources: ResourceStore, now: float) -> Finding:
    pending = Filter(kind="ToolApproval", fields=(Requirement("status.phase", "=", ("Pending",)),))
    page = await resources.list(pending)
    ending = [
        item["metadata"]["name"]
        for item in page.items
        if (end := item["status"].get("expires_at")) and now < datetime.fromisoformat(end).timestamp() < now + SOON
    ]
    if ending:
        return Finding(
            AREA,
            "work.approvals",
            "warning",
            f"{counted(len(ending), 'approval expires', 'approvals expire')} within the hour: {listed(ending)}",
            "`foliot approvals` shows and decides them",
        )
    return Finding(
        AREA, "work.approvals", "ok", f"{counted(len(page.items), 'open approval')}, none of them about to expire"
    )


async def _schedules(database: Database, resources: ResourceStore, now: float) -> Finding:
    page = await resources.list(Filter(kind="TaskSchedule"))
    broken = [item for item in page.items if phase_of(item) == "Error"]
    if broken:
        names = listed([f"{item['metadata']['name']} ({item['status'].get('lastError', '')[:80]})" for item in broken])
        return Finding(
            AREA,
            "work.schedules",
            "warning",
            f"{counted(len(broken), 'schedule fails', 'schedules fail')}: {names}",
            "`foliot describe` says more",
        )
    neglected = [item for item in page.items if neglected_since(item, now=now) is not None]
    if neglected:
        names = listed([item["metadata"]["name"] for item in neglected])
        told = f"{counted(len(neglected), 'schedule is', 'schedules are')} not looked at, and {NOBODY_KEEPS}: {names}"
        return Finding(AREA, "work.schedules", "warning", told, "start one of them")
    return Finding(AREA, "work.schedules", "ok", f"{counted(len(page.items), 'schedule')}, none of them in error")


async def _classes(database: Database, now: float) -> Finding:
    held_back = [each for each in await list_classes(database) if each.opened_at is not None]
    if held_back:
        names = listed(sorted({f"{each.namespace}/{each.agent}" for each in held_back}))
        return Finding(
            AREA,
            "work.classes",
            "warning",
            f"runs are held back because the last ones failed: {names}",
            "`foliot workers classes` says more, `foliot workers mend` begins again",
        )
    return Finding(AREA, "work.classes", "ok", "nothing is held back because it keeps failing")


async def look_at_audit(database: Database) -> Findings:
    """The end of the audit log, which is where it is written to; `foliot audit verify` checks all of it."""

    log = SqlAuditLog(database)
    verified = await log.verify_end(QUICK)
    if verified.broken is not None:
        yield Finding(
            "audit",
            "audit.chain",
            "error",
            f"the audit log does not hold: {verified.broken.message}",
            "`foliot audit verify` checks all of it; keep a copy of the store as it is",
        )
    else:
        yield Finding(
            "audit", "audit.chain", "ok", f"the last {verified.records} audit records hold, up to {verified.head.seq}"
        )


def _at_least(rows: Sequence[object]) -> str:
    return f"{SOME} or more" if len(rows) == SOME else str(len(rows))
