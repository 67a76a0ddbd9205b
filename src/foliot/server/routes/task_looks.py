"""One task, looked at: its messages, what they took, its log, its runs, its trace, and why it is where it is."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from foliot.common.times import iso
from foliot.engine.explain.trace import trace_of
from foliot.server.auth.guard import new_router
from foliot.server.context import ServicesDep
from foliot.server.http.names import Name, Namespace, parameters, space
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.server.tasks.messages import chosen, messages_of, metrics_of
from foliot.work.views.events import log_line

router = new_router("tasks")

Phase = Annotated[str | None, Query(description="Only messages in these phases, with commas between.")]
Agent = Annotated[str | None, Query(description="Only messages of this agent.")]
Branch = Annotated[str | None, Query(description="Only messages of this branch.")]
TraceId = Annotated[str | None, Query(description="Only messages that are traced under this id.")]
Last = Annotated[int | None, Query(description="Only the last so many; all, if less than 1.")]
Cursor = Annotated[str | None, Query(description="`cursor` of the answer before.")]


@router.get("/v1/tasks/{name}/messages")
async def messages(
    name: Name,
    services: ServicesDep,
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
    services: ServicesDep,
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
async def logs(name: Name, services: ServicesDep, namespace: Namespace = None, cursor: Cursor = None) -> Response:
    """Returns the events behind the cursor, a line each. It answers at once; follow `/events` to wait for more."""
    with parameters():
        batch = await services.runtime.inside.tasking.stories.happenings(space(namespace), name, cursor=cursor)
    lines = [line for each in batch.happenings if (line := log_line(each)) is not None]
    return Json({"name": name, "logs": lines, "cursor": batch.cursor})


@router.get("/v1/tasks/{name}/runs")
async def runs(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """Lists its runs, oldest first."""
    await services.runtime.inside.tasking.tasks.get(space(namespace), name)
    rows = await services.runtime.inside.tasking.stories.rows(space(namespace), name)
    return Json({"name": name, "runs": [msgspec.to_builtins(row) for row in rows]})


@router.get("/v1/tasks/{name}/trace")
async def trace(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """All its runs, step by step, with the message that each answers."""
    story = await services.runtime.inside.tasking.stories.of(space(namespace), name, looks=False)
    told: list[dict[str, Any]] = []
    for each in story.messages.values():
        if each.run is None:
            continue
        found = trace_of(each.run.run_id, await services.runtime.inside.runs.facts(each.run.run_id))
        message = {"id": each.message.id, "from": each.message.sender, "to": each.message.to}
        told.append({"message": message, "phase": each.run.phase, "trace": msgspec.to_builtins(found)})
    return Json({"name": name, "phase": story.info.phase, "runs": told})


@router.get("/v1/tasks/{name}/why")
async def why(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """Why it is where it is: what it waits for, or what went wrong."""
    return Json(await services.runtime.inside.tasking.stories.why(space(namespace), name))
