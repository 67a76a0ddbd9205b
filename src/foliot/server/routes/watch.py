"""Changes to resources as they happen, as server-sent events.

The id of an event is a revision: the `metadata.resourceVersion` of lists and resources. Every process reads the feed of
the store, so a client may reconnect to any of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from foliot.common.pages import read_pages
from foliot.errors import Gone
from foliot.resources.kinds import find_kind
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.errors import BadParameter
from foliot.server.http.names import Fields, KindName, Labels, Namespace, kind_at, last_event, wanted
from foliot.server.http.parameters import Query
from foliot.server.streams.event_watch import EventWatch, check_position
from foliot.server.streams.sse import frame
from foliot.server.streams.task_watch import all_tasks_frames, place_named
from foliot.server.tasks.list import Wanted
from foliot.store.base import Filter, Requirement

router = new_router("streams")

Position = Annotated[
    str | None, Query(description="Go on behind this revision; without one, begin with what there is.")
]
Place = Annotated[
    str | None, Query(description="Go on behind this id of an event; without one, begin with what there is.")
]
OneName = Annotated[str | None, Query(alias="name", description="Only the resource of this name.")]


@router.get("/v1/resources/watch")
async def watch_all(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    resourceVersion: Position = None,
    labelSelector: Labels = None,
    fieldSelector: Fields = None,
) -> Response:
    """Watches resources of all kinds, like the watch of one kind."""
    filter = wanted(None, namespace, labelSelector, fieldSelector)
    return await _stream(services, caller, filter, last_event(request, resourceVersion))


@router.get("/v1/events/watch")
async def watch_events(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    since: Annotated[
        str | None, Query(description="Behind this id; 0 for all that is kept; without one, from now on.")
    ] = None,
    kind: Annotated[str | None, Query(description="Only of resources of this kind.")] = None,
    name: OneName = None,
    source: Annotated[str | None, Query(description="Only events of this source, such as `task-controller`.")] = None,
    type: Annotated[str | None, Query(description="Only events of this type, such as `task.succeeded`.")] = None,
) -> Response:
    """Events `event`: that a resource was created, updated or deleted, that a task was claimed, waits, or has ended."""
    filter = Filter(find_kind(kind).name if kind else None)
    now, position = time.time(), last_event(request, since)
    start = await check_position(services, position, work=filter.kind in (None, "Task"))
    mine = caller.narrowed(filter)
    if mine is None:
        return services.streams.respond(caller, _silence(services))
    chosen = {"source": source, "type": type, "name": name, "namespace": namespace}
    watch = EventWatch(services, mine, start, **chosen, since=now if position is None else None)
    return services.streams.respond(caller, watch.frames())


@router.get("/v1/tasks/watch")
async def watch_tasks(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    resourceVersion: Place = None,
    name: OneName = None,
    labelSelector: Labels = None,
    fieldSelector: Fields = None,
) -> Response:
    """How the newest tasks stand, and each change of it: events `resource`, as for other kinds.

    A `bookmark` says from which place on changes follow. `410` means that it is too long ago: watch again, without an
    id. Follow `/v1/tasks/{name}/events` for everything that happens to one task.
    """
    filter = _named(wanted("Task", namespace, labelSelector, fieldSelector), name)
    place = await place_named(services, last_event(request, resourceVersion))
    return services.streams.respond(caller, all_tasks_frames(services, caller, Wanted(filter), place))


@router.get("/v1/{kind}/watch")
async def watch_kind(
    kind: KindName,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    resourceVersion: Position = None,
    name: OneName = None,
    labelSelector: Labels = None,
    fieldSelector: Fields = None,
) -> Response:
    """Events `resource` with `{"type": "added|updated|deleted", "resource": …}`, first for all that there are.

    A `bookmark` says from which revision on changes follow. `410` means that it is too long ago: list again.
    """
    filter = _named(wanted(kind_at(kind).name, namespace, labelSelector, fieldSelector), name)
    return await _stream(services, caller, filter, last_event(request, resourceVersion))


def _named(filter: Filter, name: str | None) -> Filter:
    if not name:
        return filter
    only = Requirement("metadata.name", "=", (name,))
    return Filter(filter.kind, filter.namespace, filter.labels, (*filter.fields, only))


async def _stream(services: Services, caller: Caller, wanted: Filter, position: str | None) -> Response:
    filter = caller.narrowed(wanted)
    after = None if position is None else await _checked(services, position)
    frames = _nothing(services) if filter is None else _changes(services, filter, after)
    return services.streams.respond(caller, frames)


async def _checked(services: Services, position: str) -> int:
    """The revision that a client names. Raises `Gone` now, while there can still be a status."""
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise BadParameter(f"{position[:40]!r} is no revision", hint="the id of an event, or a resourceVersion")
    bounds = (await services.database.read("feed_bounds"))[0]
    if not bounds["compacted"] <= int(position) <= bounds["revision"]:
        raise Gone(f"the changes behind revision {position} are not kept", hint="list again, and watch from there")
    return int(position)


async def _changes(services: Services, filter: Filter, after: int | None) -> AsyncGenerator[bytes]:
    if after is None:
        async for page in read_pages(services.client.list, filter):
            after = page.revision if after is None else after
            for document in page.items:
                # Without an id: whoever breaks off here begins again.
                yield frame("resource", {"type": "added", "resource": document})
        assert after is not None, "there is a first page"
    yield frame("bookmark", {"type": "bookmark", "resourceVersion": str(after)}, after)
    async with aclosing(services.streams.feed.frames(filter, after)) as changes:
        async for many in changes:
            yield many


async def _silence(services: Services) -> AsyncGenerator[bytes]:
    """Streams the events that a caller sees of a namespace that is not theirs."""
    yield b": changes from here on\n\n"
    await services.closing.wait()


async def _nothing(services: Services) -> AsyncGenerator[bytes]:
    """Streams what a caller sees of a namespace that is not theirs: the same as of an empty one."""
    revision = await services.resources.revision()
    yield frame("bookmark", {"type": "bookmark", "resourceVersion": str(revision)}, revision)
    await services.closing.wait()
