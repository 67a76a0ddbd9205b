"""The spans of a run or a task, as a fold over its journal. No I/O, no clock, no library.

Whatever happened between the first event and the last, crashes and takeovers included, gives one span for the run, one
for each question to the model, one for each call: named by the journal (kernel/traces.py), so that making them twice
makes the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from foliot.engine.telemetry import conventions as otel
from foliot.kernel.graph.events import (
    MessageEnded,
    MessageSent,
    TaskCancelled,
    TaskDeadLettered,
    TaskEvent,
    TaskFailed,
    TaskSucceeded,
)
from foliot.kernel.run.codec import type_of
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ModelDelayed,
    ModelFailed,
    ModelResponded,
    RunCancelled,
    RunClaimed,
    RunCreated,
    RunDeadLettered,
    RunFailed,
    RunResumed,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    Terminal,
    ToolFinished,
    ToolStarted,
    ToolUnknown,
)
from foliot.kernel.traces import (
    NO_SPAN,
    call_span,
    message_span,
    read_context,
    run_span,
    step_span,
    task_span,
    wait_span,
)

Kind: TypeAlias = Literal["internal", "client"]
Moment: TypeAlias = tuple[float, str, Mapping[str, Any]]
INTERRUPTED = "interrupted"


class Span(Struct, frozen=True):
    """One span. Times are in seconds since 1970; `error` is for people, blank when all went well."""

    name: str
    trace: str
    id: str
    parent: str
    start: float
    end: float
    attributes: dict[str, Any]
    kind: Kind = "internal"
    error: str = ""
    moments: tuple[Moment, ...] = ()


class _Open(Struct):
    """A span that has begun."""

    id: str
    start: float
    attributes: dict[str, Any]
    moments: list[Moment]


def spans_of_run(run_id: str, facts: Sequence[tuple[float, Event]]) -> list[Span]:
    """The spans of a run that has ended, its own first. None for a run that is not traced, or has not ended."""
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        return []
    context = read_context(created.trace)
    ended_at, ended = facts[-1]
    if context is None or not isinstance(ended, RunSucceeded | RunFailed | RunCancelled | RunDeadLettered):
        return []
    fold = _RunFold(run_id, context.trace)
    for seq, (at, event) in enumerate(facts, 1):
        fold.take(seq, at, event)
    fold.close(ended_at)
    attributes = {
        otel.OPERATION: otel.INVOKE_AGENT,
        otel.AGENT_NAME: created.agent,
        otel.AGENT_ID: f"{created.namespace}/{created.agent}",
        otel.NAMESPACE: created.namespace,
        otel.RUN: run_id,
        otel.ATTEMPT: fold.attempts,
        **({otel.TASK: created.task} if created.task else {}),
        **_ending(ended),
    }
    run = Span(
        name=f"{otel.INVOKE_AGENT} {created.agent}",
        trace=context.trace,
        id=run_span(run_id),
        parent="" if context.span == NO_SPAN else context.span,
        start=facts[0][0],
        end=ended_at,
        attributes=attributes,
        error=ended.message if isinstance(ended, RunFailed | RunDeadLettered) else "",
        moments=tuple(fold.moments),
    )
    return [run, *fold.done]


class _RunFold:
    """Collects the spans below that of a run."""

    def __init__(self, run_id: str, trace: str) -> None:
        self.done: list[Span] = []
        self.moments: list[Moment] = []
        self.attempts = 0
        self._run_id = run_id
        self._trace = trace
        self._asking: _Open | None = None
        self._calls: dict[str, _Open] = {}
        self._asked: dict[str, tuple[int, float, str]] = {}

    def take(self, seq: int, at: float, event: Event) -> None:
        match event:
            case StepStarted(step=step):
                self._asking = _Open(step_span(self._run_id, seq), at, {otel.STEP: step}, [])
            case ModelResponded(response=response):
                self._answered(at, response.model, otel.answer_attributes(response))
            case ModelFailed():
                said = {otel.ERROR_TYPE: event.kind, **otel.usage_attributes(event.usage)}
                self._answered(at, "", said, event.message)
            case ModelDelayed():
                self._asking = None  # it was not asked
            case ToolStarted(call_id=call_id, name=name):
                self._started(at, call_id, name, event.attempt)
            case ToolFinished():
                self._finished(at, event)
            case ToolUnknown(call_id=call_id, reason=reason):
                if (call := self._calls.get(call_id)) is not None:
                    call.moments.append((at, "foliot.tool.unknown", {otel.REASON: reason}))
            case ApprovalRequested(call_id=call_id, tool=tool):
                self._asked[call_id] = seq, at, tool
            case ApprovalDecided():
                self._decided(at, event)
            case RunClaimed():
                self._claimed(at, event)
            case RunWaiting(reason=reason) | RunResumed(reason=reason) | RunRetried(reason=reason):
                self.moments.append((at, f"foliot.{type_of(event)}", {otel.REASON: reason}))
            case _:
                pass

    def close(self, at: float) -> None:
        """The run has ended: what is still open was cut off with it."""
        self._cut_off(at)
        for call_id, call in self._calls.items():
            attributes = {**call.attributes, otel.OUTCOME: "unknown", otel.ERROR_TYPE: INTERRUPTED}
            self._add(call, at, self._call_name(call), attributes, error=f"nobody knows what became of {call_id}")

    def _claimed(self, at: float, event: RunClaimed) -> None:
        self.attempts = event.attempt
        self._cut_off(at)
        said = {otel.ATTEMPT: event.attempt, otel.WORKER: event.worker}
        self.moments.append((at, "foliot.run.claimed", said))
        for call in self._calls.values():
            call.moments.append((at, "foliot.run.claimed", said))

    def _cut_off(self, at: float) -> None:
        """Closes the open model call: the process that asked has ended, and the answer is lost."""
        if self._asking is not None:
            self._answered(at, "", {otel.ERROR_TYPE: INTERRUPTED}, "the process ended before the answer was stored")

    def _answered(self, at: float, model: str, said: dict[str, Any], error: str = "") -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            attributes = {otel.OPERATION: otel.CHAT, **asking.attributes, **said}
            self._add(asking, at, f"{otel.CHAT} {model}".strip(), attributes, error=error, kind="client")

    def _started(self, at: float, call_id: str, name: str, attempt: int) -> None:
        if (call := self._calls.get(call_id)) is not None:
            call.moments.append((at, "foliot.tool.started", {otel.ATTEMPT: attempt}))
            return
        self._calls[call_id] = _Open(call_span(self._run_id, call_id), at, self._call_attributes(call_id, name), [])

    def _finished(self, at: float, event: ToolFinished) -> None:
        result = event.result
        call = self._calls.pop(result.call_id, None)
        if call is None:  # refused, or answered in its place: it never began
            attributes = self._call_attributes(result.call_id, result.name)
            call = _Open(call_span(self._run_id, result.call_id), at, attributes, [])
        error = result.error
        outcome = event.synthetic or ("ok" if error is None else "error")
        said: dict[str, Any] = {otel.OUTCOME: "unknown" if error is not None and error.unknown else outcome}
        if error is not None:
            said[otel.ERROR_TYPE] = error.code
        self._add(call, at, self._call_name(call), {**call.attributes, **said}, error=error.message if error else "")

    def _decided(self, at: float, event: ApprovalDecided) -> None:
        if (asked := self._asked.pop(event.call_id, None)) is None:
            return
        seq, since, tool = asked
        attributes = {otel.TOOL_NAME: tool, otel.TOOL_CALL_ID: event.call_id, otel.DECISION: event.decision}
        self._add(_Open(wait_span(self._run_id, seq), since, {}, []), at, f"foliot.approval {tool}", attributes)

    def _call_attributes(self, call_id: str, name: str) -> dict[str, Any]:
        return {
            otel.OPERATION: otel.EXECUTE_TOOL,
            otel.TOOL_NAME: name,
            otel.TOOL_CALL_ID: call_id,
            otel.TOOL_TYPE: "function",
        }

    def _call_name(self, call: _Open) -> str:
        return f"{otel.EXECUTE_TOOL} {call.attributes[otel.TOOL_NAME]}"

    def _add(
        self, begun: _Open, at: float, name: str, said: dict[str, Any], *, error: str = "", kind: Kind = "internal"
    ) -> None:
        span = Span(
            name=name,
            trace=self._trace,
            id=begun.id,
            parent=run_span(self._run_id),
            start=begun.start,
            end=max(at, begun.start),
            attributes={**said, otel.RUN: self._run_id},
            kind=kind,
            error=error,
            moments=tuple(begun.moments),
        )
        self.done.append(span)


def _ending(ended: Terminal) -> dict[str, Any]:
    match ended:
        case RunSucceeded():
            outcome: dict[str, Any] = {otel.OUTCOME: "succeeded"}
        case RunCancelled():
            outcome = {otel.OUTCOME: "cancelled"}
        case RunFailed():
            outcome = {otel.OUTCOME: "failed", otel.ERROR_TYPE: ended.code, otel.REASON: ended.reason}
        case RunDeadLettered():
            return {otel.OUTCOME: "dead_lettered", otel.ERROR_TYPE: ended.reason}
    counts = {otel.STEPS: ended.steps, otel.TOOL_CALLS: ended.tool_calls}
    return {**outcome, **counts, **otel.usage_attributes(ended.usage)}


def spans_of_task(task: str, target: str, trace: str, facts: Sequence[tuple[float, TaskEvent]]) -> list[Span]:
    """The span of a task that has ended, and those of its messages. `trace` is the context it was accepted under."""
    context = read_context(trace)
    if context is None or not facts:
        return []
    ended_at, ended = facts[-1]
    if not isinstance(ended, TaskSucceeded | TaskFailed | TaskCancelled | TaskDeadLettered):
        return []
    own = task_span(task, context.trace)
    namespace = task.partition("/")[0]
    outcome = type_of_end(ended)
    failed = isinstance(ended, TaskFailed | TaskDeadLettered)
    whole = Span(
        name=f"{otel.INVOKE_WORKFLOW} {target}",
        trace=context.trace,
        id=own,
        parent="" if context.span == NO_SPAN else context.span,
        start=facts[0][0],
        end=ended_at,
        attributes={
            otel.OPERATION: otel.INVOKE_WORKFLOW,
            otel.WORKFLOW: target,
            otel.NAMESPACE: namespace,
            otel.TASK: task,
            otel.OUTCOME: outcome,
            **({otel.ERROR_TYPE: ended.reason} if isinstance(ended, TaskFailed | TaskDeadLettered) else {}),
            **otel.usage_attributes(ended.usage),
        },
        error=ended.message if isinstance(ended, TaskFailed | TaskDeadLettered) and failed else "",
    )
    return [whole, *_messages(task, own, context.trace, facts)]


def type_of_end(ended: TaskSucceeded | TaskFailed | TaskCancelled | TaskDeadLettered) -> str:
    match ended:
        case TaskSucceeded():
            return "succeeded"
        case TaskFailed():
            return "failed"
        case TaskCancelled():
            return "cancelled"
        case TaskDeadLettered():
            return "dead_lettered"


def _messages(task: str, parent: str, trace: str, facts: Sequence[tuple[float, TaskEvent]]) -> list[Span]:
    sent: dict[str, tuple[float, MessageSent]] = {}
    spans: list[Span] = []
    for at, fact in facts:
        if isinstance(fact, MessageSent):
            sent[fact.message.id] = at, fact
        elif isinstance(fact, MessageEnded) and fact.run_id and fact.message_id in sent:
            since, begun = sent[fact.message_id]
            attributes: dict[str, Any] = {
                otel.MESSAGE: fact.message_id,
                otel.TASK: task,
                otel.AGENT_NAME: begun.message.to,
                otel.RUN: fact.run_id,
                otel.OUTCOME: fact.outcome,
                otel.ATTEMPT: fact.attempts,
                **({otel.ERROR_TYPE: fact.code} if fact.code else {}),
            }
            name = f"foliot.message {begun.message.sender} -> {begun.message.to}"
            span = Span(name, trace, message_span(fact.run_id), parent, since, at, attributes, error=fact.error)
            spans.append(span)
    return spans
