"""The records of what was decided and done. Everybody reads those of the namespaces that they can see."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.suggestions import check_word
from foliot.engine.audit.metering import By
from foliot.engine.audit.words import check_filter
from foliot.errors import InvalidInput, NotFound
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.local.operations import audit_page
from foliot.server.auth.guard import HIDDEN, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.names import MOMENT, Limit, parameters
from foliot.server.http.parameters import Fields, Path, Query
from foliot.server.http.responses import Json
from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import AuditFilter, AuditRecord

router = new_router("audit")

WAYS: Final = get_args(By)
LARGEST: Final = 2**62
Number = Annotated[int, Path(ge=-LARGEST, lt=LARGEST, description="The number of the record.")]
Wanted = Annotated[
    AuditFilter, Fields({str: Query(max_length=253), float: Query(ge=0, moment=True, description=MOMENT)})
]
Before = Annotated[int | None, Query(ge=1, lt=LARGEST, description="The last number of the page before.")]


class Anchor(msgspec.Struct, frozen=True):
    """A head that was noted before, as `number:hash`; the log must contain it."""

    head: str | None = None


@router.get("/v1/audit")
async def list_records(
    request: Request, services: Services, caller: Caller, wanted: Wanted, limit: Limit = 50, before: Before = None
) -> Response:
    """Records, newest first. `continue` is `before` of the next page; it is missing on the last one."""
    with parameters():
        check_filter(wanted)
    found: list[AuditRecord] = []
    # Records of an outcome or a moment are looked for among all that the other filters leave.
    searched = wanted != AuditFilter(namespace=wanted.namespace, run_id=wanted.run_id, tool=wanted.tool)
    async with services.list_reads.within_bounds(caller, request.scope, searched=searched):
        for where in _spaces(caller, wanted.namespace):
            found += await _operations(services).audit.list(
                replace(wanted, namespace=where), limit=limit + 1, before=before
            )
    found.sort(key=lambda record: -record.seq)
    answer: dict[str, Any] = {"records": found[:limit]}
    if len(found) > limit:
        answer["continue"] = str(found[limit - 1].seq)
    return Json(answer)


@router.get("/v1/audit/totals")
async def totals(
    services: Services,
    caller: Caller,
    wanted: Wanted,
    by: Annotated[str, Query(values=(*WAYS,))] = "tool",
) -> Response:
    """Adds up calls by tool, agent, day or run."""
    check_word("by", by, WAYS)  # also where the caller sees no namespace
    with parameters():
        check_filter(wanted)
    spaces = _spaces(caller, wanted.namespace)
    if len(spaces) > 1:
        raise InvalidInput("in which namespace?", hint="name one of those that you can see")
    found: list[Any] = []
    for where in spaces:
        found = await _operations(services).audit.totals(replace(wanted, namespace=where), by=cast("By", by))
    return Json({"totals": found})


@router.get("/v1/audit/export")
async def export(
    services: Services, after: Annotated[int, Query(ge=0, lt=LARGEST)] = 0, limit: Limit = 500
) -> Response:
    """All records behind a number, oldest first. Ask again behind the last one, until there are none."""
    return Json({"records": await audit_page(services.runtime.inside.database, after, limit=limit)})


@router.post("/v1/audit/verify")
async def verify(request: Request, services: Services) -> Response:
    """Walk through the whole log, and say where it was changed, if it was."""
    anchor = await form(request, Anchor)
    return Json(await _operations(services).audit.verify(None if anchor.head is None else head_of(anchor.head)))


@router.get("/v1/audit/{number}")
async def get_record(number: Number, services: Services, caller: Caller) -> Response:
    """One record."""
    try:
        record = await _operations(services).audit.get(number)
    except NotFound:
        if caller.namespaces is None:
            raise
        raise NotFound(HIDDEN) from None  # or numbers would tell how much others do
    caller.require("reader", str(record.body.get("namespace") or "*"), missing=HIDDEN)
    return Json(record)


def head_of(text: str) -> ChainHead:
    """Raises `InvalidInput`."""
    number, _, digest = text.partition(":")
    if not number.isascii() or not number.isdecimal() or len(number) > 18 or len(digest) != 64:
        raise InvalidInput(f"{text[:100]!r} is not a head", hint="a number, a colon, a hash of 64 digits")
    return ChainHead(int(number), digest.lower())


def _operations(services: Services) -> LocalGroups:
    return services.runtime


def _spaces(caller: Caller, namespace: str) -> list[str]:
    """Returns the namespaces to look in; empty text is everywhere."""
    chosen = namespace.strip()
    if chosen:
        return [chosen] if caller.sees(chosen) else []
    return [""] if caller.namespaces is None else [*caller.namespaces]
