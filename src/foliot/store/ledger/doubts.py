"""Calls that may have acted, in a list of their own: for the other runs of a family, and for people.

The journals are the truth; this is what they say of open questions, by tool and arguments, so that another run finds
in one look what it must not do beside it.

Written by:  engine/driver/doubts.py, with the append that records it; `Doubts.settle` for runs that have ended.
Read by:     engine/driver/doubts.py before a `once` call is made; `foliot runs --unknown`.
Invariant:   a row without a decision is a call that may have acted, and whose run has not recorded how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from foliot.common.cursors import read_cursor, write_cursor
from foliot.errors import Conflict, NotFound
from foliot.store.base import Database
from foliot.store.journal.base import TERMINAL, Phase, TransactionBody
from foliot.store.journal.leases import lock_runs
from foliot.store.transaction import Row, Tx, many, one, rows, run

Position: TypeAlias = tuple[float, str, str]
"""The end of a page of the list: time, run and call of its last row."""

START: Final[Position] = (-1.0, "", "")

LateDecision: TypeAlias = Literal["happened", "not_happened"]
"""The words that settle a call whose run has ended: nothing is run any more, so only what is the case."""


class NewDoubt(Struct, frozen=True):
    """A call in doubt as it is written. `key` names the effect; `call_id` is the call of this run that waits for it.

    `attempt` is the number of the attempt that may have acted, 0 when it is that of another call.
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
    until: float | None = None
    attempt: int = 0


class Happened(Struct, frozen=True):
    """The word of a person to a run that a call of it happened, as it is written beside that."""

    run_id: str
    key: str
    by: str
    at: float
    note: str = ""
    result: str | None = None


class DoubtDecision(Struct, frozen=True):
    """The word of a person about an effect, for the runs of a namespace that have ended in doubt about it."""

    namespace: str
    key: str
    decision: str
    by: str
    at: float
    note: str = ""
    result: str | None = None


class Doubt(Struct, frozen=True):
    """A call that may have acted, with its run as it stands.

    `until` is when what made it had certainly ended; None when nobody can say. `decision` is blank until somebody has
    said how it ended; `decided_by`, `note` and `result` go with it. It is `run` when another run of the family was told
    to make the call: what became of that is that run's to say. `attempt` is which attempt at the call may have acted, 0
    when that is not known: a decision can name it.
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
    attempt: int = 0


class DoubtPage(Struct, frozen=True):
    """Calls that nobody has settled, oldest first. `total` counts all; `cursor` is for the next page, if any."""

    calls: list[Doubt]
    total: int
    cursor: str | None = None


def page_of(found: Iterable[Doubt], limit: int, total: int) -> DoubtPage:
    """The first `limit` of them; more may have been found, in order to know whether there are more."""
    known = sorted(found, key=_place)
    cursor = None
    if len(known) > limit:
        cursor = write_cursor(_place(known[limit - 1]), kind="doubt")
    return DoubtPage(known[:limit], total, cursor)


def position_of(cursor: str | None) -> Position:
    """Read the place where the page before ended. Raises `InvalidInput` for what is no cursor of this list."""
    if not cursor:
        return START
    return read_cursor(cursor, tuple[float, str, str], kind="doubt")


def _place(doubt: Doubt) -> Position:
    return doubt.at, doubt.run_id, doubt.call_id


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


class Family(NamedTuple):
    """The runs among which a call must not happen twice.

    `name` says the namespace and of which sort the thing is that they come from, because the id of a run can be chosen:
    it may be the uid of a task. `own` is the run that they come from, blank for a task.
    """

    name: str
    namespace: str
    own: str = ""


class DoubtHolder(NamedTuple):
    """Find who holds other runs of the family, and when the first of its leases ends."""

    worker: str
    lease_until: float | None


class DoubtTable:
    """The list in a database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def look(
        self, family: Family, run_id: str, signatures: Iterable[str]
    ) -> tuple[list[Obstacle], list[DoubtHolder]]:
        found = await self._db.read("doubt_look", **_among(family), run_id=run_id, signatures=_listed(signatures))
        obstacles, holders = list[Obstacle](), list[DoubtHolder]()
        for row in found:
            if not row["signature"]:
                holders.append(DoubtHolder(row["run_id"], row["lease_until"]))
                continue
            said = row["decision"], row["decided_by"], row["note"], row["result"]
            obstacles.append(Obstacle(row["signature"], row["run_id"], row["key"], row["reason"], *said))
        return obstacles, holders

    async def held_by(self, family: Family, run_id: str, worker: str) -> list[str]:
        """Runs of a family, without one, that a worker holds."""
        found = await self._db.read("doubt_held_by", **_among(family), run_id=run_id, worker=worker)
        return [row["id"] for row in found]

    async def count(self, namespace: str = "", *, ended: bool = False) -> int:
        """How many `list` would give."""
        (found,) = await self._db.read("doubt_count", namespace=namespace, ended=int(ended))
        return found["questions"]

    async def list(
        self, namespace: str = "", *, ended: bool = False, limit: int = 100, after: Position = START
    ) -> list[Doubt]:
        """Calls that nobody has settled, oldest first, each effect once. `ended`: only of runs that have ended."""
        at, run_id, call_id = after
        asked = {"namespace": namespace, "ended": int(ended), "count": limit}
        found = await self._db.read("doubt_list", **asked, after=at, after_run=run_id, after_call=call_id)
        return [Doubt(**row) for row in found]

    async def of_run(self, run_id: str) -> list[Doubt]:
        return [Doubt(**row) for row in await self._db.read("doubt_of_run", run_id=run_id)]

    async def of_keys(self, namespace: str, keys: Iterable[str]) -> list[Doubt]:
        """Returns all doubts that runs of a namespace have about these effects."""
        return [Doubt(**row) for row in await self._db.read("doubt_of_keys", namespace=namespace, keys=_listed(keys))]

    async def settle(self, word: DoubtDecision, *, run_id: str, in_transaction: TransactionBody | None = None) -> None:
        """Keep what a person says of an effect, by the call of a run that has ended. Raises `Conflict`, `NotFound`.

        It holds for all runs that have ended in doubt about it.
        """
        await self._db.write(_settle, word, run_id, in_transaction)

    async def settle_ended(self, word: DoubtDecision) -> None:
        """Keep what a person has said of an effect to a run that waits for it, for those that have ended."""
        await self._db.write(_settle_ended, word)


def refuse_contradiction(known: Iterable[Doubt], decision: str) -> None:
    """Raises `Conflict` when somebody has said the contrary of the same effect."""
    contrary = {"happened": "not_happened", "not_happened": "happened", "run": "happened"}.get(decision)
    for each in known:
        if each.decision and each.decision == contrary:
            raise Conflict(
                f"{each.decided_by or 'somebody'} has said of the same call (run {each.run_id}, call {each.call_id}) "
                f"that it {_SAID[each.decision]}{f': {each.note}' if each.note else ''}",
                hint=f"it is one effect, with the key {each.key}: it cannot have happened and not have happened",
            )


_SAID: Final = {"happened": "happened", "not_happened": "did not happen", "run": "is to be run"}


def _among(family: Family) -> dict[str, str]:
    return {"family": family.name, "namespace": family.namespace, "own": family.own}


def _listed(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


# --- transactions ------------------------------------------------------------------------------------------------


def note(opened: Sequence[NewDoubt], happened: Sequence[Happened], gone: Sequence[tuple[str, str]]) -> Tx[None]:
    """Write the changes of a run's doubts, as part of its append."""
    if opened:
        yield from many("doubt_put", [msgspec.structs.asdict(each) for each in opened])
    if happened:
        yield from many("doubt_happened", [msgspec.structs.asdict(each) for each in happened])
    if gone:
        yield from many("doubt_remove", [{"run_id": run_id, "key": key} for run_id, key in gone])


def _settle(word: DoubtDecision, run_id: str, in_transaction: TransactionBody | None) -> Tx[None]:
    if (yield from one("run_get", id=run_id)) is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    found, known = yield from _all_of(word)
    phase = next((row["phase"] for row in found if row["id"] == run_id), None)
    if phase is not None and phase not in TERMINAL:
        raise Conflict(f"run {run_id} has not ended ({phase})", hint="`foliot settle` tells it to the run")
    refuse_contradiction(known, word.decision)
    mine = next((each for each in known if each.run_id == run_id), None)
    if mine is None or mine.decision:
        said = f"{mine.decided_by or 'somebody'} has said that it {_SAID[mine.decision]}" if mine else "never lost"
        raise Conflict(f"none of the calls of run {run_id} waits for a word about {word.key}: {said}")
    yield from run("doubt_settle", **msgspec.structs.asdict(word))
    if in_transaction is not None:
        yield from in_transaction()


def _settle_ended(word: DoubtDecision) -> Tx[None]:
    found, _ = yield from _all_of(word)
    if any(row["phase"] in TERMINAL for row in found):
        yield from run("doubt_settle", **msgspec.structs.asdict(word))


def _all_of(word: DoubtDecision) -> Tx[tuple[list[Row], list[Doubt]]]:
    """All runs that are asked about an effect, locked, and what is known of it then."""
    asked = yield from rows("doubt_runs_of_key", key=word.key, namespace=word.namespace)
    found = yield from lock_runs([row["key"] for row in asked])
    known = yield from rows("doubt_of_keys", namespace=word.namespace, keys=_listed([word.key]))
    return found, [Doubt(**row) for row in known]
