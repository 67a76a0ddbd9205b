"""The handling of one delivered call: read, caller recognised, looked up, admitted, run, kept, published.

The result is kept before it is published and published before the delivery is acknowledged, so whatever breaks in
between is put right by the next delivery. Every way through ends in one of four dispositions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, cast

from msgspec import Struct, structs

from foliot.errors import Unavailable
from foliot.kernel.execution import ExecutionPolicy
from foliot.kernel.messages import ToolResult
from foliot.tools.base import (
    Admitted,
    Caller,
    Invocation,
    KeepsRecords,
    OnOutput,
    Parked,
    Toolbox,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolTimeout,
    ToolUnsupported,
)
from foliot.tools.nats_worker.callers import VIA, Callers, Headers, KnownCaller, Unidentified
from foliot.tools.nats_worker.ledger import Collision, Corrupt, Ledger, StoreFailed
from foliot.tools.nats_worker.messages import (
    NOT_STARTED,
    CallMessage,
    Meta,
    Poison,
    ResultMessage,
    answer,
    call_subject,
    compact,
    decode_call,
    refusal,
)
from foliot.tools.nats_worker.metrics import UNKNOWN_TOOL, WorkerHealth, WorkerMetrics
from foliot.tools.pipeline.gates import nobody_hears
from foliot.tools.pipeline.pipeline import ungoverned
from foliot.tools.pipeline.results import failure_result

log = logging.getLogger(__name__)

ADVERTISED: Final = "agent.tools.advertised"
TOLD_EVERY: Final = 60.0
MOST_TOLD: Final = 1024


class Disposition(Enum):
    """The fate of a delivery."""

    ACK = "ack"  # done, or done before
    RETRY = "retry"  # something outside the call failed: deliver it again later
    TERMINATE = "terminate"  # it can never be run: never deliver it again
    QUARANTINE = "quarantine"  # it ran and could not be kept: hold it, and take nothing new until it is


class ServedTools(Toolbox, Protocol):
    """A pipeline that is served."""

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]: ...


class PublishFailed(Exception):
    """`too_large`: it can never be sent as it is."""

    def __init__(self, *, too_large: bool = False) -> None:
        super().__init__("the result could not be published")
        self.too_large = too_large


class Publisher(Protocol):
    async def result(
        self, call: CallMessage, result: ResultMessage, to: KnownCaller | None, *, approval: bool = False
    ) -> None:
        """`to` None is somebody unknown. Raises `PublishFailed`."""
        ...

    def output(self, call: CallMessage, to: KnownCaller) -> tuple[OnOutput, Callable[[], Awaitable[None]]]:
        """Returns the sink for pieces of output, and what to await when there are no more."""
        ...


class AgentRights(Struct, frozen=True):
    """The rights of an agent that is declared where the tools are served."""

    roles: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    tools: frozenset[str] | None = None
    execution: ExecutionPolicy | None = None
    allowed_commands: tuple[str, ...] = ()


AgentLookup: TypeAlias = Callable[[str, str], Awaitable[AgentRights | None]]
"""By namespace and name; None for an agent that is not declared here."""


class Handler:
    """Handles deliveries of one server. `allowed` None or empty allows every tool.

    `callers` say who calls: nothing that a message says of its sender, of roles or of approvals has a part in it.
    `agents` looks up what the agent of a caller may do.
    """

    def __init__(
        self,
        tools: ServedTools,
        publisher: Publisher,
        metrics: WorkerMetrics,
        health: WorkerHealth,
        *,
        allowed: Collection[str] | None = None,
        callers: Callers,
        agents: AgentLookup | None = None,
        limit_seconds: float = 600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tools = tools
        self.publisher = publisher
        self._metrics = metrics
        self._health = health
        self._allowed = frozenset(allowed) if allowed else None
        self._callers = callers
        self._agents = agents
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._running: set[tuple[str, str]] = set()
        # When a refusal of this cause, on this subject, was recorded last.
        self._told: dict[tuple[str, str], float] = {}
        # Results of calls that ran and could not be kept. Running them again would be wrong.
        self._unkept: dict[tuple[str, str], tuple[CallMessage, ResultMessage, KnownCaller]] = {}
        self.ledger: Ledger | None = None

    @property
    def must_hold(self) -> bool:
        """Whether something ran that is not kept: no new work until it is."""
        return bool(self._unkept)

    def why_not(self, definition: ToolDefinition) -> str | None:
        """Why a tool cannot be called here, for listings; None when it can."""
        if self._allowed is not None and definition.name not in self._allowed:
            return "not allowed in this deployment"
        return None

    async def handle(self, subject: str, headers: Headers | None, data: bytes) -> Disposition:
        self._health.took(len(data))
        try:
            call, meta = decode_call(data)
        except Poison as error:
            log.warning("a message that is no call was dropped: %s", error)
            self._metrics.count("poison_total")
            self._health.errors += 1
            return Disposition.TERMINATE
        try:
            known = self._callers.identify(subject, headers, data)
            if subject != call_subject(call.name, known.prefix):
                raise Unidentified(f'the subject is not that of the tool "{call.name}"')
            known.check_named(call)
        except Unidentified as error:
            return await self._turn_away(call, subject, str(error))
        try:
            known.check_namespace(call)
        except Unidentified as error:
            return await self._turn_away(call, subject, str(error), known)
        place = known.name, call.execution_id
        if place in self._running:
            return Disposition.RETRY  # delivered again although it is under way here
        self._running.add(place)
        try:
            return await self._handle(call, meta, known)
        except StoreFailed as error:
            self._store_failed(error)
            return Disposition.QUARANTINE if place in self._unkept else Disposition.RETRY
        except (Collision, Corrupt) as error:
            self._unusable(error)
            return Disposition.TERMINATE
        except PublishFailed:
            self._metrics.count("result_publish_failures_total", reason="transport")
            return Disposition.RETRY
        finally:
            self._running.discard(place)

    async def settle(self) -> None:
        """Try to keep what could not be kept. Raises `StoreFailed` when that still fails."""
        for call, result, known in list(self._unkept.values()):
            try:
                await self._keep(call, result, known)
            except StoreFailed as error:
                self._store_failed(error)
                raise
            except (Collision, Corrupt) as error:
                self._unusable(error)
        self._health.well("store")

    # --- one call ------------------------------------------------------------------------------------------------

    async def _record_unknown(self, call: CallMessage, subject: str, why: str) -> None:
        """Have it in the audit log: of one cause and subject once a minute, because anybody can send anything."""
        cause, now = (subject, why.partition('"')[0]), self._clock()
        if now - self._told.get(cause, -TOLD_EVERY) < TOLD_EVERY:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[cause] = now
        definition = self._tools.definition(call.name)
        caller = Caller(definition.namespace if definition is not None else "default", via=VIA)
        made = _made(call, caller)
        await self._record(made, ToolDenied(f"the caller is not known: {why}", layer="caller", rule=subject))

    async def _record(self, made: Invocation, error: ToolError) -> None:
        if isinstance(self._tools, KeepsRecords):
            await self._tools.refused(made, failure_result(made, error))

    async def _turn_away(
        self, call: CallMessage, subject: str, why: str, known: KnownCaller | None = None
    ) -> Disposition:
        """Refuses a call from an unknown caller; nothing is looked up.

        Without `known` the refusal is published openly, because the sender is not known.
        """
        await self._record_unknown(call, subject, why)
        log.warning("a call of %s over NATS was refused: %s", call.name[:80], why)
        label = call.name if self._tools.definition(call.name) is not None else UNKNOWN_TOOL
        self._metrics.count("rejections_total", tool_name=label, reason="unidentified")
        failure = {"code": "permission_denied", "reason": "caller_unidentified", "kind": "denied", "retryable": False}
        refused = refusal(call, f"the caller is not known: {why}", "policy_denied", failure=failure)
        try:
            await self.publisher.result(call, refused, known)
        except PublishFailed:
            self._metrics.count("result_publish_failures_total", reason="transport")
        return Disposition.TERMINATE

    async def _handle(self, call: CallMessage, meta: Meta, known: KnownCaller) -> Disposition:
        assert self.ledger is not None, "the ledger is opened before calls are taken"
        place = known.name, call.execution_id
        if place in self._unkept:
            kept = await self._keep(call, self._unkept[place][1], known)
            return await self._publish(call, kept, known, path="new")
        if (kept := await self.ledger.find(call, known.name)) is not None:
            return await self._publish(call, kept, known, path="replay")
        definition = self._tools.definition(call.name)
        if (refused := self._refusal(call, definition)) is not None:
            await self._record(_made(call, known.caller(call, _advertised(call))), _recorded(refused))
            return await self._publish(call, await self._keep(call, refused, known), known, path="rejection")
        assert definition is not None, "an unknown tool is refused"
        if meta.deadline_ms and meta.deadline_ms <= self._clock() * 1000:
            # Nothing happened, so no result is kept: the same call may come again with more time.
            late = self._too_late(call)
            made = _made(call, known.caller(call, _advertised(call)))
            await self._record(made, ToolTimeout(late.error, layer="deadline"))
            return await self._publish(call, late, known, path="rejection")
        invocation = await self._invocation(call, meta, known)
        try:
            admitted = await self._tools.admit(invocation)
        except Unavailable as error:
            # Nothing was decided, so nothing is kept: the same call may come again.
            refused = failure_result(invocation, ungoverned(error))
            return await self._publish(call, answer(call, refused), known, path="rejection")
        if isinstance(admitted, Parked) and admitted.question is None:
            return await self._ask_for_approval(call, known)
        if isinstance(admitted, Parked):
            admitted = failure_result(invocation, nobody_hears(invocation))
        if isinstance(admitted, ToolResult):
            self._metrics.count("rejections_total", tool_name=call.name, reason=_reason(admitted))
            refused = answer(call, admitted)
            if admitted.error is None or not admitted.error.retryable:  # else the same call may come again
                refused = await self._keep(call, refused, known)
            return await self._publish(call, refused, known, path="rejection")
        result = await self._run(call, invocation, admitted, definition, known)
        return await self._publish(call, await self._keep(call, result, known), known, path="new")

    def _refusal(self, call: CallMessage, definition: ToolDefinition | None) -> ResultMessage | None:
        """The refusals that need no rules. The texts differ, so that a caller can tell one from the other."""
        label = call.name if definition is not None else UNKNOWN_TOOL
        if self._allowed is not None and call.name not in self._allowed:
            policy = {"layer": "allow_list", "rule": "allowed_tools"}
            text, reason = f'tool "{call.name}" is not allowed', "not_allowed"
            refused = refusal(call, text, "policy_denied", policy=policy)
        elif definition is None:
            text, reason = f'tool "{call.name}" not found', "not_found"
            refused = refusal(call, text, "not_found", failure={"code": "unsupported_tool", "kind": "unknown_tool"})
        elif (advertised := _advertised(call)) is not None and call.name not in advertised:
            text = f'tool "{call.name}" is not permitted for this loop (advertised tool set)'
            policy = {"layer": "advertised", "rule": ADVERTISED}
            reason, refused = "not_advertised", refusal(call, text, "permission", policy=policy)
        else:
            return None
        self._metrics.count("rejections_total", tool_name=label, reason=reason)
        return refused

    def _too_late(self, call: CallMessage) -> ResultMessage:
        self._metrics.count("rejections_total", tool_name=call.name, reason="too_late")
        return refusal(
            call, f'the deadline passed before tool "{call.name}" was started', "timeout", failure=NOT_STARTED
        )

    async def _run(
        self,
        call: CallMessage,
        invocation: Invocation,
        admitted: Admitted,
        definition: ToolDefinition,
        known: KnownCaller,
    ) -> ResultMessage:
        if definition.effect == "once" and not await self._may_begin(call, definition, known):
            self._metrics.count("ambiguous_redeliveries_total", cause="restart")
            text = f'nobody knows whether tool "{call.name}" took effect: its server ended while it was under way'
            failure = {"reason": "unknown_effect", "retryable": False, "kind": "internal"}
            return refusal(call, text, "internal", ambiguous_effect=True, failure=failure)
        began = self._clock()
        self._metrics.in_flight += 1
        on_output, ended = self.publisher.output(call, known)
        try:
            async with asyncio.timeout(self._limit_seconds):
                result = await admitted.run(on_output=on_output)
        except TimeoutError:
            late = ToolTimeout(f'tool "{call.name}" took longer than {self._limit_seconds:g} s')
            result = failure_result(invocation, late)
        except asyncio.CancelledError:
            self._metrics.count("ambiguous_redeliveries_total", cause="shutdown")
            raise
        finally:
            self._metrics.in_flight -= 1
            await ended()
        self._count(call.name, result, self._clock() - began)
        return answer(call, result)

    async def _may_begin(self, call: CallMessage, definition: ToolDefinition, known: KnownCaller) -> bool:
        """Whether a call that must not be repeated may act: nobody has begun it, or repeating is what was declared."""
        assert self.ledger is not None
        if await self.ledger.began(call, known.name) or not await self.ledger.begin(call, known.name):
            return definition.on_unknown == "retry"
        return True

    async def _ask_for_approval(self, call: CallMessage, known: KnownCaller) -> Disposition:
        """Reports that the call needs approval: neither an outcome nor an error; the same call comes again after
        approval.
        """
        self._metrics.count("rejections_total", tool_name=call.name, reason="approval_required")
        text = f"approval_required: Tool '{call.name}' requires human approval before execution"
        failure = {"code": "permission_denied", "reason": "approval_required", "kind": "permission", "retryable": False}
        await self.publisher.result(call, refusal(call, text, "permission", failure=failure), known, approval=True)
        return Disposition.ACK

    async def _invocation(self, call: CallMessage, meta: Meta, known: KnownCaller) -> Invocation:
        """The call as one outside any run: runs and approvals of the sender are not those of this installation."""
        said = call.metadata
        return Invocation(
            run_id="",
            call_id=call.id,
            tool=call.name,
            arguments=call.arguments,
            # Callers choose keys: two of them must not meet in one.
            idempotency_key=f"{known.name}/{meta.idempotency_key or call.execution_id}",
            caller=await self._caller(call, known),
            attempt=max(meta.attempt, 1),
            deadline=meta.deadline_ms / 1000 if meta.deadline_ms else None,
            trace_id=call.trace_id,
            version=_text(said.get("tool_version")),
            schema_digest=_text(said.get("schema_digest")),
        )

    async def _caller(self, call: CallMessage, known: KnownCaller) -> Caller:
        """Raises `Unavailable`."""
        caller = known.caller(call, _advertised(call))
        if not caller.agent or self._agents is None:
            return caller
        rights = await self._agents(caller.namespace, caller.agent)
        if rights is None:
            # One that the operator named must be there; one that the caller brings along has no rights of its own.
            return structs.replace(caller, advertised=frozenset()) if known.entry.agent else caller
        advertised = caller.advertised
        if rights.tools is not None:
            advertised = rights.tools if advertised is None else advertised & rights.tools
        roles = tuple(dict.fromkeys((*rights.roles, *caller.roles)))
        return structs.replace(
            caller,
            roles=roles,
            allowed_tools=rights.allowed_tools,
            advertised=advertised,
            execution=rights.execution,
            allowed_commands=rights.allowed_commands,
        )

    # --- what comes after the call -------------------------------------------------------------------------------

    async def _keep(self, call: CallMessage, result: ResultMessage, known: KnownCaller) -> ResultMessage:
        """The result that counts. One that is too large to be kept is replaced by a note of that."""
        assert self.ledger is not None
        place = known.name, call.execution_id
        self._unkept[place] = (call, result, known)
        try:
            kept = await self.ledger.keep(call, result, known.name)
        except StoreFailed as error:
            if not error.too_large:
                raise
            self._store_failed(error)
            self._metrics.count("outcome_total", path="compact")
            kept = await self.ledger.keep(call, compact(call, len(result.content)), known.name)
        except (Collision, Corrupt):
            self._unkept.pop(place, None)
            raise
        self._unkept.pop(place, None)
        return kept

    async def _publish(self, call: CallMessage, result: ResultMessage, to: KnownCaller, *, path: str) -> Disposition:
        try:
            await self.publisher.result(call, result, to)
        except PublishFailed as error:
            if not error.too_large:
                raise
            self._metrics.count("result_publish_failures_total", reason="oversize")
            await self.publisher.result(call, compact(call, len(result.content)), to)
        self._metrics.count("outcome_total", path=path)
        self._health.processed += 1
        return Disposition.ACK

    def _count(self, tool: str, result: ToolResult, seconds: float) -> None:
        kind = result.error.kind if result.error is not None else ""
        status = "success" if not kind else "timeout" if kind == "timeout" else "error"
        self._metrics.count("executions_total", tool_name=tool, status=status)
        self._metrics.took(tool, seconds)
        if kind:
            self._metrics.count("errors_total", tool_name=tool, error_type=kind)
        if kind == "timeout":
            self._metrics.count("timeout_total", tool_name=tool)

    def _store_failed(self, error: StoreFailed) -> None:
        reason = "oversize" if error.too_large else "transport"
        self._metrics.count("outcome_store_failures_total", operation=error.operation, reason=reason)
        if not error.too_large:
            self._health.trouble("store", "outcomes cannot be kept: no new calls are taken")
            self._health.errors += 1

    def _unusable(self, error: Collision | Corrupt) -> None:
        log.error("a call was dropped: %s", error.message)
        self._health.errors += 1
        if isinstance(error, Collision):
            self._metrics.count("outcome_collisions_total")
        else:
            self._metrics.count("outcome_store_failures_total", operation="get", reason="corrupt")


def _made(call: CallMessage, caller: Caller) -> Invocation:
    """A call that nobody looks at any further, for its record."""
    return Invocation("", call.id, call.name, call.arguments, "", caller, trace_id=call.trace_id)


def _recorded(refused: ResultMessage) -> ToolError:
    """A refusal that needed no rules, as the audit log has it."""
    policy: dict[str, str] | None = refused.metadata.get("policy")
    if policy is None:
        return ToolUnsupported(refused.error, layer="resolve")
    return ToolDenied(refused.error, layer=policy["layer"].replace("_", "-"), rule=policy["rule"])


def _advertised(call: CallMessage) -> frozenset[str] | None:
    """The tools that the caller was given. Not said: no limit. Said wrongly: none, because a mistake must not widen."""
    if ADVERTISED not in call.metadata:
        return None
    return frozenset(_texts(call.metadata[ADVERTISED]) or ())


def _reason(result: ToolResult) -> str:
    return result.error.kind if result.error is not None else "refused"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    items = cast("list[Any]", value)
    return tuple(item for item in items if isinstance(item, str)) if all(isinstance(i, str) for i in items) else None
