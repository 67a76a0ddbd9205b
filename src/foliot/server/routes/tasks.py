"""Tasks: accepted, listed, followed, cancelled, tried again."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from foliot.client import wire
from foliot.common.suggestions import read_phases
from foliot.engine.audit.words import Act
from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES
from foliot.kernel.identity import Identity
from foliot.resources.kinds import KINDS
from foliot.resources.names import check_labels
from foliot.runtime.local.declared_work import is_work
from foliot.server.audit import AcceptedTasks, ActRecord, TakenBack
from foliot.server.auth.guard import HIDDEN, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import ROLE, Services
from foliot.server.errors import PreconditionRequired
from foliot.server.http.bodies import as_object, check_place, form, form_in, manifest, manifests, mapping
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import (
    After,
    AllowMissing,
    Continue,
    CreatedAfter,
    CreatedBefore,
    DryRun,
    Fields,
    IdempotencyKey,
    IfMatch,
    Labels,
    Limit,
    Name,
    Namespace,
    conditions,
    is_dry,
    is_true,
    last_event,
    one_key,
    parameters,
    space,
    unquoted,
    wanted,
)
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json, resource
from foliot.server.resources import Declaring
from foliot.server.routes.resources import listed
from foliot.server.streams.runs import task_frames
from foliot.server.streams.task_watch import newest_place
from foliot.server.tasks.forms import AskedTask, fields_of
from foliot.server.tasks.list import FURTHEST, Wanted, list_tasks, place_of
from foliot.store.base import Document, Key, Page
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Accepted, Command, TaskInfo
from foliot.work.tasks.commands import check_chosen_name, command_of, normalise, ordered_after
from foliot.work.views.document import outline, task_document
from foliot.work.views.events import decode_cursor
from foliot.work.views.story import story_of_new

router = new_router("tasks")

# The phases that end a task, when a client writes them into its status.
ENDING: Final = ("failed", "cancelled", "canceled", "deadletter")

Phases = Annotated[str | None, Query(description="Only these phases, with commas between: Pending (or queued), …")]
Target = Annotated[str | None, Query(description="Only work for this system or agent.")]
Offset = Annotated[
    int, Query(ge=0, le=FURTHEST, deprecated=True, description="How many to pass over. Pages by `after` cost less.")
]
Archived = Annotated[bool, Query(description="Those that were archived too.")]
Lane = Annotated[str | None, Query(max_length=63, description="Only work in this lane.")]
Mode = Annotated[Literal["run", "template"] | None, Query(description="`run`: only work; `template`: only templates.")]
Alike = Annotated[bool, Query(description="Also the only one whose name begins or ends so.")]
Outline = Annotated[bool, Query(alias="outline", description="As in lists: without messages and history.")]
Cursor = Annotated[str | None, Query(description="The id of the last event that was read.")]


class Reason(Struct, forbid_unknown_fields=True):
    reason: str = ""


class RetryOrder(Struct, forbid_unknown_fields=True):
    """`payloads` replace what was sent, by the id of the message."""

    payloads: dict[str, str] = {}


@router.get("/v1/tasks")
async def list_all(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    limit: Limit = 100,
    after: After = None,
    continued: Continue = None,
    offset: Offset = 0,
    labelSelector: Labels = None,
    labels: Labels = None,
    fieldSelector: Fields = None,
    phase: Phases = None,
    target: Target = None,
    lane: Lane = None,
    createdAfter: CreatedAfter = None,
    createdBefore: CreatedBefore = None,
    archived: Archived = False,
    mode: Mode = None,
) -> Response:
    """Tasks: work newest first, then templates."""
    filter = wanted("Task", namespace, labelSelector or labels, fieldSelector)
    with parameters():
        phases = read_phases(phase or "", TASK_PHASES, API_PHASES)
        which = Wanted(filter, phases, target, archived, lane, createdAfter, createdBefore, mode)
        async with services.list_reads.within_bounds(caller, request.scope, searched=which.is_searched or offset > 0):
            place = await newest_place(services)
            cursor = await services.cursors.open(continued) or await place_of(services, caller, which, after)
            items, cursor = await list_tasks(services, caller, which, limit=limit, cursor=cursor, skip=offset)
    answer = await listed(services, Page(items, cursor, place.revision))
    answer["metadata"] = {"resourceVersion": str(place)}
    return Json(answer)


@router.post("/v1/tasks")
async def accept(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    allowMissing: AllowMissing = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Have something done: 201 with the task, or 200 when it was accepted before. A template is declared.

    A template whose system or agent does not exist is refused, as every declaration; work is accepted, and fails. What
    is asked for is pinned now: a later change of an agent does not reach into the task.
    """
    fields = fields_of(await request.body(), namespace)
    asked = None if fields is None else services.forms.read(fields)
    written: Document = {}
    if asked is None:
        loaded = await manifest(request, KINDS["Task"], namespace)
        document, written = loaded.document, loaded.written
        if not is_work(document):
            caller.require("author", document["metadata"]["namespace"], missing=HIDDEN)
            takes_missing = is_true(allowMissing, "allowMissing")
            declaring = Declaring(services, caller, request.scope[REQUEST_ID], takes_missing=takes_missing)
            result = await declaring.put(loaded, conditions(None, None, dryRun))
            return resource(result.document, 201 if result.action == "created" else 200)
        caller.require("operator", document["metadata"]["namespace"], missing=HIDDEN)
        asked = AskedTask(document, command_of(document))
        if fields is not None and not written:
            services.forms.learn(fields, asked)
    where = asked.command.namespace
    caller.require("operator", where, missing=HIDDEN)
    identity = caller.acting_for_self("http")
    command, content = asked.command, asked.content
    command = msgspec.structs.replace(command, by=caller.name, identity=identity, written=written)
    if idempotency_key:
        key = one_key(idempotency_key, command.idempotency_key)
        command, content = msgspec.structs.replace(command, idempotency_key=key), None  # it was not looked at yet
    act = _act(services, caller, request, "task_accepted", where, dry=is_dry(dryRun))
    try:
        accepted = await services.runtime.inside.tasking.tasks.accept(
            command, in_transaction=act.part, keyed_by=caller.principal, may_fail=True, content=content
        )
    except TakenBack:
        return resource(asked.document, 201)
    _check_name(command, accepted)
    act.tell()
    if accepted.begun is not None:
        return resource(task_document(story_of_new(accepted.task, accepted.begun)), 201)
    return resource(await _shown(services, where, accepted.task.name), 200 if accepted.duplicate else 201)


@router.post("/v1/tasks/submit")
async def submit(
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Have a system or an agent do something; 201 when the task is new."""
    command = normalise(await form_in(request, Command, namespace))
    key = one_key(idempotency_key, command.idempotency_key)
    check_labels(command.labels)
    check_chosen_name(command.name)
    identity = caller.identity(command.namespace, "http", user=command.user)
    identity = await _lineage(services, command, identity)
    # How it was written is for those who wrote a Task: what a form says of it is not taken.
    command = msgspec.structs.replace(
        command, by=caller.name, user="", identity=identity, idempotency_key=key, written={}
    )
    act = _act(services, caller, request, "task_accepted", command.namespace)
    accepted = await services.runtime.inside.tasking.tasks.accept(
        command, in_transaction=act.part, keyed_by=caller.principal, may_fail=True
    )
    _check_name(command, accepted)
    act.tell()
    return resource(outline(accepted.task), 200 if accepted.duplicate else 201)


def _check_name(command: Command, accepted: Accepted) -> None:
    """Raises `Conflict` for a key under which a task of another name was accepted: there is none of this name."""
    if accepted.duplicate and command.name not in ("", accepted.task.name):
        raise Conflict(
            "idempotency_key reused with different payload",
            hint=f"task {accepted.task.name} was accepted for {command.idempotency_key!r}",
        )


@router.post("/v1/tasks/declared")
async def accept_declared(request: Request, services: Services, caller: Caller, dryRun: DryRun = None) -> Response:
    """Have the Tasks of mode `run` in the body, which were applied, done: once each, however often this is asked.

    With `dryRun`: those that ask for something else than the work which was accepted under their names.
    """
    documents = [each for each in (await manifests(request, None)).documents if is_work(each)]
    for document in documents:
        caller.require(request.scope[ROLE], document["metadata"]["namespace"], missing=HIDDEN)
    if is_dry(dryRun):
        taken = await services.client.opposed(documents)
    else:
        acts = AcceptedTasks(services.runtime, caller, "task_accepted", request.scope[REQUEST_ID])
        taken = await services.client.accept_for(documents, caller.acting_for_self("http"), recorded=acts)
        acts.tell()
    return Json([wire.taken_to_wire(each) for each in taken])


@router.get("/v1/tasks/{name}")
async def get_task(
    name: Name, services: Services, namespace: Namespace = None, alike: Alike = False, outlined: Outline = False
) -> Response:
    """Everything about one task: what was asked for, how it stands, its messages, joins and history."""
    tasks, where = services.runtime.inside.tasking.tasks, space(namespace)
    if alike:
        with parameters():
            name = (await tasks.find(where, name)).name
    if outlined:
        return resource(outline(await tasks.get(where, name)))
    return resource(await _shown(services, where, name))


@router.put("/v1/tasks/{name}")
async def replace_task(
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    allowMissing: AllowMissing = None,
    if_match: IfMatch = None,
) -> Response:
    """Replace a template. Work is not replaced: of what was accepted only labels and annotations can change (409)."""
    where = space(namespace)
    loaded = await manifest(request, KINDS["Task"], where, name)
    document = loaded.document
    if not is_work(document):
        caller.require("author", where, missing=HIDDEN)
    # What work is for is looked at when it is begun, and it has been accepted already.
    takes_missing = is_work(document) or is_true(allowMissing, "allowMissing")
    declaring = Declaring(services, caller, request.scope[REQUEST_ID], takes_missing=takes_missing)
    written = await declaring.replace(loaded, conditions(if_match, None, dryRun))
    return resource(written.document)


@router.get("/v1/tasks/{name}/status")
async def get_task_status(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """Returns the task, the same document as the task itself."""
    return resource(await _shown(services, space(namespace), name))


@router.put("/v1/tasks/{name}/status")
async def put_task_status(
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    dryRun: DryRun = None,
    if_match: IfMatch = None,
) -> Response:
    """End a task, as clients do that have no other word for it: by the phase `Failed` or `Cancelled`.

    How work stands is read off its runs, so any other phase is refused (409).
    """
    where = space(namespace)
    body = await mapping(request)
    metadata = as_object(body.get("metadata"))
    check_place(metadata, where, name)
    status = as_object(body.get("status")) if "status" in body or metadata else body
    match = if_match or str(metadata.get("resourceVersion") or "") or None
    info = await _accepted(services, where, name)
    if info is None:
        declaring = Declaring(services, caller, request.scope[REQUEST_ID])
        key = Key("Task", where, name)
        written = await declaring.put_status(key, status, conditions(match, None, dryRun))
        return resource(written.document)
    if match is None:
        raise PreconditionRequired("resourceVersion precondition required for update (set If-Match)")
    if unquoted(match) not in ("*", str(info.revision)):
        raise Conflict(f"Task/{name} is at version {info.revision}", hint="read it again")
    asked = str(status.get("phase", "")).lower()
    if asked in ENDING and info.phase in ENDED - {"succeeded"}:
        return resource(outline(info))  # who asks once more has what it wanted
    if asked not in ENDING:
        raise Conflict(
            "how a task stands is read off its runs", hint="its phase can only be set to Failed or Cancelled"
        )
    reason = str(status.get("lastError") or "its status was set")
    try:
        return await _cancelled(services, caller, request, where, name, reason, dry=is_dry(dryRun))
    except TakenBack:
        return resource(outline(info))


async def _cancelled(
    services: Services,
    caller: Caller,
    request: Request,
    namespace: str,
    name: str,
    reason: str,
    *,
    dry: bool = False,
) -> Response:
    act = _act(services, caller, request, "task_cancelled", namespace, dry=dry)
    tasks = services.runtime.inside.tasking.tasks
    info = await tasks.cancel(namespace, name, by=caller.name, reason=reason, in_transaction=act.part)
    act.tell()
    return resource(outline(info))


@router.post("/v1/tasks/{name}/cancel")
async def cancel(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """End a task wherever it is being done, and its children. 409 when it has ended."""
    body = await form(request, Reason)
    return await _cancelled(services, caller, request, space(namespace), name, body.reason)


@router.post("/v1/tasks/{name}/retry")
@router.post("/v1/tasks/{name}/requeue")  # for older clients
async def retry(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """A new attempt of a task that ended badly, behind what had succeeded."""
    body = await form(request, RetryOrder)
    tasks, where = services.runtime.inside.tasking.tasks, space(namespace)
    act = _act(services, caller, request, "task_requeued", where)
    info = await tasks.requeue(where, name, by=caller.name, payloads=body.payloads, in_transaction=act.record_task)
    act.tell()
    return resource(outline(info))


@router.post("/v1/tasks/{name}/archive")
async def archive(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Hide a task from lists; a live one is cancelled first."""
    tasks, where = services.runtime.inside.tasking.tasks, space(namespace)
    act = _act(services, caller, request, "task_archived", where)
    info = await tasks.archive(where, name, by=caller.name, in_transaction=act.record_task)
    act.tell()
    return resource(outline(info))


@router.post("/v1/tasks/{name}/delete")
async def delete(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Delete an ended task with its events; its runs stay. 409 for one that has not ended."""
    act = _act(services, caller, request, "task_deleted", space(namespace))
    await services.runtime.inside.tasking.tasks.delete(space(namespace), name, in_transaction=act.record_task)
    act.tell()
    return Response(status_code=204)


@router.get("/v1/tasks/{name}/events")
async def follow(
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    cursor: Cursor = None,
) -> Response:
    """Streams the events of the task and its runs as server-sent events, until it has ended (event `end`).

    The id of an event is a cursor; `Last-Event-ID` or `cursor` goes on behind it.
    """
    where = space(namespace)
    await services.runtime.inside.tasking.tasks.get(where, name)
    position = last_event(request, cursor)
    with parameters():
        decode_cursor(position)
    return services.streams.respond(caller, task_frames(services, where, name, position))


async def _lineage(services: Services, command: Command, identity: Identity) -> Identity:
    """The identity of the work that a caller asks for, unless it claims to come from something else than its caller.

    What made a task is said by whatever makes it, and a parent can only be a task of the same user: its cancelling
    reaches the child. Conditions and policies may go by the template, so it has to be there and to ask for the same.
    Raises `InvalidInput`, `NotFound`, `Denied`.
    """
    if command.spawned_by:
        raise InvalidInput("spawned_by: whatever makes tasks by itself says so, nobody else", hint="leave it out")
    if command.parent:
        above = (await services.runtime.inside.tasking.tasks.ref(command.namespace, command.parent)).command.acts_as
        if above.user != identity.user:
            raise Denied(
                f"parent: the task {command.parent[:80]!r} is not one of {identity.user!r}",
                hint="a child is asked for on behalf of the user of its parent; leave it out for a task of its own",
            )
    if command.template:
        home, _, name = command.template.rpartition("/")
        missing = f"template: there is no template {command.template[:80]!r} for this in {command.namespace!r}"
        if (home or command.namespace) != command.namespace:
            raise NotFound(missing)
        document = await services.resources.get(Key("Task", command.namespace, name))
        made = command_of(document)
        same = (made.target_kind, made.target) == (command.target_kind, command.target)
        if document["spec"].get("mode") != "template" or not same:
            raise NotFound(missing)
        return ordered_after(identity, document)
    return identity


async def _shown(services: Services, namespace: str, name: str) -> Document:
    try:
        story = await services.runtime.inside.tasking.stories.of(namespace, name, whole=True)
    except NotFound:
        return await services.resources.get(Key("Task", namespace, name))
    return task_document(story)


async def _accepted(services: Services, namespace: str, name: str) -> TaskInfo | None:
    """The work of this name; None when there is none, but perhaps a template."""
    try:
        return await services.runtime.inside.tasking.tasks.get(namespace, name)
    except NotFound:
        return None


def _act(
    services: Services, caller: Caller, request: Request, verb: Act, namespace: str, *, dry: bool = False
) -> ActRecord:
    request_id = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "Task", namespace, "", request=request_id, dry=dry)
