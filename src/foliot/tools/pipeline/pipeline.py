"""The one way to a tool's backend, readable from top to bottom.

Every call, from a model, a person or a program, passes these stages in this order; no entry point has a way around
them. *Layers* judge the call by the rules and *gates* ask the world outside; neither has an effect. Then the call's
start is made durable by whoever runs it. *Stages* nest around the backend like envelopes: the first is opened first and
closed last. *Finishers* make the result what may be seen and kept.

Each tool gets its own lists when it is added, so a call pays only for what applies to its tool. Layers only narrow:
none of them can allow what another refused, and anything that breaks refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from foliot.errors import Conflict, Unavailable
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.events import UnknownReason
from foliot.tools.base import (
    Admitted,
    ApprovalNeeded,
    Asks,
    Invocation,
    MayAct,
    OnOutput,
    OutputCheck,
    Parked,
    Tool,
    ToolCancelled,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolUnsupported,
)
from foliot.tools.governance.execution import Execution
from foliot.tools.governance.judge import Judgement, Layer, SettledLayers, judge, refused_by
from foliot.tools.governance.layers import Advertised, AllowList, CheckArguments, Conditions, Policies, Resolve
from foliot.tools.governance.permissions import Callees, Delegates, Permissions
from foliot.tools.governance.rules import Rules, StandingGrant, Verdict
from foliot.tools.pipeline.attempt import Attempt, Deadline
from foliot.tools.pipeline.breaker import Breaker
from foliot.tools.pipeline.gates import (
    Approval,
    Asking,
    BudgetGate,
    BudgetHold,
    IsolationLayer,
    Pay,
    Preconditions,
    SecretsGate,
    nobody_hears,
)
from foliot.tools.pipeline.limiter import RateGate, RateStage
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.record import CallRecord, Moment, Recorders, snapshot
from foliot.tools.pipeline.results import (
    Classify,
    Mask,
    Truncate,
    classified,
    failure_result,
    masked_output,
    noted,
    success_result,
)
from foliot.tools.pipeline.retry import Retries
from foliot.tools.pipeline.running import CallProgress, Handler, current
from foliot.tools.processes import forget, note_for
from foliot.tools.registry import check_effect, schema_digest

# Where the tools are written that come with Foliot.
_OURS = ("foliot.tools.builtin.", "foliot.tools.search")

log = logging.getLogger(__name__)


class Gate(Protocol):
    """Raises to refuse, or `ApprovalNeeded`. `asks` are the verdicts of the layers that want an approval.

    Returns the standing grant that the call rests on, if it is one.
    One that takes something, or asks somebody, has a method `look` beside it, which says what it would come to.
    """

    @property
    def layer(self) -> str: ...

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> StandingGrant | None: ...


@runtime_checkable
class Looks(Protocol):
    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> Verdict | None:
        """Returns the verdict this gate would give, without taking or asking anything; None when it would be silent."""
        ...


class Stage(Protocol):
    """May time a call or repeat it; otherwise awaits `next`, or returns what it gives."""

    def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Awaitable[Any]: ...


class Finisher(Protocol):
    def leaves(self, result: ToolResult) -> bool:
        """Whether there is nothing to do."""
        ...

    async def __call__(self, call: Invocation, result: ToolResult) -> ToolResult: ...


def layers_for(tool: Tool, parts: PipelineParts, offers: Callable[[str], bool]) -> tuple[Layer, ...]:
    """Returns the layers that judge a call of this tool, in order."""
    definition = tool.definition
    layers: list[Layer | None] = [
        Advertised(),  # first: a run answers by itself what it was not given
        Resolve(definition, schema_digest(definition.schema)),
        CheckArguments(definition.name, definition.schema, getattr(tool, "misfit", None)),
        IsolationLayer(definition, getattr(tool, "isolation", "none")) if definition.isolation != "none" else None,
        AllowList(definition, parts.profile),
        Permissions(definition),
        Policies(definition, ours=_is_ours(tool)),
        Conditions(definition),
        Execution.of(definition),
        Callees(cast("Delegates", tool), parts.profile) if hasattr(tool, "callees") else None,
        Preconditions(definition, offers) if definition.requires or definition.requires_prior else None,
    ]
    return tuple(layer for layer in layers if layer is not None)


def _is_ours(tool: Tool) -> bool:
    """Whether a tool comes with Foliot: its code is as trusted as the process that it runs in."""
    return getattr(tool, "ours", False) or type(tool).__module__.startswith(_OURS)


def gates_for(tool: Tool, parts: PipelineParts) -> tuple[Gate, ...]:
    """Returns the gates that a call must pass after that, in order: a caller without rate left needs no approval."""
    definition = tool.definition
    limit = definition.rate_limit
    gates: list[Gate | None] = [
        SecretsGate(definition, parts.has_secret)
        if any(need[:7] == "secret:" for need in definition.requires)
        else None,
        BudgetGate(definition, parts.budgets) if definition.price and parts.budgets is not None else None,
        RateGate(definition, limit, parts.limiter) if limit is not None else None,
        Approval(parts.grants, parts.clock),
        BudgetHold(definition, parts.budgets) if definition.price and parts.budgets is not None else None,
        Asking(cast("Asks", tool), parts.clock) if hasattr(tool, "question") else None,
    ]
    return tuple(gate for gate in gates if gate is not None)


def stages_for(definition: ToolDefinition, parts: PipelineParts) -> tuple[Stage, ...]:
    """Returns the stages around the backend, outermost first."""
    limit = definition.rate_limit
    stages: list[Stage | None] = [
        Pay(parts.budgets) if definition.price and parts.budgets is not None else None,
        RateStage(definition, limit, parts.limiter) if limit is not None else None,
        Deadline(definition.timeout, parts.clock) if definition.timeout else None,
        Retries(definition, parts.clock, parts.sleep, parts.chance) if definition.retry.max_attempts > 1 else None,
        Breaker(definition, parts.circuits, parts.clock) if definition.breaker else None,
        Attempt(definition, parts.clock),
        Classify(),
    ]
    return tuple(stage for stage in stages if stage is not None)


def finishers_for(definition: ToolDefinition, parts: PipelineParts) -> tuple[Finisher, ...]:
    """Returns the finishers of a result, in order: secrets are masked before anything is stored or cut."""
    finishers: list[Finisher | None] = [
        Mask(parts.masker) if parts.masker is not None else None,
        Truncate(parts.result_limit, parts.store_blob),
    ]
    return tuple(finisher for finisher in finishers if finisher is not None)


def compose(stages: Sequence[Stage], backend: Handler) -> Handler:
    if not stages:
        return backend
    return partial(stages[0], next=compose(stages[1:], backend))


class ToolEntry:
    """One tool with everything that stands before and around it."""

    __slots__ = ("definition", "finishers", "gates", "gates_unasked", "handler", "judge", "layers", "required", "tool")

    def __init__(self, tool: Tool, parts: PipelineParts, offers: Callable[[str], bool]) -> None:
        definition = tool.definition
        invoke = tool.invoke

        def backend(call: Invocation, running: CallProgress) -> Awaitable[Any]:
            running.began, running.returned = True, False
            return invoke(call, on_output=running.on_output)

        self.tool = tool
        self.definition = definition
        self.required = definition.record == "required"
        self.layers = layers_for(tool, parts, offers)
        self.judge = SettledLayers(self.layers).judge
        self.gates = gates_for(tool, parts)
        # For a call that no layer wants an approval of: most calls need not even ask the gate that looks for one.
        self.gates_unasked = tuple(gate for gate in self.gates if not isinstance(gate, Approval))
        self.handler = compose(stages_for(definition, parts), backend)
        self.finishers = finishers_for(definition, parts)


class Pipeline:
    """A `Toolbox`: named tools, each behind its layers, gates and stages."""

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        parts: PipelineParts | None = None,
        *,
        output_check: OutputCheck | None = None,
    ) -> None:
        self.parts = parts or PipelineParts()
        self.output_check = output_check
        self._entries: dict[str, ToolEntry] = {}
        self._capabilities: set[str] = set()
        self._record = Recorders(self.parts.recorders) if self.parts.recorders else None
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Make a tool callable. Raises `Conflict` when another has its name, `InvalidInput` for an unknown effect."""
        name = tool.definition.name
        check_effect(tool.definition)
        known = self._entries.get(name)
        if known is not None and known.tool is not tool:
            raise Conflict(f"two tools are named {name!r}", hint="Give one of them another name.")
        self._entries[name] = ToolEntry(tool, self.parts, self._offers)
        self._capabilities.update(f"capability:{each}" for each in tool.definition.capabilities)

    def _offers(self, need: str) -> bool:
        kind, _, name = need.partition(":")
        return name in self._entries if kind == "tool" else need in self._capabilities

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]:
        return {name: entry.definition for name, entry in self._entries.items()}

    def definition(self, name: str) -> ToolDefinition | None:
        entry = self._entries.get(name)
        return entry.definition if entry else None

    def entry(self, name: str) -> ToolEntry | None:
        """A tool and its layers, for whoever explains what would happen to a call."""
        return self._entries.get(name)

    @property
    def entries(self) -> Iterable[ToolEntry]:
        """All tools, in the order in which they were added."""
        return self._entries.values()

    async def admit(self, call: Invocation) -> Admitted | Parked | ToolResult:
        """Admits, parks or refuses the call, as `Toolbox` promises.

        A call of a run that needed no approval is recorded once, with its result.

        Its start is in the journal of the run, and what a crash cuts off is found there.
        """
        entry = self._entries.get(call.tool)
        asks: tuple[Verdict, ...] = ()
        try:
            if entry is None:
                raise self._unknown(call)
            source, namespace = self.parts.rules, call.caller.namespace
            rules = source.at_hand(namespace) or await source.rules(namespace)
            if said := entry.judge(call, rules):
                if said[-1].outcome == "deny":
                    asks = tuple(said[:-1])
                    raise said[-1].denial()
                asks = tuple(said)
            for gate in entry.gates if asks else entry.gates_unasked:
                if (grant := await gate(call, rules, asks)) is not None:
                    call = replace(call, standing=(grant.id, grant.giver))
            kept = b""
            if self._record is not None:
                kept = snapshot(call.arguments)
                if asks or call.grant or entry.required or not call.run_id:
                    await self._note("admitted", call, entry, asks=asks, arguments=kept)
        except ApprovalNeeded as needed:
            return await self._park(call, entry, asks, needed.parked)
        except Unavailable as error:
            if call.run_id and error.retryable:
                raise  # a database that is away for a moment is no answer to a model
            return await self._refuse(call, entry, asks, ungoverned(error))
        except Exception as error:
            # Governance fails closed: a layer that breaks refuses the call.
            return await self._refuse(call, entry, asks, error)
        return AdmittedCall(self, entry, call, kept)

    async def refused(self, call: Invocation, result: ToolResult) -> None:
        """Records a call that the run itself refused; see `KeepsRecords`."""
        with contextlib.suppress(Exception):  # it is refused all the same; what was not kept is in the log
            await self._note("refused", call, self._entries.get(call.tool), result=result)

    async def judge(self, call: Invocation) -> Judgement:
        """Judges a hypothetical call by every layer and gate. Nothing is run, taken, asked or recorded.

        Raises `Unavailable` when what governs it cannot be looked up.
        """
        entry = self._entries.get(call.tool)
        if entry is None:
            return Judgement.of([refused_by("resolve", self._unknown(call))])
        rules = await self.parts.rules.rules(call.caller.namespace)
        said = judge(entry.layers, call, rules, every=True)
        asks = tuple(each for each in said if each.outcome == "ask")
        for gate in entry.gates:
            verdict: Verdict | None
            try:
                if isinstance(gate, Looks):
                    verdict = gate.look(call, rules, asks)
                else:
                    await gate(call, rules, asks)
                    verdict = Verdict("allow", gate.layer, "nothing speaks against it")
            except Unavailable:
                raise
            except Exception as error:
                verdict = refused_by(gate.layer, error)
            if verdict is not None:
                said.append(verdict)
        return Judgement.of(said)

    async def call(self, call: Invocation, *, on_output: OnOutput | None = None) -> ToolResult:
        """Admits and runs a call in one go, for callers that keep no journal."""
        try:
            admitted = await self.admit(call)
        except Unavailable as error:
            return await self._refuse(call, self._entries.get(call.tool), (), ungoverned(error))
        if isinstance(admitted, Parked):
            return failure_result(call, _nobody_waits(call, admitted))
        return admitted if isinstance(admitted, ToolResult) else await admitted.run(on_output=on_output)

    def _unknown(self, call: Invocation) -> ToolUnsupported:
        known = ", ".join(sorted(self._entries)) or "none"
        return ToolUnsupported(f"there is no tool named {call.tool!r}; there are: {known}", layer="resolve")

    async def _park(
        self, call: Invocation, entry: ToolEntry | None, asks: tuple[Verdict, ...], parked: Parked
    ) -> Parked | ToolResult:
        try:
            await self._note("parked", call, entry, asks=asks, parked=parked)
        except Exception as error:
            return failure_result(call, error)
        return parked

    async def _refuse(
        self, call: Invocation, entry: ToolEntry | None, asks: tuple[Verdict, ...], error: Exception
    ) -> ToolResult:
        result = failure_result(call, error)
        try:
            for finisher in entry.finishers if entry else ():
                if not finisher.leaves(result):
                    result = await finisher(call, result)
            await self._note("refused", call, entry, asks=asks, result=result)
        except Exception as broken:
            return failure_result(call, broken)
        return result

    async def finish(
        self, admitted: AdmittedCall, result: ToolResult, running: CallProgress, began: float
    ) -> ToolResult:
        """The result as it may be seen, recorded. Never raises."""
        call = admitted.call
        try:
            for finisher in admitted.entry.finishers:
                if not finisher.leaves(result):
                    result = await finisher(call, result)
            if self._record is not None:
                kept = self._record(self._finished(admitted, result, running, began))
                if kept is not None:
                    await kept
        except Exception as error:
            # What a finisher could not make fit to be seen is not seen.
            unknown = result.error.unknown if result.error is not None else "broken"
            return failure_result(call, error, cast("UnknownReason", unknown) or None, admitted.entry.definition.effect)
        return result

    async def cut_off(self, admitted: AdmittedCall, running: CallProgress, began: float) -> None:
        """Recorded too: a call that was cancelled may have acted. Never raises."""
        if self._record is not None:
            call, effect = admitted.call, admitted.entry.definition.effect
            end = "told to stop, and goes on" if running.goes_on else f"cancelled before it {_progress(running)}"
            error = ToolCancelled(f"the call of {call.tool!r} was {end}")
            if running.goes_on:
                error.still_running = error.details["still_running"] = True
            stopped = failure_result(call, error, "cancelled" if running.began else None, effect)
            with contextlib.suppress(Exception):  # whoever stops it does not wait for a reason
                kept = self._record(self._finished(admitted, stopped, running, began))
                if kept is not None:
                    await kept

    def _finished(self, admitted: AdmittedCall, result: ToolResult, running: CallProgress, began: float) -> CallRecord:
        now = self.parts.clock()
        definition, attempts = admitted.entry.definition, running.attempts
        return CallRecord(
            "finished", admitted.call, definition, now, (), None, result, attempts, now - began, admitted.arguments
        )

    async def _note(self, moment: Moment, call: Invocation, entry: ToolEntry | None, **facts: Any) -> None:
        if self._record is not None:
            definition = entry.definition if entry else None
            kept = self._record(CallRecord(moment, call, definition, self.parts.clock(), **facts))
            if kept is not None:
                await kept


def _progress(running: CallProgress) -> str:
    return "ended" if running.began else "began"


def ungoverned(error: Unavailable) -> ToolError:
    """Builds the refusal while the rules cannot be read; callers learn nothing of the database and its trouble."""
    log.warning("a call was refused because what governs it cannot be looked up: %s", error.message)
    return ToolError("what governs the call cannot be looked up now, so it was not run", retryable=True)


def _nobody_waits(call: Invocation, parked: Parked) -> ToolError:
    if parked.question is not None:
        return nobody_hears(call)
    return ToolDenied(f"{call.tool!r} needs an approval: {parked.reason}", layer="approval", rule=parked.approval_id)


class AdmittedCall(Struct, gc=False):
    """`arguments` are those that were decided about, as JSON; empty when nobody keeps records."""

    pipeline: Pipeline
    entry: ToolEntry
    call: Invocation
    arguments: bytes

    @property
    def standing(self) -> tuple[str, str]:
        """The standing grant that it rests on, and who gave it."""
        return self.call.standing

    async def run(self, *, on_output: OnOutput | None = None, may_act: MayAct | None = None) -> ToolResult:
        call, parts = self.call, self.pipeline.parts
        ended = None
        if on_output is not None and parts.masker is not None:
            on_output, ended = masked_output(parts.masker, on_output)
        running = CallProgress(on_output, may_act)
        began = parts.clock()
        outer, noting = current.set(running), note_for(running.processes)
        try:
            value = await self.entry.handler(call, running)
            result = success_result(call, value, running.network_text(failed=False))
            if running.has_processes:
                await running.end_processes(call)
        except asyncio.CancelledError:
            running.over = True
            await running.end_processes(call)
            await self.pipeline.cut_off(self, running, began)
            raise
        except Exception as error:
            # A tool may raise anything; whatever it is, the model gets exactly one result.
            failure = classified(error, call.tool)
            result = failure_result(call, failure, running.unknown(failure), self.entry.definition.effect)
            result = noted(result, running.network_text(failed=True))
            running.over = True
            await running.end_processes(call)
        finally:
            running.over = True
            try:
                forget(noting)
                current.reset(outer)
            except ValueError:
                pass  # thrown away by whoever tidies up, in a context of its own
        if ended is not None:
            ended()
        return await self.pipeline.finish(self, result, running, began)
