"""Does someone have to agree, and has someone agreed?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Protocol

from foliot.kernel.arguments import arguments_digest
from foliot.tools.base import ApprovalNeeded, Invocation, Parked
from foliot.tools.conditions import ConditionFailed
from foliot.tools.rules import Rules, StandingGrant
from foliot.tools.verdict import Verdict

LAYER = "approval"


class Grants(Protocol):
    """Stored approvals."""

    async def check(self, approval_id: str, call_id: str, digest: str) -> bool:
        """Whether this approval was given, for this very call with these very arguments, and is in force.

        `digest` is of the arguments as they will be run: of an edited call, the edited ones. Asked again for the same
        call (after a crash) the answer is the same; for any other call it is no.
        """
        ...

    async def use(self, grant_id: str, call: str) -> bool:
        """Count one use of a standing grant for `call` (its idempotency key). False when it has ended or is used up.

        Asked again for the same call it is the same use.
        """
        ...


def approval_id_of(run_id: str, call_id: str) -> str:
    """The same for the same call, so that a question asked again after a crash is the same question."""
    name = f"{run_id}\0{call_id}"
    return f"ap-{sha256(name.encode()).hexdigest()[:20]}"


class Approval:
    """Without stored grants the journal of the run is the record: the kernel takes a decision only for its own call."""

    layer = LAYER

    def __init__(self, grants: Grants | None, clock: Callable[[], float]) -> None:
        self._grants = grants
        self._clock = clock

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        if not asks:
            return
        approval_id = approval_id_of(call.run_id, call.call_id)
        digest = arguments_digest(call.arguments)
        if call.grant:
            await self._verify(call, approval_id, digest)
        elif not await self._stands(call, rules):
            raise ApprovalNeeded(self._question(approval_id, digest, asks))

    async def _verify(self, call: Invocation, approval_id: str, digest: str) -> None:
        if call.grant != approval_id:
            raise _refused(call, "it is for another call")
        if self._grants is not None and not await self._grants.check(call.grant, call.call_id, digest):
            raise _refused(call, "it was not given for this call with these arguments, or is no longer in force")

    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> Verdict | None:
        """Whether the questions are answered already, or who may answer them. No use of a grant is counted."""
        if not asks:
            return None
        for grant in self._covering(call, rules):
            return Verdict("allow", LAYER, "a standing grant covers the call", f"ToolApproval/{grant.id}")
        named = _approvers(asks)
        return Verdict("ask", LAYER, f"one of {', '.join(named)} has to agree" if named else "somebody has to agree")

    async def _stands(self, call: Invocation, rules: Rules) -> bool:
        for grant in self._covering(call, rules):
            if self._grants is None or await self._grants.use(grant.id, call.idempotency_key):
                return True
        return False

    def _covering(self, call: Invocation, rules: Rules) -> Iterator[StandingGrant]:
        """The standing grants that are for calls like this one."""
        now = self._clock()
        for grant in rules.grants:
            # One whose condition cannot be evaluated covers nothing.
            with contextlib.suppress(ConditionFailed):
                if grant.covers(call, now):
                    yield grant

    def _question(self, approval_id: str, digest: str, asks: Sequence[Verdict]) -> Parked:
        return Parked(
            approval_id=approval_id,
            digest=digest,
            reason="; ".join(dict.fromkeys(f"{ask.reason} ({ask.rule})" if ask.rule else ask.reason for ask in asks)),
            approvers=_approvers(asks),
            expires_at=self._clock() + min(ask.seconds for ask in asks),
        )


def _approvers(asks: Sequence[Verdict]) -> tuple[str, ...]:
    """Who satisfies every rule that asks. Rules that agree on nobody leave a question that nobody may answer."""
    named = [ask for ask in asks if ask.approvers]
    if not named:
        return ()
    common = [name for name in named[0].approvers if all(name in ask.approvers for ask in named[1:])]
    if not common:
        rules = ", ".join(ask.rule for ask in named)
        raise Verdict("deny", LAYER, f"nobody may approve this: {rules} name different approvers", rules).denial()
    return tuple(common)


def _refused(call: Invocation, why: str) -> Exception:
    reason = f"the approval {call.grant!r} does not cover this call of {call.tool!r}: {why}"
    return Verdict("deny", LAYER, reason, call.grant).denial()
