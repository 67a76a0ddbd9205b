"""What policies say of a run before it begins: which models it may ask, and how many tokens it may use.

The same policies are asked again at every tool call. Here they keep a run from starting that could only be refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from foliot.errors import Denied
from foliot.kernel.budget import Limits, narrow
from foliot.kernel.spec import RunSpec
from foliot.tools.rules import EVERY_TOOL, Rules


def under_policies(
    spec: RunSpec, rules: Rules, models: Iterable[str] = (), *, task: str = "", system: str = ""
) -> RunSpec:
    """The spec within the smallest token limit that applies. `models` are those of its fallbacks.

    Raises `Denied` when a policy does not allow one of the models, or cannot be read.
    """
    if broken := rules.broken.get(EVERY_TOOL):
        raise Denied(
            f"agent {spec.agent!r} cannot run: a rule of namespace {rules.namespace!r} cannot be read: {broken}",
            hint="apply it again, corrected",
        )
    for policy in rules.policies_for(task, system):
        for model in (spec.model, *models):
            if policy.models and model.lower() not in policy.models:
                raise Denied(
                    f"agent {spec.agent!r} may not use the model {model!r}",
                    hint=f"AgentPolicy/{policy.name} allows {', '.join(sorted(policy.models))}",
                    layer="policy",
                    rule=f"AgentPolicy/{policy.name}",
                )
    limit = rules.token_limit(task, system)
    if limit is None:
        return spec
    tokens = Limits(max_steps=None, max_tokens=limit, parallel_tools=spec.limits.parallel_tools)
    return replace(spec, limits=narrow(spec.limits, tokens))
