"""Judgements of hypothetical tool calls, made where the rules are: by the store in this process, or by a server.

Nothing is called. The rules are those of the resources and of the settings of whoever judges.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from foliot.engine.budgets.calls import CallBudgets
from foliot.engine.budgets.declared import DeclaredBudgets
from foliot.engine.budgets.service import BudgetService
from foliot.engine.definition.endpoints import bound_hosts, stored_secrets
from foliot.engine.definition.grants import NOTHING_GRANTED
from foliot.engine.definition.grants import OperatorGrants as Granted
from foliot.engine.definition.references import Lists, References, granted_roles, list_all
from foliot.engine.explain.what_if import PolicyWorld
from foliot.errors import Denied, InvalidInput, NotFound
from foliot.kernel.identity import NOBODY, Identity
from foliot.resources.problems import Finding, ManifestError
from foliot.resources.references import GRANT, Origin
from foliot.resources.validate import validate_document
from foliot.runtime.answers import Fate, PolicyAnswer, RuleDefaults
from foliot.runtime.outcomes import not_found
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.tools.governance.judge import PolicyQuestion
from foliot.tools.governance.rules import Verdict
from foliot.tools.registry import split_request
from foliot.work.tasks.base import Command

_command: Final = msgspec.json.Decoder(Command).decode
# What says something about a call, besides the roles that its agent can have.
KINDS: Final = ("Agent", "Tool", "ModelEndpoint", "ToolPermission", "AgentPolicy", "ToolApproval")
GOVERNING: Final = frozenset({"AgentRole", GRANT, *KINDS})


async def rule_documents(lists: Lists, namespace: str) -> list[Document]:
    """Everything that has a say about the calls of a namespace."""
    found = await granted_roles(lists, namespace)
    for kind in KINDS:
        found += await list_all(lists, Filter(kind, namespace))
    return found


class Judging:
    """Explains calls on a store. Whoever opened it closes it."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        defaults: RuleDefaults,
        caller: Identity = NOBODY,
        granted: Granted = NOTHING_GRANTED,
    ) -> None:
        """`caller` is on whose behalf calls are judged that name nobody; `granted` is what the operator allows."""
        self._caller = caller
        self._db = database
        self._store = store
        self._defaults = defaults
        self._granted = granted

    async def explain(self, namespace: str, asked: PolicyQuestion) -> PolicyAnswer:
        """Judges a call by every layer, and names the one that decides. Raises `NotFound` for a missing agent."""
        world = await self._world(namespace, await self._documents(namespace))
        if asked.agent not in world.agents:
            raise await not_found(Key("Agent", namespace, asked.agent), self._store.list, elsewhere=False)
        declared = world.knows(asked.tool)
        if not declared and not _named(world.agents[asked.agent], asked.tool):
            raise await not_found(Key("Tool", namespace, asked.tool), self._store.list, elsewhere=False)
        question = await self._placed(namespace, asked)
        judgement = await world.judge(question)
        if not declared:
            verdicts = tuple(_by_name_alone(each, asked.tool) for each in judgement.verdicts)
            judgement = replace(judgement, verdicts=verdicts)
        notes = tuple(await self._notes(namespace, asked))
        return PolicyAnswer(judgement, declared=declared, user=question.user, notes=notes)

    async def simulate(
        self, namespace: str, manifests: Sequence[Document], asked: Sequence[PolicyQuestion]
    ) -> list[Fate]:
        """Judges calls now, and as if the manifests were applied. Raises `ManifestError`.

        A call of an agent or a tool that is in neither is judged all the same, by what is said of all: a note says so.
        """
        stored = await self._documents(namespace)
        before = await self._world(namespace, stored)
        after = await self._world(namespace, overlaid(stored, checked(manifests)))
        fates: list[Fate] = []
        for each in asked:
            question = await self._placed(namespace, each)
            notes = tuple(_unknown_names(each, before, after))
            fates.append(Fate(await before.judge(question), await after.judge(question), question.user, notes))
        return fates

    async def _notes(self, namespace: str, asked: PolicyQuestion) -> list[str]:
        """Names in a question that nothing has: what they are judged by may be a mistake in typing."""
        found: list[str] = []
        named = [("Task", asked.task), ("Task", asked.template), ("AgentSystem", asked.system)]
        for kind, name in (*named, *(("Agent", each) for each in asked.ancestors)):
            bare = name.removeprefix(f"{namespace}/")
            if not bare or (kind == "Task" and await self._db.read("task_content", namespace=namespace, name=bare)):
                continue
            key = Key(kind, namespace, bare)
            try:
                await self._store.get(key)
            except (NotFound, InvalidInput):
                missing = await not_found(key, self._store.list, elsewhere=False)
                hint = f" {missing.hint}" if missing.hint else ""
                found.append(f"there is no {kind}/{bare} here: judged as if there were.{hint}")
        return found

    async def _world(self, namespace: str, documents: Sequence[Document]) -> PolicyWorld:
        service = BudgetService(
            SqlBudgetLedger(self._db), DeclaredBudgets(self._store, clock=time.time), clock=time.time
        )
        givers = {
            str(each.get("status", {}).get("decided_by", "")) for each in documents if each["spec"].get("standing")
        }
        person = SqlTokens(self._db).person
        return PolicyWorld.of(
            namespace,
            documents,
            default_access=self._defaults.default_tool_access,
            allowed_tools=self._defaults.allowed_tools,
            budgets=CallBudgets(service, SqlJournal(self._db)),
            has_secret=stored_secrets(self._store, os.environ).has,
            granted=self._granted,
            secret_hosts=partial(bound_hosts, self._store),
            people={name: await person(name) for name in givers},
        )

    async def _documents(self, namespace: str) -> list[Document]:
        documents = [
            *await rule_documents(self._store, namespace),
            *await list_all(self._store, Filter("McpServer", namespace)),
        ]
        references = References(self._store)
        # Agents name endpoints, and those name others, of any namespace that granted it.
        for kind in ("Agent", "ModelEndpoint"):
            for named in [each for each in documents if each["kind"] == kind]:
                spec, origin = named["spec"], Origin(kind, named["metadata"].get("namespace", "default"))
                for ref in {str(spec.get("model_ref", "")), *map(str, spec.get("fallbacks", ()))}:
                    if "/" in ref and ":" not in ref:
                        with contextlib.suppress(NotFound, Denied, InvalidInput):
                            key = await references.resolve(origin, "ModelEndpoint", ref)
                            documents.append(await self._store.get(key))
        return documents

    async def _placed(self, namespace: str, asked: PolicyQuestion) -> PolicyQuestion:
        """The question with what is known of its task: the system that does it, what it was made after, for whom.

        A call of no such task, and of nobody who is named, is one that whoever asks would bring about.
        """
        name = asked.task.removeprefix(f"{namespace}/")
        found = await self._db.read("task_content", namespace=namespace, name=name) if name else []
        if not found:
            return _acting(asked, self._caller)
        command = _command(found[0]["command"])
        placed = replace(
            asked,
            system=asked.system or (command.target if command.target_kind == "system" else ""),
            template=asked.template or command.template,
        )
        return _acting(placed, command.acts_as)


def _unknown_names(asked: PolicyQuestion, *worlds: PolicyWorld) -> Iterator[str]:
    """Yields a note for the agent and for the tool of a call that none of the worlds has."""
    agents = [world.agents[asked.agent] for world in worlds if asked.agent in world.agents]
    if not agents:
        yield f"there is no Agent/{asked.agent} here: judged as if there were."
    if not any(world.knows(asked.tool) for world in worlds) and not any(_named(each, asked.tool) for each in agents):
        yield f"there is no Tool/{asked.tool} here: judged as if there were."


def _named(agent: Document, tool: str) -> bool:
    """Whether the agent has a tool that is not declared: Python, an MCP server or its memory may bring it."""
    names = [split_request(str(each))[0] for each in agent["spec"].get("tools", ())]
    return tool in names or "--" in tool or tool.startswith("memory.")


def _by_name_alone(verdict: Verdict, tool: str) -> Verdict:
    if (verdict.layer, verdict.outcome) != ("resolve", "allow"):
        return verdict
    return replace(verdict, reason=f"the tool {tool!r} is not declared; the agent names it, and Python may bring it")


def _acting(asked: PolicyQuestion, by: Identity) -> PolicyQuestion:
    """The question on behalf of `by`, unless it says of whom."""
    if asked.user:
        return asked
    return replace(asked, user=by.user, by=asked.by or by.by, via=asked.via or by.via)


def overlaid(stored: Sequence[Document], given: Sequence[Document]) -> list[Document]:
    """Returns the documents that the store would hold after an apply."""

    def place(each: Document) -> tuple[str, str, str]:
        return each["kind"], each["metadata"].get("namespace", "default"), each["metadata"]["name"]

    return list({**{place(each): each for each in stored}, **{place(each): each for each in given}}.values())


def checked(manifests: Sequence[Document]) -> list[Document]:
    """The manifests as they would be stored. Raises `ManifestError`."""
    documents: list[Document] = []
    for number, manifest in enumerate(manifests, 1):
        document, problems = validate_document(manifest)
        if document is None:
            raise ManifestError([Finding(problem, f"manifest {number}") for problem in problems])
        documents.append(document)
    return documents
