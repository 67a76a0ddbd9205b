"""Routes about agents beside their resources: logs, and memory entries."""

from __future__ import annotations

from typing import Annotated, Final

from starlette.responses import Response

from foliot.engine.runners.profile import default_agent_config
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.auth.run_access import private_to
from foliot.server.context import Services
from foliot.server.http.names import Limit, Name, Namespace, space
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.store.base import Key
from foliot.work.views.events import RunHappening, log_line

router = new_router("agents")

MOST_LINES: Final = 500
MOST_RUNS: Final = 50


@router.get("/v1/agents/defaults")
async def agent_defaults(
    agent_key: Annotated[str, Query(description="The name that the agent is to have.")] = "",
) -> Response:
    """Returns the default configuration of an agent with a runner, before it is declared."""
    return Json(default_agent_config(agent_key))


@router.get("/v1/agents/{name}/logs")
async def agent_logs(name: Name, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Returns the events of its newest runs, a line each, newest last. 404 for an agent that does not exist."""
    where = space(namespace)
    journal = services.runtime.inside.runs.journal
    runs = await journal.list(namespace=where, agent=name, limit=MOST_RUNS, private_to=private_to(caller, where))
    if not runs:  # agents that a program brings along are not declared, and leave runs all the same
        await services.resources.get(Key("Agent", where, name))
    lines: list[str] = []
    for info in runs:
        if len(lines) >= MOST_LINES:
            break
        told = [log_line(RunHappening.of(name, info.id, entry)) for entry in await journal.read(info.id)]
        lines = [line for line in told if line is not None] + lines
    return Json({"name": name, "logs": lines[-MOST_LINES:]})


@router.get("/v1/memories/{name}/entries")
async def memory_entries(
    name: Name,
    services: Services,
    namespace: Namespace = None,
    q: Annotated[str | None, Query(description="Only entries like this.")] = None,
    prefix: Annotated[str | None, Query(description="Only keys that begin so; not looked at with `q`.")] = None,
    limit: Limit = 100,
) -> Response:
    """Lists the entries of a memory that this server can read: none, while no backend keeps it here.

    What the agents of one task share is kept with the task.
    """
    await services.resources.get(Key("Memory", space(namespace), name))
    return Json({"entries": [], "count": 0})
