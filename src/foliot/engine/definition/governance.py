"""The rules that people declared, as the pipeline reads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from foliot.engine.approval.grants import TRIES, People, StoredGrants
from foliot.engine.base import Clock
from foliot.engine.budgets.declared import BudgetRule
from foliot.engine.definition.references import granted_roles, list_all
from foliot.engine.limits.shared import Limiting
from foliot.errors import Denied, Unavailable
from foliot.kernel.run.spec import RunSpec
from foliot.store.base import Document, Filter, ResourceStore
from foliot.tools.base import Caller
from foliot.tools.governance.layers import Profile, of_models
from foliot.tools.governance.reader import read_rules
from foliot.tools.governance.rules import Access, FixedRules, Rules, RuleSource, StandingGrant, Verdict
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


class StoredRules:
    """A `RuleSource` on the resource store: a rule that was applied holds from the next call on.

    To be exact: for every call that is admitted after this process could have heard of the rule, from whomever. Calls
    of one turn of the event loop share a look; in every turn that begins after the rule was committed it holds.
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
        self._known: dict[str, tuple[int, Rules]] = {}

    async def rules(self, namespace: str) -> Rules:
        """Read anew only when something in the store has changed. Whatever this raises, the call is refused."""
        revision = await self._store.revision()
        known = self._known.get(namespace)
        if known is not None and known[0] == revision:
            return known[1]
        read = await self._read(namespace)
        for _ in range(TRIES):
            # Lists that are read one after the other are of one moment if nothing changed meanwhile, or if a second
            # reading gives the same: of a rule that was moved from one list to another, neither half might be seen.
            before, revision = revision, await self._store.revision()
            once, read = read, read if before == revision else await self._read(namespace)
            if before == revision or repr(once) == repr(read):
                documents, grants = read
                rules = read_rules(namespace, documents, grants=grants, default_access=self._default)
                self._known[namespace] = (revision, rules)
                return rules
        raise Unavailable(
            f"the rules of namespace {namespace!r} change faster than they can be read", hint="try again in a moment"
        )

    async def _read(self, namespace: str) -> tuple[list[Document], tuple[StandingGrant, ...]]:
        documents = [
            *await granted_roles(self._store, namespace),
            *await list_all(self._store, Filter("ToolPermission", namespace)),
            *await list_all(self._store, Filter("AgentPolicy", namespace)),
        ]
        return documents, await StoredGrants(self._store, namespace, clock=self._clock, people=self._people).standing()

    def at_hand(self, namespace: str) -> Rules | None:
        known = self._known.get(namespace)
        return known[1] if known is not None and known[0] == self._store.revision_at_hand() else None


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
