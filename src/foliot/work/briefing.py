"""What a worker must know of the runs that it has claimed, read at once for all of them.

A run that was only just queued has one event, and its task and its message never change. So one query replaces three
for each run, and a run of a task that was at work here before does not read even that anew.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from foliot.engine.loading import Told, told_by
from foliot.kernel.errors import UnknownEvent
from foliot.store.base import Database
from foliot.store.runs import Entry, Lease
from foliot.store.transaction import Row
from foliot.work.advancing import TaskRef
from foliot.work.base import Command
from foliot.work.bundle import Bundles

log = logging.getLogger(__name__)

MOST_TASKS = 1024
_commands = msgspec.json.Decoder(Command)


class Brief(Struct, frozen=True):
    """Of one lease: the task and the message of its run.

    `told` is the whole journal of a run that was never begun, and None for one whose journal must be read. `quiet`:
    nothing had been signalled to the run when this was read.
    """

    epoch: int
    task: TaskRef
    message_id: str
    told: Told | None = None
    quiet: bool = False


class Briefs:
    """The briefs of runs that are about to be done here."""

    def __init__(self, database: Database, bundles: Bundles) -> None:
        self._db = database
        self._bundles = bundles
        self._briefs: dict[str, Brief] = {}
        self._tasks: OrderedDict[int, TaskRef] = OrderedDict()

    async def read(self, leases: Sequence[Lease]) -> None:
        """For these leases, which were just taken: nobody else can write to their runs. Raises `Unavailable`."""
        run_ids = msgspec.json.encode([lease.run_id for lease in leases]).decode()
        found = {row["run_id"]: row for row in await self._db.read("queue_brief", run_ids=run_ids)}
        for lease in leases:
            if (row := found.get(lease.run_id)) is not None:
                try:
                    self._briefs[lease.run_id] = await self._brief(lease, row)
                except (UnknownEvent, msgspec.MsgspecError) as error:
                    # It is read once more when its turn comes, and given back: the others do not wait for it.
                    log.debug("run %s cannot be read here: %s", lease.run_id, error)

    def of(self, lease: Lease) -> Brief | None:
        brief = self._briefs.get(lease.run_id)
        return brief if brief is not None and brief.epoch == lease.epoch else None

    def forget(self, lease: Lease) -> None:
        self._briefs.pop(lease.run_id, None)

    async def task(self, row: Row) -> TaskRef:
        """The task of a row; what stands in it besides the key is the same for ever. Raises `NotFound`."""
        key: int = row["key"]
        if (known := self._tasks.get(key)) is not None and known.uid == row["uid"]:
            return known
        task = TaskRef(
            key=key,
            uid=row["uid"],
            namespace=row["namespace"],
            name=row["name"],
            priority=row["priority"],
            lane=row["lane"],
            command=_commands.decode(row["command"]),
            pinned=await self._bundles.get(row["plan"]),
        )
        self._tasks[key] = task
        if len(self._tasks) > MOST_TASKS:
            self._tasks.popitem(last=False)
        return task

    async def _brief(self, lease: Lease, row: Row) -> Brief:
        task = await self.task(row)
        if row["last_seq"] != 1 or row["blob"]:
            return Brief(lease.epoch, task, row["message"])
        entry = Entry(1, row["at"], row["type"], row["data"], row["link"] or b"")
        return Brief(lease.epoch, task, row["message"], await told_by(lease.run_id, [entry]), not row["told"])
