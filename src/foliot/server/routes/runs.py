"""Runs: one agent at work. They are started, looked into, steered, forked and resumed here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.cursors import foreign_cursor, read_key, write_cursor
from foliot.common.suggestions import read_phases
from foliot.common.threads import unhurried
from foliot.engine.audit.words import Act
from foliot.engine.driver.ids import check_chosen_id
from foliot.engine.driver.journal import FACT, summary_of
from foliot.engine.explain.trace import trace_of
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import Message
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.runtime.answers import ForkOrder, RunContent, RunOrder
from foliot.runtime.groups.work import Settled as SettlingWord
from foliot.runtime.local.work import NEAR, as_it_stands, interrupted_runs, leave_settled, several
from foliot.server.audit import ActRecord, record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.auth.overrides import check_override
from foliot.server.auth.run_access import check_ends, check_files, may_read, private_to, readable
from foliot.server.context import ROLE, Services
from foliot.server.errors import BadParameter
from foliot.server.http.bodies import form, form_in
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import MOST, Continue, Limit, Namespace, clamped, last_event, parameters
from foliot.server.http.parameters import Path, Query
from foliot.server.http.request_keys import id_by_key
from foliot.server.http.responses import Json
from foliot.server.routes.tasks import Reason
from foliot.server.streams.runs import event_data, run_frames
from foliot.store.journal.base import ALL_PHASES, RunFilter, RunInfo
from foliot.store.ledger.doubts import Doubt, page_of, position_of
from foliot.tools.builtin.results import RESULT_PAGE, result_page, results_of
from foliot.work.views.run_document import run_document

router = new_router("runs")
_LISTED: Final = "`foliot runs` lists them; over HTTP: GET /v1/runs"

ContentDigest = Annotated[
    str, Path(pattern="^sha256:[0-9a-f]{64}$", description="The digest, such as that of a snapshot in the journal.")
]
RunId = Annotated[str, Path(min_length=1, max_length=253, description="The id of the run.")]
Alike = Annotated[bool, Query(description="Also the only one whose id begins so.")]
Before = Annotated[str | None, Query(description="`continue` of the page before, or the id of its last run.")]
Step = Annotated[int, Query(ge=0, lt=2**53, description="The first step that would be new.")]
Seq = Annotated[int, Query(ge=0, lt=2**53, description="Only events behind this number.")]

Offset = Annotated[int, Query(ge=0, lt=2**53, description="Where to begin, in bytes.")]
# A list of more namespaces than these is one that looks at much.
FEW_SPACES: Final = 20
Bytes = Annotated[int, Query(ge=1, le=RESULT_PAGE, description="How many bytes at most.")]


class Said(Struct, forbid_unknown_fields=True):
    """An input to a run. The same `key` twice is one input; without one it is that of the request."""

    message: str
    mode: str = "steer"
    key: Annotated[str, Meta(min_length=1, max_length=253)] | None = None


class Answered(Struct, forbid_unknown_fields=True):
    text: str
    call_id: str | None = None


class Settled(msgspec.Struct, frozen=True):
    """A decision about a call that may have acted. `result` goes with `happened`.

    `run` and `fail` are for a run that waits, `not_happened` for one that has ended. `attempt` is the number of the
    attempt that is meant; it has to be named once a decision had the call made again.
    """

    call: str
    decision: SettlingWord
    result: str | None = None
    by: str = ""
    reason: str = ""
    attempt: Annotated[int, msgspec.Meta(ge=0)] | None = None


@router.get("/v1/runs")
async def list_runs(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    agent: Annotated[str | None, Query(description="Only runs of this agent.")] = None,
    phase: Annotated[str | None, Query(description="Only these phases, with commas between.")] = None,
    limit: Limit = 50,
    after: Before = None,
    continued: Continue = None,
) -> Response:
    """Runs, newest first."""
    with parameters():
        phases = read_phases(phase or "", ALL_PHASES)
        place = continued or after
        before = await _place(services, caller, place) if place else None
    journal = services.runtime.inside.runs.journal
    spaces = caller.spaces(namespace)
    # Whoever does not see all runs has those of others passed over, one by one.
    searched = len(spaces) > FEW_SPACES or any(private_to(caller, each) is not None for each in spaces)
    async with services.list_reads.within_bounds(caller, request.scope, searched=searched):
        keys: list[int] = []
        for each in spaces:
            wanted = RunFilter(each, agent, phases, private_to(caller, each))
            keys += await journal.keys(wanted, limit=limit + 1, before=before)
            keys = sorted(keys, reverse=True)[: limit + 1]
        found = await journal.of_keys(keys[:limit])
    cursor = write_cursor(keys[limit - 1], kind="run") if len(keys) > limit else None
    return Json(await services.cursors.page(_documents([await _current(services, info) for info in found]), cursor))


@router.post("/v1/runs")
async def begin(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Have an agent do something, driven here. The id is chosen by whoever asks, so that asking again finds the run."""
    order = await form_in(request, RunOrder, namespace)
    check_chosen_id(order.run_id)
    identity = caller.identity(order.namespace, "http", user=order.user)
    options = order.options
    check_override(caller, order.namespace, model=options.model, prompt=options.system or None)
    done = _act(services, caller, request, "run_started", order.namespace, order.run_id)
    info = await services.drives.start(
        order.agent,
        _messages(order.messages) or order.input or (() if order.history else ""),
        run_id=order.run_id,
        namespace=order.namespace,
        labels=order.labels,
        identity=identity,
        history=_messages(order.history),
        after=order.after,
        options=options,
        in_transaction=done.record,
    )
    done.tell()
    return _answer(info)


@router.get("/v1/interrupted-runs")
async def interrupted(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    limit: Limit = MOST,
    after: Continue = None,
) -> Response:
    """Runs outside of tasks that could go on and that nobody drives, oldest first."""
    spaces = _named(caller, namespace)
    if spaces is None:
        return Json({"items": []})
    with parameters():
        cursor = await services.cursors.open(after)
        page = await interrupted_runs(services.runtime.inside, spaces, cursor=cursor, limit=limit)
    shown = [info for info in page.items if may_read(caller, info)]
    return Json(await services.cursors.page(_documents(shown), page.cursor))


@router.get("/v1/unknown-calls")
async def unknown(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    ended: Annotated[bool, Query(description="Only of runs that have ended.")] = False,
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=8000, description="`cursor` of the page before.")] = None,
) -> Response:
    """Calls that may have acted and that nobody has settled, oldest first, each effect once."""
    with parameters():
        behind = position_of(await services.cursors.open(after))
    calls, count = services.runtime.inside.unknown_calls, min(limit, MOST)
    found: list[Doubt] = []
    total = 0
    for where in caller.spaces(namespace):
        found += await calls.open(where, ended=ended, limit=count + 1, after=behind)
        total += await calls.count(where, ended=ended)
    page = page_of(found, count, total)
    seen = await readable(caller, services.runtime.inside.runs.journal, [each.run_id for each in page.calls])
    shown = [each for each in page.calls if each.run_id in seen]
    return Json(msgspec.structs.replace(page, calls=shown, cursor=await services.cursors.seal(page.cursor)))


@router.get("/v1/questions")
async def questions(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    run: Annotated[str | None, Query(max_length=253, description="Only those of this run.")] = None,
    limit: Annotated[int, Query(change=clamped, description="How many runs at most, each with all it asks.")] = MOST,
    after: Continue = None,
) -> Response:
    """Lists the questions of runs to people, the oldest run first."""
    asked = services.runtime.inside.questions
    spaces = _named(caller, namespace)
    if run is not None:
        info = await _seen(services, caller, "reader", run)
        shown = spaces is not None and (not spaces or info.namespace in spaces)
        return Json({"items": await asked.open(run=run) if shown else []})
    if spaces is None:
        return Json({"items": []})
    with parameters():
        page = await asked.page(spaces, cursor=await services.cursors.open(after), limit=limit)
    seen = await readable(caller, services.runtime.inside.runs.journal, [each.run_id for each in page.items])
    return Json(await services.cursors.page([each for each in page.items if each.run_id in seen], page.cursor))


@router.get("/v1/runs/{run_id}")
async def get_run(run_id: RunId, services: Services, caller: Caller, alike: Alike = False) -> Response:
    """One run: its phase, who drives it, what it took so far."""
    if not alike:
        return _answer(await _seen(services, caller, "reader", run_id))
    found = await _found(services, caller, run_id)
    if found is None:
        raise _missing(run_id)
    return _answer(found)


@router.get("/v1/runs/{run_id}/journal")
async def journal(run_id: RunId, services: Services, caller: Caller, after: Seq = 0, limit: Limit = 500) -> Response:
    """The events of a run, oldest first. Ask again behind the last `seq`."""
    await _seen(services, caller, "reader", run_id)
    entries = await services.runtime.inside.runs.journal.read(run_id, after=after, limit=limit)
    return Json({"run": run_id, "events": [event_data(run_id, entry) for entry in entries]})


@router.get("/v1/runs/{run_id}/events")
async def follow(run_id: RunId, request: Request, services: Services, caller: Caller, after: Seq = 0) -> Response:
    """The events of a run as they come, as server-sent events, until it ends (event `end`).

    The id is the `seq`. Pieces of answers (`delta`) and of output (`output`) have none: they are for show.
    """
    await _seen(services, caller, "reader", run_id)
    position = last_event(request, str(after)) or "0"
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise BadParameter(f"{position[:40]!r} is no event", hint="the id of an event is its number")
    return services.streams.respond(caller, run_frames(services, run_id, int(position)))


@router.get("/v1/runs/{run_id}/trace")
async def trace(run_id: RunId, services: Services, caller: Caller) -> Response:
    """A run step by step: what the model answered, what each call did, what it took."""
    info = await _seen(services, caller, "reader", run_id)
    facts = await services.runtime.inside.runs.facts(run_id)

    def told() -> Json:
        return Json({"run": run_id, "phase": info.phase, "trace": trace_of(run_id, facts)})

    return await unhurried(FACT * len(facts), told)


@router.get("/v1/runs/{run_id}/results")
async def results(run_id: RunId, services: Services, caller: Caller) -> Response:
    """The results of the calls of a run: of which tool, how large, and whether the model saw only a part."""
    await _seen(services, caller, "reader", run_id)
    found = await results_of(services.runtime.inside.runs.journal, run_id)
    return Json({"run": run_id, "items": msgspec.to_builtins(found)})


@router.get("/v1/runs/{run_id}/results/{call_id:path}")
async def result(
    run_id: RunId, call_id: str, services: Services, caller: Caller, offset: Offset = 0, limit: Bytes = 65_536
) -> Response:
    """Show the result of a call, page by page, also what was cut before the model saw it. Ask again from `next`."""
    await _seen(services, caller, "reader", run_id)
    return Json(await result_page(services.runtime.inside.runs.journal, run_id, call_id, offset=offset, most=limit))


@router.get("/v1/runs/{run_id}/content/{digest}")
async def content(run_id: RunId, digest: ContentDigest, services: Services, caller: Caller) -> Response:
    """Show content that the run keeps: a folder or a file of a snapshot of its workspace, by its digest."""
    check_files(caller, await _seen(services, caller, "reader", run_id))
    data = await services.runtime.inside.runs.journal.get_blob(digest, run_id=run_id)
    return Json(RunContent(digest, data))


@router.post("/v1/runs/{run_id}/cancel")
async def cancel(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """End a run wherever it is driven."""
    body = await form(request, Reason)
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    check_ends(caller, info)
    act = _act(services, caller, request, "run_cancelled", info.namespace, run_id)
    info = await services.runtime.inside.cancel(run_id, by=caller.name, reason=body.reason, in_transaction=act.record)
    act.tell()
    return _answer(info)


@router.post("/v1/runs/{run_id}/say")
@router.post("/v1/runs/{run_id}/input")  # for older clients
async def say(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Say something to a run. One that has ended is restarted; the answer is about the run that hears it.

    A turn of a session, or a run that has ended, continues in the name of its user: 403 for anybody else, unless they
    have the role impersonator.
    """
    body = await form(request, Said)
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    act = _act(services, caller, request, "run_told", info.namespace, run_id)
    said = await services.runtime.inside.inputs.say(
        run_id,
        body.message,
        mode=body.mode,
        by=caller.name,
        via="http",
        key=body.key or id_by_key(request.scope),
        in_transaction=act.record,
        acts_for=lambda user: caller.identity(info.namespace, "http", user=user),
    )
    act.tell()
    became = {"outcome": said.outcome, "arrival": said.arrival, "again": said.again, "answered": said.answered}
    return Json({**run_document(said.run, time.time()), "input": became}, 202)


@router.post("/v1/runs/{run_id}/answer")
async def answer(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Answer what a run asks."""
    body = await form(request, Answered)
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    act = _act(services, caller, request, "run_answered", info.namespace, run_id)
    questions = services.runtime.inside.questions
    message = await questions.answer(run_id, body.call_id, body.text, by=caller.name, in_transaction=act.record)
    act.tell()
    return _answer(await services.drives.woken(info, message), 202)


@router.get("/v1/runs/{run_id}/state")
async def state(
    run_id: RunId,
    services: Services,
    caller: Caller,
    messages: Annotated[bool, Query(description="With the messages of the run.")] = False,
) -> Response:
    """How a run stands, and what it has done so far."""
    await _seen(services, caller, "reader", run_id)
    standing = await services.runtime.runs.get(run_id, messages=messages)
    run = run_document(standing.info, time.time())
    return Json(
        {"run": run, **{name: getattr(standing, name) for name in standing.__struct_fields__ if name != "info"}}
    )


@router.get("/v1/runs/{run_id}/replay")
async def replay(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Decide a whole run again from its journal, and compare byte for byte. Nothing is asked or called."""
    await _seen(services, caller, "reader", run_id)
    return Json(await services.runtime.runs.replay(run_id))


@router.get("/v1/runs/{run_id}/why")
async def why(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Why a run waits, failed, or cost what it cost."""
    await _seen(services, caller, "reader", run_id)
    return Json(await services.runtime.runs.why(run_id))


@router.get("/v1/runs/{run_id}/fork")
async def fork_point(run_id: RunId, request: Request, services: Services, caller: Caller, at: Step) -> Response:
    """Show where a fork from a step would branch off, and which effects the run has had since. Nothing is started."""
    await _seen(services, caller, "reader", run_id)
    return Json(await services.runtime.runs.fork_point(run_id, at=at))


@router.post("/v1/runs/{run_id}/fork")
async def fork(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Run again from a step on, with something changed, beside the original; driven here."""
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    order = await form(request, ForkOrder)
    check_chosen_id(order.new_id)
    identity = caller.identity(info.namespace, "http", user=order.user)
    if order.at < 1:
        raise InvalidInput(f"there is no step {order.at}")
    check_override(caller, info.namespace, model=order.model, prompt=order.prompt)
    done = _act(services, caller, request, "run_forked", info.namespace, order.new_id)
    forked = await services.drives.fork(
        info,
        at=order.at,
        new_id=order.new_id,
        identity=identity,
        prompt=order.prompt,
        model=order.model,
        input=order.input,
        in_transaction=done.record,
    )
    done.tell()
    return _answer(forked)


@router.post("/v1/runs/{run_id}/resume")
async def resume(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Have a run go on that nobody drives; it goes on here."""
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    after = await services.drives.resume(info)
    named = (caller, "run_resumed", "Run", info.namespace, info.id)
    await record(services.runtime, *named, request=request.scope[REQUEST_ID], run_id=info.id)
    return _answer(after)


@router.post("/v1/runs/{run_id}/settle")
async def settle(run_id: RunId, request: Request, services: Services, caller: Caller) -> Response:
    """Say what became of a call that may have acted; the run goes on here, or where the runs of its task are done.

    A run that has ended stays as it is: what is said is kept for the same call of the same task or family of runs.
    """
    info = await _seen(services, caller, request.scope[ROLE], run_id)
    said = await form(request, Settled)
    done = _act(services, caller, request, "run_settled", info.namespace, info.id)
    message = await leave_settled(
        services.runtime.inside,
        info.id,
        said.call,
        said.decision,
        attempt=said.attempt,
        result=said.result,
        by=caller.name,
        reason=said.reason,
        in_transaction=done.record,
    )
    done.tell()
    return _answer(await services.drives.woken(info, message))


def _messages(sent: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    try:
        return msgspec.convert(sent, tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the messages cannot be read: {error}") from None


async def _seen(services: Services, caller: Caller, role: Any, run_id: str) -> RunInfo:
    """Returns the run if the caller may do this with it. One that is hidden is missing, in the same words."""
    try:
        info = await services.runtime.inside.runs.journal.get(run_id)
    except NotFound:
        raise _missing(run_id) from None
    if not may_read(caller, info):
        raise _missing(run_id)
    caller.require(role, info.namespace)
    return info


def _missing(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id[:80]!r}", hint=_LISTED)


async def _found(services: Services, caller: Caller, word: str) -> RunInfo | None:
    journal = services.runtime.inside.runs.journal
    try:
        if private_to(caller, None) is None:
            return await services.runtime.runs.find(word)
        exact = await journal.get(word)
        return exact if may_read(caller, exact) else None
    except NotFound:
        if private_to(caller, None) is None:
            return None
    # Only among what they can see, or the beginning of an id would tell of the runs of others.
    spaces = _named(caller, None)
    found = [] if spaces is None else await journal.alike(word, namespaces=spaces, limit=NEAR)
    alike = [info for info in found if may_read(caller, info)]
    if len(alike) > 1:
        raise several(word, alike)
    return alike[0] if alike else None


async def _place(services: Services, caller: Caller, after: str) -> int:
    """Returns the key behind which a page begins: of a cursor, or of the id of a run, as pages gave out before.

    Raises `InvalidInput` for anything else, and says the same of a run that the caller may not see.
    """
    try:
        info = await services.runtime.inside.runs.journal.get(after)
    except NotFound:
        return read_key(await services.cursors.open(after) or "", kind="run")
    if not may_read(caller, info):
        raise foreign_cursor()
    return info.key


def _act(services: Services, caller: Caller, request: Request, verb: Act, namespace: str, run_id: str) -> ActRecord:
    id = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "Run", namespace, run_id, request=id, run_id=run_id)


_UNTOUCHED: Final = summary_of(State(RunSpec("", ""), ""))


async def _current(services: Services, info: RunInfo) -> RunInfo:
    """Returns the run with its summary as of now: that of one under way is stored when its phase changes."""
    if info.phase not in ("pending", "running"):
        return info
    if info.epoch == 0 and info.parent_seq is None:  # nobody has begun with it, and it was not forked off another
        return msgspec.structs.replace(info, summary=_UNTOUCHED)
    return await as_it_stands(services.runtime.inside, info)


def _named(caller: Caller, namespace: str | None) -> list[str] | None:
    """Returns the namespaces to search, none named for all of them; None when there is nothing that they can see."""
    spaces = caller.spaces(namespace)
    return [each for each in spaces if each is not None] if spaces else None


def _documents(found: Sequence[RunInfo]) -> list[dict[str, Any]]:
    now = time.time()
    return [run_document(info, now) for info in found]


def _answer(info: RunInfo, status: int = 200) -> Response:
    return Json(run_document(info, time.time()), status)
