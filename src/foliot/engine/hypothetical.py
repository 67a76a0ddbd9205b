"""A call that nobody makes: from declared documents to what every layer of governance would say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foliot.engine.approval.documents import phase_at
from foliot.engine.approval.grants import in_force
from foliot.engine.definition import tool_definition
from foliot.store.base import Document
from foliot.tools.backends.agent import PREFIX, agent_definition
from foliot.tools.base import Caller, Invocation, ToolDefinition
from foliot.tools.builtin.catalogue import builtin_definition, builtin_to_judge
from foliot.tools.judge import Judgement, judge, layers_of
from foliot.tools.rule_reader import read_rules
from foliot.tools.rules import Access, Rules
from foliot.tools.stages.allow_list import Profile
from foliot.tools.versions import split_request


@dataclass(frozen=True, slots=True)
class Ask:
    """Who would call what. `prior` are tools that succeeded before in the same run."""

    agent: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    model: str = ""
    task: str = ""
    system: str = ""
    user: str = ""
    prior: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """Everything of one namespace that decides about a call. `tools` and `agents` are documents by name."""

    namespace: str
    rules: Rules
    agents: Mapping[str, Document]
    tools: Mapping[str, Document]
    profile: Profile = field(default_factory=Profile)

    @classmethod
    def of(
        cls,
        namespace: str,
        documents: Sequence[Document],
        *,
        now: float,
        default_access: Access = "allow",
        allowed_tools: Sequence[str] | None = None,
    ) -> World:
        """From documents of any kinds; roles may be of other namespaces."""
        here = [each for each in documents if each["metadata"].get("namespace", "default") == namespace]
        standing = [
            each
            for each in here
            if each["kind"] == "ToolApproval" and each["spec"].get("standing") and phase_at(each, now) == "Approved"
        ]
        return cls(
            namespace,
            read_rules(namespace, documents, grants=in_force(standing), default_access=default_access),
            {each["metadata"]["name"]: each for each in here if each["kind"] == "Agent"},
            {each["metadata"]["name"]: each for each in here if each["kind"] == "Tool"},
            Profile.of(allowed_tools),
        )

    def definition(self, tool: str) -> ToolDefinition:
        """As it is declared, or built in. A function that only Python knows has nothing but its name here."""
        document = self.tools.get(tool)
        if document is not None:
            return tool_definition(document)
        if tool.startswith(PREFIX):
            return agent_definition(tool.removeprefix(PREFIX), self.namespace)
        return builtin_definition(tool) or ToolDefinition(tool, namespace=self.namespace)

    def judge(self, ask: Ask, *, now: float) -> Judgement:
        """What would happen. The arguments are held against the tool's schema too."""
        definition = self.definition(ask.tool)
        spec: Document = self.agents[ask.agent]["spec"] if ask.agent in self.agents else {}
        names = frozenset(split_request(request)[0] for request in spec.get("tools", ()))
        built_in = None if ask.tool in self.tools else builtin_to_judge(ask.tool)
        layers = layers_of(definition, profile=self.profile, offered=self._offered(names), tool=built_in)
        caller = Caller(
            namespace=self.namespace,
            agent=ask.agent,
            roles=tuple(spec.get("roles", ())),
            allowed_tools=tuple(spec.get("allowed_tools", ())),
            advertised=names if ask.agent in self.agents else None,
            model=ask.model,
            task=ask.task,
            system=ask.system,
            user=ask.user,
        )
        call = Invocation("", "", ask.tool, ask.arguments, "", caller, prior=frozenset(ask.prior))
        return judge(layers, call, self.rules, now=now)

    def _offered(self, names: frozenset[str]) -> frozenset[str]:
        capabilities = {f"capability:{each}" for name in names for each in self.definition(name).capabilities}
        return frozenset({f"tool:{name}" for name in names} | capabilities)
