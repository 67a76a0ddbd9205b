"""Hands a call over to a person: the last gate of a tool that asks, when everything else has allowed the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foliot.kernel.arguments import arguments_digest
from foliot.tools.base import ApprovalNeeded, Asks, Invocation, Parked, ToolUnsupported
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict


def nobody_hears(call: Invocation) -> ToolUnsupported:
    """Why a call outside any run cannot ask."""
    return ToolUnsupported(f"{call.tool!r} asks a person, and only a run can wait for the answer", layer="asking")


class Asking:
    layer = "asking"

    def __init__(self, tool: Asks, clock: Callable[[], float]) -> None:
        self._question = tool.question
        self._clock = clock

    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> Verdict:
        return Verdict("ask", self.layer, f"a person is asked: {self._question(call).text}")

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        question = self._question(call)
        raise ApprovalNeeded(
            Parked(
                approval_id="",
                digest=arguments_digest(call.arguments),
                reason=question.text,
                expires_at=None if question.seconds is None else self._clock() + question.seconds,
                question=question,
            )
        )
