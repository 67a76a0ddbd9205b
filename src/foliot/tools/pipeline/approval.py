"""Does someone have to agree, and has someone agreed?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Protocol

from foliot.kernel.arguments import arguments_digest
from foliot.tools.base import ApprovalNeeded, Asks, Invocation, Parked, ToolUnsupported
from foliot.tools.governance.cel import ConditionFailed
from foliot.tools.governance.rules import Rules, StandingGrant, Verdict, together

LAYER = "approval"


class ApprovalGrants(Protocol):
    """Stored approvals."""

    async def check(self, approval_id: str, call_id: str, digest: str) -> bool:
        """Whether this approval was given, for this very call with these very arguments, and is in force.

        `digest` is of the arguments as they will be run: of an edited call, the edited ones. Asked again for the same
        call (after a crash) the answer is the same; for any other call it is no.
        """
        ...

    async def use(self, grant_id: str, use: str) -> bool:
        """Count one use of a standing grant. False when it has ended or is used up.

        `use` names the call of a run with its arguments (`use_of`): asked again for it, it is the same use.
        """
        ...


def approval_id_of(run_id: str, call_id: str) -> str:
    """The same for the same call, so that a question asked again after a crash is the same question."""
    name = f"{run_id}\0{call_id}"
    return f"ap-{sha256(name.encode()).hexdigest()[:20]}"


def use_of(call: Invocation, digest: str) -> str:
    """Names one use of a standing grant.

    The same for the same call of a run, so that what a crash cut off is not counted twice. A call outside of a run is
    a use each time: its keys are chosen by the caller, and one key would cover any number of calls.
    """
    if not call.run_id:
        return f"once-{token_hex(8)}"
    name = f"{call.run_id}\0{call.call_id}\0{digest}"
    return sha256(name.encode()).hexdigest()[:20]


class Approval:
    """The approval gate.

    Without stored grants the journal is the record: the kernel takes a decision only for its own call.
    """

    layer = LAYER

    def __init__(self, grants: ApprovalGrants | None, clock: Callable[[], float]) -> None:
        self._grants = grants
        self._clock = clock

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> StandingGrant | None:
        """The standing grant that the call rests on, if it is one."""
        if not asks:
            return None
        approval_id = approval_id_of(call.run_id, call.call_id)
        digest = arguments_digest(call.arguments)
        if call.grant:
            await self._verify(call, approval_id, digest)
            return None
        grant = await self._stands(call, rules, asks, digest)
        if grant is None:
            raise ApprovalNeeded(self._question(approval_id, digest, asks))
        return grant

    async def _verify(self, call: Invocation, approval_id: str, digest: str) -> None:
        if call.grant != approval_id:
            raise _refused(call, "it is for another call")
        if self._grants is not None and not await self._grants.check(call.grant, call.call_id, digest):
            raise _refused(call, "it was not given for this call with these arguments, or is no longer in force")

    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> Verdict | None:
        """Whether the questions are answered already, or who may answer them. No use of a grant is counted."""
        if not asks:
            return None
        for grant in self._answering(call, rules, asks):
            if not grant.spent:
                reason = f"a standing grant of {grant.giver} covers the call"
                return Verdict("allow", LAYER, reason, f"ToolApproval/{grant.id}")
        asked = together(asks, LAYER)
        if asked.outcome == "deny":
            return asked
        who = f"of {', '.join(asked.approvers)}" if asked.approvers else "of those who may approve"
        other = f", and not {' or '.join(call.caller.people) or 'who asks'}" if asked.four_eyes else ""
        needed = f"{asked.required} {who} have" if asked.required > 1 else f"one {who} has"
        return Verdict("ask", LAYER, f"{needed} to agree{other}, within {round(asked.seconds / 3600, 1):g}h")

    async def _stands(
        self, call: Invocation, rules: Rules, asks: Sequence[Verdict], digest: str
    ) -> StandingGrant | None:
        for grant in self._answering(call, rules, asks):
            if self._grants is None or await self._grants.use(grant.id, use_of(call, digest)):
                return grant
        return None

    def _answering(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> Iterator[StandingGrant]:
        """The standing grants that answer all questions about a call like this one."""
        now = self._clock()
        for grant in rules.grants:
            # One whose condition cannot be evaluated covers nothing.
            with contextlib.suppress(ConditionFailed):
                if grant.answers(call, asks, now):
                    yield grant

    def _question(self, approval_id: str, digest: str, asks: Sequence[Verdict]) -> Parked:
        asked = together(asks, LAYER)
        if asked.outcome == "deny":
            raise asked.denial()
        return Parked(
            approval_id=approval_id,
            digest=digest,
            reason="; ".join(dict.fromkeys(f"{ask.reason} ({ask.rule})" if ask.rule else ask.reason for ask in asks)),
            approvers=asked.approvers,
            expires_at=self._clock() + asked.seconds,
            required=asked.required,
            four_eyes=asked.four_eyes,
        )


def _refused(call: Invocation, why: str) -> Exception:
    reason = f"the approval {call.grant!r} does not cover this call of {call.tool!r}: {why}"
    return Verdict("deny", LAYER, reason, call.grant).denial()


# --- asking ----------------------------------------------------------------------------------------------------------

# Hands a call over to a person: the last gate of a tool that asks, when everything else has allowed the question.


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
