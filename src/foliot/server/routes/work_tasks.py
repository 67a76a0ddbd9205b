"""Tasks as Foliot's own client asks for them: every fact as it is stored, and streams of them that resume.

Other clients use the routes of `tasks`. Here a client gets what the command line on the machine of the store gets, so
that it can tell the same stories of it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.client import wire
from foliot.errors import Denied, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.resources.kinds import KINDS
from foliot.resources.names import check_labels
from foliot.runtime.local.declared_work import is_work
from foliot.server.audit import AcceptedTasks, ActRecord
from foliot.server.auth.guard import HIDDEN, ROLE, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import CallerDep, Services, ServicesDep
from foliot.server.http.bodies import form, form_in, manifests
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import (
    DEFAULT_PAGE,
    MOST,
    After,
    DryRun,
    Fields,
    IdempotencyKey,
    Labels,
    Limit,
    ManagedFields,
    Name,
    Namespace,
    is_dry,
    is_true,
    last_event,
    one_key,
    space,
    wanted,
)
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.server.routes.resources import listed
from foliot.server.streams.runs import task_batches
from foliot.server.streams.sse import frame
from foliot.store.base import Key, Page
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import check_chosen_name, command_of, normalise, ordered_after
from foliot.work.tasks.list import cursor_of

router = new_router("work")

LONGEST_WAIT: Final = 10.0
OneKind = Annotated[str | None, Query(max_length=63, description="Only resources of this kind, such as `Agent`.")]
# Of a task with more runs under way, only so many are looked into.
LOOKED_INTO: Final = 40


class Act(msgspec.Struct, frozen=True):
    """The options of a change to a task."""

    by: str = ""
    reason: str = ""
    payloads: dict[str, str] | None = None


def who(caller: Caller, given: str) -> str:
    """The name in records: that of the credential. What an older client says of itself (`given`) does not count."""
    return caller.name


def spaces(caller: Caller, namespace: str | None) -> list[str | None]:
    """Returns the namespaces of a list: the one that was asked for, or all that the caller can see (None is all)."""
    if namespace:
        return [namespace] if caller.sees(namespace) else []
    return [None] if caller.namespaces is None else [*caller.namespaces]


@router.get("/v1/resources")
async def list_all(
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
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
        return Json(listed(Page([], None, await services.resources.revision())))
    show_owners = is_true(managedFields, "managedFields")
    return Json(
        listed(await services.client.list(filter, limit=min(limit, MOST), cursor=after, show_owners=show_owners))
    )


@router.post("/v1/tasks/declared")
async def accept_declared(
    request: Request, services: ServicesDep, caller: CallerDep, dryRun: DryRun = None
) -> Response:
    """Have the Tasks of mode `run` in the body, which were applied, done: once each, however often this is asked.

    With `dryRun`: those that ask for something else than the work which was accepted under their names.
    """
    documents = [each for each in (await manifests(request, None)).documents if is_work(each)]
    for document in documents:
        caller.require(request.scope[ROLE], document["metadata"]["namespace"], missing=HIDDEN)
    if is_dry(dryRun):
        taken = await services.client.opposed(documents)
    else:
        acts = AcceptedTasks(services.runtime, caller, "accepted", request.scope[REQUEST_ID])
        taken = await services.client.accept_for(documents, caller.acting_for_self("http"), recorded=acts)
        acts.tell()
    return Json([wire.taken_to_wire(each) for each in taken])


@router.post("/v1/work/tasks")
async def submit(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Have a system or an agent do something; 201 when the task is new."""
    command = normalise(await form_in(request, Command, space(namespace)))
    key = one_key(idempotency_key, command.idempotency_key)
    check_labels(command.labels)
    check_chosen_name(command.name)
    identity = caller.identity(command.namespace, "http", user=command.user)
    identity = await _lineage(services, command, identity)
    command = msgspec.structs.replace(command, by=caller.name, user="", identity=identity, idempotency_key=key)
    act = _act(services, caller, request, "accepted", command.namespace)
    accepted = await services.runtime.inside.tasking.tasks.accept(
        command, also=act.record_task, keyed_by=caller.principal
    )
    act.tell()
    return Json(accepted, 200 if accepted.duplicate else 201)


@router.get("/v1/work/tasks")
async def list_tasks(
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    target: str | None = None,
    phases: Annotated[str | None, Query(description="Separated by commas.")] = None,
    labels: Annotated[str | None, Query(description="A JSON object of labels that tasks must have.")] = None,
    lane: str | None = None,
    createdAfter: float | None = None,
    archived: bool = False,
    limit: Limit = 50,
    after: After = None,
) -> Response:
    """Tasks, newest first."""
    work = services.runtime
    criteria: dict[str, Any] = {
        "target": target,
        "phases": tuple(filter(None, (phases or "").split(","))),
        "labels": _labels(labels),
        "lane": lane,
        "created_after": createdAfter,
        "archived": archived,
        "limit": min(limit, MOST),
        "cursor": after,
    }
    pages = [await work.tasks.list(namespace=each, **criteria) for each in spaces(caller, namespace)]
    if len(pages) == 1:
        return Json(wire.TaskPage(*pages[0]))
    found = sorted((info for page, _ in pages for info in page), key=lambda info: -info.key)
    more = len(found) > limit or any(cursor for _, cursor in pages)
    found = found[:limit]
    return Json(wire.TaskPage(found, cursor_of(found[-1].key) if more and found else None))


@router.get("/v1/work/tasks/{name}")
async def get_task(name: Name, services: ServicesDep, namespace: Namespace = None, alike: bool = False) -> Response:
    """One task by its name; with `alike` also by the beginning or end of it."""
    work = services.runtime.tasks
    return Json(await (work.find if alike else work.get)(name, namespace=space(namespace)))


@router.delete("/v1/work/tasks/{name}")
async def delete_task(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Forget an ended task with its events."""
    act = _act(services, caller, request, "deleted", space(namespace))
    await services.runtime.inside.tasking.tasks.delete(space(namespace), name, also=act.record_task)
    act.tell()
    return Response(status_code=204)


@router.post("/v1/work/tasks/{name}/cancel")
async def cancel_task(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Ask a task to end."""
    act, where = await form(request, Act), space(namespace)
    done, tasks = _act(services, caller, request, "cancelled", where), services.runtime.inside.tasking.tasks
    info = await tasks.cancel(where, name, by=who(caller, act.by), reason=act.reason, also=done.record_task)
    done.tell()
    return Json(info)


@router.post("/v1/work/tasks/{name}/archive")
async def archive_task(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Hide a task from lists; a live one is cancelled first."""
    act, where = await form(request, Act), space(namespace)
    done, tasks = _act(services, caller, request, "archived", where), services.runtime.inside.tasking.tasks
    info = await tasks.archive(where, name, by=who(caller, act.by), also=done.record_task)
    done.tell()
    return Json(info)


@router.post("/v1/work/tasks/{name}/requeue")
async def requeue_task(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """A new attempt of a task that ended badly; `payloads` are other texts for failed messages, by their ids."""
    act, where = await form(request, Act), space(namespace)
    done, tasks = _act(services, caller, request, "requeued", where), services.runtime.inside.tasking.tasks
    by = who(caller, act.by)
    info = await tasks.requeue(where, name, by=by, payloads=act.payloads, also=done.record_task)
    done.tell()
    return Json(info)


@router.get("/v1/tasks/{name}/story")
async def story(name: Name, services: ServicesDep, namespace: Namespace = None, looks: bool = True) -> Response:
    """Returns the parts of a task's story: its plan, its facts, its runs; with `looks` the facts of live runs."""
    told = await services.runtime.tasks.story(name, namespace=space(namespace), looks=False)
    under_way = [each.run.run_id for each in told.live if each.run is not None][:LOOKED_INTO] if looks else []
    live = {run_id: await services.runtime.inside.runs.facts(run_id) for run_id in under_way}
    return Json(wire.story_to_wire(told, live, time.time()))


@router.get("/v1/work/tasks/{name}/why")
async def why(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """Why a task is where it is."""
    return Json(await services.runtime.tasks.why(name, namespace=space(namespace)))


@router.get("/v1/tasks/{name}/records")
async def records(
    name: Name, services: ServicesDep, namespace: Namespace = None, after: Annotated[int, Query(ge=0, lt=2**53)] = 0
) -> Response:
    """The facts of the task itself, behind one."""
    work = services.runtime
    await work.tasks.get(name, namespace=space(namespace))
    return Json(wire.records_to_wire(await work.tasks.records(name, namespace=space(namespace), after=after)))


@router.get("/v1/tasks/{name}/happenings")
async def happenings(
    name: Name,
    services: ServicesDep,
    namespace: Namespace = None,
    cursor: str | None = None,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for something.")] = 0.0,
) -> Response:
    """Returns the events of a task and its runs behind the cursor."""
    work, where = services.runtime, space(namespace)
    await work.tasks.get(name, namespace=where)
    until = time.monotonic() + wait
    while True:
        batch = await work.tasks.events(name, namespace=where, cursor=cursor)
        left = until - time.monotonic()
        if batch.happenings or left <= 0 or services.closing.is_set():
            return Json(wire.batch_to_wire(batch))
        await work.tasks.changed(name, namespace=where, cursor=cursor, timeout=min(left, 1.0))


@router.get("/v1/tasks/{name}/watch")
async def watch(
    name: Name,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    namespace: Namespace = None,
    cursor: str | None = None,
) -> Response:
    """Events `happenings` as they come, each with the cursor as its id; `end` when the task has ended."""
    work, where = services.runtime, space(namespace)
    position = last_event(request, cursor)
    await work.tasks.events(
        (await work.tasks.get(name, namespace=where)).name, namespace=where, cursor=position
    )  # refused now, if at all
    return services.streams.respond(caller, _frames(services, where, name, position))


async def _frames(services: Services, namespace: str, name: str, position: str | None) -> AsyncGenerator[bytes]:
    async with aclosing(task_batches(services, namespace, name, position)) as batches:
        async for _, batch in batches:
            if batch.happenings:
                yield frame("happenings", wire.batch_to_wire(batch), batch.cursor)
    yield frame("end", {})


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


def _labels(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidInput("labels: expected a JSON object of texts") from None


def _act(services: Services, caller: Caller, request: Request, verb: str, namespace: str) -> ActRecord:
    return ActRecord(services.runtime, caller, verb, "Task", namespace, "", request=request.scope[REQUEST_ID])
