"""All that happens, as events of one shape: for clients that follow what happens and not the resources.

    event: event
    data: {"id": 42, "timestamp": "…", "source": "apiserver", "type": "resource.created", "kind": "Agent", …}

Two feeds make it: that of resources, and that of work (`TaskFeed`), which has how a task stands and not what happened
to it. What happened follows from how it stood before: that it was created, claimed by a worker, has ended. Nothing is
written for this, and a task that was done between two looks has all of its events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from foliot.common.cancellation import stop_tasks
from foliot.common.times import iso
from foliot.resources.wording import as_written
from foliot.runtime.local.declared_work import is_work
from foliot.server.context import Services
from foliot.server.errors import BadParameter
from foliot.server.streams.runs import patiently
from foliot.server.streams.sse import frame
from foliot.server.streams.task_watch import Place, check_kept, newest_place, oldest_place
from foliot.server.tasks.list import is_accepted
from foliot.store.base import Document, Filter
from foliot.store.resources.selectors import matches
from foliot.store.tasks import TaskFeedRow, told_live

SERVER: Final = "apiserver"
TASKS: Final = "task-controller"
# Of so many tasks a stream remembers how they stood.
REMEMBERED: Final = 10_000
# An id is one number, which earlier clients send back as `since`: the revision, then the number of work, then how many
# events of the next number came before. A number below `_ONE_REVISION` is a revision alone.
_STAGES: Final = 3
_ONE_REVISION: Final = 1 << 36
_ACTIONS: Final = {"added": "created", "updated": "updated", "deleted": "deleted"}
_ENDS: Final = {"Succeeded": "succeeded", "Failed": "failed", "DeadLetter": "deadletter", "Cancelled": "cancelled"}


class Position(NamedTuple):
    """A position: behind this change of resources, this number of work, and so many events of the number after it.

    `number` is None for one that says nothing of work.
    """

    revision: int
    number: int | None = None
    told: int = 0

    @property
    def id(self) -> int:
        if self.number is None:
            return self.revision
        return (self.revision + 1) * _ONE_REVISION + (self.number << _STAGES) + self.told


def position_of(text: str) -> Position:
    """Parses an id that was given out here, or a revision. Raises `BadParameter`."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise BadParameter(f"{text[:40]!r} is no id of an event", hint="the id of an event, or a resourceVersion")
    revision, rest = divmod(int(text), _ONE_REVISION)
    if not revision:
        return Position(rest)
    return Position(revision - 1, rest >> _STAGES, rest & ((1 << _STAGES) - 1))


async def check_position(services: Services, since: str | None, *, work: bool) -> Position:
    """Returns the position behind which a client goes on: None says from now on, and "0" all that is kept.

    Raises `BadParameter`, and `Gone` now, while there can still be a status.
    """
    newest = await newest_place(services)
    if since is None:
        return Position(newest.revision, newest.number if work else None)
    if since == "0":
        oldest = await oldest_place(services)
        return Position(oldest.revision, oldest.number if work else None)
    position = position_of(since)
    number = newest.number if position.number is None else position.number
    await check_kept(services, Place(position.revision, number), since)
    return position._replace(number=number) if work else Position(position.revision)


class _Changed(msgspec.Struct, frozen=True):
    type: str
    resource: dict[str, Any]


class _Stood(NamedTuple):
    """How a task stood at its last event."""

    attempts: int
    phase: str
    worker: str
    next: str

    @classmethod
    def of(cls, status: dict[str, Any]) -> _Stood:
        worker = status.get("claimedBy") or status.get("assignedWorker", "")
        return cls(status["attempts"], status["phase"], worker, status.get("nextAttemptAt", ""))


class EventWatch:
    """One stream of events behind a position.

    `filter` is what the caller may see; of this come events whose source, type, name and namespace are those that are
    given, in any case. With `since` events of tasks before that moment are left
    out: without a watch work gets no numbers, so it gets them when this begins, however old it is.
    """

    def __init__(
        self,
        services: Services,
        filter: Filter,
        start: Position,
        *,
        source: str | None = None,
        type: str | None = None,
        name: str | None = None,
        namespace: str | None = None,
        since: float | None = None,
    ) -> None:
        self._services = services
        self._filter = filter
        chosen = {"source": source, "type": type, "name": name, "namespace": namespace}
        self._chosen = {member: value.strip().lower() for member, value in chosen.items() if value and value.strip()}
        self._start = start
        self._since = "" if since is None else iso(since)
        self._old = 0  # the number up to which work may have been there before
        self._tasks = Filter("Task", filter.namespace, filter.labels, filter.fields)
        self._stood: dict[int, _Stood] = {}
        # Names of which this stream knows work, and those of Tasks of which it has said that they are deleted: a Task
        # and its work go one after the other, and that is told once.
        self._as_work: dict[tuple[str, str], None] = {}
        self._gone: set[tuple[str, str]] = set()

    async def frames(self) -> AsyncGenerator[bytes]:
        """A comment that says from where on, then each event."""
        yield b": changes from here on\nid: %d\n\n" % self._start.id
        if self._start.number is None:
            async with aclosing(self._follow(None)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        feed, stir = self._services.streams.tasks, asyncio.Event()
        async with feed.joined(stir.set):
            self._old = feed.number
            await self._remember(self._start.number)
            async with aclosing(self._follow(stir)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _follow(self, stir: asyncio.Event | None) -> AsyncGenerator[bytes]:
        place = self._start
        feed = self._services.streams.tasks
        async with aclosing(self._services.streams.feed.frames(self._filter, place.revision)) as changes:
            changed, stirred = asyncio.ensure_future(anext(changes)), None
            try:
                while True:
                    if stir is not None and place.number is not None:
                        stir.clear()
                        place, told = await self._behind(place)
                        if told:
                            yield b"".join(told)
                        if place.number is not None and place.number < feed.number:
                            continue
                        stirred = asyncio.ensure_future(stir.wait())
                    waited = [changed] if stirred is None else [changed, stirred]
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                    await stop_tasks(stirred)
                    if changed.done():
                        place, told = await self._of_resources(changed.result(), place)
                        changed = asyncio.ensure_future(anext(changes))
                        if told:
                            yield b"".join(told)
            finally:
                await stop_tasks(changed, stirred)

    # --- resources -------------------------------------------------------------------------------------------------

    async def _of_resources(self, piece: bytes, place: Position) -> tuple[Position, list[bytes]]:
        told: list[bytes] = []
        for text in piece.split(b"\n\n"):
            lines = {name: value for name, _, value in (line.partition(b": ") for line in text.split(b"\n"))}
            if lines.get(b"event") != b"resource":
                continue
            change = msgspec.json.decode(lines[b"data"], type=_Changed)
            place = place._replace(revision=int(lines[b"id"]))
            document = change.resource
            action = _ACTIONS[change.type]
            metadata = document["metadata"]
            if self._start.number is not None and is_work(document):
                name = metadata["namespace"], metadata["name"]
                if name in self._as_work or await is_accepted(self._services, document):
                    continue  # comes as work
                (self._gone.add if action == "deleted" else self._gone.discard)(name)
            at = metadata.get("updatedAt") or metadata.get("createdAt") or ""
            event = _event(document, f"resource.{action}", at, data={"resource": document})
            if self._wants(event):
                told.append(frame("event", {"id": place.id, **event}, place.id))
        return place, told

    # --- work ------------------------------------------------------------------------------------------------------

    async def _remember(self, number: int) -> None:
        """Reads how the tasks under way stood at this number, so that earlier events of them are not repeated."""
        for each in await patiently(lambda: told_live(self._services.database, number, REMEMBERED)):
            document: Document = msgspec.json.decode(each.document)
            self._know(document["metadata"])
            self._stood[each.task] = _Stood.of(document["status"])

    async def _behind(self, place: Position) -> tuple[Position, list[bytes]]:
        """Returns the events of work behind a position, and the position behind them."""
        assert place.number is not None
        behind = place.number
        newest, found = await patiently(lambda: self._services.streams.tasks.behind(behind))
        told: list[bytes] = []
        for each in found:
            document: Document = msgspec.json.decode(each.document)
            if matches(document, self._tasks):
                events = list(self._happened(each, as_written(document)))
                skipped = place.told if place.number == each.number - 1 else 0
                for count, event in enumerate(events, 1):
                    # The last one is behind its number; one that breaks off before goes on between them.
                    upto, more = (each.number, 0) if count == len(events) else (each.number - 1, count)
                    at = Position(place.revision, upto, more)
                    if count > skipped and self._wants(event) and not self._is_old(each, event):
                        told.append(frame("event", {"id": at.id, **event}, at.id))
            place = Position(place.revision, each.number)
        if newest > (place.number or 0):
            place = Position(place.revision, newest)
        return place, told

    def _happened(self, told: TaskFeedRow, document: Document) -> Iterator[dict[str, Any]]:
        """Yields the events of a task that stands like this, after what this stream knows of it."""
        metadata, status = document["metadata"], document["status"]
        phase = status["phase"]
        before = self._stood.pop(told.task, None)
        self._know(metadata)
        if told.gone:
            name = metadata["namespace"], metadata["name"]
            if name in self._gone:
                self._gone.discard(name)
            elif before is not None or told.first <= (self._start.number or 0):
                yield _event(document, "resource.deleted", status.get("updatedAt", ""), data={"resource": document})
            return
        if before is None and told.first > (self._start.number or 0):
            yield _event(document, "resource.created", metadata["createdAt"], data={"resource": document})
        if before is None:
            before = _Stood(0, "" if status["attempts"] else "Pending", "", "")  # one that ended before may be requeued
        now = _Stood.of(status)
        if now.attempts > before.attempts and _was_claimed(status):
            at = (status.get("startedAt") if now.attempts == 1 else "") or status.get("updatedAt", "")
            yield _task_event(document, "claimed", at, f"claimed by {now.worker}" if now.worker else "claimed")
            yield _task_event(document, "running", at, "")
        else:
            if status.get("claimedBy") and before.worker not in ("", now.worker):
                text = f"claimed by {now.worker}, after {before.worker}"
                yield _task_event(document, "claimed", status.get("updatedAt", ""), text)
            if phase == "Running" != before.phase:
                yield _task_event(document, "running", status.get("updatedAt", ""), "")
        if phase != before.phase:
            if phase in _ENDS:
                at = status.get("completedAt") or status.get("updatedAt", "")
                yield _task_event(document, _ENDS[phase], at, status.get("lastError", ""))
            elif phase in ("WaitingApproval", "Waiting"):
                waiting: dict[str, Any] = status.get("waiting") or {}
                yield _task_event(document, "waiting_approval", status.get("updatedAt", ""), waiting.get("reason", ""))
            elif phase == "Pending":
                yield _task_event(document, "retry_scheduled", status.get("updatedAt", ""), status.get("lastError", ""))
        if phase == "Running" and now.next > before.next:
            text = f"at {now.next}" if not (waits := status.get("waiting")) else f"{waits['reason']}, at {now.next}"
            yield _task_event(document, "retry_scheduled", status.get("updatedAt", ""), text)
        self._stood[told.task] = now
        if len(self._stood) > REMEMBERED:
            del self._stood[next(iter(self._stood))]

    def _know(self, metadata: Document) -> None:
        self._as_work[metadata["namespace"], metadata["name"]] = None
        if len(self._as_work) > REMEMBERED:
            del self._as_work[next(iter(self._as_work))]

    def _is_old(self, told: TaskFeedRow, event: dict[str, Any]) -> bool:
        return told.number <= self._old and event["timestamp"] < self._since

    def _wants(self, event: dict[str, Any]) -> bool:
        return all(event[member].lower() == value for member, value in self._chosen.items())


def _was_claimed(status: dict[str, Any]) -> bool:
    """Whether a worker has had the task in this attempt: one can also fail, or be cancelled, before any has."""
    if status["phase"] not in _ENDS:
        return status["phase"] != "Pending"
    return bool(status.get("assignedWorker") or (status["attempts"] == 1 and status.get("startedAt")))


def _task_event(document: Document, action: str, at: str, message: str) -> dict[str, Any]:
    status = document["status"]
    data = {"worker": status.get("assignedWorker", ""), "attempt": status["attempts"], "resource": document}
    return _event(document, f"task.{action}", at, message, source=TASKS, data=data)


def _event(
    document: Document, type: str, at: str, message: str = "", *, source: str = SERVER, data: dict[str, Any]
) -> dict[str, Any]:
    metadata = document["metadata"]
    return {
        "timestamp": at,
        "source": source,
        "type": type,
        "kind": document["kind"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "action": type.partition(".")[2],
        "message": message,
        "data": data,
    }
