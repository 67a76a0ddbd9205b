"""Runs, approvals and questions as Foliot's own client asks for them; see work_tasks.py."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.client import wire
from foliot.engine.approval.grants import new_grant_name
from foliot.engine.approval.service import Decision
from foliot.engine.driver.ids import check_chosen_id
from foliot.errors import Denied, FoliotError, InvalidInput, NotFound
from foliot.kernel.messages import Message
from foliot.resources.references import is_name
from foliot.runtime.answers import Answered, ForkOrder, RunOrder
from foliot.runtime.local.work import LOOKED_AT, NEAR, several
from foliot.server.audit import ActRecord, record
from foliot.server.auth.guard import ROLE, new_router
from foliot.server.auth.identity import EVERYWHERE, HIDDEN, Caller
from foliot.server.context import CallerDep, Services, ServicesDep
from foliot.server.http.bodies import form, form_in
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import MOST, Limit, Name, Namespace, space
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.server.routes.work_tasks import Act, spaces, who
from foliot.store.journal.base import Phase, RunInfo
from foliot.store.ledger.doubts import Doubt, page_of, position_of

router = new_router("work")

RUN_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


class Verdict(msgspec.Struct, frozen=True):
    """A decision about a parked call."""

    decision: Decision
    by: str = ""
    comment: str = ""
    arguments: dict[str, Any] | None = None
    digest: str = ""


class Grant(msgspec.Struct, frozen=True):
    """Consent in advance; `scope` is as in `ApprovalService.grant`."""

    tool: str
    seconds: float
    by: str = ""
    scope: Scope = msgspec.field(default_factory=lambda: Scope())


class Scope(msgspec.Struct, frozen=True):
    agent: str = ""
    when: str = ""
    max_uses: int | None = None
    comment: str = ""


class Reply(msgspec.Struct, frozen=True):
    """The answer to a question of a run; `call` when it asks several."""

    text: str
    call: str | None = None
    by: str = ""


class Settled(msgspec.Struct, frozen=True):
    """A decision about a call that may have acted. `result` goes with `happened`.

    `run` and `fail` are for a run that waits, `not_happened` for one that has ended.
    """

    call: str
    decision: Literal["happened", "run", "fail", "not_happened"]
    result: str | None = None
    by: str = ""
    reason: str = ""


# --- runs --------------------------------------------------------------------------------------------------------


@router.get("/v1/work/runs")
async def list_runs(
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    agent: str | None = None,
    phases: Annotated[str | None, Query(description="Separated by commas.")] = None,
    limit: Limit = 50,
) -> Response:
    """Runs, newest first."""
    wanted = tuple(filter(None, (phases or "").split(",")))
    if unknown := sorted(set(wanted) - set(RUN_PHASES)):
        raise InvalidInput(f"there is no phase {unknown[0]!r}", hint=f"the phases are {', '.join(RUN_PHASES)}")
    work = services.runtime
    count = min(limit, MOST)
    found: list[RunInfo] = []
    for each in spaces(caller, namespace):
        known = cast("tuple[Phase, ...]", wanted)
        found += await work.runs.list(namespace=each, agent=agent, phases=known, limit=count)
    return Json(sorted(found, key=lambda info: info.key, reverse=True)[:count])


@router.post("/v1/runs")
async def begin(request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None) -> Response:
    """Have an agent do something, driven here. The id is chosen by whoever asks, so that asking again finds the run."""
    order = await form_in(request, RunOrder, space(namespace))
    check_chosen_id(order.run_id)
    if not is_name(order.agent):
        raise InvalidInput(f"{order.agent[:80]!r} does not name an agent", hint="give its name without the namespace")
    if not order.messages and not order.input.strip():
        raise InvalidInput("the input is empty: there is nothing to do")
    identity = caller.identity(order.namespace, "http", user=order.user)
    done = _act(services, caller, request, "begun", "Run", order.namespace, order.run_id)
    info = await services.drives.start(
        order.agent,
        _messages(order.messages) or order.input,
        run_id=order.run_id,
        namespace=order.namespace,
        labels=order.labels,
        identity=identity,
        history=_messages(order.history),
        also=done.record,
    )
    done.tell()
    return Json(info)


@router.get("/v1/interrupted-runs")
async def interrupted(services: ServicesDep, caller: CallerDep, namespace: Namespace = None) -> Response:
    """Runs outside of tasks that could go on and that nobody drives, oldest first."""
    work = services.runtime
    found = [info for where in spaces(caller, namespace) for info in await work.runs.interrupted(namespace=where)]
    return Json({"runs": sorted(found, key=lambda info: info.created_at)})


@router.get("/v1/unknown-calls")
async def unknown(
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    ended: Annotated[bool, Query(description="Only of runs that have ended.")] = False,
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=8000, description="`cursor` of the page before.")] = None,
) -> Response:
    """Calls that may have acted and that nobody has settled, oldest first, each effect once."""
    calls, count, behind = services.runtime.inside.unknown_calls, min(limit, MOST), position_of(after)
    found: list[Doubt] = []
    total = 0
    for where in spaces(caller, namespace):
        found += await calls.open(where, ended=ended, limit=count + 1, after=behind)
        total += await calls.count(where, ended=ended)
    return Json(page_of(found, count, total))


@router.get("/v1/runs/{run_id}/standing")
async def standing(
    run_id: Name,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    messages: Annotated[bool, Query(description="With the messages of the run.")] = False,
) -> Response:
    """How a run stands, and what it has done so far."""
    info = await _run(services, caller, request, run_id)
    return Json(await services.runtime.runs.standing(info.id, messages=messages))


@router.get("/v1/runs/{run_id}/replay")
async def replay(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Decide a whole run again from its journal, and compare byte for byte. Nothing is asked or called."""
    info = await _run(services, caller, request, run_id)
    return Json(await services.runtime.runs.replay(info.id))


@router.post("/v1/runs/{run_id}/fork")
async def fork(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Run again from a step on, with something changed, beside the original; driven here."""
    info = await _run(services, caller, request, run_id)
    order = await form(request, ForkOrder)
    check_chosen_id(order.new_id)
    identity = caller.identity(info.namespace, "http", user=order.user)
    if order.at < 1:
        raise InvalidInput(f"there is no step {order.at}")
    if order.prompt is not None or order.model is not None:
        # What an agent is told and whom it asks is declared by authors; `provider:model` spends the server's own key.
        caller.require("author", info.namespace, missing=HIDDEN)
        if order.model is not None and ":" in order.model and not caller.may("admin", EVERYWHERE):
            raise Denied(
                "a model named as provider:model is asked with the key of this server",
                hint="name a ModelEndpoint, or ask the operator of this installation (admin of all namespaces)",
            )
    done = _act(services, caller, request, "forked", "Run", info.namespace, order.new_id)
    forked = await services.drives.fork(
        info,
        at=order.at,
        new_id=order.new_id,
        identity=identity,
        prompt=order.prompt,
        model=order.model,
        input=order.input,
        also=done.record,
    )
    done.tell()
    return Json(forked)


@router.post("/v1/runs/{run_id}/resume")
async def resume(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Have a run go on that nobody drives; it goes on here."""
    info = await _run(services, caller, request, run_id)
    after = await services.drives.resume(info)
    await _record(services, caller, request, "resumed", "Run", info.namespace, info.id)
    return Json(after)


@router.post("/v1/runs/{run_id}/settle")
async def settle(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Say what became of a call that may have acted; the run goes on here, or where the runs of its task are done.

    A run that has ended stays as it is: what is said is kept for the same call of the same task or family of runs.
    """
    info = await _run(services, caller, request, run_id)
    said = await form(request, Settled)
    if said.result is not None and said.decision != "happened":
        raise InvalidInput("a result goes with a call that happened")
    done = _act(services, caller, request, "settled", "Run", info.namespace, info.id)
    await services.runtime.runs.leave_settled(
        info.id,
        said.call,
        said.decision,
        result=said.result,
        by=who(caller, said.by),
        reason=said.reason,
        also=done.record,
    )
    done.tell()
    with contextlib.suppress(FoliotError):  # decided is decided: who resumes the run hears what keeps it
        info = await services.drives.resume(await services.runtime.inside.runs.journal.get(info.id))
    return Json(info)


@router.get("/v1/work/runs/{name}")
async def get_run(name: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The run of this id, or the only one that begins so."""
    return Json(await _run(services, caller, request, name))


@router.get("/v1/runs/{run_id}/facts")
async def facts(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Returns the events of a run as they are stored."""
    info = await _run(services, caller, request, run_id)
    return Json(wire.facts_to_wire(await services.runtime.inside.runs.facts(info.id)))


@router.get("/v1/runs/{run_id}/why")
async def why(run_id: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Why a run waits, failed, or cost what it cost."""
    info = await _run(services, caller, request, run_id)
    return Json(await services.runtime.runs.why(info.id))


@router.post("/v1/work/runs/{name}/cancel")
async def cancel_run(name: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Ask a run to end, wherever it is driven."""
    info = await _run(services, caller, request, name)
    act = await form(request, Act)
    done = _act(services, caller, request, "cancelled", "Run", info.namespace, info.id)
    by = who(caller, act.by)
    after = await services.runtime.inside.cancel(info.id, by=by, reason=act.reason, also=done.record)
    done.tell()
    return Json(after)


@router.post("/v1/work/runs/{name}/answer")
async def answer(name: Name, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Answer what a run asks; it goes on here, or where the runs of its task are done."""
    info = await _run(services, caller, request, name)
    reply = await form(request, Reply)
    done = _act(services, caller, request, "answered", "Run", info.namespace, info.id)
    questions, by = services.runtime.inside.questions, who(caller, reply.by)
    await questions.answer(info.id, reply.call, reply.text, by=by, also=done.record)
    done.tell()
    await _go_on(services, info.id)
    return Json(await services.runtime.inside.runs.journal.get(info.id))


# --- approvals ---------------------------------------------------------------------------------------------------


@router.get("/v1/work/approvals")
async def list_approvals(
    services: ServicesDep, caller: CallerDep, namespace: Namespace = None, run: str | None = None
) -> Response:
    """Approvals and standing grants."""
    work = services.runtime
    found = [
        each for where in spaces(caller, namespace) for each in await work.approvals.list(namespace=where, run=run)
    ]
    return Json(found)


@router.get("/v1/work/approvals/{name}")
async def get_approval(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """One approval by its name, or the beginning of it."""
    return Json(await services.runtime.approvals.get(name, namespace=space(namespace)))


@router.post("/v1/work/approvals/{name}/decide")
async def decide(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Approve, deny, or edit a parked call; its run goes on here, or where the runs of its task are done."""
    verdict, where = await form(request, Verdict), space(namespace)
    done = _act(services, caller, request, "decided", "ToolApproval", where, name)
    decided = await services.runtime.inside.approvals.decide(
        name,
        verdict.decision,
        by=who(caller, verdict.by),
        namespace=where,
        comment=verdict.comment,
        arguments=verdict.arguments,
        digest=verdict.digest,
        also=done.record,
    )
    done.tell()
    if decided.signal is not None:
        await _go_on(services, decided.run_id)
    return Json(Answered(decided.document, decided.run_id))


@router.post("/v1/tool-approvals/grants")
async def grant(request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None) -> Response:
    """Approve calls in advance."""
    given, where = await form(request, Grant), space(namespace)
    done = _act(services, caller, request, "granted", "ToolApproval", where, name := new_grant_name())
    document = await services.runtime.inside.approvals.grant(
        by=who(caller, given.by),
        tool=given.tool,
        seconds=given.seconds,
        namespace=where,
        name=name,
        also=done.record,
        **msgspec.structs.asdict(given.scope),
    )
    done.tell()
    return Json(document, 201)


@router.post("/v1/tool-approvals/{name}/revoke")
async def revoke(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """End a standing grant."""
    act, where = await form(request, Act), space(namespace)
    done = _act(services, caller, request, "revoked", "ToolApproval", where, name)
    approvals = services.runtime.inside.approvals
    document = await approvals.revoke(name, by=who(caller, act.by), namespace=where, also=done.record)
    done.tell()
    return Json(document)


@router.get("/v1/questions")
async def questions(services: ServicesDep, caller: CallerDep, namespace: Namespace = None) -> Response:
    """Lists the questions of runs to people, the oldest question first."""
    work = services.runtime
    found = [each for where in spaces(caller, namespace) for each in await work.questions.list(namespace=where)]
    return Json(sorted(found, key=lambda each: each.since))


# --- how it is done ----------------------------------------------------------------------------------------------


async def _run(services: Services, caller: Caller, request: Request, word: str) -> RunInfo:
    """The run that is meant, among those that the caller can see. Raises `NotFound`, `Conflict`, `Denied`."""
    missing = f"there is no run {word!r}"
    info = await _found(services, caller, word)
    if info is None:
        raise NotFound(missing, hint="`foliot runs` lists them")
    caller.require(request.scope[ROLE], info.namespace, missing=missing)
    return info


async def _found(services: Services, caller: Caller, word: str) -> RunInfo | None:
    journal = services.runtime.inside.runs.journal
    try:
        if caller.namespaces is None:
            return await services.runtime.runs.find(word)
        exact = await journal.get(word)
        return exact if caller.sees(exact.namespace) else None
    except NotFound:
        if caller.namespaces is None:
            return None
    # Only among what they can see, or the beginning of an id would tell of the runs of others.
    alike = [
        info
        for where in caller.namespaces
        for info in await journal.list(namespace=where, limit=LOOKED_AT)
        if info.id.startswith(word)
    ]
    if len(alike) > 1:
        raise several(word, alike[:NEAR])
    return alike[0] if alike else None


def _messages(sent: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    try:
        return msgspec.convert(sent, tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the messages cannot be read: {error}") from None


async def _go_on(services: Services, run_id: str) -> None:
    """Have the run go on: by the workers of its task, else by this process. Whoever drives it already hears of it."""
    with contextlib.suppress(FoliotError):  # told is told: who resumes the run hears what keeps it
        await services.drives.wake(run_id)


def _act(
    services: Services, caller: Caller, request: Request, verb: str, kind: str, namespace: str, name: str
) -> ActRecord:
    return ActRecord(services.runtime, caller, verb, kind, namespace, name, request=request.scope[REQUEST_ID])


async def _record(
    services: Services, caller: Caller, request: Request, verb: str, kind: str, namespace: str, name: str
) -> None:
    await record(services.runtime, caller, verb, kind, namespace, name, request=request.scope[REQUEST_ID])
