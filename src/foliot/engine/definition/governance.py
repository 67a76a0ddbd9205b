"""The rules that people declared, as the pipeline reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from foliot.common.threads import unhurried
from foliot.engine.approval.documents import KIND as APPROVAL
from foliot.engine.approval.grants import STANDING, TRIES, People, StoredGrants
from foliot.engine.base import Clock
from foliot.engine.budgets.declared import BudgetRule
from foliot.engine.definition.references import granted_roles, list_all
from foliot.engine.limits.shared import Limiting
from foliot.errors import Denied, Unavailable
from foliot.kernel.run.spec import RunSpec
from foliot.resources.references import GRANT, Origin, ReferenceGrants
from foliot.store.base import Document, Filter, Key, ResourceStore
from foliot.tools.base import Caller
from foliot.tools.governance.layers import Profile, of_models
from foliot.tools.governance.reader import KINDS as RULE_KINDS
from foliot.tools.governance.reader import ReadDocuments, read_rules
from foliot.tools.governance.rules import Access, FixedRules, Rules, RuleSource, Verdict
from foliot.tools.pipeline.breaker import Circuits
from foliot.tools.pipeline.gates import PipelineBudgets
from foliot.tools.pipeline.limiter import LocalLimiter
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.record import Recorder
from foliot.tools.pipeline.results import StoreBlob
from foliot.tools.secrets.secrets import Secrets


def governed(
    store: ResourceStore | None,
    *,
    clock: Clock,
    default_access: Access = "allow",
    allowed_tools: Iterable[str] | None = None,
    store_blob: StoreBlob | None = None,
    secrets: Secrets | None = None,
    recorders: Iterable[Recorder] = (),
    budgets: PipelineBudgets | None = None,
    limiting: Limiting | None = None,
    people: People | None = None,
) -> PipelineParts:
    """Builds the parts that pipelines share: with the rules of the store, or only the default rule without a store.

    Without `limiting` the limits on tools are those of this process alone.
    """
    return PipelineParts(
        limiter=limiting.limiter if limiting is not None else LocalLimiter(),
        circuits=limiting.circuits if limiting is not None else Circuits(),
        rules=StoredRules(store, clock=clock, default_access=default_access, people=people)
        if store is not None
        else FixedRules(default_access=default_access),
        profile=Profile.of(allowed_tools),
        has_secret=secrets.has if secrets else None,
        masker=secrets.masker if secrets else None,
        store_blob=store_blob,
        recorders=tuple(recorders),
        budgets=budgets,
        clock=clock,
    )


# What the rules of a namespace are read from.
KINDS: Final = (*RULE_KINDS, GRANT, APPROVAL)
# What a rule counts for when it is told whether they are many: some hundred are made beside the event loop.
_RULE: Final = 400


@dataclass(frozen=True, slots=True)
class _Known:
    """The rules of a namespace as they were at a revision, and what they were read from.

    `lenders` are other namespaces whose roles count here. `read` are the documents that were understood already.
    """

    revision: int
    documents: dict[Key, Document]
    lenders: frozenset[str]
    rules: Rules
    read: ReadDocuments


class StoredRules:
    """A `RuleSource` on the resource store: a rule that was applied holds from the next call on.

    To be exact: for every call that is admitted after this process could have heard of the rule, from whomever. Calls
    of one turn of the event loop share a look; in every turn that begins after the rule was committed it holds.

    All documents are read once. Afterwards only those are that the feed of changes names; when it is not certain that
    the feed names all of them, everything is read anew.
    """

    def __init__(
        self,
        store: ResourceStore,
        *,
        clock: Clock,
        default_access: Access = "allow",
        people: People | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._people = people
        self._default: Access = default_access
        self._known: dict[str, _Known] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def rules(self, namespace: str) -> Rules:
        """Looks at what has changed in the store, if anything has. Whatever this raises, the call is refused."""
        # Asked outside of the lock: those who ask at one moment share one look at the store.
        revision = await self._store.revision()
        if (known := self._known.get(namespace)) is not None and known.revision == revision:
            return known.rules
        # Of many runs that ask after a change, the first makes the rules for all of them.
        async with self._turns.setdefault(namespace, asyncio.Lock()):
            return await self._current(namespace)

    async def _current(self, namespace: str) -> Rules:
        revision = await self._store.revision()
        known = self._known.get(namespace)
        for _ in range(TRIES):
            if known is not None and known.revision == revision:
                self._known[namespace] = known
                return known.rules
            if known is not None:
                known = await self._followed(namespace, known, revision)
            if known is None:
                # Lists are read one after the other, and something may change meanwhile: of a rule that moves from one
                # list to another, neither half might be seen. So what has changed since before the first is taken in.
                revision = await self._store.revision()
                known = await self._read(namespace, revision)
                known = await self._followed(namespace, known, revision)
            if known is not None:
                self._known[namespace] = known
                return known.rules
        self._known.pop(namespace, None)
        raise Unavailable(
            f"the rules of namespace {namespace!r} change faster than they can be read", hint="try again in a moment"
        )

    async def _read(self, namespace: str, revision: int) -> _Known:
        approvals = Filter(APPROVAL, namespace, fields=STANDING)
        found = [
            *await granted_roles(self._store, namespace),
            *await list_all(self._store, Filter("ToolPermission", namespace)),
            *await list_all(self._store, Filter("AgentPolicy", namespace)),
            *await list_all(self._store, approvals),
        ]
        documents = {_key(document): document for document in found}
        lenders = ReferenceGrants(found).namespaces(Origin("Agent", namespace), "AgentRole")
        return await self._made(namespace, revision, documents, frozenset(lenders), ReadDocuments())

    async def _followed(self, namespace: str, known: _Known, revision: int) -> _Known | None:
        """The rules after all that was changed since, at this revision or a later one; None: they are to be read."""
        since = await self._store.changed(known.revision, KINDS)
        if since is None or since.revision < revision:
            return None
        documents = dict(known.documents)
        for change in since.changes:
            key = _key(change.document)
            if key.kind == GRANT:
                return None  # roles of other namespaces may count now, or no longer
            if key.namespace != namespace and not (key.kind == "AgentRole" and key.namespace in known.lenders):
                continue
            if change.action == "deleted" or (key.kind == APPROVAL and not change.document["spec"].get("standing")):
                documents.pop(key, None)
            else:
                documents[key] = change.document
        if documents == known.documents and not known.rules.grants:
            return replace(known, revision=since.revision)
        return await self._made(namespace, since.revision, documents, known.lenders, known.read)

    async def _made(
        self,
        namespace: str,
        revision: int,
        documents: dict[Key, Document],
        lenders: frozenset[str],
        read: ReadDocuments,
    ) -> _Known:
        approvals = [document for key, document in documents.items() if key.kind == APPROVAL]
        # Who gave a grant may have other names by now: that is asked whenever something has changed.
        given = await StoredGrants(self._store, namespace, clock=self._clock, people=self._people).among(approvals)
        made = partial(read_rules, namespace, grants=given, default_access=self._default, read=read)
        rules = await unhurried(_RULE * len(documents), _in_order, documents, made)
        return _Known(revision, documents, lenders, rules, read)

    def at_hand(self, namespace: str) -> Rules | None:
        known = self._known.get(namespace)
        return known.rules if known is not None and known.revision == self._store.revision_at_hand() else None


def _in_order(documents: Mapping[Key, Document], made: Callable[[Iterable[Document]], Rules]) -> Rules:
    return made([documents[key] for key in sorted(documents)])


def _key(document: Document) -> Key:
    metadata: Document = document.get("metadata") or {}
    return Key(document.get("kind", ""), metadata.get("namespace", "default"), metadata.get("name", ""))


# --- policies --------------------------------------------------------------------------------------------------------

# Policies on model calls: which models a run may ask, and how many tokens its task may use.
#
# They are asked before every question, by the rules as they are then; a run that could only be refused is not begun.
# `max_tokens_per_run` counts what one task uses, all of its runs and what they delegate together, or one run that
# belongs to no task. It is checked before a question and counted after it, so it can be passed by the answers that are
# under way.

ModelsOf: TypeAlias = Callable[[RunSpec], Awaitable[tuple[str, ...]]]


class ModelGate:
    """Stands before every question to a model. `models_of` says which models a question of a run may reach."""

    def __init__(self, source: RuleSource, models_of: ModelsOf) -> None:
        self._source = source
        self._models_of = models_of

    def is_open(self, namespace: str) -> bool:
        """Whether it is known without waiting that no rule of the namespace says anything about models."""
        rules = self._source.at_hand(namespace)
        return rules is not None and not rules.policies and not rules.broken

    async def rules(self, namespace: str) -> Rules:
        return self._source.at_hand(namespace) or await self._source.rules(namespace)

    async def judge(self, spec: RunSpec, caller: Caller, rules: Rules) -> Verdict:
        """Whether a run of this spec may ask its models, all of them: nobody knows which one will answer."""
        limited = any(policy.models for policy in rules.policies_for(caller))
        return of_models(rules, caller, await self._models_of(spec) if limited else ())

    async def check(self, spec: RunSpec, caller: Caller) -> None:
        """Raises `Denied`, before anything is begun."""
        rules = await self.rules(spec.namespace)
        if not rules.policies and not rules.broken:
            return
        verdict = await self.judge(spec, caller, rules)
        if verdict.outcome == "deny":
            raise refusal(spec.agent, verdict)


def refusal(agent: str, verdict: Verdict) -> Denied:
    return Denied(
        f"agent {agent!r} cannot run: {verdict.reason}",
        hint=f"`foliot get agentpolicies` shows the policies; this is {verdict.rule}",
        layer=verdict.layer,
        rule=verdict.rule,
    )


def token_limits(rules: Rules, caller: Caller) -> list[BudgetRule]:
    """The limits on tokens that hold for this caller's work, as budgets of that work."""
    return [
        BudgetRule(
            namespace=rules.namespace,
            name=f"AgentPolicy/{policy.name}",
            window="run",
            tokens=policy.max_tokens,
            on_exceeded="fail",
        )
        for policy in rules.policies_for(caller)
        if policy.max_tokens > 0
    ]
