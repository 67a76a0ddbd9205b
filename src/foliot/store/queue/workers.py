"""Workers as the store knows them: who they are, what they have, when they last gave a sign of life.

A worker is named by people and may be started again under its name; `identity` is the one process. Leases carry the
identity, so what a dead process held is found by it, and nothing that its successor holds is mistaken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.store.base import Database
from foliot.store.queue import queue
from foliot.store.queue.placement import Offer
from foliot.store.transaction import Row, Tx, many, one, rows, run

HEARTBEAT = 10.0
# Three signs of life are missing.
STALE_AFTER = 3 * HEARTBEAT
FORGET_AFTER = 24 * 3600.0

Phase: TypeAlias = Literal["ready", "draining", "stopped"]
State: TypeAlias = Literal[Phase, "lost"]


class WorkerInfo(Struct, frozen=True):
    """`current` is how many runs it holds, `clock_off` by how much the clock of its machine is ahead of the store's.

    `isolation` is what it can enforce around programs, as `Offer` has it.
    """

    name: str
    identity: str
    region: str
    gpu: bool
    models: tuple[str, ...]
    labels: dict[str, str]
    capacity: int
    current: int
    phase: State
    started_at: float
    heartbeat_at: float
    clock_off: float = 0.0
    isolation: tuple[str, ...] = ()

    def state(self, now: float) -> State:
        """Returns the phase, or `lost` when it has died, or a sign of life is long overdue."""
        if self.phase != "stopped" and self.heartbeat_at < now - STALE_AFTER:
            return "lost"
        return self.phase

    @property
    def offer(self) -> Offer:
        """The offer by which runs are placed on it."""
        return Offer(
            self.name,
            self.identity,
            self.region,
            self.gpu,
            self.models,
            self.labels,
            self.capacity,
            self.isolation,
        )


async def register(db: Database, offer: Offer, *, now: float, is_gone: Callable[[str | None], bool]) -> int:
    """Make the worker known, in place of any other of its name; how many runs of dead processes were set free."""
    dead = await _dead(db, offer, is_gone)
    return await db.write(_register, offer, dead, now)


class Beat(Struct, frozen=True):
    """The store's answer to a sign of life: how many it has had of this process, and which store it is."""

    beats: int
    incarnation: str


async def beat(db: Database, offer: Offer, *, now: float, phase: Phase, clock_off: float = 0.0) -> Beat | None:
    """Give a sign of life. None when another process has taken the name."""
    return await db.write(_beat, offer, now, phase, clock_off)


async def bury(
    db: Database,
    offer: Offer,
    *,
    now: float,
    is_gone: Callable[[str | None], bool],
    known: Iterable[str] | None = None,
) -> int:
    """Set free what processes of this machine held that have certainly died, before their leases end; how many runs.

    `known` are processes that may hold something, by default all that the store knows.
    """
    dead = await _dead(db, offer, is_gone) if known is None else sorted(each for each in known if is_gone(each))
    return await db.write(_bury, dead, now) if dead else 0


async def others(db: Database, offer: Offer, *, holders: bool = True) -> set[str]:
    """Processes that work, by their workers; with `holders` also those that hold runs under no name of a worker.

    A process that died keeps its runs when another one takes its name, and then has no row among the workers.
    """
    name = "worker_others" if holders else "worker_alive"
    return {row["identity"] for row in await db.read(name, identity=offer.identity)}


async def list_workers(db: Database) -> list[WorkerInfo]:
    """Lists workers by name, including the stopped and the lost ones of the last day."""
    loads = {row["identity"]: row["current"] for row in await db.read("worker_loads")}
    return [_info(row, loads.get(row["identity"], 0)) for row in await db.read("worker_list")]


async def loads_of(db: Database, namespace: str) -> dict[str, int]:
    """Returns how many runs of a namespace each worker holds, by its identity."""
    return {row["identity"]: row["current"] for row in await db.read("worker_loads_of", namespace=namespace)}


def _info(row: Row, current: int) -> WorkerInfo:
    fields = dict(row)
    fields["gpu"] = bool(fields["gpu"])
    fields["models"] = tuple(msgspec.json.decode(fields["models"], type=list[str]))
    fields["isolation"] = tuple(msgspec.json.decode(fields["isolation"], type=list[str]))
    fields["labels"] = msgspec.json.decode(fields["labels"], type=dict[str, str])
    return WorkerInfo(**fields, current=current)


async def _dead(db: Database, offer: Offer, is_gone: Callable[[str | None], bool]) -> list[str]:
    return sorted(identity for identity in await others(db, offer) if is_gone(identity))


# --- transactions ------------------------------------------------------------------------------------------------


def _register(offer: Offer, dead: Sequence[str], now: float) -> Tx[int]:
    freed = yield from _bury(dead, now)
    yield from run(
        "worker_put",
        name=offer.name,
        identity=offer.identity,
        region=offer.region,
        gpu=int(offer.gpu),
        models=msgspec.json.encode(offer.models).decode(),
        labels=msgspec.json.encode(offer.labels).decode(),
        isolation=msgspec.json.encode(offer.isolation or ()).decode(),
        capacity=offer.capacity,
        now=now,
    )
    yield from run("worker_forget", before=now - FORGET_AFTER)
    return freed


def _beat(offer: Offer, now: float, phase: str, clock_off: float) -> Tx[Beat | None]:
    row = yield from one(
        "worker_beat",
        name=offer.name,
        identity=offer.identity,
        now=now,
        phase=phase,
        clock_off=clock_off,
        isolation=msgspec.json.encode(offer.isolation or ()).decode(),
        capacity=offer.capacity,
    )
    return None if row is None else Beat(row["beats"], row["incarnation"])


def _bury(dead: Iterable[str], now: float) -> Tx[int]:
    freed = 0
    for identity in dead:
        orphans = yield from rows("queue_orphans", identity=identity)
        yield from many("queue_void", [{"key": row["run"], "identity": identity} for row in orphans])
        for row in orphans:
            yield from queue.take_back(row["run"], now)
        yield from run("worker_lose", identity=identity)
        freed += len(orphans)
    return freed
