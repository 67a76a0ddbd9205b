"""MCP resources: the traces of runs, and the results of tasks."""

from __future__ import annotations

import re
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from foliot.engine.explain.trace import trace_of
from foliot.errors import NotFound
from foliot.runtime.results import result_of
from foliot.runtime.runtime import Runtime
from foliot.server.mcp.tools import Who
from foliot.work.views.document import outline

RUNS: Final = "foliot://runs/"
TASKS: Final = "foliot://tasks/"
JSON: Final = "application/json"
NEWEST: Final = 50
_URI: Final = re.compile(r"foliot://(runs|tasks)/([A-Za-z0-9._-]{1,253})")


def templates() -> list[types.ResourceTemplate]:
    return [
        types.ResourceTemplate(
            name="run", uri_template=f"{RUNS}{{id}}", mime_type=JSON, description="What a run did, step by step."
        ),
        types.ResourceTemplate(
            name="task", uri_template=f"{TASKS}{{name}}", mime_type=JSON, description="A task: where it is, its result."
        ),
    ]


async def list_resources(runtime: Runtime, who: Who) -> list[types.Resource]:
    """The newest runs and tasks of the namespace."""
    if not who.caller.sees(who.namespace):
        return []
    runs = await runtime.inside.runs.journal.list(namespace=who.namespace, limit=NEWEST)
    tasks, _ = await runtime.inside.tasking.tasks.list(namespace=who.namespace, limit=NEWEST)
    return [
        *(
            types.Resource(
                name=info.id, title=f"Run of {info.agent} ({info.phase})", uri=RUNS + info.id, mime_type=JSON
            )
            for info in runs
        ),
        *(
            types.Resource(
                name=task.name, title=f"Task of {task.target} ({task.phase})", uri=TASKS + task.name, mime_type=JSON
            )
            for task in tasks
        ),
    ]


async def read_resource(runtime: Runtime, who: Who, uri: str) -> types.ReadResourceResult:
    """Raises `MCPError` for what is not there, or not the caller's to see."""
    found = _URI.fullmatch(uri)
    try:
        if found is None or not who.caller.sees(who.namespace):
            raise NotFound(uri)
        data = await (_run(runtime, who, found[2]) if found[1] == "runs" else _task(runtime, who, found[2]))
    except NotFound:
        raise MCPError(INVALID_PARAMS, f"there is no resource {uri[:300]!r}", {"uri": uri[:300]}) from None
    text = msgspec.json.encode(data).decode()
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=JSON, text=text)])


async def _run(runtime: Runtime, who: Who, id: str) -> dict[str, Any]:
    info = await runtime.inside.runs.journal.get(id)
    if info.namespace != who.namespace:
        raise NotFound(id)
    _, state = await runtime.inside.runs.load(id)
    result = result_of(state, info.phase)
    return {
        "id": info.id,
        "agent": info.agent,
        "namespace": info.namespace,
        "phase": info.phase,
        "output": result.output,
        "value": result.value,
        "error": result.error,
        "usage": result.usage,
        "trace": trace_of(id, await runtime.inside.runs.facts(id)),
    }


async def _task(runtime: Runtime, who: Who, name: str) -> dict[str, Any]:
    info = await runtime.inside.tasking.tasks.get(who.namespace, name)
    story = await runtime.inside.tasking.stories.of(who.namespace, name, looks=False)
    return {**outline(info), "output": story.output}
