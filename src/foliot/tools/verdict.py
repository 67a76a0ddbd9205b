"""What one layer of governance says of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.tools.base import ToolDenied

Outcome: TypeAlias = Literal["allow", "ask", "deny"]

# The words of the manifests.
OUTCOMES: Final[Mapping[str, Outcome]] = {"allow": "allow", "deny": "deny", "approval_required": "ask"}
STRICTNESS: Final[Mapping[Outcome, int]] = {"allow": 0, "ask": 1, "deny": 2}
# How long a question stands when no rule says otherwise.
ASK_SECONDS: Final = 600.0


class Verdict(Struct, frozen=True):
    """`layer` is who speaks, `rule` what it goes by (`ToolPermission/refunds`), `reason` is for people.

    `approvers` and `seconds` belong to "ask": who may answer, and how long the question stands.
    """

    outcome: Outcome
    layer: str
    reason: str
    rule: str = ""
    details: dict[str, Any] = {}
    approvers: tuple[str, ...] = ()
    seconds: float = ASK_SECONDS

    def denial(self) -> ToolDenied:
        """The refusal as it goes back to the model."""
        rule = {"rule": self.rule} if self.rule else {}
        return ToolDenied(self.reason, layer=self.layer, **rule, **self.details)
