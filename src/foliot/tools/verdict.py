"""What one layer of governance says of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.tools.base import ToolDenied

Outcome: TypeAlias = Literal["allow", "ask", "deny"]

# The words of the manifests.
OUTCOMES: Final[Mapping[str, Outcome]] = {"allow": "allow", "deny": "deny", "approval_required": "ask"}
STRICTNESS: Final[Mapping[Outcome, int]] = {"allow": 0, "ask": 1, "deny": 2}
# How long a question stands when no rule says otherwise.
ASK_SECONDS: Final = 72 * 3600.0  # people sleep, travel and have weekends


class Verdict(Struct, frozen=True):
    """`layer` is who speaks, `rule` what it goes by (`ToolPermission/refunds`), `reason` is for people.

    The rest belongs to "ask": `approvers` may answer (anybody with the role, when empty), `required` of them must
    agree, with `four_eyes` none of them is who the call is made for, and the question stands for `seconds`.
    """

    outcome: Outcome
    layer: str
    reason: str
    rule: str = ""
    details: dict[str, Any] = {}
    approvers: tuple[str, ...] = ()
    seconds: float = ASK_SECONDS
    required: int = 1
    four_eyes: bool = False

    def denial(self) -> ToolDenied:
        """The refusal as it goes back to the model."""
        rule = {"rule": self.rule} if self.rule else {}
        return ToolDenied(self.reason, layer=self.layer, **rule, **self.details)


def together(asks: Sequence[Verdict], layer: str) -> Verdict:
    """Returns one question for several rules that ask: whoever answers it satisfies each of them, or nobody may."""
    if len(asks) == 1:
        return asks[0]
    named = [ask for ask in asks if ask.approvers]
    common = [name for name in named[0].approvers if all(name in ask.approvers for ask in named)] if named else []
    required = max(ask.required for ask in asks)
    rules = ", ".join(dict.fromkeys(ask.rule for ask in asks if ask.rule))
    if named and len(common) < required:
        return Verdict("deny", layer, f"nobody may approve this: {rules} name different approvers", rules)
    return Verdict(
        "ask",
        layer,
        "; ".join(dict.fromkeys(ask.reason for ask in asks)),
        rules,
        asks[0].details,
        tuple(common),
        min(ask.seconds for ask in asks),
        required,
        any(ask.four_eyes for ask in asks),
    )
