"""Runs: one agent at work. Their journal, their trace, and what people say to them."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from foliot.engine.explain.trace import trace_of
from foliot.errors import NotFound
from foliot.kernel.run.events import InputMode
from foliot.server.audit import ActRecord
from foliot.server.auth.guard import HIDDEN, ROLE, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import CallerDep, Services, ServicesDep
from foliot.server.errors import BadParameter
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Limit, Namespace, last_event
from foliot.server.http.parameters import Query
from foliot.server.http.request_keys import id_by_key
from foliot.server.http.responses import Json
from foliot.server.routes.tasks import Reason
from foliot.server.streams.runs import event_data, run_frames
from foliot.store.journal.base import Phase, RunInfo
from foliot.store.journal.database import ALL_PHASES
from foliot.tools.builtin.results import RESULT_PAGE, result_page, results_of

router = new_router("runs")

Before = Annotated[str | None, Query(description="`continue` of the page before.")]
Seq = Annotated[int, Query(ge=0, lt=2**53, description="Only events behind this number.")]

Offset = Annotated[int, Query(ge=0, lt=2**53, description="Where to begin, in bytes.")]
Bytes = Annotated[int, Query(ge=1, le=RESULT_PAGE, description="How many bytes at most.")]


class Said(Struct, forbid_unknown_fields=True):
    message: str
    mode: InputMode = "steer"


class Answered(Struct, forbid_unknown_fields=True):
    text: str
    call_id: str | None = None


@router.get("/v1/runs")
async def list_runs(
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    agent: Annotated[str | None, Query(description="Only runs of this agent.")] = None,
    phase: Annotated[str | None, Query(description="Only these phases, with commas between.")] = None,
    limit: Limit = 50,
    after: Before = None,
) -> Response:
    """Runs, newest first."""
    phases = tuple(word.strip() for word in (phase or "").split(",") if word.strip())
    if wrong := [word for word in phases if word not in ALL_PHASES]:
        raise BadParameter(f"there is no run phase {wrong[0]!r}", hint=f"the phases are {', '.join(ALL_PHASES)}")
    if after and not await _is_seen(services, caller, after):
        return Json({"items": []})  # as behind a run that there is not, or the place of another's run would be told
    count = limit
    spaces = [namespace] if namespace else caller.namespaces
    found: list[RunInfo] = []
    for space in [None] if spaces is None else [each for each in spaces if caller.sees(each)]:
        found += await services.runtime.inside.runs.journal.list(
            namespace=space, agent=agent, phases=cast("tuple[Phase, ...]", phases), limit=count + 1, before=after
        )
    found.sort(key=lambda info: info.id, reverse=True)  # ids begin with the time
    answer: dict[str, Any] = {"items": [_shown(info) for info in found[:count]]}
    if len(found) > count:
        answer["continue"] = found[count - 1].id
    return Json(answer)


@router.get("/v1/runs/{run_id}")
async def get_run(run_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """One run: its phase, who drives it, what it took so far."""
    return Json(_shown(await _seen(services, caller, "reader", run_id)))


@router.get("/v1/runs/{run_id}/journal")
async def journal(
    run_id: str, services: ServicesDep, caller: CallerDep, after: Seq = 0, limit: Limit = 500
) -> Response:
    """The events of a run, oldest first. Ask again behind the last `seq`."""
    await _seen(services, caller, "reader", run_id)
    entries = await services.runtime.inside.runs.journal.read(run_id, after=after, limit=limit)
    return Json({"run": run_id, "events": [event_data(run_id, entry) for entry in entries]})


@router.get("/v1/runs/{run_id}/events")
async def follow(run_id: str, request: Request, services: ServicesDep, caller: CallerDep, after: Seq = 0) -> Response:
    """The events of a run as they come, as server-sent events, until it ends (event `end`).

    The id is the `seq`. Pieces of answers (`delta`) and of output (`output`) have none: they are for show.
    """
    await _seen(services, caller, "reader", run_id)
    position = last_event(request, str(after)) or "0"
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise BadParameter(f"{position[:40]!r} is no event", hint="the id of an event is its number")
    return services.streams.respond(caller, run_frames(services, run_id, int(position)))


@router.get("/v1/runs/{run_id}/trace")
async def trace(run_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """A run step by step: what the model answered, what each call did, what it took."""
    info = await _seen(services, caller, "reader", run_id)
    found = trace_of(run_id, await services.runtime.inside.runs.facts(run_id))
    return Json({"run": run_id, "phase": info.phase, "trace": msgspec.to_builtins(found)})


@router.get("/v1/runs/{run_id}/results")
async def results(run_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """The results of the calls of a run: of which tool, how large, and whether the model saw only a part."""
    await _seen(services, caller, "reader", run_id)
    found = await results_of(services.runtime.inside.runs.journal, run_id)
    return Json({"run": run_id, "items": msgspec.to_builtins(found)})


@router.get("/v1/runs/{run_id}/results/{call_id:path}")
async def result(
    run_id: str, call_id: str, services: ServicesDep, caller: CallerDep, offset: Offset = 0, limit: Bytes = 65_536
) -> Response:
    """Show the result of a call, page by page, also what was cut before the model saw it. Ask again from `next`."""
    await _seen(services, caller, "reader", run_id)
    return Json(await result_page(services.runtime.inside.runs.journal, run_id, call_id, offset=offset, most=limit))


@router.post("/v1/runs/{run_id}/cancel")
async def cancel(run_id: str, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """End a run wherever it is driven."""
    body = await form(request, Reason)
    act = _act(services, caller, request, "run_cancelled", await _seen(services, caller, request.scope[ROLE], run_id))
    info = await services.runtime.inside.cancel(run_id, by=caller.name, reason=body.reason, also=act.record)
    act.tell()
    return Json(_shown(info))


@router.post("/v1/runs/{run_id}/input")
async def say(run_id: str, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Say something to a live run; it is heard at the next boundary between steps."""
    body = await form(request, Said)
    act = _act(services, caller, request, "run_told", await _seen(services, caller, request.scope[ROLE], run_id))
    info = await services.runtime.inside.say(
        run_id,
        body.message,
        mode=body.mode,
        by=caller.name,
        input_id=id_by_key(request.scope),
        also=act.record,
    )
    act.tell()
    return Json(_shown(info), 202)


@router.post("/v1/runs/{run_id}/answer")
async def answer(run_id: str, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Answer what a run asks."""
    body = await form(request, Answered)
    act = _act(services, caller, request, "run_answered", await _seen(services, caller, request.scope[ROLE], run_id))
    info = await services.runtime.inside.answer_question(
        run_id, body.call_id, body.text, by=caller.name, also=act.record
    )
    act.tell()
    return Json(_shown(info), 202)


async def _seen(services: Services, caller: Caller, role: Any, run_id: str) -> RunInfo:
    """The run, if the caller may do this with it. One that is hidden is missing."""
    try:
        info = await services.runtime.inside.runs.journal.get(run_id)
    except NotFound:
        raise NotFound(HIDDEN) from None
    caller.require(role, info.namespace, missing=HIDDEN)
    return info


async def _is_seen(services: Services, caller: Caller, run_id: str) -> bool:
    try:
        return caller.sees((await services.runtime.inside.runs.journal.get(run_id)).namespace)
    except NotFound:
        return False


def _act(services: Services, caller: Caller, request: Request, verb: str, info: RunInfo) -> ActRecord:
    id = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "Run", info.namespace, info.id, request=id, run_id=info.id)


def _shown(info: RunInfo) -> dict[str, Any]:
    shown = cast("dict[str, Any]", msgspec.to_builtins(info))
    for internal in ("key", "epoch"):
        del shown[internal]
    return shown
