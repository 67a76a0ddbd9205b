"""A small pure shell for the kernel: plays a run against a scripted model and scripted tools, and keeps its journal.

It holds the kernel to its promises at every decision: asked twice it says the same, and the state folded from the
journal decides what the live state decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from foliot.kernel.messages import (
    Message,
    ModelResponse,
    Part,
    StopReason,
    Text,
    ToolCall,
    ToolFailure,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.kernel.run.actions import (
    Action,
    AskModel,
    Await,
    CallIntent,
    CallTools,
    CheckOutput,
    Compact,
    End,
    Note,
    Stop,
    Wait,
)
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import (
    Event,
    ModelResponded,
    OutputAccepted,
    OutputRejected,
    RunClaimed,
    RunCreated,
    ToolFinished,
)
from foliot.kernel.run.loop import apply, decide, fold
from foliot.kernel.run.spec import Effect, OnUnknown, RunSpec, ToolRule
from foliot.kernel.run.state import State

START = 1000.0
USED = Usage(10, 5, cost_usd=0.01)


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def says(text: str, *, stop: StopReason = "end", usage: Usage | None = None) -> ModelResponse:
    return ModelResponse(Message("assistant", (Text(text),) if text else ()), usage or USED, stop)


def asks(
    *calls: tuple[str, str, str] | tuple[str, str],
    text: str = "",
    stop: StopReason = "tool_calls",
    usage: Usage = USED,
) -> ModelResponse:
    """An answer with calls: (id, name) or (id, name, arguments)."""
    parts: list[Part] = [Text(text)] if text else []
    parts += [ToolCall(call[0], call[1], call[2] if len(call) == 3 else "{}") for call in calls]
    return ModelResponse(Message("assistant", tuple(parts)), usage, stop)


def rule(name: str, effect: Effect = "read", on_unknown: OnUnknown = "ask") -> ToolRule:
    return ToolRule(ToolSpec(name, f"does {name}"), effect, on_unknown)


TOOLS = (rule("look"), rule("save", "idempotent"), rule("pay", "once"))


def spec(**changes: object) -> RunSpec:
    base = RunSpec("clerk", "scripted", system="Be brief.", tools=TOOLS, limits=Limits(max_steps=10))
    return msgspec.structs.replace(base, **changes)


def result(call: CallIntent | str, text: str = "ok", name: str = "") -> ToolResult:
    if isinstance(call, CallIntent):
        return ToolResult(call.call_id, call.name, (Text(text),))
    return ToolResult(call, name, (Text(text),))


def failure(call: CallIntent, kind: str = "execution", code: str = "execution_failed") -> ToolResult:
    error = ToolFailure(code, "reason", "it broke", kind=kind)
    return ToolResult(call.call_id, call.name, (Text("it broke"),), error)


Answers = Iterable[ModelResponse | Event | Callable[[AskModel], ModelResponse | Event]]
Tool = Callable[[CallIntent], Event]


class Play:
    """One run. `tool` turns an intent into the fact that reports it; default: it succeeds with the text "ok"."""

    def __init__(
        self,
        run_spec: RunSpec,
        answers: Answers = (),
        *,
        tool: Tool | None = None,
        says: str = "go",
        history: tuple[Message, ...] = (),
        check: Callable[[str], bool] = lambda text: True,
        equality: int = 0,
    ) -> None:
        self.spec = run_spec
        self.history = history
        self.answers = iter(answers)
        self.tool = tool or (lambda call: ToolFinished(result(call)))
        self.check = check
        self.state = State(run_spec, "r1", history)
        self.facts: list[tuple[float, Event]] = []
        self.asked: list[AskModel] = []
        self.started: list[CallIntent] = []
        self.now = START
        self.tick = 1.0
        past = "sha256:01" if history else None
        self.record(RunCreated("clerk", "sha256:00", (user(says),), history=past, equality=equality))
        self.record(RunClaimed(1))

    # --- the journal

    def record(self, *events: Event) -> None:
        for event in events:
            self.now += self.tick
            apply(self.state, decode(encode(event)), self.now)
            self.facts.append((self.now, event))

    @property
    def journal(self) -> list[str]:
        """The types of the facts so far, for short assertions."""
        return [type_of(event) for _, event in self.facts]

    def all(self, kind: type) -> list:
        return [event for _, event in self.facts if isinstance(event, kind)]

    def results(self) -> list[ToolResult]:
        return [part for m in self.state.transcript for part in m.parts if isinstance(part, ToolResult)]

    def crash(self, *, attempt: int | None = None) -> None:
        """The worker dies; another one folds the journal and takes over."""
        self.state = fold(self.spec, "r1", self.facts, self.history)
        self.record(RunClaimed(attempt or self.state.next_attempt))

    # --- the shell

    def decide(self) -> Action:
        action = decide(self.state)
        assert action == decide(self.state)
        assert action == decide(fold(self.spec, "r1", self.facts, self.history))
        return action

    def next(self) -> Action:
        """Decide, and record what the decision itself says; go on over notes."""
        for _ in range(100):
            action = self.decide()
            self.record(*action.events)
            if not isinstance(action, Note):
                return action
        raise AssertionError("the kernel does not come to an end")

    def run(self) -> Action:
        """Perform until the run waits or has ended; the action at which it stopped."""
        for _ in range(200):
            action = self.next()
            match action:
                case AskModel():
                    self.ask(action)
                case CallTools():
                    self.call(action)
                case CheckOutput():
                    good = self.check(action.output)
                    self.record(OutputAccepted([1]) if good else OutputRejected("schema", "not like that", ("bad",)))
                case Wait() | End() | Stop() | Compact() | Await():
                    return action
                case Note():
                    raise AssertionError("next() goes on over notes")
        raise AssertionError("the run does not come to an end")

    def ask(self, action: AskModel) -> None:
        self.asked.append(action)
        answer = next(self.answers)
        answer = answer(action) if callable(answer) else answer
        self.record(ModelResponded(action.step, answer) if isinstance(answer, ModelResponse) else answer)

    def call(self, action: CallTools) -> None:
        """Start all, then report all, in call order."""
        reports: list[Event] = []
        for call in action.calls:
            report = self.tool(call)
            if isinstance(report, ToolFinished):
                self.started.append(call)
                self.record(call.started())
                reports.append(report)
            else:
                self.record(report)
        self.record(*reports)
