"""A call that nobody makes: what would become of it, by the documents that would govern it.

The agent is frozen as for a run, whoever asks is made as for a run, and the pipeline judges: nothing here decides. Only
the backends are missing, and what is counted for a short time (rates, circuits).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace

from foliot.engine.approval.documents import KIND as APPROVAL
from foliot.engine.approval.grants import standing_among
from foliot.engine.budgets.calls import CallBudgets
from foliot.engine.definition.backends import can_fence
from foliot.engine.definition.endpoints import models_reached
from foliot.engine.definition.freeze import (
    DELEGATION,
    FENCED_MODES,
    FENCED_TYPES,
    LOCK,
    declared_policy,
    delegation_of,
    freeze,
    tool_definition,
    with_search,
)
from foliot.engine.definition.functions import fenced_definition, function_tool
from foliot.engine.definition.governance import token_limits
from foliot.engine.definition.grants import NOTHING_GRANTED, SecretHosts, check_provider, not_granted
from foliot.engine.definition.grants import OperatorGrants as Granted
from foliot.engine.driver.intake import caller_for
from foliot.engine.runners.adapters import resolved_runner, with_questions
from foliot.engine.runners.profile import REFERENCE, RUNNER
from foliot.errors import Denied, FoliotError, NotFound
from foliot.kernel.identity import Identity, Person
from foliot.kernel.run.events import RunCreated
from foliot.kernel.run.spec import RunSpec
from foliot.resources.powers import declared_by_operator, spec_of
from foliot.resources.references import Origin, ReferenceGrants, Target, qualified, refused, target_of
from foliot.sandbox import wasm
from foliot.store.base import Document
from foliot.tools.backends.agent import PREFIX, agent_definition
from foliot.tools.base import Asks, Caller, Invocation, OnOutput, Tool, ToolDefinition, ToolDenied, ToolError
from foliot.tools.builtin.catalogue import builtin_to_judge
from foliot.tools.builtin.delegation import DelegateTool
from foliot.tools.builtin.shell import LIMITS
from foliot.tools.declared_fences import agent_fence, fence_facts
from foliot.tools.fences import FenceRequest, Narrowed, granted_ceilings
from foliot.tools.fences import narrowed as under_ceilings
from foliot.tools.governance.judge import Judgement, PolicyQuestion, narrowed, refused_by
from foliot.tools.governance.layers import Profile, ceilings_of, of_models
from foliot.tools.governance.permissions import Delegates
from foliot.tools.governance.reader import read_rules
from foliot.tools.governance.rules import Access, FixedRules, Rules, Verdict, placed
from foliot.tools.isolation import NONE
from foliot.tools.mcp.process import server_spec
from foliot.tools.pipeline.gates import HasSecret
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.registry import split_request

# The layer that speaks of what is around a tool.
FENCE = "sandbox"
# Built-in tools that run what an agent writes, in the fence of the agent.
_OF_AGENTS = frozenset({"bash", "python"})
# What cannot be judged without arguments.
_ON_ARGUMENTS = ("arguments", "conditions", "delegation", "asking")


class Declared:
    """A tool of which only the definition is known, and what its arguments ask for. It is judged and never called."""

    def __init__(self, definition: ToolDefinition, tool: Tool | None = None) -> None:
        self._definition = definition
        self.ours = tool is not None
        if definition.isolation == "wasm":
            contained = wasm.installed() and bool(definition.options.get("wasm"))
        else:
            fenced = tool is not None or (definition.isolation in FENCED_MODES and definition.type in FENCED_TYPES)
            contained = fenced and can_fence(definition.isolation)
        self.isolation = definition.isolation if contained else NONE
        if hasattr(tool, "callees"):
            self.callees = cast("Delegates", tool).callees
        if isinstance(tool, DelegateTool):
            self.misfit = tool.misfit
        if hasattr(tool, "question"):
            self.question = cast("Asks", tool).question

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        raise ToolError(f"the tool {call.tool!r} is only judged here")


@dataclass(frozen=True, slots=True)
class PolicyWorld:
    """Everything of one namespace that decides about a call. `tools`, `agents` and `servers` are documents by name.

    `endpoints` are those of models by `namespace/name`. `parts` are what the gates of a pipeline ask. `shared` are the
    references that namespaces granted each other, `granted` is what the operator granted whoever declared a tool.
    """

    namespace: str
    rules: Rules
    agents: Mapping[str, Document]
    tools: Mapping[str, Document]
    endpoints: Mapping[str, Document] = field(default_factory=dict[str, Document])
    parts: PipelineParts = field(default_factory=PipelineParts)
    budgets: CallBudgets | None = None
    shared: ReferenceGrants = field(default_factory=lambda: ReferenceGrants(()))
    granted: Granted = NOTHING_GRANTED
    secret_hosts: SecretHosts | None = None
    servers: Mapping[str, Document] = field(default_factory=dict[str, Document])

    @classmethod
    def of(
        cls,
        namespace: str,
        documents: Sequence[Document],
        *,
        default_access: Access = "allow",
        allowed_tools: Sequence[str] | None = None,
        budgets: CallBudgets | None = None,
        has_secret: HasSecret | None = None,
        granted: Granted = NOTHING_GRANTED,
        secret_hosts: SecretHosts | None = None,
        people: Mapping[str, Person] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> PolicyWorld:
        """From documents of any kinds; roles and endpoints may be of other namespaces.

        `people` are who gave standing grants, by the names that they gave them under.
        """
        here = [each for each in documents if _home(each) == namespace]
        given = standing_among((each for each in here if each["kind"] == APPROVAL), clock())
        standing = [dataclasses.replace(grant, person=people.get(grant.giver)) for grant in given] if people else given
        rules = read_rules(namespace, documents, grants=standing, default_access=default_access)
        return cls(
            namespace,
            rules,
            {each["metadata"]["name"]: each for each in here if each["kind"] == "Agent"},
            {each["metadata"]["name"]: each for each in here if each["kind"] == "Tool"},
            {_place(each): each for each in documents if each["kind"] == "ModelEndpoint"},
            PipelineParts(
                rules=FixedRules(rules),
                profile=Profile.of(allowed_tools),
                budgets=budgets,
                has_secret=has_secret,
                clock=clock,
            ),
            budgets,
            ReferenceGrants(documents),
            granted,
            secret_hosts,
            {each["metadata"]["name"]: each for each in here if each["kind"] == "McpServer"},
        )

    def knows(self, tool: str) -> bool:
        """Whether more is known of a tool than its name: a function that only Python knows is not declared."""
        return tool in self.tools or tool.startswith(PREFIX) or builtin_to_judge(tool) is not None

    def definition(self, tool: str) -> ToolDefinition:
        return self._tool(tool).definition

    async def judge(self, asked: PolicyQuestion) -> Judgement:
        """Judges a hypothetical call. Without arguments, checks that depend on them are left out."""
        try:
            spec = await self._frozen(asked)
        except FoliotError as error:
            return Judgement.of([Verdict("deny", "resolve", f"agent {asked.agent!r} cannot run: {error.message}")])
        caller = self._caller(asked, spec)
        names = dict.fromkeys((*(rule.name for rule in spec.tools), asked.tool))
        locked = spec.extra.get(LOCK, {}).get(asked.tool, ("", ""))
        call = Invocation(
            run_id="",
            call_id="",
            tool=asked.tool,
            arguments=asked.arguments or {},
            idempotency_key="",
            caller=caller,
            prior=frozenset(asked.prior),
            version=locked[0],
            schema_digest=locked[1],
        )
        judged = await Pipeline([self._tool(name, asked.agent) for name in names], self.parts).judge(call)
        whole = Judgement.of((*await self._of_model(spec, caller), *judged.verdicts))
        whole = Judgement.of((*whole.verdicts, *await self._of_fence(asked.tool, caller)))
        if whole.outcome == "allow":
            whole = Judgement.of((*whole.verdicts, *await self._of_powers(asked.tool)))
        return whole if asked.arguments is not None else narrowed(whole, _ON_ARGUMENTS)

    async def _of_model(self, spec: RunSpec, caller: Caller) -> list[Verdict]:
        """Returns the verdicts on asking the model that would make the call."""
        models = [model for model in await models_reached(spec, self._endpoint) if model]
        verdict = replace(of_models(self.rules, caller, models), layer="model")
        limits = "; ".join(f"at most {each.tokens} tokens by {each.name}" for each in token_limits(self.rules, caller))
        said = [replace(verdict, reason=f"{verdict.reason}; {limits}") if limits else verdict]
        try:
            if self.budgets is not None:
                await self.budgets.look_at_model(caller)
        except ToolError as error:
            said.append(refused_by("budget", error))
        return said

    async def _of_fence(self, tool: str, caller: Caller) -> list[Verdict]:
        """Returns what the rules leave of the fence of a tool, as they do when it is opened, and what it lacks."""
        wanted = self._fence(tool, caller)
        if wanted is None:
            return []
        try:
            granted = granted_ceilings(wanted, self.granted.sandbox_limits)
            found = under_ceilings(wanted, [*granted, *await ceilings_of(FixedRules(self.rules), caller)])
        except ToolDenied as denied:
            return [Verdict("deny", FENCE, denied.message, str(denied.details.get("rule", "")))]
        said = "; ".join(found.taken) or "no rule takes anything away from its sandbox"
        facts: dict[str, Any] = {
            "asked": fence_facts(Narrowed(wanted)),
            "left": fence_facts(found),
            "taken": list(found.taken),
        }
        if program := spec_of(self.tools[tool]).get("cli", {}).get("command", [""])[0] if tool in self.tools else "":
            facts["program"] = program
        if absent := [each.ref for each in found.request.secrets if not await self._has(each.ref, wanted, caller)]:
            facts["absent"] = absent
        return [Verdict("allow", FENCE, said, details=facts)]

    def _fence(self, tool: str, caller: Caller) -> FenceRequest | None:
        """The fence that a tool asks for: its own, that of its MCP server, or that of the agent whose code it runs."""
        if (document := self.tools.get(tool)) is None:
            return agent_fence(caller, LIMITS, self.granted.sandbox_mounts) if tool in _OF_AGENTS else None
        declared = self._tool(tool).definition.options.get("sandbox")
        server = self.servers.get(str(spec_of(document).get("mcp_server_ref", "")))
        if server is not None and (known := server_spec(server)).fenced:
            declared = known.fence
        return declared if isinstance(declared, FenceRequest) else None

    async def _has(self, secret: str, wanted: FenceRequest, caller: Caller) -> bool:
        has = self.parts.has_secret
        return has is None or await has(wanted.namespace or caller.namespace, secret)

    async def _of_powers(self, tool: str) -> list[Verdict]:
        """Returns the verdicts of a tool's backend before it connects: addresses and secrets that are not granted.

        It is asked last, as in a call: what needs an approval is asked for first.
        """
        document = self.tools.get(tool)
        if document is None:
            return []
        try:
            await self.granted.check(document, self.secret_hosts or _no_secrets)
        except Denied as denied:
            return [Verdict("deny", "deployment", denied.message)]
        return []

    async def _frozen(self, asked: PolicyQuestion) -> RunSpec:
        """Builds the spec that a run of the agent would be pinned to. Raises `InvalidInput`."""
        document = self.agents.get(asked.agent)
        if document is None:
            return RunSpec(asked.agent, asked.model, self.namespace)
        spec = document["spec"]
        requests: Sequence[str] = spec.get("tools", ())
        if (runner := resolved_runner(document)) is not None:
            self.granted.check_runner(runner, asked.agent)
            endpoint, own = REFERENCE, f"{RUNNER}:{runner.type}"
            requests = with_questions(runner, requests, declared_policy(spec))
        else:
            endpoint = qualified(str(spec.get("model_ref", "")), self.namespace)
            own = await self._model_of(endpoint)
        model = asked.model or spec.get("model_name") or own
        tools = [self._to_freeze(split_request(request)[0], asked.agent) for request in requests]
        return freeze(document, model=model, endpoint=endpoint, tools=with_search(tools), runner=runner)

    async def _model_of(self, endpoint: str) -> str:
        """The model that an agent's endpoint answers with. Raises `Denied`, `NotFound`, `InvalidInput`."""
        origin = Origin("Agent", self.namespace)
        if ":" not in endpoint:
            target = target_of("ModelEndpoint", endpoint, self.namespace)
            if not self.shared.allow(origin, target):
                raise refused(origin, target)
            if (document := self.endpoints.get(endpoint)) is None:
                raise NotFound(f"there is no model endpoint {endpoint!r}")
            check_provider(document)
        found = await self._endpoint(endpoint, origin)
        return found[0] if found is not None else ""

    def _to_freeze(self, tool: str, agent: str) -> ToolDefinition:
        """Returns the definition of a tool that a run could have. Raises `ToolDenied`, `InvalidInput`."""
        document = self.tools.get(tool)
        if document is not None:
            try:
                self.granted.check_wasm(document)
            except Denied as denied:
                raise not_granted(document, denied) from None
        # Modules of the operator's own tools are not imported here: they need only be there where runs are driven.
        if document is not None and document["spec"].get("function") and not declared_by_operator(document):
            fenced = document["spec"]["runtime"]["isolation_mode"] in FENCED_MODES
            (fenced_definition if fenced else function_tool)(document, self.granted)
        return self._tool(tool, agent).definition

    def _caller(self, asked: PolicyQuestion, spec: RunSpec) -> Caller:
        created = RunCreated(
            asked.agent,
            "",
            namespace=self.namespace,
            task=placed(asked.task, self.namespace) if asked.task else "",
            system=asked.system,
            template=placed(asked.template, self.namespace) if asked.template else "",
            ancestors=asked.ancestors,
            depth=len(asked.ancestors),
        )
        caller = caller_for(spec, created, Identity(asked.user, asked.by, asked.via))
        return caller if asked.agent in self.agents else replace(caller, advertised=None)

    async def _endpoint(self, ref: str, origin: Origin) -> tuple[str, Sequence[str]] | None:
        """The default model of an endpoint and its fallbacks, as far as they are declared and may be named."""
        if ":" in ref:
            return ref.partition(":")[2].strip(), ()
        document = self.endpoints.get(ref)
        if document is None or not self.shared.allow(origin, Target("ModelEndpoint", *ref.split("/", 1))):
            return None
        spec = document["spec"]
        return spec.get("default_model", ""), [qualified(each, _home(document)) for each in spec.get("fallbacks", ())]

    def _spec(self, agent: str) -> Mapping[str, Any]:
        """Returns the spec of an agent; nothing for one that is not declared."""
        document = self.agents.get(agent)
        return document["spec"] if document is not None else {}

    def _tool(self, tool: str, agent: str = "") -> Declared:
        """Looks the tool of an agent up: a declared one, else an agent, else a built-in one."""
        if (document := self.tools.get(tool)) is not None:
            return Declared(tool_definition(document))
        if tool.startswith(PREFIX):
            return Declared(agent_definition(tool.removeprefix(PREFIX), self.namespace))
        built_in = builtin_to_judge(tool)
        if isinstance(built_in, DelegateTool) and (declared := self._spec(agent)).get(DELEGATION):
            built_in.delegation = delegation_of(declared)
        return Declared(built_in.definition if built_in else ToolDefinition(tool, namespace=self.namespace), built_in)


async def _no_secrets(reference: str, namespace: str) -> Sequence[str] | None:
    return None


def _home(document: Document) -> str:
    return document["metadata"].get("namespace", "default")


def _place(document: Document) -> str:
    return f"{_home(document)}/{document['metadata']['name']}"
