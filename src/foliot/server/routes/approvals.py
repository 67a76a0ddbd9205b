"""Decisions about calls that wait for consent. Approvals are listed and read as resources: `/v1/tool-approvals`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from foliot.engine.approval.grants import new_grant_name
from foliot.engine.approval.service import Decision
from foliot.engine.audit.words import Act
from foliot.server.audit import ActRecord
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Name, Namespace, space
from foliot.server.http.responses import resource

router = new_router("approvals")


class Comment(Struct, forbid_unknown_fields=True):
    """`decided_by` is taken from older clients and not believed: who decides is who calls.

    `digest` is that of the arguments which were looked at: 409 when they have been changed since.
    """

    reason: str = ""
    decided_by: str = ""
    digest: str = ""


class Edited(Struct, forbid_unknown_fields=True):
    arguments: dict[str, Any]
    reason: str = ""
    digest: str = ""


class Grant(Struct, frozen=True):
    """Consent in advance; `scope` is as in `ApprovalService.grant`."""

    tool: str
    seconds: float
    by: str = ""
    scope: Scope = msgspec.field(default_factory=lambda: Scope())


class Scope(Struct, frozen=True):
    agent: str = ""
    when: str = ""
    max_uses: int | None = None
    comment: str = ""


class Revoked(Struct, forbid_unknown_fields=True):
    """`by` and `reason` are taken and not believed: a grant is ended by who calls."""

    by: str = ""
    reason: str = ""


@router.post("/v1/tool-approvals/{name}/approve")
async def approve(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Let the call run, once, with the arguments that are shown. 409 when it was decided before, or has expired."""
    body = await form(request, Comment)
    return await _decide(request, services, caller, space(namespace), name, "approve", body.reason, digest=body.digest)


@router.post("/v1/tool-approvals/{name}/deny")
async def deny(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Refuse the call; the agent is told why."""
    body = await form(request, Comment)
    return await _decide(request, services, caller, space(namespace), name, "deny", body.reason, digest=body.digest)


@router.post("/v1/tool-approvals/{name}/edit")
async def edit(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Let the call run with other arguments. Masked values that are left as shown stand for the real ones."""
    body = await form(request, Edited)
    return await _decide(
        request, services, caller, space(namespace), name, "edit", body.reason, body.arguments, digest=body.digest
    )


@router.post("/v1/tool-approvals/grants")
async def grant(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Approve calls in advance."""
    given, where = await form(request, Grant), space(namespace)
    act = _act(services, caller, request, "granted", where, name := new_grant_name())
    document = await services.runtime.inside.approvals.grant(
        by=caller.name,
        tool=given.tool,
        seconds=given.seconds,
        namespace=where,
        name=name,
        brings=services.client.brings,
        in_transaction=act.record,
        **msgspec.structs.asdict(given.scope),
    )
    act.tell()
    return resource(document, 201)


@router.post("/v1/tool-approvals/{name}/revoke")
async def revoke(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """End a standing grant."""
    await form(request, Revoked)
    where = space(namespace)
    act = _act(services, caller, request, "revoked", where, name)
    approvals = services.runtime.inside.approvals
    document = await approvals.revoke(name, by=caller.name, namespace=where, in_transaction=act.record)
    act.tell()
    return resource(document)


async def _decide(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: str,
    name: str,
    decision: Decision,
    reason: str,
    arguments: dict[str, Any] | None = None,
    *,
    digest: str = "",
) -> Response:
    act = _act(services, caller, request, "decided", namespace, name)
    decided = await services.runtime.inside.approvals.decide(
        name,
        decision,
        by=caller.name,
        namespace=namespace,
        comment=reason,
        arguments=arguments,
        digest=digest,
        in_transaction=act.record,
    )
    act.tell()
    if decided.signal is not None:
        await services.drives.wake(decided.run_id, decided.signal)
    return resource(await services.runtime.inside.approvals.get(name, namespace=namespace))


def _act(services: Services, caller: Caller, request: Request, verb: Act, namespace: str, name: str) -> ActRecord:
    id = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "ToolApproval", namespace, name, request=id)
