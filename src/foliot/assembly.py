"""What an agent needs to run: its definition, its tools and its model, from Python objects or from the store."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

from msgspec.structs import replace

from foliot.agent import Agent
from foliot.engine.base import Clock
from foliot.engine.definition import ENDPOINT, freeze
from foliot.engine.endpoints import RunModels, qualified
from foliot.engine.governance import StoredRules
from foliot.engine.grants import StoredGrants
from foliot.engine.toolbox import tools_of
from foliot.errors import UsageError
from foliot.kernel.spec import RunSpec
from foliot.store.base import Key, ResourceStore
from foliot.tools.base import Tool
from foliot.tools.parts import Parts
from foliot.tools.pipeline import Pipeline


class Assembly:
    """Python objects win over declarations of the same name: who holds the object means it."""

    def __init__(
        self, models: RunModels, resources: ResourceStore | None, tools: Iterable[Tool], clock: Clock = time.time
    ) -> None:
        self._clock = clock
        # One set for all pipelines: what is counted per tool is counted over all runs of this process.
        parts = Parts(clock=clock)
        if resources is not None:
            parts = dataclasses.replace(parts, rules=StoredRules(resources, clock=clock))
        self._parts = parts
        self._models = models
        self._resources = resources
        self._tools = {tool.definition.name: tool for tool in tools}
        self._agents: dict[tuple[str, str], Agent] = {}

    def know(self, agent: Agent) -> None:
        """Remember the Python objects of an agent, so that its runs can be resumed by id alone."""
        self._agents[agent.namespace, agent.name] = agent
        self._tools.update({tool.definition.name: tool for tool in agent.tools})
        if agent.gateway is not None:
            self._models.serve(agent.model_ref, agent.gateway)

    def known(self, namespace: str, name: str) -> Agent | None:
        return self._agents.get((namespace, name))

    async def agent(self, agent: Agent | str) -> Agent:
        """The agent, looked up when it is a name (`name` or `namespace/name`). Raises `NotFound`."""
        if isinstance(agent, Agent):
            self.know(agent)
            return agent
        namespace, _, name = agent.rpartition("/")
        namespace = namespace or "default"
        if (known := self.known(namespace, name)) is not None and (known.gateway is not None or known.tools):
            return known
        if self._resources is None:
            raise UsageError(f"there is no agent {agent!r} in this runtime", hint="give an Agent object")
        return Agent.from_document(await self._resources.get(Key("Agent", namespace, name)))

    async def freeze(self, agent: Agent) -> RunSpec:
        """What a run of this agent is pinned to from now on. Raises `NotFound`, `InvalidInput`."""
        spec = agent.document["spec"]
        names = spec.get("tools", [])
        endpoint = qualified(agent.model_ref, agent.namespace)
        model = spec.get("model_name") or await self._models.model_of(endpoint)
        tools = await tools_of(names, agent.namespace, self._tools, self._resources, agent.name)
        definitions = [tools[name].definition for name in names]
        return freeze(agent.document, model=model, endpoint=endpoint, tools=definitions)

    async def with_model(self, spec: RunSpec, ref: str) -> RunSpec:
        endpoint = qualified(ref, spec.namespace)
        return replace(spec, model=await self._models.model_of(endpoint), extra={**spec.extra, ENDPOINT: endpoint})

    async def pipeline(self, spec: RunSpec) -> Pipeline:
        """The tools that a run of this spec may call. Raises `NotFound`, `InvalidInput`."""
        names = [rule.name for rule in spec.tools]
        tools = await tools_of(names, spec.namespace, self._tools, self._resources, spec.agent)
        parts = self._parts
        if self._resources is not None:
            grants = StoredGrants(self._resources, spec.namespace, clock=self._clock)
            parts = dataclasses.replace(parts, grants=grants)
        return Pipeline(tools.values(), parts)

    async def close(self) -> None:
        await self._models.close()
