"""Tasks as lists show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from foliot.common.cursors import read_key, write_cursor
from foliot.common.suggestions import read_phases
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES
from foliot.store.base import Database
from foliot.store.tasks import label_text
from foliot.store.transaction import Row
from foliot.work.tasks.base import TaskInfo
from foliot.work.tasks.commands import decode_command, spec_of

NEWEST = 2**62
FOREVER = 1e15
MOST = 200
STORED_LIVE = {"queued", "running"}
LIVE = {*STORED_LIVE, "waiting"}


class TaskList:
    """Reads tasks. Whether one is queued, running or waiting is read off its runs, and not written anywhere."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def get(self, namespace: str, name: str) -> TaskInfo:
        """Raises `NotFound`."""
        found = await self._db.read("task_named", namespace=namespace, name=name)
        if not found:
            raise no_task(namespace, name)
        return (await self._shown(found))[0]

    async def find(self, namespace: str, prefix: str) -> TaskInfo:
        """The task of this name, or the one whose name begins or ends so. Raises `NotFound`, `InvalidInput`."""
        found = await self._db.read("task_find", namespace=namespace, name=prefix)
        exact = [row for row in found if row["name"] == prefix]
        if len(found) > 1 and not exact:
            names = ", ".join(row["name"] for row in found[:5])
            raise InvalidInput(f"several tasks are called like {prefix!r}: {names}", hint="give more of the name")
        return await self.get(namespace, (exact or found)[0]["name"] if found else prefix)

    async def list(
        self,
        *,
        namespace: str | None = None,
        target: str | None = None,
        phases: str | Sequence[str] = (),
        labels: dict[str, str] | None = None,
        lane: str | None = None,
        spawned_by: str | None = None,
        parent: str | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[TaskInfo], str | None]:
        """Lists tasks, newest first, a page at a time.

        Raises `InvalidInput` for a cursor or a phase that does not exist.
        """
        wanted = set(read_phases(phases, TASK_PHASES, API_PHASES) or TASK_PHASES)
        count = MOST if limit > MOST else limit if limit > 0 else 50
        # Which of these a task is in shows only when one looks at its runs.
        stored = {*wanted, *STORED_LIVE} if wanted & LIVE else wanted
        shown: list[TaskInfo] = []
        before = NEWEST if cursor is None else _place(cursor)
        while True:
            found = await self._db.read(
                "task_list",
                before=before,
                namespace=namespace or "",
                target=target or "",
                lane=lane or "",
                spawned_by=spawned_by or "",
                parent=parent or "",
                after_time=created_after if created_after is not None else 0.0,
                before_time=created_before if created_before is not None else FOREVER,
                archived=1 if archived else 0,
                phases=_array(sorted(stored)),
                labels=_array([label_text(name, value) for name, value in sorted((labels or {}).items())]),
                count=count + 1,
            )
            shown += [task for task in await self._shown(found) if task.phase in wanted]
            if len(shown) > count:
                shown = shown[:count]
                return shown, cursor_of(shown[-1].key)
            if len(found) <= count:
                return shown, None
            before = found[-1]["key"]

    async def many(self, keys: Sequence[int]) -> list[TaskInfo]:
        """Returns the tasks of these keys that exist, archived or not."""
        return await self._shown(await self._db.read("task_feed_tasks", keys=_array([str(key) for key in keys])))

    async def runs(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The runs of a task, oldest first: message, run, agent, phase, who has it, when it is due."""
        found = await self._db.read("task_runs", namespace=namespace, name=name)
        return [{**row, "summary": msgspec.json.decode(row["summary"])} for row in found]

    async def _shown(self, found: Sequence[Row]) -> list[TaskInfo]:
        unfinished = [str(row["key"]) for row in found if row["phase"] in STORED_LIVE]
        live: dict[int, Row] = {}
        if unfinished:
            live = {row["task"]: row for row in await self._db.read("task_live", tasks=_array(unfinished))}
        return [_info(row, live.get(row["key"])) for row in found]


def no_task(namespace: str, name: str) -> NotFound:
    """Returns the error for a task that does not exist."""
    return NotFound(f"there is no task {name!r} in namespace {namespace!r}", hint="`foliot task list` shows them")


def _info(row: Row, live: Row | None) -> TaskInfo:
    """Builds the info of a task from its row, corrected by the state of its runs: claimed or not, waiting or not."""
    fields = dict(row)
    fields["labels"] = msgspec.json.decode(fields["labels"])
    fields["summary"] = msgspec.json.decode(fields["summary"])
    command = decode_command(fields.pop("command"))
    fields["spec"], fields["written"] = spec_of(command), command.written
    if live is not None:
        if live["begun"]:
            fields["phase"] = "running"
            fields["started_at"] = fields["started_at"] or live["claimed_at"]
            if live["worker"]:
                fields["claimed_by"], fields["lease_until"] = live["worker"], live["lease_until"]
                fields["heartbeat_at"] = live["heartbeat_at"]
            elif live["let_go"] and (worker := msgspec.json.decode(live["let_go"]).get("worker")):
                fields["summary"]["worker"] = worker
            fields["next_attempt_at"] = live["next_at"]
        if live["waiting"] == live["runs"]:
            waits = live["asks"] or live["let_go"]
            fields["summary"]["waiting"] = msgspec.json.decode(waits).get("waiting") if waits else None
            if live["paused"] < live["runs"]:  # otherwise there is nobody for whom it waits
                fields["phase"] = "waiting"
    return TaskInfo(**fields)


def _array(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def cursor_of(key: int) -> str:
    """The cursor behind the task of this key."""
    return write_cursor(key, kind="task")


def _place(cursor: str) -> int:
    return read_key(cursor, kind="task")
