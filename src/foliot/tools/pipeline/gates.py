"""The gates of a call: its preconditions, the consent of a person, and the money it may cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, Protocol, TypeAlias

from foliot.kernel.arguments import arguments_digest
from foliot.tools.base import (
    ApprovalNeeded,
    Asks,
    Caller,
    Invocation,
    Parked,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolPrecondition,
    ToolSecretMissing,
    ToolUnsupported,
)
from foliot.tools.governance.cel import ConditionFailed
from foliot.tools.governance.rules import Rules, StandingGrant, Verdict, together
from foliot.tools.pipeline.running import CallProgress, Handler

PRECONDITION_LAYER = "preconditions"


class Preconditions:
    """`offers` says whether a tool or a capability is there, by `tool:<name>` or `capability:<name>`."""

    layer = PRECONDITION_LAYER

    def __init__(self, definition: ToolDefinition, offers: Callable[[str], bool]) -> None:
        self._name = definition.name
        self._requires = tuple(need for need in map(qualified, definition.requires) if not need.startswith("secret:"))
        self._prior = definition.requires_prior
        self._offers = offers

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        gaps = [need for need in self._requires if not self._offers(need)]
        if gaps:
            raise ToolPrecondition(
                f"the tool {self._name!r} needs what is not there: {', '.join(gaps)}",
                layer=PRECONDITION_LAYER,
                missing=gaps,
            )
        owed = [name for name in self._prior if name not in call.prior]
        if owed:
            raise ToolPrecondition(
                f"{self._name!r} can be called after {' and '.join(map(repr, owed))} succeeded in this run",
                layer=PRECONDITION_LAYER,
                missing_prior=owed,
            )
        return _MET

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return False  # tools are added to a pipeline, and others succeed


def qualified(need: str) -> str:
    """A bare name is a tool."""
    return need if ":" in need else f"tool:{need}"


_MET = Verdict("allow", PRECONDITION_LAYER, "what it requires is there, and what must come before has succeeded")


# --- secrets ---------------------------------------------------------------------------------------------------------

# Are the secrets that the tool requires there?

HasSecret: TypeAlias = Callable[[str, str], Awaitable[bool]]


class SecretsGate:
    """Asks for the presence of a secret by namespace and reference; its value is never looked at here."""

    layer = "secrets"

    def __init__(self, definition: ToolDefinition, has_secret: HasSecret | None) -> None:
        self._name = definition.name
        self._needs = tuple(need.removeprefix("secret:") for need in definition.requires if need.startswith("secret:"))
        self._has_secret = has_secret

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        for need in self._needs:
            if self._has_secret is None or not await self._has_secret(call.caller.namespace, need):
                raise ToolSecretMissing(
                    f"the tool {self._name!r} needs the secret {need!r}, which is not there",
                    hint="create it with `foliot create secret`",
                    layer=self.layer,
                )


# --- isolation -------------------------------------------------------------------------------------------------------

# Does the backend contain the call as the tool was declared?


class IsolationLayer:
    """A tool that is declared to run isolated is refused when its backend does not offer that: never a weaker one."""

    layer = "isolation"

    def __init__(self, definition: ToolDefinition, offered: str) -> None:
        self._name = definition.name
        self._wanted = definition.isolation
        self._offered = offered
        self._contained = Verdict("allow", self.layer, f"its backend runs it {self._wanted!r}, as declared")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if self._wanted != self._offered:
            raise ToolIsolationMissing(
                f"the tool {self._name!r} must run {self._wanted!r}, and nothing here can do that: "
                f"{_what_is_missing(self._wanted)}",
                hint="set runtime.isolation_mode to what this deployment offers",
                layer=self.layer,
                wanted=self._wanted,
            )
        return self._contained

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return True


def _what_is_missing(mode: str) -> str:
    """The advice for an isolation mode, as far as can be seen without trying it."""
    from foliot.sandbox import bubblewrap, wasm  # only a refusal needs them

    if mode == "sandboxed" and bubblewrap.find() is None:
        return f"bubblewrap is not installed ({bubblewrap.INSTALL})"
    if mode == "wasm" and not wasm.installed():
        return f"wasmtime is not installed ({wasm.INSTALL})"
    return "`foliot doctor` says what is missing"


# --- approval --------------------------------------------------------------------------------------------------------

# Does someone have to agree, and has someone agreed?

APPROVAL_LAYER = "approval"


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

    layer = APPROVAL_LAYER

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
                return Verdict("allow", APPROVAL_LAYER, reason, f"ToolApproval/{grant.id}")
        asked = together(asks, APPROVAL_LAYER)
        if asked.outcome == "deny":
            return asked
        who = f"of {', '.join(asked.approvers)}" if asked.approvers else "of those who may approve"
        other = f", and not {' or '.join(call.caller.people) or 'who asks'}" if asked.four_eyes else ""
        needed = f"{asked.required} {who} have" if asked.required > 1 else f"one {who} has"
        return Verdict("ask", APPROVAL_LAYER, f"{needed} to agree{other}, within {round(asked.seconds / 3600, 1):g}h")

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
        asked = together(asks, APPROVAL_LAYER)
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
    return Verdict("deny", APPROVAL_LAYER, reason, call.grant).denial()


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


# --- budget ----------------------------------------------------------------------------------------------------------

# Is there money left for this call? Looked at before consent is asked for, taken last, settled when it is over.

NO_ROOM = "budget_exceeded"


class ToolOverBudget(ToolDenied):
    """There is no room in a budget. `details` say which (`rule`), how it stands and when to look again (`until`).

    A run need not take this for an answer: it can wait for room, and start the call then.
    """

    kind = NO_ROOM


class Payment(Protocol):
    """The reservation for one call."""

    async def settle(self, times: int) -> None:
        """The call is over, and acted this often. Never raises."""
        ...

    def settle_later(self, times: int) -> None:
        """The same without waiting, for a call that is being stopped."""
        ...


class PipelineBudgets(Protocol):
    """Limits that go beyond one run: over all that a run delegated, over an agent, a user, a tenant, a month."""

    async def look(self, call: Invocation, definition: ToolDefinition) -> None:
        """Raises `ToolOverBudget` when there is no room for the call. Takes nothing."""
        ...

    async def reserve(self, call: Invocation, definition: ToolDefinition) -> None:
        """Keep room for the call until it is paid for. Raises `ToolOverBudget`."""
        ...

    def payment(self, call: Invocation) -> Payment | None:
        """Hands over the reservation for this call, once; None when there is none."""
        ...


class BudgetGate:
    """Stands before consent: nobody is asked about a call that could not be paid for."""

    layer = "budget"

    def __init__(self, definition: ToolDefinition, budgets: PipelineBudgets) -> None:
        self._definition = definition
        self._budgets = budgets

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        await self._budgets.look(call, self._definition)


class BudgetHold:
    """The last gate: the call is allowed, and nothing but its start lies between this and the backend."""

    layer = "budget"

    def __init__(self, definition: ToolDefinition, budgets: PipelineBudgets) -> None:
        self._definition = definition
        self._budgets = budgets

    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        """The gate before consent has looked."""

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        await self._budgets.reserve(call, self._definition)


class Pay:
    """The outermost stage: every attempt that may have left is paid for, whatever came of it."""

    def __init__(self, budgets: PipelineBudgets) -> None:
        self._budgets = budgets

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        payment = self._budgets.payment(call)
        if payment is None:
            return await next(call, running)
        try:
            value = await next(call, running)
        except asyncio.CancelledError:
            payment.settle_later(_acted(running) + running.began)
            raise
        except ToolError as error:
            await payment.settle(_acted(running) + (not error.before_effect))
            raise
        await payment.settle(_acted(running) + 1)
        return value


def _acted(running: CallProgress) -> int:
    """How many of the attempts that failed and were repeated may have acted."""
    return sum(not failure.before_effect for failure in running.failures)
