"""Keeps a store from growing for ever: forgets what is old, gives disk back, and completes the audit log.

Every worker and server does so, and one of them at a time: the time of the last look stands in the store, and whoever
moves it on has the turn. What is kept for how long is in the settings (`retention_…`). Nothing that is live is ever
forgotten: tasks and runs that wait or are under way, sessions that are not archived, and content that they refer to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from foliot.engine.audit.completion import Completion
from foliot.engine.base import Clock
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.errors import Conflict, FoliotError
from foliot.settings.settings import Settings
from foliot.store.audit.log import prune_audit
from foliot.store.base import KEPT_CHANGES, Database, ResourceStore
from foliot.store.holdings import Oldest, measure_namespaces, share_of_each
from foliot.store.journal.database import SqlJournal
from foliot.store.portions import TAKES_AT_MOST, TAKES_AT_MOST_BESIDE_OTHERS, Portions
from foliot.store.sessions.database import SqlSessions
from foliot.store.tasks import purge as purge_tasks
from foliot.store.transaction import Tx, one, run

log = logging.getLogger(__name__)

EVERY: Final = 600.0
AT_ONCE: Final = 200
# Of what a namespace forgets early, so much at a time at first.
FEWEST_EARLY: Final = 10
# How young a run that has ended may be and still be forgotten because the store has grown too large.
YOUNGEST: Final = 3600.0
# Likewise of a namespace that holds more than its share, when forgetting what is older was not enough.
YOUNGEST_OF_LARGEST: Final = 60.0
# A store that has grown too large is brought well below its limit, so that this is not done all the time.
BELOW: Final = 0.9
# The audit log is walked through before it is cut: so not more often than this.
CUT_EVERY: Final = 86_400.0
# Sizes are noted once a day, so that `foliot doctor` can say how fast the store grows.
NOTED_EVERY: Final = 86_400.0
MOST_NOTED: Final = 8
TURN: Final = "housekeeping"
SIZES: Final = "housekeeping.sizes"
CUT: Final = "housekeeping.audit"
_BY: Final = "retention"


@dataclass(frozen=True, slots=True)
class Retention:
    """The seconds for which ended runs and tasks, and audit records, are kept; and the largest size of a store file.

    None is for ever, and any size. `changes` of resources are kept for watches that resume. `workspaces` is for how
    long a folder of a run that no call works on stays on this machine.
    """

    runs: float | None = 30 * 86_400.0
    audit: float | None = 365 * 86_400.0
    size: int | None = None
    changes: int = KEPT_CHANGES
    workspaces: float | None = 86_400.0

    @classmethod
    def of(cls, settings: Settings) -> Retention:
        return cls(
            float(settings.retention_runs) if settings.retention_runs else None,
            float(settings.retention_audit) if settings.retention_audit else None,
            settings.retention_size or None,
            workspaces=float(settings.retention_workspaces) if settings.retention_workspaces else None,
        )


@dataclass(slots=True)
class Forgotten:
    """The rows that housekeeping deleted, by kind; `freed` are bytes returned to the disk, `made_up` added audit
    records.

    `early` of the runs had not reached their age: the store was too large.
    """

    tasks: int = 0
    sessions: int = 0
    runs: int = 0
    early: int = 0
    changes: int = 0
    records: int = 0
    freed: int = 0
    made_up: int = 0

    def __bool__(self) -> bool:
        return any((self.tasks, self.sessions, self.runs, self.changes, self.records, self.freed, self.made_up))


class Housekeeper:
    """One store under one set of rules."""

    def __init__(
        self,
        database: Database,
        resources: ResourceStore,
        rules: Retention,
        *,
        completion: Completion | None = None,
        workspaces: RunWorkspaces | None = None,
        clock: Clock = time.time,
        every: float = EVERY,
    ) -> None:
        self._db = database
        self._resources = resources
        self._rules = rules
        self._completion = completion or Completion(database)
        self._workspaces = workspaces
        self._clock = clock
        self._every = every

    async def run(self) -> None:
        """Look now and then, for as long as the process lives. Never ends by itself."""
        while True:
            try:
                await self.look()
            except FoliotError as error:
                log.warning("the store could not be tidied, and is looked at again later: %s", error.message)
            except Exception:
                log.exception("the store could not be tidied, and is looked at again later")
            await asyncio.sleep(self._every)

    async def look(self) -> Forgotten | None:
        """Tidy the store, if nobody has since the last time; None when it is not yet time. Raises `Unavailable`."""
        # Folders are on this machine: every process looks after its own, whoever has the turn at the store.
        if self._workspaces is not None and self._rules.workspaces is not None:
            await self._workspaces.sweep(idle_for=self._rules.workspaces)
        now = self._clock()
        last = await self._db.write(_take_turn, TURN, now, self._every)
        if last is None:
            return None
        found = Forgotten(made_up=await self._completion.complete(since=last - 2 * self._every, now=now))
        await self.forget(found, now)
        await self._db.write(_note_size, now, (await self._db.size()).used)
        await self._db.refresh_statistics()
        if found:
            log.info("the store was tidied: %s", found)
        return found

    async def forget(self, found: Forgotten, now: float) -> None:
        """Forget what is older than the rules keep, and give disk back."""
        rules = self._rules
        if rules.runs is not None:
            await self._forget_work(found, now - rules.runs)
        found.changes += await self._resources.compact(keep=rules.changes)
        if rules.audit is not None and (await self._db.write(_take_turn, CUT, now, CUT_EVERY)) is not None:
            await self._cut_audit(found, now - rules.audit, now)
        if rules.size is not None:
            await self._forget_early(found, rules.size, now)
        found.freed += await self._db.shrink()

    async def _forget_work(self, found: Forgotten, before: float) -> None:
        # In small transactions: others write to the same store meanwhile. Tasks first: their runs stay as long as they.
        async def give_back() -> None:
            found.freed += await self._db.shrink()

        # A file has one writer at a time.
        longest = TAKES_AT_MOST if (await self._db.size()).shrinks else TAKES_AT_MOST_BESIDE_OTHERS
        gone = await purge_tasks(self._db, before, portions=Portions(give_back, takes_at_most=longest))
        found.tasks += gone.tasks
        found.runs += gone.runs
        # So do those of sessions. One that is not archived goes on, however long nobody has spoken.
        while archived := await SqlSessions(self._db).purge(archived_before=before, limit=AT_ONCE):
            found.sessions += archived
        journal = SqlJournal(self._db)
        found.runs += await journal.purge(
            ended_before=before, limit=None, portions=Portions(give_back, takes_at_most=longest)
        )

    async def _cut_audit(self, found: Forgotten, before: float, now: float) -> None:
        try:
            cut = await prune_audit(self._db, before=before, by=_BY, now=now)
        except Conflict as error:
            log.error("the audit log is not cut: %s", error.message)
        else:
            found.records += 0 if cut is None else cut.records

    async def _forget_early(self, found: Forgotten, limit: int, now: float) -> None:
        """Forget what has ended until the store is well below its limit.

        Only namespaces that hold more than their share give, each the oldest of its own. So one that fills the store
        loses its history and not that of its neighbours, even when all that it holds is young.
        """
        size = await self._db.size()
        if size.shrinks is False or size.used <= limit:
            return
        log.warning("the store has %d bytes and may have %d: what has ended is forgotten early", size.used, limit)
        journal, room, used = SqlJournal(self._db), limit * BELOW, size.used
        held = await measure_namespaces(self._db)
        # Indices, and records that belong to nobody, make the store larger than what is held, and may stay as they are.
        # However many there are, nobody loses everything for them.
        whole = sum(held.values())
        share = share_of_each(list(held.values()), max(whole - (used - room), room * whole / used / 2))
        for before in (now - YOUNGEST, now - YOUNGEST_OF_LARGEST):
            for namespace in sorted(held, key=held.__getitem__, reverse=True):
                oldest, count = Oldest(self._db, namespace, before), FEWEST_EARLY
                while used > room and held[namespace] > share and await oldest.forget(count):
                    await journal.purge_content(before=before)
                    left = (await self._db.size()).used
                    # Indices went too, so more may be left of it than this says: then it is measured again.
                    held[namespace] -= used - left
                    if held[namespace] <= share and left > room:
                        held[namespace] = (await measure_namespaces(self._db)).get(namespace, 0)
                    # A portion should free a tenth of what is too much, and not far more where runs are large.
                    count = min(AT_ONCE, 2 * count) if used - left < (used - room) / 10 else max(1, count // 2)
                    used = left
                found.tasks += oldest.tasks
                found.sessions += oldest.sessions
                found.runs += oldest.runs
                found.early += oldest.runs
                if oldest.runs or oldest.tasks or oldest.sessions:
                    log.warning("namespace %s held the most: %d runs, %d tasks and %d sessions of it were forgotten"
                                " early", namespace, oldest.runs, oldest.tasks, oldest.sessions)  # fmt: skip
        if used > room:
            largest = max(held, key=held.__getitem__, default="default")
            log.warning("the store is larger than retention_size allows, and nothing that has ended can be forgotten"
                        " of who holds more than its share; most of it is of namespace %s", largest)  # fmt: skip


def _take_turn(name: str, now: float, every: float) -> Tx[float | None]:
    """Move the time of the last look on, if it is long ago; the time before it, or None when it is not."""
    yield from run("setting_new", name=name, value="0")
    row = yield from one("setting_turn", name=name)
    last = float(row["value"]) if row is not None else 0.0
    if now - last < every * BELOW and last <= now:
        return None
    yield from run("setting_put", name=name, value=repr(now))
    return last


def _note_size(now: float, used: int) -> Tx[None]:
    row = yield from one("setting_get", name=SIZES)
    noted = sizes_of(row["value"] if row is not None else "")
    if not noted or now - noted[-1][0] >= NOTED_EVERY:
        noted = [*noted[1 - MOST_NOTED :], (now, used)]
        yield from run("setting_put", name=SIZES, value=msgspec.json.encode(noted).decode())


def sizes_of(text: str) -> list[tuple[float, int]]:
    """The noted sizes, oldest first, each with its time."""
    return msgspec.json.decode(text, type=list[tuple[float, int]]) if text else []


def growth_of(noted: list[tuple[float, int]], now: float, used: int) -> float | None:
    """Bytes a day since the first noted size; None before a day has passed."""
    days = (now - noted[0][0]) / 86_400.0 if noted else 0.0
    return (used - noted[0][1]) / days if days >= 1.0 else None
