"""Policies on model calls: which models a run may ask, and how many tokens its task may use.

They are asked before every question, by the rules as they are then; a run that could only be refused is not begun.
`max_tokens_per_run` counts what one task uses, all of its runs and what they delegate together, or one run that belongs
to no task. It is checked before a question and counted after it, so it can be passed by the answers that are under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from foliot.engine.budgets.declared import BudgetRule
from foliot.errors import Denied
from foliot.kernel.run.spec import RunSpec
from foliot.tools.base import Caller
from foliot.tools.governance.layers import of_models
from foliot.tools.governance.rules import Rules, RuleSource, Verdict

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
