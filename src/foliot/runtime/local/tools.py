"""The verbs on tools outside any run, on a runtime in this process; see groups/work.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foliot.errors import Conflict, Denied
from foliot.kernel.identity import NOBODY, Identity, acting
from foliot.runtime.answers import Acceptance, Called, Toolset
from foliot.runtime.groups.work import ToolGroup
from foliot.runtime.tools import CatalogTool, ToolCaller, ToolCatalog, capabilities
from foliot.store.base import Document, Key, ResourceStore
from foliot.tools.base import (
    Parked,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolUnsupported,
)
from foliot.tools.governance.judge import Judgement
from foliot.tools.registry import schema_digest

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside
    from foliot.tools.mcp.connections import McpConnections

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class LocalTools(ToolGroup):
    """Implements `ToolGroup`. `caller` is on whose behalf tools are called."""

    def __init__(self, inside: Inside, *, caller: Identity = NOBODY) -> None:
        self._inside = inside
        self._offering = inside.tools
        self._settings = inside.settings
        self._caller = caller

    async def list(self, *, namespace: str = "default") -> Toolset:
        found = await self._offering.tools(namespace)
        return Toolset([tool_facts(each) for each in found], capabilities(self._settings))

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        offered = await self._offering.find(name, namespace)
        rules = await self._offering.rules_for(offered.name, namespace)
        limits = tool_limits(offered.definition) if offered.definition else {}
        return {**tool_facts(offered), **limits, "rules": rules}

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        namespace: str = "default",
        agent: str = "",
        user: str = "",
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        asker = self._asker(namespace, agent, user)
        return await call_tool(self._offering, asker, name, arguments, key=key, on_output=on_output)

    async def test(
        self, name: str, arguments: dict[str, Any], *, namespace: str = "default", agent: str = "", user: str = ""
    ) -> Judgement:
        return await test_tool(self._offering, self._asker(namespace, agent, user), name, arguments)

    async def offered(self, server: str, *, namespace: str = "default") -> Rows[Document]:
        from foliot.catalog.mcp import offered_tools  # with the clients of MCP: loaded when somebody asks

        document = await self._resources.get(Key("McpServer", namespace, server))
        async with _connected(self._inside) as connections:
            return await offered_tools(self._resources, document, connections)

    async def accept(
        self, server: str, tool: str, digest: str, levels: Mapping[str, Any], *, namespace: str = "default"
    ) -> str:
        order, key = Acceptance.of(tool, digest, levels), Key("McpServer", namespace, server)
        return str((await accept_offered(self._inside, key, order))["tool"])

    @property
    def _resources(self) -> ResourceStore:
        return self._inside.resources

    def _asker(self, namespace: str, agent: str, user: str) -> ToolCaller:
        return ToolCaller(namespace, agent, acting(user, self._caller.user, self._caller.via or "python"))


async def call_tool(
    offering: ToolCatalog,
    asker: ToolCaller,
    name: str,
    arguments: dict[str, Any],
    *,
    key: str = "",
    on_output: Callable[[str], None] | None = None,
) -> Called:
    """Do as `ToolGroup.call`, on behalf of `asker`."""
    with _callable():
        made = await offering.call(name, arguments, asker, idempotency_key=key, on_output=on_output)
    if isinstance(made, Parked):
        raise _nobody_waits(name, made)
    return Called(made)


async def test_tool(offering: ToolCatalog, asker: ToolCaller, name: str, arguments: dict[str, Any]) -> Judgement:
    """Do as `ToolGroup.test`, on behalf of `asker`."""
    with _callable():
        return await offering.test(name, arguments, asker)


async def accept_offered(inside: Inside, server: Key, order: Acceptance) -> Document:
    """Do as `ToolGroup.accept`; return what was discovered of the tool: `name`, `tool`, `digest`."""
    from foliot.catalog.mcp import accept_tool

    store = inside.resources
    document = await store.get(server)
    async with _connected(inside) as connections:
        synced = await accept_tool(store, document, connections, order.tool, digest=order.digest, levels=order.levels())
    return next(each for each in synced.discovered if order.tool in (each["name"], each.get("tool")))


@asynccontextmanager
async def _connected(inside: Inside) -> AsyncGenerator[McpConnections]:
    """Connections for one request. An MCP server that cannot be asked is a `Conflict`: this process is well."""
    from foliot.catalog.mcp import opened_connections

    try:
        async with opened_connections(inside.resources, inside.settings, fences=inside.fences) as connections:
            yield connections
    except ToolError as error:
        raise Conflict(error.message, hint=error.hint) from None


@contextmanager
def _callable() -> Generator[None]:
    """A tool that cannot be called where it should run is no failure of the tool. Raises `Conflict`, `Denied`.

    `ToolIsolationMissing` stays what it is: a run says the same of the same tool.
    """
    try:
        yield
    except ToolIsolationMissing:
        raise
    except (ToolDenied, ToolUnsupported) as error:
        hint = error.hint or "`foliot tools list` says which tools can be called"
        raise Denied(error.message, hint=hint, **error.details) from None
    except ToolError as error:
        raise Conflict(error.message, hint=error.hint or "`foliot tools list` says which tools can be called") from None


def _nobody_waits(name: str, parked: Parked) -> Denied:
    """There is no run that would go on when somebody agrees, so nobody is asked."""
    who = f" by {', '.join(parked.approvers)}" if parked.approvers else ""
    return Denied(
        f"the call of {name} needs an approval{who}, and was not made: {parked.reason}",
        hint=f"A standing grant covers calls in advance: `foliot approvals grant --tool {name} --until 1h`. "
        "A run of an agent that makes the call asks and waits.",
        layer="approval",
    )


def tool_facts(offered: CatalogTool) -> Document:
    """Returns the facts about a tool for lists."""
    made = offered.definition
    return {
        "name": offered.name,
        "from": offered.source,
        "available": offered.available,
        **({"problem": offered.problem} if offered.problem else {}),
        **(_facts(made) if made else {}),
    }


def _facts(made: ToolDefinition) -> dict[str, Any]:
    return {
        "type": made.type,
        "version": made.version,
        "effect": made.effect,
        "category": made.category,
        "risk": made.risk,
        "isolation": made.isolation,
        "capabilities": list(made.capabilities),
        "operation_classes": list(made.classes),
        "record": made.record,
        "schema_digest": schema_digest(made.schema),
        "description": made.description,
    }


def tool_limits(made: ToolDefinition) -> dict[str, Any]:
    """Returns the limits and the endpoint of one tool. Members that are not set are left out."""
    limits = {
        "timeout": made.timeout,
        "attempt_timeout": made.attempt_timeout,
        "idle_timeout": made.idle_timeout,
        "max_attempts": made.retry.max_attempts,
        "rate_limit": asdict(made.rate_limit) if made.rate_limit else None,
        "endpoint": made.endpoint,
        "requires": list(made.requires),
        "requires_prior": list(made.requires_prior),
        "after": list(made.after),
        "resource_keys": list(made.resource_keys),
        "on_dependency_failure": made.on_dependency_failure if made.after else "",
        "deprecated_since": made.deprecated_since,
        "replaced_by": made.replaced_by,
        "on_unknown": made.on_unknown,
        "auth": made.auth.profile if made.auth else "",
        "schema": dict(made.schema) if made.schema is not None else None,
    }
    return {name: value for name, value in limits.items() if value not in (None, "", [])}
