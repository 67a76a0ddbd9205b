"""Calls that may have acted, in a list of their own: for the other runs of a family, and for people.

The journals are the truth; this is what they say of open questions, by tool and arguments, so that another run finds
in one look what it must not do beside it.

Written by:  engine/doubts.py, with the append that records it; `Doubts.settle` for runs that have ended.
Read by:     engine/doubts.py before a `once` call is made; `foliot runs unknown`.
Invariant:   a row without a decision is a call that may have acted, and whose run has not recorded how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, NotFound
from foliot.store.base import Database
from foliot.store.journal import lock_runs
from foliot.store.runs import TERMINAL, Beside, Phase
from foliot.store.transaction import Tx, many, one, run

LateDecision: TypeAlias = Literal["happened", "not_happened"]
"""What can be said of a call whose run has ended: nothing is run any more, so only what is the case."""


class Noted(Struct, frozen=True):
    """A call in doubt as it is written. `key` names the effect; `call_id` is the call of this run that waits for it."""

    run_id: str
    key: str
    call_id: str
    namespace: str
    family: str
    signature: str
    tool: str
    reason: str
    at: float
    until: float | None = None


class Happened(Struct, frozen=True):
    """What a person has said to a run of a call of it, as it is written beside that."""

    run_id: str
    key: str
    by: str
    at: float
    note: str = ""
    result: str | None = None


class Doubt(Struct, frozen=True):
    """A call that may have acted, with its run as it stands.

    `until` is when what made it had certainly ended; None when nobody can say. `decision` is blank until somebody has
    said how it ended; `decided_by`, `note` and `result` go with it.
    """

    run_id: str
    key: str
    call_id: str
    namespace: str
    family: str
    signature: str
    tool: str
    reason: str
    at: float
    until: float | None
    decision: str
    decided_by: str
    decided_at: float | None
    note: str
    result: str | None
    agent: str
    phase: Phase


class Obstacle(NamedTuple):
    """A call of another run that keeps one from being made; it may have acted, or has as a person says."""

    signature: str
    run_id: str
    key: str
    reason: str
    decision: str
    by: str
    note: str
    result: str | None


class Holder(NamedTuple):
    """Who holds other runs of the family, and when the first of its leases ends."""

    worker: str
    lease_until: float | None


class DoubtTable:
    """The list in a database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def look(self, family: str, run_id: str, signatures: Iterable[str]) -> tuple[list[Obstacle], list[Holder]]:
        found = await self._db.read("doubt_look", family=family, run_id=run_id, signatures=_listed(signatures))
        obstacles, holders = list[Obstacle](), list[Holder]()
        for row in found:
            if not row["signature"]:
                holders.append(Holder(row["run_id"], row["lease_until"]))
                continue
            said = row["decision"], row["decided_by"], row["note"], row["result"]
            obstacles.append(Obstacle(row["signature"], row["run_id"], row["key"], row["reason"], *said))
        return obstacles, holders

    async def held_by(self, family: str, run_id: str, worker: str) -> list[str]:
        """Runs of a family, without one, that a worker holds."""
        found = await self._db.read("doubt_held_by", family=family, run_id=run_id, worker=worker)
        return [row["id"] for row in found]

    async def list(
        self, namespace: str = "", *, ended: bool = False, limit: int = 100, after: tuple[float, str] = (-1.0, "")
    ) -> list[Doubt]:
        """Calls that nobody has settled, oldest first. `ended`: only of runs that have ended.

        `after` is the time and the run of the last one of a page.
        """
        found = await self._db.read(
            "doubt_list", namespace=namespace, ended=int(ended), count=limit, after=after[0], after_run=after[1]
        )
        return [Doubt(**row) for row in found]

    async def of_run(self, run_id: str) -> list[Doubt]:
        return [Doubt(**row) for row in await self._db.read("doubt_of_run", run_id=run_id)]

    async def of_keys(self, keys: Iterable[str]) -> list[Doubt]:
        return [Doubt(**row) for row in await self._db.read("doubt_of_keys", keys=_listed(keys))]

    async def settle(
        self,
        run_id: str,
        key: str,
        decision: LateDecision,
        *,
        by: str,
        at: float,
        note: str = "",
        result: str | None = None,
        also: Beside | None = None,
    ) -> None:
        """Keep what a person says of a call whose run has ended. Raises `Conflict`, `NotFound`."""
        await self._db.write(_settle, run_id, key, decision, by, at, note, result, also)


def _listed(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


# --- transactions ------------------------------------------------------------------------------------------------


def note(opened: Sequence[Noted], happened: Sequence[Happened], gone: Sequence[tuple[str, str]]) -> Tx[None]:
    """What changed of the doubts of a run, as part of its append."""
    if opened:
        yield from many("doubt_put", [msgspec.structs.asdict(each) for each in opened])
    if happened:
        yield from many("doubt_happened", [msgspec.structs.asdict(each) for each in happened])
    if gone:
        yield from many("doubt_remove", [{"run_id": run_id, "key": key} for run_id, key in gone])


def _settle(
    run_id: str,
    key: str,
    decision: LateDecision,
    by: str,
    at: float,
    note: str,
    result: str | None,
    also: Beside | None,
) -> Tx[None]:
    there = yield from one("run_get", id=run_id)
    found = (yield from lock_runs([there["key"]])) if there is not None else []
    if not found:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    if found[0]["phase"] not in TERMINAL:
        raise Conflict(f"run {run_id} has not ended ({found[0]['phase']})", hint="`foliot decide` tells it to the run")
    said = {"decision": decision, "by": by, "at": at, "note": note, "result": result}
    if not (yield from run("doubt_settle", run_id=run_id, key=key, **said)):
        raise Conflict(f"nobody waits for a word about {key} of run {run_id}: it is settled already, or was never lost")
    if also is not None:
        yield from also()
