"""Tasks in memory that honour what `Tasks` promises, so that a test can end them, break them, and count them."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound
from foliot.resources.references import Origin
from foliot.work.tasks.base import PRIORITIES, Accepted, Command, TaskInfo, TaskRecord
from foliot.work.tasks.commands import content_digest

ENDED = ("succeeded", "failed", "cancelled", "dead_lettered")


class TaskBook:
    """`templates` are the refs that exist. `trouble` is raised by the next accept, before or after it did its work."""

    def __init__(self, *templates: str) -> None:
        self.templates = set(templates or ("default/brief",))
        self.tasks: dict[str, TaskInfo] = {}
        self.commands: dict[str, Command] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._numbers = itertools.count(1)
        self.trouble: BaseException | None = None
        self.dies_after: BaseException | None = None
        self.now = 0.0
        self.accepts = 0

    async def accept(self, command: Command) -> Accepted:
        digest = content_digest(command)
        known = self._keys.get((command.namespace, command.idempotency_key))
        if known is not None:
            if known[1] != digest:
                raise Conflict("idempotency_key reused with different payload")
            return Accepted(self.tasks[known[0]], duplicate=True)
        number = next(self._numbers)
        name = command.name or f"task-{number}"
        id = f"{command.namespace}/{name}"
        if id in self.tasks:
            raise Conflict(f"there is already a task {name!r}")
        self.tasks[id] = TaskInfo(
            key=number,
            uid=str(number),
            namespace=command.namespace,
            name=name,
            target_kind="agent",
            target="writer",
            phase="queued",
            revision=1,
            attempt=1,
            priority=PRIORITIES[command.priority],
            lane=command.lane,
            spawned_by=command.spawned_by,
            parent=command.parent,
            labels=command.labels,
            summary={},
            timer_at=None,
            created_at=self.now,
            updated_at=self.now,
            started_at=None,
            ended_at=None,
            archived_at=None,
        )
        self.commands[id] = command
        self._keys[command.namespace, command.idempotency_key] = (id, digest)
        return Accepted(self.tasks[id], duplicate=False)

    async def accept_template(
        self, ref: str, command: Command, *, origin: Origin, by_operator: bool = False
    ) -> Accepted:
        self.accepts += 1
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        if ref not in self.templates:
            raise NotFound(f'task template "{ref.partition("/")[2]}" not found')
        if not command.input and ref.endswith("/picky"):
            raise InvalidInput("message is required")
        accepted = await self.accept(replace(command, namespace=ref.partition("/")[0]))
        if self.dies_after is not None:
            died, self.dies_after = self.dies_after, None
            raise died
        return accepted

    async def get(self, namespace: str, name: str) -> TaskInfo:
        try:
            return self.tasks[f"{namespace}/{name}"]
        except KeyError:
            raise NotFound(f"there is no task {name!r}") from None

    async def list(self, **wanted: Any) -> tuple[list[TaskInfo], str | None]:
        phases, spawner = wanted.get("phases") or (), wanted.get("spawned_by")
        found = [
            task
            for task in sorted(self.tasks.values(), key=lambda task: -task.key)
            if (not phases or task.phase in phases) and (spawner is None or task.spawned_by == spawner)
        ]
        start, limit = int(wanted.get("cursor") or 0), wanted.get("limit", 50)
        return found[start : start + limit], str(start + limit) if len(found) > start + limit else None

    async def cancel(self, namespace: str, name: str, *, by: str = "", reason: str = "") -> TaskInfo:
        task = await self.get(namespace, name)
        if task.phase in ENDED:
            raise Conflict(f"task {name} cannot be cancelled: its phase is {task.phase}")
        return self.end(task.id, "cancelled", summary={"reason": reason})

    async def archive(self, namespace: str, name: str, *, by: str = "") -> TaskInfo:
        return await self.get(namespace, name)

    async def requeue(
        self, namespace: str, name: str, *, by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        return await self.get(namespace, name)

    async def events(self, namespace: str, name: str, *, after: int = 0, limit: int = 500) -> list[TaskRecord]:
        return []

    async def delete(self, namespace: str, name: str) -> None:
        task = await self.get(namespace, name)
        if task.phase not in ENDED:
            raise Conflict(f"task {name} has not ended")
        del self.tasks[task.id]
        self._keys = {key: known for key, known in self._keys.items() if known[0] != task.id}

    # --- for tests -------------------------------------------------------------------------------------------------

    def end(self, id: str, phase: str = "succeeded", **more: Any) -> TaskInfo:
        self.tasks[id] = replace(self.tasks[id], phase=phase, ended_at=self.now, **more)
        return self.tasks[id]

    @property
    def names(self) -> list[str]:
        """In the order in which they were made."""
        return [task.name for task in sorted(self.tasks.values(), key=lambda task: task.key)]


class Passing(FoliotError):
    """Trouble that goes away."""

    retryable = True
