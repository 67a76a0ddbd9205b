"""MCP tools: agents and systems under a prefix, and the governed tools of the namespace.

Built-in tools are left out: they belong to runs. So is what the rules refuse to this caller whatever the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mcp_types as types

from foliot.errors import NotFound
from foliot.runtime.runtime import Runtime
from foliot.runtime.tools import CatalogTool, ToolCaller
from foliot.server.auth.identity import Caller
from foliot.server.runs.targets import KINDS, TargetKind, WorkTarget, list_targets
from foliot.store.base import Key

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext


# --- who -------------------------------------------------------------------------------------------------------------

# On whose behalf a message of an MCP client is handled, and in which namespace.

Context: TypeAlias = "ServerRequestContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class McpCaller:
    """A caller in a namespace: that of the address they connected to."""

    caller: Caller
    namespace: str


Knows: TypeAlias = Callable[[Context], McpCaller]


# --- catalogue -------------------------------------------------------------------------------------------------------

PREFIXES: Final[dict[TargetKind, str]] = {"agent": "agent-", "system": "system-"}
MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "minLength": 1, "description": "What to tell it, or to ask it for."},
        "idempotency_key": {"type": "string", "description": "Asking again with the same key begins nothing new."},
    },
    "required": ["message"],
    "additionalProperties": False,
}
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
# A tool without a schema takes one text.
_ONE_TEXT: Final[dict[str, Any]] = {"type": "object", "properties": {"input": {"type": "string"}}}
# Layers that look at arguments: what they say of none says nothing of a real call.
_BY_ARGUMENTS: Final = frozenset({"arguments", "conditions", "preconditions", "budget", "rate", "secrets"})


async def list_tools(runtime: Runtime, who: McpCaller) -> list[types.Tool]:
    """Lists the tools by name; none for a caller who may only read."""
    if not who.caller.may("operator", who.namespace):
        return []
    found: dict[str, types.Tool] = {}
    async for target in list_targets(runtime.inside.resources, who.caller, who.namespace):
        tool = target_tool(target)
        found[tool.name] = tool
    for offered in await runtime.inside.tools.tools(who.namespace):
        callable_here = offered.source != "builtin" and offered.available and offered.name not in found
        if callable_here and await _allowed(runtime, who, offered):
            found[offered.name] = governed_tool(offered)
    return [found[name] for name in sorted(found)]


async def find_target(runtime: Runtime, who: McpCaller, name: str) -> WorkTarget | None:
    """The agent or system behind the name of a tool; None when it names a governed tool."""
    for kind, prefix in PREFIXES.items():
        if name.startswith(prefix):
            try:
                key = Key(KINDS[kind], who.namespace, name.removeprefix(prefix))
                return WorkTarget(kind, await runtime.inside.resources.get(key))
            except NotFound:
                continue
    return None


def target_tool(target: WorkTarget) -> types.Tool:
    """How an agent or a system looks as a tool."""
    words = target.description or f"The {target.kind} {target.name}."
    return types.Tool(
        name=PREFIXES[target.kind] + target.name,
        title=target.name,
        description=f"{words} It works on its own, with its own tools, and answers when it is done.",
        input_schema=MESSAGE,
        output_schema=output_schema(target),
        _meta={"foliot.dev/kind": target.kind},
    )


def output_schema(target: WorkTarget) -> dict[str, Any] | None:
    """The shape of an agent's answers, where MCP can carry it: all revisions know objects, and nothing else."""
    schema = target.output_schema
    return schema if schema is not None and schema.get("type") == "object" else None


def governed_tool(offered: CatalogTool) -> types.Tool:
    """How a governed tool looks."""
    definition = offered.definition
    assert definition is not None, "an available tool has a definition"
    schema = dict(definition.schema) if definition.schema is not None else _ONE_TEXT
    if schema.get("type") != "object":
        schema = _ANY_OBJECT
    return types.Tool(
        name=definition.name,
        description=definition.description or None,
        input_schema=schema,
        annotations=types.ToolAnnotations(
            read_only_hint=definition.effect == "read",
            idempotent_hint=definition.effect in ("read", "idempotent"),
        ),
        _meta={"foliot.dev/kind": "tool", "foliot.dev/risk": definition.risk},
    )


def asker_of(who: McpCaller) -> ToolCaller:
    return ToolCaller(who.namespace, identity=who.caller.acting_for_self("mcp"))


async def _allowed(runtime: Runtime, who: McpCaller, offered: CatalogTool) -> bool:
    judgement = await runtime.inside.tools.test(offered.name, {}, asker_of(who))
    return not any(verdict.outcome == "deny" and verdict.layer not in _BY_ARGUMENTS for verdict in judgement.verdicts)
