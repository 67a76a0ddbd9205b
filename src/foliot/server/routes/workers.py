"""Workers as they are: processes that have made themselves known, shown as resources of the kind Worker.

Somebody may also declare one; it is listed behind those that live, until a process of its name takes its place.
"""

from __future__ import annotations

import time

from starlette.responses import Response

from foliot.errors import NotFound
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.names import (
    DEFAULT_PAGE,
    After,
    Continue,
    Fields,
    Labels,
    Limit,
    Name,
    Namespace,
    parameters,
    place_of,
    space,
    wanted,
)
from foliot.server.http.responses import Json, resource
from foliot.server.routes.resources import listed
from foliot.store.base import Document, Filter, Key, Page
from foliot.store.queue.workers import list_workers
from foliot.store.resources.selectors import matches
from foliot.work.views.worker_document import worker_document

router = new_router("workers")


@router.get("/v1/workers")
async def list_all(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
    continued: Continue = None,
    labelSelector: Labels = None,
    labels: Labels = None,
    fieldSelector: Fields = None,
) -> Response:
    """Every worker that gave a sign of life lately, then those that are only declared.

    Workers serve all namespaces: `namespace` narrows the declared ones.
    """
    filter = wanted("Worker", namespace, labelSelector or labels, fieldSelector)
    fitting = Filter("Worker", None, filter.labels, filter.fields)
    live = [each for each in await _live(services, caller) if matches(each, fitting)]
    with parameters():
        page = await _page(services, caller.narrowed(filter), live, limit, continued, after)
    return Json(await listed(services, page))


async def _page(
    services: Services,
    declared: Filter | None,
    live: list[Document],
    limit: int,
    continued: str | None,
    after: str | None,
) -> Page:
    """Live ones come first, and all at once: there are never many."""
    revision = await services.resources.revision()
    names = {each["metadata"]["name"] for each in live}
    first = not (continued or after)
    cursor = await services.cursors.open(continued)
    if declared is None:
        return Page(live if first else [], None, revision)
    if cursor is None and after not in names:
        cursor = await place_of(services, declared, after)
    page = await services.resources.list(declared, limit=limit, cursor=cursor)
    others = [each for each in page.items if each["metadata"]["name"] not in names]
    return Page([*live, *others] if first else others, page.cursor, revision)


@router.get("/v1/workers/{name}")
async def get_worker(name: Name, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """One worker."""
    for document in await _live(services, caller):
        if document["metadata"]["name"] == name:
            return resource(document)
    key = Key("Worker", space(namespace), name)
    try:
        if caller.sees(key.namespace):
            return resource(await services.resources.get(key))
    except NotFound:
        pass
    raise NotFound(f"there is no worker {name!r}", hint="`foliot workers` shows them")


async def _live(services: Services, caller: Caller) -> list[Document]:
    """Returns the workers that live. Their processes are shown to callers who see all namespaces."""
    now, whole = time.time(), caller.namespaces is None
    return [worker_document(info, now, shows_process=whole) for info in await list_workers(services.database)]
