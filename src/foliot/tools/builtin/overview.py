"""Overviews: the tools of this run, and the state of the runs of its namespace. Both only read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from foliot.common.times import iso_seconds
from foliot.errors import NotFound
from foliot.tools.base import Invocation, OnOutput, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, whole_number
from foliot.tools.builtin.journal import History, ListedRun
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.search import Index

Definitions: TypeAlias = Callable[[], Iterable[ToolDefinition]]

MOST_LISTED: Final = 100
# Runs are counted among the newest this many; the answer says so when there may be more.
MOST_COUNTED: Final = 500


class ListTools:
    """`definitions` are all tools that were made for the run; it lists those that the run was given."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self.definition = ToolDefinition(
            name="list_tools",
            description="Lists the tools that you can call, or those that fit a query, with their parameters.",
            schema=object_schema(
                {
                    "query": optional("string", "What the tool should do, in words; all tools when not given."),
                    "category": optional("string", "Only tools of this category."),
                    "limit": optional("integer", "How many at most; 20 when not given."),
                    "offset": optional("integer", "How many to pass over; 0 when not given."),
                }
            ),
            effect="read",
            category="core",
            timeout=5.0,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        shown = call.caller.advertised
        tools = [each for each in self._definitions() if shown is None or each.name in shown]
        if (category := optional_text(call, "category")) is not None:
            known = sorted({each.category for each in tools})
            if category not in known:
                raise ToolNothingThere(f'category "{category}" not found; there are: {", ".join(known) or "none"}')
            tools = [each for each in tools if each.category == category]
        if (query := optional_text(call, "query")) is not None and query.strip():
            tools = Index(tools).search(query, len(tools))
        offset = whole_number(call, "offset", 0, least=0, most=len(tools))
        end = min(len(tools), offset + whole_number(call, "limit", 20, least=1, most=MOST_LISTED))
        return {
            "total": len(tools),
            "has_more": end < len(tools),
            "next_offset": end,
            "tools": [_described(each) for each in tools[offset:end]],
        }


def _described(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "version": tool.version,
        "category": tool.category,
        "effect": tool.effect,
        "description": tool.description,
        "schema": dict(tool.schema or {}),
    }


class MonitorRuns:
    """Counts and states only: what runs said and found is not shown to every agent of a namespace."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.definition = ToolDefinition(
            name="monitor_runs",
            description=(
                "How runs are doing: one by `run_id`, or the newest of an agent, or of everyone, with counts by state "
                "and by agent. Shows states, steps and tokens, not what was said."
            ),
            schema=object_schema(
                {
                    "run_id": optional("string", "One run."),
                    "agent": optional("string", "Only runs of this agent."),
                    "recent_limit": optional(
                        "integer",
                        f"How many runs to list: 20 when not given, at most {MOST_LISTED}, 0 for counts only.",
                    ),
                }
            ),
            effect="read",
            category="inspect",
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        if run_id := optional_text(call, "run_id"):
            return _state(await self._one(call, run_id))
        agent = optional_text(call, "agent") or None
        rows = await self._history.list(namespace=call.namespace, agent=agent, limit=MOST_COUNTED + 1)
        counted = rows[:MOST_COUNTED]
        recent = whole_number(call, "recent_limit", 20, least=0, most=MOST_LISTED)
        return {
            "namespace": call.namespace,
            "total_runs": len(counted),
            "counted_all": len(rows) <= MOST_COUNTED,
            "by_phase": dict(Counter(row.phase for row in counted)),
            "by_agent": dict(Counter(row.agent for row in counted)),
            "total_tokens": sum(_number(row, "tokens") for row in counted),
            "recent": [_state(row) for row in counted[:recent]],
        }

    async def _one(self, call: Invocation, run_id: str) -> ListedRun:
        try:
            row = await self._history.get(run_id)
        except NotFound:
            row = None
        if row is None or row.namespace != call.namespace:  # one answer for both: ids of others are not confirmed
            raise ToolNothingThere(f"there is no run {run_id!r} in namespace {call.namespace!r}", run_id=run_id)
        return row


def _state(row: ListedRun) -> dict[str, Any]:
    state: dict[str, Any] = {
        "run_id": row.id,
        "agent": row.agent,
        "phase": row.phase,
        "created_at": iso_seconds(row.created_at),
        "updated_at": iso_seconds(row.updated_at),
        "steps": _number(row, "steps"),
        "tool_calls": _number(row, "tool_calls"),
        "tokens": _number(row, "tokens"),
    }
    if waiting := row.summary.get("waiting"):
        state["waiting"] = waiting
    return state


def _number(row: ListedRun, name: str) -> int:
    return int(row.summary.get(name) or 0)
