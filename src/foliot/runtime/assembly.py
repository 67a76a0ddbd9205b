"""The assembly of agents: definition, tools and model, from Python objects or from the store."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from foliot.common.pages import read_all
from foliot.common.suggestions import VERY_ALIKE, suggestion
from foliot.common.versions import parse_version, split_request
from foliot.engine.approval.grants import StoredGrants
from foliot.engine.base import Clock
from foliot.engine.code.conversation import PROGRAM, RESULT_LIMIT
from foliot.engine.definition.backends import Backends
from foliot.engine.definition.endpoints import RunModels
from foliot.engine.definition.freeze import (
    CLIENT,
    CODE,
    DECLARED,
    DEFERRED,
    DELEGATION,
    ENDPOINT,
    LOCK,
    declared_policy,
    delegation_of,
    freeze,
    program_of,
    summariser_of,
    tool_rule,
    with_data_notes,
    with_search,
    with_tool,
)
from foliot.engine.definition.governance import ModelGate
from foliot.engine.definition.missing import built_in_names
from foliot.engine.definition.run_options import RunOptions, check_model_may_change, read_schema, without_tools
from foliot.engine.definition.run_scope import MissingParts, missing_in, with_missing
from foliot.engine.definition.skills import (
    SkillCatalog,
    offered_of,
    quarantined_in,
    skills_in,
    with_misnamed,
    with_prompt,
    with_quarantined,
    with_skills,
    without_skills,
)
from foliot.engine.driver.intake import caller_for
from foliot.engine.hooks.declared import declared_object, with_hooks
from foliot.engine.hooks.registry import HookRegistry
from foliot.engine.runners.adapters import resolved_runner, with_questions
from foliot.engine.runners.profile import REFERENCE, RUNNER
from foliot.errors import NotFound, NotHere, UsageError
from foliot.kernel.identity import NOBODY
from foliot.kernel.run.events import RunCreated
from foliot.kernel.run.spec import RunSpec
from foliot.resources.references import Reference, qualified
from foliot.runtime.agent import Agent, check_active, named
from foliot.runtime.output_types import OUTPUT_TYPE, OutputType, is_pinned
from foliot.runtime.presence import check_missing, missing_of, told
from foliot.store.base import Document, Filter, Key, ResourceStore
from foliot.tools import search
from foliot.tools.backends.agent import PREFIX, RUNNING_CODE, Agents, AgentTool, Delegation, Program
from foliot.tools.base import CheckedOutput, OutputCheck, Tool, ToolDefinition
from foliot.tools.builtin.catalogue import builtin_definition
from foliot.tools.builtin.code import Code
from foliot.tools.builtin.delegation import DelegateTool
from foliot.tools.builtin.questions import ClientTool
from foliot.tools.builtin.recall import NAME as RECALL
from foliot.tools.builtin.skills import SKILLS_TOOL, OfferedSkill, OfferedSkills
from foliot.tools.governance.rules import Rules
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.registry import GLOBAL, ToolRegistry
from foliot.tools.workspaces import WORKSPACE_RULES

# --- toolbox ---------------------------------------------------------------------------------------------------------

# The tools behind the names that an agent lists: given in Python, declared in the store, or built in.

MakeTool: TypeAlias = Callable[[Document], Awaitable[Tool]]
"""The backend of a declared tool; see backends.py."""
BuiltinTools: TypeAlias = Callable[[str, str, Callable[[], Iterable[ToolDefinition]]], Tool | None]
"""A built-in tool by namespace and name, given all tools of its run; None when there is none of that name."""
AgentTools: TypeAlias = Callable[[str, str], Awaitable[Tool | None]]
"""The tool in front of an agent, by namespace and name; None when there is no such agent."""


class Found(NamedTuple):
    """`declared` are the names of those among `tools` that come from the store, the same for every process."""

    tools: list[Tool]
    declared: list[str]


async def tools_of(
    requests: Sequence[str],
    namespace: str,
    given: ToolRegistry,
    store: ResourceStore | None,
    agent: str,
    make: MakeTool,
    agents: AgentTools | None = None,
    builtin: BuiltinTools | None = None,
    pinned: Collection[str] = (),
) -> Found:
    """The tools that an agent asks for, each as `name` or `name@version`, in that order; `agent:name` is an agent.

    `pinned` are the names that were `declared` when the run began.
    Raises `NotFound` naming every one that is missing or has no such version, `InvalidInput`. The error says what this
    process `lacks` if another one may have it: what was declared and is no longer is gone for all of them.
    """
    found: list[Tool] = []
    declared: list[str] = []
    missing: list[str] = []
    for request in requests:
        name, constraint = split_request(request)
        if name in given:
            found.append(given.resolve(request))
        elif name.startswith(PREFIX) and agents is not None:
            if (delegated := await agents(namespace, name.removeprefix(PREFIX))) is None:
                missing.append(name)
            else:
                found.append(delegated)
        elif (document := await _declared(store, namespace, name)) is None:
            made = builtin(namespace, name, lambda: [each.definition for each in found]) if builtin else None
            if made is None:
                missing.append(name)
            elif constraint.allows(parse_version(version := made.definition.version)):
                found.append(made)
            else:
                missing.append(f"{request} (there is {version})")
        elif constraint.allows(parse_version(version := document["spec"]["version"])):
            found.append(await make(document))
            declared.append(name)
        else:
            missing.append(f"{request} (there is {version})")
    if missing:
        names = [*(each.name for each in given.definitions()), *built_in_names()]
        if store is not None:
            names += [each["metadata"]["name"] for each in await read_all(store.list, Filter("Tool", namespace))]
        otherwise = "apply a Tool of that name, or give the function to the Runtime"
        error = NotFound(
            f"agent {agent!r} uses tools that are not there: {', '.join(missing)}",
            hint=suggestion(missing[0], names, otherwise, alike=VERY_ALIKE),
        )
        if not any(name in pinned for name in missing):
            error.details["lacks"] = f"tool {', '.join(missing)}"
        raise error
    return Found(found, declared)


async def _declared(store: ResourceStore | None, namespace: str, name: str) -> Document | None:
    if store is None:
        return None
    try:
        return await store.get(Key("Tool", namespace, name))
    except NotFound:
        return None


# --- assembly --------------------------------------------------------------------------------------------------------


# So many agents are kept prepared for their next run, and so many pipelines of pinned runs.
MOST_PREPARED: Final = 256


class _Prepared(NamedTuple):
    """The prepared state that runs of one agent share, and all that it depends on."""

    agent: Agent
    rules: Rules
    given: tuple[ToolRegistry, int]
    spec: RunSpec
    pipeline: Pipeline


class _Piped(NamedTuple):
    """The pipeline that runs of one spec share, and all that it depends on."""

    spec: RunSpec
    given: tuple[ToolRegistry, int]
    generation: int
    revision: int
    pipeline: Pipeline


class Assembly:
    """Python objects win over declarations of the same name: who holds the object means it."""

    def __init__(
        self,
        models: RunModels,
        resources: ResourceStore | None,
        tools: Iterable[Tool],
        backends: Backends,
        clock: Clock = time.time,
        parts: PipelineParts | None = None,
        gate: ModelGate | None = None,
        hooks: HookRegistry | None = None,
        brought: ToolRegistry | None = None,
    ) -> None:
        """`parts` are one set for all pipelines: what is counted per tool is counted over all runs of this process.

        `brought` are the tools of plug-ins.
        """
        self.backends = backends
        self._clock = clock
        self._parts = parts or PipelineParts(clock=clock)
        self.models = models
        self._gate = gate or ModelGate(self._parts.rules, models.models_of)
        self.resources = resources
        self.hooks = hooks or HookRegistry()
        self._skills = SkillCatalog(resources)
        self.given = ToolRegistry(tools, parent=brought if brought is not None else GLOBAL)
        self._agents: dict[tuple[str, str], Agent] = {}
        self._agent_tools: dict[tuple[str, str], ToolRegistry] = {}
        self._prepared: dict[tuple[str, str], _Prepared] = {}
        self._pipelines: dict[int, _Piped] = {}  # by the identity of the spec, which each of them holds
        self._missing = MissingParts(resources, self.brings, self._document_of, self._python_changes)
        self._parts_of: dict[str, PipelineParts] = {}
        # Whether agents made in Python are run although something is missing that they name.
        self.allow_missing = False
        # Grows whenever a Python object becomes known that was not known before.
        self.generation = 0
        self._delegate: Agents | None = None

    @property
    def delegate(self) -> Agents | None:
        """The runner of agents that other agents call; set by the composition root. Without it there are none."""
        return self._delegate

    @delegate.setter
    def delegate(self, agents: Agents) -> None:
        self._delegate = self.backends.agents = agents

    def know(self, agent: Agent) -> None:
        """Remember the Python objects of an agent, so that its runs can be resumed by id alone."""
        if self._agents.get((agent.namespace, agent.name)) is agent:
            return
        self.generation += 1
        self._agents[agent.namespace, agent.name] = agent
        self._agent_tools[agent.namespace, agent.name] = ToolRegistry(agent.tools, parent=self.given)
        if agent.gateway is not None:
            self.models.serve(agent.model_ref, agent.gateway)
        if agent.endpoint is not None:
            self.models.declare(agent.endpoint)
        self.hooks.know(f"{agent.namespace}/{agent.name}", agent.hooks)
        for callee in agent.agents:
            self.know(callee)

    async def brings(self, reference: Reference) -> bool:
        """Whether a part that nobody declared comes from Python or a plug-in, for any agent of its namespace."""
        namespace, name = reference.namespace, reference.name
        match reference.kind:
            case "Agent":
                return self.known(namespace, name) is not None
            case "ModelEndpoint":
                return self.models.is_fixed(qualified(reference.said, namespace))
            case "Tool":
                own = (tools for (space, _), tools in self._agent_tools.items() if space == namespace)
                return name in self.given or any(name in tools for tools in own)
            case _:
                return False

    def _python_changes(self) -> int:
        return self.generation + self.given.changes

    def _document_of(self, namespace: str, name: str) -> Document | None:
        known = self.known(namespace, name)
        return None if known is None else known.document

    def known(self, namespace: str, name: str) -> Agent | None:
        return self._agents.get((namespace, name))

    async def agent(self, agent: Agent | str) -> Agent:
        """The agent, looked up when it is a name (`name` or `namespace/name`). Raises `NotFound`, `InvalidInput`."""
        if isinstance(agent, Agent):
            self.know(agent)
            return agent
        namespace, name = named(agent)
        if (known := self.known(namespace, name)) is not None and known.is_of_python:
            return known
        try:
            if self.resources is None:
                raise UsageError(f"there is no agent {agent!r} in this runtime", hint="give an Agent object")
            return Agent.from_document(await self.resources.get(Key("Agent", namespace, name)))
        except (NotFound, UsageError):
            if known is None:
                raise
            return known  # an object without objects of its own, which nobody declared

    async def prepare(self, agent: Agent) -> tuple[RunSpec, Pipeline]:
        """Prepares a run of this agent: its pinned spec and its tools. Raises as `freeze` and `pipeline`.

        Both are kept for as long as they would come out the same: the agent is the same object, its tools are Python
        objects that have not been replaced, and nothing that is declared has changed since.
        """
        check_active(agent)
        place = agent.namespace, agent.name
        rules = await self._parts.rules.rules(agent.namespace)
        given = self._agent_tools.get(place, self.given)
        known = self._prepared.get(place)
        if (
            known is not None
            and known.agent is agent
            and known.rules is rules
            and known.given == (given, given.changes)
            and missing_in(known.spec) == await self._around(agent)
        ):
            return known.spec, known.pipeline
        spec, tools = await self._frozen(agent)
        pipeline = self._piped(spec, tools)
        if self._is_fixed(agent, given):
            self._prepared[place] = _Prepared(agent, rules, (given, given.changes), spec, pipeline)
            if len(self._prepared) > MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared)))
        return spec, pipeline

    def _is_fixed(self, agent: Agent, given: ToolRegistry) -> bool:
        """Whether nothing but rules can change what `agent` runs with: tools and endpoints that are looked up can."""
        if agent.document["spec"].get("skills"):
            return False
        names = [split_request(request)[0] for request in agent.document["spec"].get("tools", [])]
        spec = agent.document["spec"]
        refs = [agent.model_ref, *spec.get("fallbacks", ())] if agent.model_ref else []
        if fast := summariser_of(spec):
            refs.append(fast)
        return all(name in given for name in names) and all(
            self.models.is_fixed(qualified(ref, agent.namespace)) for ref in refs
        )

    async def check_active(self, spec: RunSpec) -> None:
        """Raises `InactiveAgent` when the agent of a run takes no new work now; one that is gone is nobody's matter."""
        with suppress(NotFound, UsageError):
            check_active(await self.agent(f"{spec.namespace}/{spec.agent}"))

    async def _around(self, agent: Agent) -> tuple[str, ...]:
        """Sentences on what is missing around a run. Raises `ManifestError` when the agent was made in Python and
        names what is not there itself, or one that was given to it, unless this runtime takes that.
        """
        made_here = self.known(agent.namespace, agent.name) is agent
        if self.resources is not None:
            texts = await self._missing.around(agent.document)
            if not texts or not made_here or self.allow_missing:
                return texts
        elif not made_here:
            return ()
        else:
            texts = ()
        given = [each.name for each in self.given.definitions()]
        found = await missing_of(agent, self.resources, self.brings, given)
        if not self.allow_missing:
            check_missing(found)
        return texts or told(found)

    async def freeze(self, agent: Agent) -> RunSpec:
        """Pins a run of this agent to its present definition. Raises `NotFound`, `InvalidInput`, `Denied`."""
        check_active(agent)
        return (await self._frozen(agent))[0]

    async def _frozen(self, agent: Agent) -> tuple[RunSpec, list[Tool]]:
        """Pins a run of this agent, and returns the tools that it is pinned to."""
        spec, runner = agent.document["spec"], resolved_runner(agent.document)
        self.backends.grants.check_workspace(agent.document)
        self.backends.grants.check_fence(agent.document)
        requests: Sequence[str] = spec.get("tools", [])
        window, summariser = None, ("", "")
        if fast := summariser_of(spec):
            fast = qualified(fast, agent.namespace)
            summariser = fast, await self.models.model_of(fast, agent.namespace)
        if runner is not None:
            self.backends.grants.check_runner(runner, agent.name)
            endpoint, model = REFERENCE, spec.get("model_name") or f"{RUNNER}:{runner.type}"
            requests = with_questions(runner, requests, declared_policy(spec))
        else:
            endpoint = qualified(agent.model_ref, agent.namespace)
            await self.models.look_again()  # a run begins with the key and the address that are declared by now
            await self.models.allow(endpoint, agent.namespace)
            model = spec.get("model_name") or await self.models.model_of(endpoint, agent.namespace)
            window = await self.models.window_of(endpoint, model)
        own = (offered_of(document, "agent") for document in agent.skills)
        skills = [each for each in own if each is not None]
        skills += await self._skills.of_agent(spec.get("skills", ()), agent.namespace, agent.name)
        if (spec.get("skills") or agent.skills) and not any(split_request(each)[0] == SKILLS_TOOL for each in requests):
            requests = [*requests, SKILLS_TOOL]
        tools, declared = await self._tools_for(requests, agent.namespace, agent.name)
        if spec.get(CODE):
            _set_program(tools, program_of(spec[CODE]))
        if spec.get(DELEGATION) is not None:
            _set_delegation(tools, delegation_of(spec))
        definitions = with_search(tool.definition for tool in tools)
        frozen = freeze(
            agent.document,
            model=model,
            endpoint=endpoint,
            tools=definitions,
            runner=runner,
            window=window,
            summariser=summariser,
        )
        rules = frozen.extra.get(WORKSPACE_RULES, {})
        frozen = with_data_notes(frozen, self.backends.data_notes(tools, agent.namespace, agent.name, rules))
        held = await self._skills.quarantined(spec.get("skills", ()), agent.namespace, agent.name)
        frozen = with_quarantined(with_skills(frozen, skills), held)
        frozen = with_misnamed(frozen, await self._skills.misnamed(spec.get("skills", ()), agent.namespace))
        _set_skills(tools, frozen)
        frozen = with_missing(frozen, await self._around(agent))
        names = [tool.definition.name for tool in tools]
        callees = [name for name in names if name.startswith(PREFIX)]
        declared += [name for name in callees if self.known(agent.namespace, name.removeprefix(PREFIX)) is None]
        if declared:
            frozen = replace(frozen, extra={**frozen.extra, DECLARED: declared})
        if agent.output_type is not None:
            frozen = replace(frozen, extra={**frozen.extra, OUTPUT_TYPE: msgspec.to_builtins(agent.output_type.pin)})
        if agent.hooks:
            whose = f"{agent.namespace}/{agent.name}"
            frozen = with_hooks(frozen, own=[declared_object(each, whose) for each in agent.hooks])
        return await self._allowed(frozen), tools

    async def with_skills_of(self, spec: RunSpec, user: str) -> RunSpec:
        """The spec of a run for a user, with his skills if its agent has the tool to load them."""
        if not user or not any(rule.name == SKILLS_TOOL for rule in spec.tools):
            return spec
        spec = with_skills(spec, await self._skills.of_user(user, spec.namespace))
        return with_misnamed(spec, self._skills.misnamed_of_user(user, spec.namespace))

    async def skills_of(self, user: str, namespace: str, *, revision: int | None = None) -> list[OfferedSkill]:
        """The skills of a user in a namespace, as of a revision that somebody has just looked up; None to look."""
        return await self._skills.of_user(user, namespace, revision=revision)

    async def with_model(self, spec: RunSpec, ref: str) -> RunSpec:
        endpoint = qualified(ref, spec.namespace)
        model = await self.models.model_of(endpoint, spec.namespace)
        changed = replace(spec, model=model, extra={**spec.extra, ENDPOINT: endpoint})
        return await self._allowed(changed)

    async def adjusted(self, spec: RunSpec, options: RunOptions) -> RunSpec:
        """The spec of one run with its options. Raises `NotFound`, `Denied`, `InvalidInput`."""
        check_model_may_change(spec, options)
        if options.model:
            spec = await self.with_model(spec, options.model)
        if options.system.strip():
            spec = with_prompt(spec, options.system)
        if options.output_schema is not None:
            spec = replace(spec, output_schema=read_schema(options.output_schema))
        return await self.without(spec, options.exclude_tools)

    async def without(self, spec: RunSpec, names: Iterable[str]) -> RunSpec:
        """The spec without these tools, see `without_tools`; `code` shows the others only. Raises `InvalidInput`."""
        left = without_tools(spec, names)
        if not any(rule.name == SKILLS_TOOL for rule in left.tools):
            left = without_skills(left)
        if len(left.tools) == len(spec.tools) or not any(rule.name == RUNNING_CODE for rule in left.tools):
            return left
        shown = (await self.pipeline(left)).definitions[RUNNING_CODE]
        return replace(left, tools=tuple(tool_rule(shown) if r.name == RUNNING_CODE else r for r in left.tools))

    async def with_recall(self, spec: RunSpec, tools: Pipeline) -> tuple[RunSpec, Pipeline]:
        """Prepares a turn of a conversation that was compacted: it can look up what was said."""
        definition = builtin_definition(RECALL)
        assert definition is not None
        changed = with_tool(spec, definition)
        return (spec, tools) if changed is spec else (changed, await self.pipeline(changed))

    async def _allowed(self, spec: RunSpec) -> RunSpec:
        """The spec, if what holds for all work lets it begin. Raises `Denied`.

        What holds only under a task or a system is asked when the run asks its model.
        """
        await self._gate.check(spec, caller_for(spec, RunCreated(spec.agent, ""), NOBODY))
        return spec

    async def pipeline(self, spec: RunSpec) -> Pipeline:
        """The tools that a run of this spec may call. Raises `NotFound`, `InvalidInput`.

        Runs of one spec share them for as long as nothing is declared or given anew.
        """
        given = self._agent_tools.get((spec.namespace, spec.agent), self.given)
        revision = 0 if self.resources is None else await self.resources.revision()
        now = (given, given.changes), self.generation, revision
        kept = self._pipelines.get(id(spec))
        if kept is not None and kept.spec is spec and kept[1:4] == now:
            return kept.pipeline
        made = await self._pipeline_of(spec)
        self._pipelines.pop(id(spec), None)
        if all(_lasts(entry.tool) for entry in made.entries):
            self._pipelines[id(spec)] = _Piped(spec, *now, made)
            if len(self._pipelines) > MOST_PREPARED:
                del self._pipelines[next(iter(self._pipelines))]
        return made

    async def _pipeline_of(self, spec: RunSpec) -> Pipeline:
        not_looked_up = {*spec.extra.get(CLIENT, ()), *([search.NAME] if spec.extra.get(DEFERRED) else [])}
        names = [rule.name for rule in spec.tools if rule.name not in not_looked_up]
        pinned = spec.extra.get(DECLARED, ())
        tools, _ = await self._tools_for(self._locked(spec, names), spec.namespace, spec.agent, pinned)
        if CODE in spec.extra:
            _set_program(tools, msgspec.convert(spec.extra[CODE], Program))
        if DELEGATION in spec.extra:
            _set_delegation(tools, msgspec.convert(spec.extra[DELEGATION], Delegation))
        _set_skills(tools, spec)
        return self._piped(spec, tools)

    def _piped(self, spec: RunSpec, tools: Sequence[Tool]) -> Pipeline:
        """Builds the pipeline of the tools that the spec names, and of those that come of the spec itself."""
        deferred, brought = spec.extra.get(DEFERRED), frozenset(spec.extra.get(CLIENT, ()))
        every = [*tools, *(ClientTool(rule.spec) for rule in spec.tools if rule.name in brought)]
        if deferred:
            every.append(search.ToolSearch(each.definition for each in tools if each.definition.name in deferred))
        parts = self._parts_in(spec.namespace)
        if PROGRAM in spec.extra:  # no model reads what it is given
            parts = dataclasses.replace(parts, result_limit=max(parts.result_limit, RESULT_LIMIT))
        return Pipeline(every, parts, output_check=self._output_check(spec))

    def output_type(self, spec: RunSpec) -> OutputType | None:
        """The Python type that the answers of a run are values of; None when there is none, or none here."""
        agent = self.known(spec.namespace, spec.agent)
        output = None if agent is None else agent.output_type
        return output if output is not None and is_pinned(spec) else None

    def type_not_here(self, spec: RunSpec) -> str:
        """Returns the name of that type where it is not here, so that the run cannot go on; blank otherwise."""
        return str(spec.extra[OUTPUT_TYPE]["name"]) if is_pinned(spec) and self.output_type(spec) is None else ""

    def _output_check(self, spec: RunSpec) -> OutputCheck | None:
        """Returns the check that follows the schema, if there is one. Raises `NotFound` for a type that is not here."""
        output = self.output_type(spec)
        if output is None:
            if is_pinned(spec):
                raise _without_type(spec)
            return None
        masker = self._parts.masker

        async def check(run_id: str, text: str, seconds: float | None) -> CheckedOutput:
            checked = await output.check(run_id, text, seconds)
            if masker is None or not checked.problems:
                return checked
            return CheckedOutput(problems=[masker.mask(each) for each in checked.problems])

        return check

    async def pipeline_here(self, spec: RunSpec) -> Pipeline:
        """Make the pipeline where others may do the run as well. Raises `NotHere` when this process lacks something."""
        if lacking := self.hooks.lacks(spec):
            raise NotHere(f"hook {lacking!r}, which the run must have, is not in this process", lacks=f"hook {lacking}")
        pipeline = await self.pipeline(spec)
        for name in pipeline.definitions:
            entry = pipeline.entry(name)
            if entry is not None and (lacks := await self.backends.lacks(entry.tool)):
                raise NotHere(f"tool {name!r} needs the {lacks}, which is not on this machine", lacks=lacks)
        return pipeline

    async def toolbox(self, requests: Sequence[str], namespace: str, agent: str = "") -> Pipeline:
        """Tools by name, for calls outside any run. Raises as `pipeline`."""
        tools, _ = await self._tools_for(requests, namespace, agent)
        return Pipeline(tools, self._parts_in(namespace))

    def pipeline_of(self, tools: Iterable[Tool], namespace: str) -> Pipeline:
        """Builds a pipeline of these very tools, governed as any tool of the namespace."""
        return Pipeline(tools, self._parts_in(namespace))

    async def rules(self, namespace: str) -> Rules:
        """The rules that calls in this namespace are judged by now."""
        return await self._parts.rules.rules(namespace)

    def objection(self, definition: ToolDefinition) -> str:
        """Returns why this deployment lets no one call a tool, as calls are judged; blank when it does."""
        found = self._parts.profile.objection(definition)
        return f"{found} in this deployment (FOLIOT_ALLOWED_TOOLS)" if found is not None else ""

    def _parts_in(self, namespace: str) -> PipelineParts:
        if self.resources is None:
            return self._parts
        if (parts := self._parts_of.get(namespace)) is None:
            grants = StoredGrants(self.resources, namespace, clock=self._clock)
            parts = self._parts_of[namespace] = dataclasses.replace(self._parts, grants=grants)
            if len(self._parts_of) > MOST_PREPARED:
                del self._parts_of[next(iter(self._parts_of))]
        return parts

    async def _tools_for(
        self, requests: Sequence[str], namespace: str, agent: str, pinned: Collection[str] = ()
    ) -> Found:
        given = self._agent_tools.get((namespace, agent), self.given)
        backends = self.backends
        return await tools_of(
            requests,
            namespace,
            given,
            self.resources,
            agent,
            backends.looked_up,
            self._agent_tool,
            backends.builtin,
            pinned,
        )

    async def _agent_tool(self, namespace: str, name: str) -> Tool | None:
        """The tool in front of an agent that another one lists."""
        if self.delegate is None:
            return None
        try:
            agent = self.known(namespace, name) or await self.agent(f"{namespace}/{name}")
        except (NotFound, UsageError):
            return None
        description = agent.document["spec"].get("description", "")
        return AgentTool(name, self.delegate, namespace=namespace, description=description)

    def _locked(self, spec: RunSpec, names: Sequence[str]) -> list[str]:
        """The versions that the run began with, where they are still there; the pipeline refuses what is not them."""
        given = self._agent_tools.get((spec.namespace, spec.agent), self.given)
        locked = spec.extra.get(LOCK, {})
        return [
            f"{name}@={locked[name][0]}" if name in locked and locked[name][0] in given.versions(name) else name
            for name in names
        ]

    async def leave_children(self) -> None:
        """Let go of agents that run beside those that started them."""
        if self._delegate is not None:
            await self._delegate.close()

    async def close(self) -> None:
        await self.hooks.close()
        await self.backends.close()
        await self.models.close()


def _without_type(spec: RunSpec) -> NotFound:
    name = spec.extra[OUTPUT_TYPE]["name"]
    error = NotFound(
        f"the answers of agent {spec.agent!r} are held against the Python type {name}, which this process has not",
        hint="resume the run in the program that declares it: `rt.resume(run_id, agent=agent)`",
    )
    error.details["lacks"] = f"type {name} of agent {spec.namespace}/{spec.agent}"
    return error


def _lasts(tool: Tool) -> bool:
    """Whether nothing but what is declared and given decides what the tool is.

    Not so what runs in a fence, which goes by files and programs of this machine, nor a tool of an MCP server, which is
    weaker where its server could not be looked up.
    """
    return tool.definition.isolation == "none" and tool.definition.type != "mcp"


def _set_skills(tools: Iterable[Tool], spec: RunSpec) -> None:
    for tool in tools:
        if isinstance(tool, OfferedSkills):
            tool.offered, tool.quarantined = skills_in(spec), quarantined_in(spec)


def _set_program(tools: Iterable[Tool], program: Program) -> None:
    for tool in tools:
        if isinstance(tool, Code):
            tool.program = program


def _set_delegation(tools: Iterable[Tool], declared: Delegation) -> None:
    for tool in tools:
        if isinstance(tool, DelegateTool):
            tool.delegation = declared
