"""One task, looked at: its messages, what they took, its log, its runs, its trace, and why it is where it is."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.client import wire
from foliot.common.threads import unhurried
from foliot.common.times import iso
from foliot.engine.driver.journal import FACT
from foliot.engine.explain.trace import read_trace
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.names import Name, Namespace, last_event, parameters, space
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.server.streams.runs import task_batches
from foliot.server.streams.sse import frame
from foliot.server.tasks.messages import chosen, messages_of, metrics_of
from foliot.work.views.events import decode_cursor, log_line
from foliot.work.views.reader import looked_into

router = new_router("tasks")

LONGEST_WAIT: Final = 10.0

Phase = Annotated[str | None, Query(description="Only messages in these phases, with commas between.")]
Agent = Annotated[str | None, Query(description="Only messages of this agent.")]
Branch = Annotated[str | None, Query(description="Only messages of this branch.")]
TraceId = Annotated[str | None, Query(description="Only messages that are traced under this id.")]
Last = Annotated[int | None, Query(description="Only the last so many; all, if less than 1.")]
Cursor = Annotated[str | None, Query(description="`cursor` of the answer before.")]


@router.get("/v1/tasks/{name}/messages")
async def messages(
    name: Name,
    services: Services,
    namespace: Namespace = None,
    phase: Phase = None,
    lifecycle: Phase = None,
    from_agent: Agent = None,
    to_agent: Agent = None,
    branch_id: Branch = None,
    trace_id: TraceId = None,
    limit: Last = None,
) -> Response:
    """Lists the messages between the agents of a task."""
    which = chosen(phase or lifecycle, from_agent, to_agent, branch_id, trace_id, limit)
    return Json(messages_of(await services.runtime.inside.tasking.stories.of(space(namespace), name), which))


@router.get("/v1/tasks/{name}/metrics")
async def metrics(
    name: Name,
    services: Services,
    namespace: Namespace = None,
    phase: Phase = None,
    lifecycle: Phase = None,
    from_agent: Agent = None,
    to_agent: Agent = None,
    branch_id: Branch = None,
    trace_id: TraceId = None,
) -> Response:
    """Counts its messages, and how long they took: in all, by agent, by edge."""
    which = chosen(phase or lifecycle, from_agent, to_agent, branch_id, trace_id)
    story = await services.runtime.inside.tasking.stories.of(space(namespace), name)
    return Json(metrics_of(story, which, iso(time.time())))


@router.get("/v1/tasks/{name}/logs")
async def logs(name: Name, services: Services, namespace: Namespace = None, cursor: Cursor = None) -> Response:
    """Returns the events behind the cursor, a line each. It answers at once; follow `/events` to wait for more."""
    with parameters():
        batch = await services.runtime.inside.tasking.stories.happenings(space(namespace), name, cursor=cursor)
    lines = [line for each in batch.events if (line := log_line(each)) is not None]
    return Json({"name": name, "logs": lines, "cursor": batch.cursor})


@router.get("/v1/tasks/{name}/runs")
async def runs(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """Lists its runs, oldest first."""
    await services.runtime.inside.tasking.tasks.get(space(namespace), name)
    rows = await services.runtime.inside.tasking.stories.rows(space(namespace), name)
    return Json({"name": name, "runs": [msgspec.to_builtins(row) for row in rows]})


@router.get("/v1/tasks/{name}/trace")
async def trace(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """All its runs, step by step, with the message that each answers."""
    story = await services.runtime.inside.tasking.stories.of(space(namespace), name, looks=False)
    told: list[dict[str, Any]] = []
    events = 0
    for each in story.messages.values():
        if each.run is None:
            continue
        found = await read_trace(each.run.run_id, await services.runtime.inside.runs.facts(each.run.run_id))
        message = {"id": each.message.id, "from": each.message.sender, "to": each.message.to}
        told.append({"message": message, "phase": each.run.phase, "trace": found})
        events += found.events
    return await unhurried(FACT * events, Json, {"name": name, "phase": story.info.phase, "runs": told})


@router.get("/v1/tasks/{name}/why")
async def why(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """Why it is where it is: what it waits for, or what went wrong."""
    return Json(await services.runtime.inside.tasking.stories.why(space(namespace), name))


@router.get("/v1/tasks/{name}/story")
async def story(name: Name, services: Services, namespace: Namespace = None, looks: bool = True) -> Response:
    """Returns the parts of a task's story: its plan, its facts, its runs; with `looks` the facts of the newest runs."""
    told = await services.runtime.tasks.story(name, namespace=space(namespace), looks=False)
    rows = [each.run for each in told.messages.values() if each.run is not None]
    chosen = looked_into(rows, whole=True) if looks else []
    live = {run_id: await services.runtime.inside.runs.facts(run_id) for run_id in chosen}
    return Json(wire.story_to_wire(told, live, time.time()))


@router.get("/v1/tasks/{name}/records")
async def records(
    name: Name, services: Services, namespace: Namespace = None, after: Annotated[int, Query(ge=0, lt=2**53)] = 0
) -> Response:
    """The facts of the task itself, behind one."""
    tasks, where = services.runtime.tasks, space(namespace)
    await tasks.get(name, namespace=where)
    return Json(wire.records_to_wire(await tasks.records(name, namespace=where, after=after)))


@router.get("/v1/tasks/{name}/changes")
async def changes(
    name: Name,
    services: Services,
    namespace: Namespace = None,
    cursor: str | None = None,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for something.")] = 0.0,
) -> Response:
    """Returns the events of a task and its runs behind the cursor."""
    tasks, where = services.runtime.tasks, space(namespace)
    await tasks.get(name, namespace=where)
    with parameters():
        decode_cursor(cursor)
    until = time.monotonic() + wait
    while True:
        batch = await tasks.events(name, namespace=where, cursor=cursor)
        left = until - time.monotonic()
        if batch.events or left <= 0 or services.closing.is_set():
            return Json(wire.batch_to_wire(batch))
        await tasks.changed(name, namespace=where, cursor=cursor, timeout=min(left, 1.0))


@router.get("/v1/tasks/{name}/watch")
async def watch(
    name: Name,
    request: Request,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    cursor: str | None = None,
) -> Response:
    """Streams what `changes` lists, as events `events` with the cursor as their id; `end` when the task has ended."""
    tasks, where = services.runtime.tasks, space(namespace)
    position = last_event(request, cursor)
    await tasks.get(name, namespace=where)
    with parameters():
        decode_cursor(position)
    return services.streams.respond(caller, _frames(services, where, name, position))


async def _frames(services: Services, namespace: str, name: str, position: str | None) -> AsyncGenerator[bytes]:
    async with aclosing(task_batches(services, namespace, name, position)) as batches:
        async for _, batch in batches:
            if batch.events:
                yield frame("events", wire.batch_to_wire(batch), batch.cursor)
    yield frame("end", {})
