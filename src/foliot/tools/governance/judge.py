"""The one judgement of a call: what its layers say, and what comes of it.

Whoever makes a call and whoever only asks what would become of it use the same function on the same call and rules. The
one difference: an explanation hears every layer to its end, a call stops at the first that refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from foliot.tools.base import Caller, Invocation, ToolError
from foliot.tools.governance.rules import MOST_REMEMBERED, Outcome, Rules, Verdict

# The gate that looks for consent, and the one of tools whose result is a person's answer.
CONSENT = "approval"
ANSWER = "asking"
# What allows a call that nothing speaks against.
ALLOWING = "permissions"


class PolicyQuestion(Struct, frozen=True):
    """A hypothetical call: by whom, of what, and in which context.

    Without `arguments`, rules that depend on them are left out.

    `prior` are tools that succeeded before in the same run, `ancestors` the agents above it, the outermost first; a
    model that is left out is the agent's own.
    """

    agent: str
    tool: str
    arguments: dict[str, Any] | None = None
    model: str = ""
    task: str = ""
    system: str = ""
    user: str = ""
    prior: tuple[str, ...] = ()
    template: str = ""
    ancestors: tuple[str, ...] = ()
    by: str = ""
    via: str = ""


class Layer(Protocol):
    """Pure. Says allow, ask or deny by the rules; raises a `ToolError` for what no rule is about."""

    @property
    def layer(self) -> str: ...

    def __call__(self, call: Invocation, rules: Rules) -> Verdict: ...

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        """Whether its verdict is the same for every call of the tool by this very caller under these very rules.

        False whenever it looks at anything else: the arguments, what came before, a time.
        """
        ...


class RefusedVerdict(Verdict, frozen=True):
    """A refusal that has an error of its own, which is what whoever called is told."""

    error: Any = None

    def denial(self) -> Any:
        return self.error


class Judgement(Struct, frozen=True):
    """`verdicts` of every layer and gate in order; `decided` is the one that decides."""

    outcome: Outcome
    decided: Verdict
    verdicts: tuple[Verdict, ...]

    @classmethod
    def of(cls, said: Iterable[Verdict]) -> Judgement:
        """The first refusal decides; then the first question, unless a standing approval answers it."""
        verdicts = tuple(map(_plain, said))
        refused = next((each for each in verdicts if each.outcome == "deny"), None)
        consent = next((each for each in verdicts if each.layer == CONSENT and each.outcome == "allow"), None)
        asked = (each for each in verdicts if each.outcome == "ask" and (consent is None or each.layer == ANSWER))
        allowed = next((each for each in verdicts if each.layer == ALLOWING), verdicts[0])
        decided = refused or next(asked, None) or consent or allowed
        return cls(decided.outcome, decided, verdicts)


def judge(layers: Sequence[Layer], call: Invocation, rules: Rules, *, every: bool = False) -> list[Verdict]:
    """Collects the objections of the layers: the questions, and last the first refusal if there is one. Never raises.

    With `every` what all of them say. A layer that breaks refuses: governance fails closed.
    """
    said: list[Verdict] = []
    for layer in layers:
        try:
            verdict = layer(call, rules)
        except Exception as error:
            verdict = refused_by(layer.layer, error)
        if every:
            said.append(verdict)
        elif verdict.outcome != "allow":
            said.append(verdict)
            if verdict.outcome == "deny":
                break
    return said


class SettledLayers:
    """Knows which layers of one tool need not be asked again: all that is settled has allowed a call before.

    It is known of one caller under one snapshot of the rules, both as objects, which are kept with it: whatever changes
    in either makes another object. A refusal or a question is never kept.
    """

    __slots__ = ("_known", "_layers")

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._known: dict[int, tuple[Caller, Rules, Sequence[Layer]]] = {}

    def judge(self, call: Invocation, rules: Rules) -> list[Verdict]:
        """Collects the objections to a call as `judge` does. Never raises."""
        caller = call.caller
        known = self._known.get(id(caller))
        if known is not None and known[0] is caller and known[1] is rules:
            return judge(known[2], call, rules)
        said = judge(self._layers, call, rules)
        if not said and not caller.told_by:  # whom somebody has told something is made anew for each call
            left = tuple(layer for layer in self._layers if not layer.is_settled(caller, rules))
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[id(caller)] = caller, rules, left
        return said


def refused_by(layer: str, error: Exception) -> RefusedVerdict:
    """Converts an error of a layer or gate into a refusal."""
    if not isinstance(error, ToolError):
        return RefusedVerdict("deny", layer, f"it breaks, which refuses: {type(error).__name__}: {error}", error=error)
    error.details.setdefault("layer", layer)  # what is recorded and told names the layer that explain names
    details = {name: value for name, value in error.details.items() if name not in ("layer", "rule")}
    return RefusedVerdict("deny", layer, error.message, str(error.details.get("rule", "")), details, error=error)


def _plain(verdict: Verdict) -> Verdict:
    if not isinstance(verdict, RefusedVerdict):
        return verdict
    return Verdict("deny", verdict.layer, verdict.reason, verdict.rule, verdict.details)


def narrowed(judgement: Judgement, without: Sequence[str]) -> Judgement:
    """The judgement without what these layers say."""
    kept = [each for each in judgement.verdicts if each.layer not in without]
    if not any(each.outcome == "ask" and each.layer != CONSENT for each in kept):
        kept = [each for each in kept if each.layer != CONSENT]
    return Judgement.of(kept)
