"""What would become of a tool call, judged where the rules are: by the store in this process, or by a server.

Nothing is called. The rules are those of the resources and of the settings of whoever judges.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

from foliot.client.missing import not_found
from foliot.client.operations import PolicyAnswer, PolicyQuestion, RuleDefaults
from foliot.engine.hypothetical import Ask, World
from foliot.errors import NotFound
from foliot.store.base import Document, Filter, Key, Page, ResourceStore
from foliot.tools.judge import Judgement
from foliot.tools.verdict import STRICTNESS

# What says something about a call, besides the roles of every namespace.
KINDS: Final = ("Agent", "Tool", "ToolPermission", "AgentPolicy", "ToolApproval")
_ON_ARGUMENTS: Final = ("arguments", "conditions")


class Lists(Protocol):
    """A store, or a client on one."""

    def list(self, filter: Filter, *, cursor: str | None = None) -> Awaitable[Page]: ...


async def rule_documents(lists: Lists, namespace: str) -> list[Document]:
    """Everything that has a say about the calls of a namespace."""
    found: list[Document] = []
    for filter in (Filter("AgentRole"), *(Filter(kind, namespace) for kind in KINDS)):
        page = await lists.list(filter)
        found += page.items
        while page.cursor is not None:
            page = await lists.list(filter, cursor=page.cursor)
            found += page.items
    return found


def world_of(namespace: str, documents: Sequence[Document], defaults: RuleDefaults) -> World:
    return World.of(
        namespace,
        documents,
        now=time.time(),
        default_access=defaults.default_tool_access,
        allowed_tools=defaults.allowed_tools,
    )


async def explain_call(
    store: ResourceStore, defaults: RuleDefaults, namespace: str, asked: PolicyQuestion
) -> PolicyAnswer:
    """What every layer says to a call, and which one decides. Raises `NotFound` for an agent that there is not."""
    world = world_of(namespace, await rule_documents(store, namespace), defaults)
    if asked.agent not in world.agents:
        raise await not_found(Key("Agent", namespace, asked.agent), store.list)
    model = asked.model or await _model_of(store, world.agents[asked.agent]["spec"], namespace)
    ask = Ask(asked.agent, asked.tool, asked.arguments or {}, model, asked.task, asked.system, asked.user, asked.prior)
    judgement = world.judge(ask, now=time.time())
    if asked.arguments is None:
        judgement = _without_arguments(judgement)
    return PolicyAnswer(judgement, declared=asked.tool in world.tools)


async def _model_of(store: ResourceStore, spec: dict[str, Any], namespace: str) -> str:
    """The model's own name, as far as it is declared."""
    if spec.get("model_name"):
        return spec["model_name"]
    where, slash, name = str(spec.get("model_ref", "")).rpartition("/")
    try:
        endpoint = await store.get(Key("ModelEndpoint", where if slash else namespace, name))
    except NotFound:
        return ""
    return endpoint["spec"].get("default_model", "")


def _without_arguments(judgement: Judgement) -> Judgement:
    """What is left when nothing is known of the arguments."""
    kept = tuple(each for each in judgement.verdicts if each.layer not in _ON_ARGUMENTS)
    decided = max(kept, key=lambda verdict: STRICTNESS[verdict.outcome])
    if any(each.layer == "approval" for each in kept) and decided.outcome == "ask":
        decided = kept[-1]
    return Judgement(decided.outcome, decided, kept)
