"""Resources of every kind: list, create, read, replace, patch, delete, and their status."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from starlette.requests import Request
from starlette.responses import Response

from foliot.catalog.declared import with_owners
from foliot.engine.approval.documents import KIND as APPROVAL
from foliot.engine.definition.missing import add_conditions
from foliot.errors import InvalidInput, NotFound
from foliot.resources.kinds import KINDS
from foliot.resources.names import STEERING
from foliot.resources.wording import as_written
from foliot.server.auth.guard import HIDDEN, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import ROLE, Services
from foliot.server.errors import MethodNotAllowed
from foliot.server.http.bodies import as_object, check_place, manifest, mapping, patch_of
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import (
    DEFAULT_PAGE,
    MOST,
    After,
    AllowMissing,
    Continue,
    DryRun,
    FieldManager,
    Fields,
    Force,
    IfMatch,
    IfNoneMatch,
    KindName,
    Labels,
    Limit,
    ManagedFields,
    Name,
    Namespace,
    TakeOver,
    conditions,
    is_true,
    kind_at,
    parameters,
    place_of,
    space,
    unquoted,
    wanted,
)
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json, etag, resource
from foliot.server.http.routing import NOT_EDITED
from foliot.server.resources import Declaring, WriteResult
from foliot.store.base import Document, Key, Page
from foliot.work.triggers.endpoints import WebhookEndpoints

router = new_router("resources")

OneKind = Annotated[str | None, Query(max_length=63, description="Only resources of this kind, such as `Agent`.")]
# What a status would decide is decided elsewhere, or there is none.
WITHOUT_STATUS: Final = frozenset({"Secret", "AgentRole", "ToolPermission", "ToolApproval", "McpServer"})


@router.get("/v1/resources")
async def list_all(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
    continued: Continue = None,
    labelSelector: Labels = None,
    fieldSelector: Fields = None,
    kind: OneKind = None,
    managedFields: ManagedFields = None,
) -> Response:
    """Resources of all kinds, or of one, in the form of `GET /v1/{kind}`. Tasks are as they are declared."""
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"there is no kind {kind[:80]!r}", hint=f"the kinds are {', '.join(KINDS)}")
    filter = caller.narrowed(wanted(kind, namespace, labelSelector, fieldSelector))
    if filter is None:
        return Json(await listed(services, Page([], None, await services.resources.revision())))
    show_owners = is_true(managedFields, "managedFields")
    searched = bool(filter.labels or filter.fields)
    async with services.list_reads.within_bounds(caller, request.scope, searched=searched):
        with parameters():
            cursor = await services.cursors.open(continued or after)
            page = await services.client.list(filter, limit=min(limit, MOST), cursor=cursor, show_owners=show_owners)
    return Json(await listed(services, page))


@router.get("/v1/{kind}")
async def list_resources(
    kind: KindName,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
    continued: Continue = None,
    labelSelector: Labels = None,
    labels: Labels = None,
    fieldSelector: Fields = None,
    managedFields: ManagedFields = None,
) -> Response:
    """Resources of a kind, ordered by namespace and name. Selectors are applied before the list is cut into pages.

    `metadata.resourceVersion` is where a watch takes over without a gap.
    """
    filter = caller.narrowed(wanted(kind_at(kind).name, namespace, labelSelector or labels, fieldSelector))
    if filter is None:
        return Json(await listed(services, Page([], None, await services.resources.revision())))
    if filter.kind == APPROVAL:
        await services.runtime.inside.approvals.repair(filter.namespace)
    with parameters():
        cursor = await services.cursors.open(continued) or await place_of(services, filter, after)
        show_owners = is_true(managedFields, "managedFields")
        searched = bool(filter.labels or filter.fields)
        async with services.list_reads.within_bounds(caller, request.scope, searched=searched):
            page = await services.client.list(filter, limit=limit, cursor=cursor, show_owners=show_owners)
    return Json(await listed(services, replace(page, items=[await _shown(services, each) for each in page.items])))


@router.post("/v1/{kind}")
async def put_resource(
    kind: KindName,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    fieldManager: FieldManager = None,
    takeOver: TakeOver = None,
    allowMissing: AllowMissing = None,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create a resource, or replace what was declared under its name: 201 when it is new, 200 otherwise.

    Without a version it is written over whatever is there; `If-None-Match: *` writes it only when it is not there.
    """
    loaded = await manifest(request, kind_at(kind), namespace)
    caller.require(request.scope[ROLE], loaded.document["metadata"]["namespace"], missing=HIDDEN)
    takes_over = is_true(takeOver, "takeOver")
    takes_missing = is_true(allowMissing, "allowMissing")
    declaring = Declaring(
        services, caller, request.scope[REQUEST_ID], fieldManager, takes_over=takes_over, takes_missing=takes_missing
    )
    written = await declaring.put(loaded, conditions(if_match, if_none_match, dryRun))
    return _answer(written, 201 if written.action == "created" else 200)


@router.get("/v1/{kind}/{name}")
async def get_resource(
    kind: KindName,
    name: Name,
    services: Services,
    namespace: Namespace = None,
    managedFields: ManagedFields = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """One resource. Its version is the ETag; with `If-None-Match` it is sent only when it has another one."""
    key = Key(kind_at(kind).name, space(namespace), name)
    try:
        document = await services.resources.get(key)
    except NotFound:
        if key.kind != APPROVAL:
            raise
        await services.runtime.inside.approvals.repair(key.namespace)
        document = await services.resources.get(key)
    if is_true(managedFields, "managedFields"):
        (document,) = await with_owners(services.resources, [document])
    (document,) = await add_conditions(services.resources, [await _shown(services, document)], services.client.brings)
    if if_none_match is not None and unquoted(if_none_match) == document["metadata"].get("resourceVersion"):
        return Response(status_code=304, headers={"ETag": etag(document)})
    return resource(document)


@router.put("/v1/{kind}/{name}")
async def replace_resource(
    kind: KindName,
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    fieldManager: FieldManager = None,
    takeOver: TakeOver = None,
    allowMissing: AllowMissing = None,
    if_match: IfMatch = None,
) -> Response:
    """Replace what was declared. The version it is about must be named: in the resource, or with `If-Match`."""
    known = kind_at(kind)
    if known.name in NOT_EDITED:
        raise MethodNotAllowed(f"{known.plural} are not edited", hint="approve or deny them", allow="DELETE, GET")
    loaded = await manifest(request, known, space(namespace), name)
    takes_over = is_true(takeOver, "takeOver")
    takes_missing = is_true(allowMissing, "allowMissing")
    declaring = Declaring(
        services, caller, request.scope[REQUEST_ID], fieldManager, takes_over=takes_over, takes_missing=takes_missing
    )
    return _answer(await declaring.replace(loaded, conditions(if_match, None, dryRun)))


@router.patch("/v1/{kind}/{name}")
async def patch_resource(
    kind: KindName,
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    fieldManager: FieldManager = None,
    takeOver: TakeOver = None,
    allowMissing: AllowMissing = None,
    if_match: IfMatch = None,
) -> Response:
    """Change part of what was declared, by a JSON merge patch (RFC 7396): null takes a member away."""
    known = kind_at(kind)
    if known.name in NOT_EDITED:
        raise MethodNotAllowed(f"{known.plural} are not edited", hint="approve or deny them", allow="DELETE, GET")
    changes = await patch_of(request, known)
    takes_over = is_true(takeOver, "takeOver")
    takes_missing = is_true(allowMissing, "allowMissing")
    declaring = Declaring(
        services, caller, request.scope[REQUEST_ID], fieldManager, takes_over=takes_over, takes_missing=takes_missing
    )
    key = Key(known.name, space(namespace), name)
    return _answer(await declaring.patch(key, changes, conditions(if_match, None, dryRun)))


@router.delete("/v1/{kind}/{name}")
async def delete_resource(
    kind: KindName,
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    force: Force = None,
    if_match: IfMatch = None,
) -> Response:
    """Delete a resource; with `If-Match` only at this version. What open tasks use is deleted only with `force`."""
    declaring = Declaring(services, caller, request.scope[REQUEST_ID])
    key = Key(kind_at(kind).name, space(namespace), name)
    await declaring.delete(key, conditions(if_match, None, dryRun), force=is_true(force, "force"))
    # What deletes them reads the name from the answer, in clients older than this server.
    return Json({"deleted": name}) if key.kind == "McpServer" else Response(status_code=204)


@router.get("/v1/{kind}/{name}/status")
async def get_status(kind: KindName, name: Name, services: Services, namespace: Namespace = None) -> Response:
    """The resource, for its status."""
    document = await services.resources.get(_with_status(kind, namespace, name))
    (document,) = await add_conditions(services.resources, [document], services.client.brings)
    return resource(document)


@router.put("/v1/{kind}/{name}/status")
async def put_status(
    kind: KindName,
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    if_match: IfMatch = None,
) -> Response:
    """Replace the status of a resource; what was declared stays. The body is a resource, or its status alone."""
    key = _with_status(kind, namespace, name)
    if (decides := STEERING.get(key.kind)) is not None:
        raise NotFound(f"{kind_at(kind).plural} have no status to write", hint=f"Foliot alone says there {decides}")
    body = await mapping(request)
    metadata = as_object(body.get("metadata"))
    check_place(metadata, key.namespace, key.name)
    inside = str(metadata.get("resourceVersion") or "")
    status = as_object(body.get("status")) if "status" in body or metadata else body
    declaring = Declaring(services, caller, request.scope[REQUEST_ID])
    return _answer(await declaring.put_status(key, status, conditions(if_match or inside or None, None, dryRun)))


async def listed(services: Services, page: Page) -> Document:
    """A page as the answer to a list."""
    answer: Document = {
        "apiVersion": "foliot.dev/v1",
        "kind": "List",
        "metadata": {"resourceVersion": str(page.revision)},
        "items": [as_written(each) for each in page.items],
    }
    if page.cursor is not None:
        answer["continue"] = await services.cursors.seal(page.cursor)
    return answer


async def _shown(services: Services, document: Document) -> Document:
    """Returns a stored resource as it is shown: an approval as of now, a webhook with its address."""
    match document["kind"]:
        case "ToolApproval":
            return services.runtime.inside.approvals.shown(document)
        case "TaskWebhook" if not document["status"].get("endpointPath"):
            return await WebhookEndpoints(services.database, services.resources).ensure(document)
        case _:
            return document


def _with_status(kind: str, namespace: str | None, name: str) -> Key:
    known = kind_at(kind)
    if known.name in WITHOUT_STATUS:
        raise NotFound(f"{known.plural} have no status to write")
    return Key(known.name, space(namespace), name)


def _answer(written: WriteResult, status: int = 200) -> Response:
    headers = {"Warning": f'299 - "{_header(written.warnings[0])}"'} if written.warnings else {}
    return resource(written.document, status, headers)


def _header(text: str) -> str:
    """Converts a text to what a header can hold."""
    return "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "'" for each in text)[:500]
