"""A watch of tasks: how they stand, then each that comes, changes or goes.

Two feeds make it: that of work, with the numbers of `TaskFeed`, and that of resources, for templates and for tasks that
could not be accepted. The id of an event holds the place in both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import msgspec

from foliot.errors import Gone
from foliot.resources.wording import as_written
from foliot.runtime.local.declared_work import is_work
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.errors import BadParameter
from foliot.server.streams.runs import patiently
from foliot.server.streams.sse import frame
from foliot.server.streams.task_feed import as_text
from foliot.server.tasks.list import Wanted, is_accepted, list_tasks
from foliot.store.base import Document, Filter
from foliot.store.resources.feed import Looked, window
from foliot.store.resources.selectors import matches
from foliot.store.tasks import TaskFeedRow

MOST_TASKS: Final = 1000
PAGE: Final = 100
# Of so many a stream remembers that it told of them.
REMEMBERED: Final = 10_000
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_TYPES: Final = {"created": "added", "updated": "updated", "deleted": "deleted"}


class Place(NamedTuple):
    """A position: behind this change of resources and this number of work."""

    revision: int
    number: int

    def __str__(self) -> str:
        return f"{self.revision}.{self.number}"


async def newest_place(services: Services) -> Place:
    """Returns the position from which a watch continues a list that is made after this, without a gap.

    While nobody watches no numbers are given, so what had changed until now may be told once more.
    """
    bounds = (await services.database.read("task_feed_bounds"))[0]
    return Place(bounds["revision"], bounds["told"])


async def place_named(services: Services, position: str | None) -> Place | None:
    """Parses the position from which a client continues; None is from the beginning, and so is the revision of one
    resource, which says nothing of work. Raises `BadParameter`, and `Gone` now, while there can still be a status.
    """
    if position is None or (position.isascii() and position.isdigit()):
        return None
    found = _PLACE.fullmatch(position)
    if found is None:
        raise BadParameter(f"{position[:40]!r} is no place in the changes of tasks", hint="the id of an event is one")
    place = Place(int(found[1]), int(found[2]))
    await check_kept(services, place, position)
    return place


async def check_kept(services: Services, place: Place, position: str) -> None:
    """Raises `Gone` for a place behind which not all changes are kept."""
    first, last = await oldest_place(services), await newest_place(services)
    if not (first.revision <= place.revision <= last.revision and first.number <= place.number <= last.number):
        raise Gone(f"the changes behind {position} are not kept", hint="watch again, without an id")


async def oldest_place(services: Services) -> Place:
    """Returns the first position from which all changes are kept."""
    resources = (await services.database.read("feed_bounds"))[0]
    return Place(resources["compacted"], (await services.database.read("task_feed_bounds"))[0]["dropped"])


async def all_tasks_frames(
    services: Services, caller: Caller, wanted: Wanted, place: Place | None
) -> AsyncGenerator[bytes]:
    """The newest tasks, a bookmark, and what changes; with a place only what has changed behind it."""
    filter = caller.narrowed(wanted.filter)
    feed = services.streams.tasks
    stir = asyncio.Event()
    async with feed.joined(stir.set):
        view = _View(services, filter, place)
        if place is None:
            place = Place(feed.revision, feed.number)
            async for items in _pages(services, caller, wanted):
                await patiently(lambda items=items: feed.mind([item["metadata"].get("uid", "") for item in items]))
                yield b"".join([_frame(view.begun(item)) for item in items])
        yield frame("bookmark", {"type": "bookmark", "resourceVersion": str(place)}, str(place))
        while True:
            stir.clear()
            place, frames = await patiently(lambda at=place: view.behind(at))
            if frames:
                yield b"".join(frames)
            elif place.number >= feed.number:
                await stir.wait()


async def _pages(services: Services, caller: Caller, wanted: Wanted) -> AsyncGenerator[list[Document]]:
    """The newest tasks, a page at a time: the first ones are on their way before the last ones are read."""
    left, cursor = MOST_TASKS, None
    while left > 0:
        count = min(left, PAGE)

        async def read(count: int = count, at: str | None = cursor) -> tuple[list[Document], str | None]:
            async with services.list_reads.within_bounds(caller, searched=wanted.is_searched):
                return await list_tasks(services, caller, wanted, limit=count, cursor=at)

        items, cursor = await patiently(read)
        if items:
            yield items
        left -= len(items)
        if cursor is None:
            return


class _View:
    """The view of one stream: what it has sent, and what a change means for it.

    Without a filter there is nothing to see.
    """

    def __init__(self, services: Services, filter: Filter | None, start: Place | None) -> None:
        self._services = services
        self._filter = filter
        self._start = start
        # What does not change in a task: the rest of a filter may have let it through before.
        fixed = () if filter is None else tuple(each for each in filter.fields if not each.key.startswith("status."))
        self._fixed = Filter("Task", filter.namespace, filter.labels, fixed) if filter is not None else None
        self._known: dict[str, int] = {}
        self._decided: set[str] = set()

    def begun(self, document: Document) -> dict[str, Any]:
        """A task of the list that the stream begins with."""
        self._remember(_identity(document), as_text(document))
        return {"type": "added", "resource": document}

    async def behind(self, place: Place) -> tuple[Place, list[bytes]]:
        """Returns the frames for the changes behind a place, and the place behind them."""
        frames: list[bytes] = []
        upto, rows = await window(self._services.database, "Task", place.revision)
        for row in rows:
            place = place._replace(revision=row["revision"])
            if (told := await self._declared(Looked(self._services.database, row))) is not None:
                frames.append(_frame(told, str(place)))
        place = place._replace(revision=upto)
        number, work = await self._services.streams.tasks.behind(place.number)
        for each in work:
            place = place._replace(number=each.number)
            if (told := self._work(each)) is not None:
                frames.append(_frame(told, str(place)))
        return place._replace(number=max(number, place.number)), frames

    async def _declared(self, looked: Looked) -> dict[str, Any] | None:
        if self._filter is None or (action := await looked.through(self._filter)) is None:
            return None
        document = looked.document
        if is_work(document) and await is_accepted(self._services, document):
            return None  # told as work
        identity = _identity(document)
        if action == "deleted":
            self._known.pop(identity, None)
        else:
            if self._known.get(identity) == hash(as_text(document)):
                return None
            self._remember(identity, as_text(document))
        return {"type": _TYPES[action], "resource": document}

    def _work(self, told: TaskFeedRow) -> dict[str, Any] | None:
        if self._filter is None or self._fixed is None:
            return None
        document: Document = msgspec.json.decode(told.document)
        if not matches(document, self._fixed):
            return None
        identity = _identity(document)
        knew = identity in self._known
        if self._start is not None and told.first <= self._start.number and identity not in self._decided:
            knew = True  # by an earlier stream, as far as can be told
            self._decided.add(identity)
        if not told.gone and matches(document, self._filter):
            if self._known.get(identity) == hash(told.document):
                return None
            self._remember(identity, told.document)
            return {"type": "updated" if knew else "added", "resource": document}
        self._known.pop(identity, None)
        return {"type": "deleted", "resource": {"kind": "Task", "metadata": document["metadata"]}} if knew else None

    def _remember(self, identity: str, text: str) -> None:
        self._known.pop(identity, None)
        self._known[identity] = hash(text)
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]


def _frame(told: dict[str, Any], place: str | None = None) -> bytes:
    """Makes the frame of a change; the task in it is as it is shown elsewhere."""
    return frame("resource", {**told, "resource": as_written(told["resource"])}, place)


def _identity(task: Document) -> str:
    metadata = task["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"
