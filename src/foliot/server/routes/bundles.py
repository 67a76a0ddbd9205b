"""Many resources at once, all or nothing: what `foliot apply` asks of a server."""

from __future__ import annotations

from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from foliot.catalog.apply import Applier
from foliot.errors import UsageError
from foliot.resources.field_owners import APPLY
from foliot.server.audit import AcceptedTasks, RecordedStore
from foliot.server.auth.guard import HIDDEN, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import manifests
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import (
    AllowMissing,
    DryRun,
    FieldManager,
    Force,
    ForceConflicts,
    Namespace,
    is_dry,
    is_true,
    parameters,
    space,
)
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.store.resources.selectors import parse_labels

router = new_router("resources")

Prune = Annotated[
    str | None, Query(description="Delete what matches this label selector, was applied, and is missing.")
]
AllowEmpty = Annotated[
    bool, Query(description="With `prune`: go on when none of the manifests matches the selector, and all would go.")
]
Accept = Annotated[bool, Query(description="Have the Tasks among them done.")]


@router.post("/v1/apply")
async def apply(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    prune: Prune = None,
    allowEmpty: AllowEmpty = False,
    allowMissing: AllowMissing = None,
    force: Force = None,
    fieldManager: FieldManager = None,
    forceConflicts: ForceConflicts = None,
    run: Accept = False,
) -> Response:
    """Create and update all resources of the body (JSON, YAML, several documents) in one transaction.

    Answers with what was done to each, in their order. `namespace` is for those that name none.
    """
    bundle = await manifests(request, namespace, may_be_empty=allowEmpty)
    documents = bundle.documents
    dry = is_dry(dryRun)
    store = RecordedStore(services.runtime, caller, request.scope[REQUEST_ID])
    where = space(namespace)
    with parameters():
        selector = parse_labels(prune) if prune is not None else None
    if selector is not None:
        if not selector:
            raise UsageError("prune needs a label selector", hint="such as prune=app=report")
        if namespace is None and not caller.sees(where):
            raise UsageError(
                f"prune deletes in one namespace, {where!r} when none is named, and you cannot see that one",
                hint="add namespace=NAME to the query",
            )
        caller.require("admin", where, missing=HIDDEN)
    client = services.client.on(store)
    applied = await client.apply_for(
        bundle.given,
        dry_run=dry,
        prune=selector,
        prune_namespace=where,
        allow_empty=allowEmpty,
        allow_missing=is_true(allowMissing, "allowMissing"),
        force=is_true(force, "force"),
        applier=Applier(fieldManager or APPLY, is_true(forceConflicts, "forceConflicts"), store.declarer),
        judge=store.judge,
    )
    taken: list[dict[str, Any]] = []
    if run and not dry:
        acts = AcceptedTasks(services.runtime, caller, "task_accepted", request.scope[REQUEST_ID])
        taken = [
            {
                "namespace": each.namespace,
                "name": each.name,
                "new": each.new,
                **({"error": {"code": each.error.code, "detail": each.error.message}} if each.error else {}),
            }
            for each in await services.client.accept_for(documents, caller.acting_for_self("http"), recorded=acts)
        ]
        acts.tell()
    outcomes = [
        {
            "action": each.action,
            "resource": each.document,
            **({"before": each.before} if each.before else {}),
            **({"ends": each.ends} if each.ends else {}),
            **({"owners": each.owners} if each.owners else {}),
            **({"owned": each.owned} if each.owned else {}),
        }
        for each in applied.outcomes
    ]
    return Json({"outcomes": outcomes, "warnings": applied.warnings, "tasks": taken})
