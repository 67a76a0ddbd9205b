"""How things stand, read when somebody asks: the queue, leases, waits, workers, budgets.

A look costs some eight small queries over what is live, whatever is stored of the past. Who does not look pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from foliot.engine.budgets.declared import standings
from foliot.store.base import Database, Filter, ResourceStore
from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.store.queue.workers import WorkerInfo, list_workers
from foliot.store.transaction import Row

MOST_WAITING: Final = 5_000
MOST_BUDGETS: Final = 200


class QueueStanding(Struct, frozen=True):
    """The queue of a namespace. `due` can be taken now, `later` has a time, `parked` waits for a signal."""

    namespace: str
    due: int
    later: int
    parked: int
    held: int
    oldest_due: float | None


class StoreSnapshot(Struct, frozen=True):
    """Everything at `at`. Times are of the same clock; counts are of this moment."""

    at: float
    queue: list[QueueStanding]
    runs: dict[str, int]
    tasks: dict[str, int]
    leases_expired: int
    oldest_lease: float | None
    waiting: dict[str, int]
    waiting_since: dict[str, float]
    workers: list[WorkerInfo]
    budgets: dict[tuple[str, str], float]
    store_bytes: dict[str, int] = {}
    in_flight: dict[str, int] = {}


class _Wait(Struct, frozen=True):
    reason: str = ""


class _Summary(Struct, frozen=True):
    waiting: _Wait = _Wait()


async def look(database: Database, resources: ResourceStore | None, *, now: float) -> StoreSnapshot:
    """How things stand now. Raises `Unavailable`."""
    (leases,) = await database.read("telemetry_leases", now=now)
    counts, since = _waits(await database.read("telemetry_waiting", count=MOST_WAITING))
    return StoreSnapshot(
        at=now,
        queue=[QueueStanding(**row) for row in await database.read("telemetry_queue", now=now)],
        runs={row["phase"]: row["runs"] for row in await database.read("telemetry_runs")},
        tasks={row["phase"]: row["tasks"] for row in await database.read("telemetry_tasks")},
        leases_expired=leases["expired"] or 0,
        oldest_lease=leases["oldest"],
        waiting=counts,
        waiting_since=since,
        workers=await list_workers(database),
        store_bytes=await _bytes(database),
        in_flight={row["agent"]: row["messages"] for row in await database.read("telemetry_in_flight")},
        budgets={} if resources is None else await _budgets(database, resources, now),
    )


async def _bytes(database: Database) -> dict[str, int]:
    """The size of the store: what is in use, and what is kept for later."""
    size = await database.size()
    return {"used": size.used, "free": size.total - size.used}


def _waits(rows: Sequence[Row]) -> tuple[dict[str, int], dict[str, float]]:
    counts: defaultdict[str, int] = defaultdict(int)
    since: dict[str, float] = {}
    for row in rows:
        reason = waits_for(row["summary"])
        counts[reason] += 1
        since[reason] = min(since.get(reason, row["updated_at"]), row["updated_at"])
    return dict(counts), since


def waits_for(summary: str) -> str:
    """Returns the reason a waiting run waits for, from its summary; `unknown` for one that does not say it."""
    try:
        return msgspec.json.decode(summary, type=_Summary).waiting.reason or "unknown"
    except msgspec.DecodeError:
        return "unknown"


async def _budgets(database: Database, resources: ResourceStore, now: float) -> dict[tuple[str, str], float]:
    """How much of each budget is used, 1.0 being all of it; of one with several accounts, the fullest."""
    ledger = SqlBudgetLedger(database)
    used: dict[tuple[str, str], float] = {}
    page = await resources.list(Filter(kind="Budget"), limit=MOST_BUDGETS)
    for document in page.items:
        accounts = await standings(ledger, document, now=now)
        metadata = document["metadata"]
        key = (metadata.get("namespace", "default"), metadata["name"])
        used[key] = max((account.percent for account in accounts), default=0) / 100
    return used
