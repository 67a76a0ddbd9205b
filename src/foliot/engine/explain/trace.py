"""A journal as a tree: the run, its steps, the answer and the calls of each step, and what happened in between.

`tracing.trace_of` makes it from the facts of a run and nothing else, so there is one for a run that is under way, that
waits, or that some other machine drove. Everything that shows a run (`foliot trace`, `foliot why`) starts from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from foliot.common.durations import duration
from foliot.common.threads import unhurried
from foliot.engine.driver.journal import FACT
from foliot.engine.explain.amounts import arguments
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Reasoning, Source, ToolFailure, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run import feedback
from foliot.kernel.run.budget import Spent
from foliot.kernel.run.calls import JournalCalls
from foliot.kernel.run.hooks import in_words

MarkKind: TypeAlias = Literal[
    "unknown",  # nobody knows whether a call took effect
    "interrupted",  # a worker died or let go in the middle of something
    "waiting",
    "resumed",
    "retried",
    "decided",
    "approval",
    "question",
    "cancel",
    "input",
    "rejected",  # a final answer was sent back
    "violation",
    "budget",
    "compacted",
    "missing",  # something that was declared around the run names what is not there
    "hook",  # somebody's hook changed or refused something
    "memory",
    "note",  # something of the question was not sent as it was asked, or of the answer not kept
]


class Mark(Struct):
    """An event beside answers and calls. `seconds` is how long it lasted, where that means something."""

    kind: MarkKind
    at: float
    text: str
    seconds: float | None = None
    by: str = ""
    call_id: str = ""


class Ask(Struct):
    """One question to the model. `lost`: whoever asked was gone before there was an answer."""

    at: float
    seconds: float | None = None
    error: str = ""
    message: str = ""
    status: int | None = None
    provider: str = ""
    lost: bool = False
    usage: Usage = Usage()


class CallTrace(Struct):
    """One tool call. `starts` are the times it was started; more than one means that nobody knew how it ended.

    `resumed` is how many of those took it up again after the process had let the run go in order.
    `arguments` are those that it is made with. `written` are those of the model, where a person or hooks, `changed_by`,
    put others in their place.
    `synthetic` is why the kernel answered in the tool's place, so that the tool itself did not (or not again) run.
    `approval` is the id of the approval that was asked for, `question` what a person was asked. `unknown`: nobody
    knows whether it took effect, and `lost` is what is known of it instead; by `until` what made it had ended.
    """

    id: str
    name: str
    arguments: str
    asked_at: float
    starts: list[float] = field(default_factory=list[float])
    finished_at: float | None = None
    seconds: float | None = None
    result: str = ""
    error: ToolFailure | None = None
    synthetic: str = ""
    parked: bool = False
    approval: str = ""
    question: e.QuestionAsked | None = None
    unknown: bool = False
    begun_by: str = ""
    lost: str = ""
    until: float | None = None
    written: str = ""
    changed_by: str = ""
    resumed: int = 0

    @property
    def blind_starts(self) -> int:
        """How often it was started, without the times when it was known that it had not ended."""
        return len(self.starts) - self.resumed

    @property
    def ok(self) -> bool:
        return self.finished_at is not None and self.error is None

    @property
    def running(self) -> bool:
        return self.finished_at is None and bool(self.starts) and not self.lost

    @property
    def may_have_acted(self) -> bool:
        """Whether it may have taken effect, and nobody has said whether it did."""
        return self.unknown or (self.error is not None and bool(self.error.unknown))


class StepTrace(Struct):
    """One step: how often the model was asked, what it answered, and what came of it, in the order it happened.

    `usage` is that of the answer; `wasted` is what attempts used that gave none. `sources` are what the answer names
    as its grounds.
    """

    number: int
    at: float
    asks: list[Ask] = field(default_factory=list[Ask])
    text: str = ""
    reasoning: str = ""
    usage: Usage = Usage()
    wasted: Usage = Usage()
    model: str = ""
    endpoint: str = ""
    stop: str = ""
    seconds: float | None = None
    answered_at: float | None = None
    items: list[CallTrace | Mark] = field(default_factory=list["CallTrace | Mark"])
    ended_at: float | None = None
    sources: tuple[Source, ...] = ()

    @property
    def calls(self) -> list[CallTrace]:
        return [item for item in self.items if isinstance(item, CallTrace)]

    @property
    def marks(self) -> list[Mark]:
        return [item for item in self.items if isinstance(item, Mark)]

    @property
    def spent(self) -> Usage:
        """The whole usage of the step."""
        return total((self.usage, self.wasted)) if self.wasted.total_tokens else self.usage

    @property
    def failures(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.error]


class Trace(Struct):
    """One run. `before` is what happened ahead of the first step; `ended` is the terminal event, if there is one.

    `short` is the last time that a budget had no room.
    """

    run_id: str
    agent: str = ""
    namespace: str = "default"
    input: str = ""
    fork: e.Fork | None = None
    past: tuple[e.PastEffect, ...] = ()
    identity: Identity = NOBODY
    task: str = ""
    missing: tuple[str, ...] = ()
    created_at: float = 0.0
    last_at: float = 0.0
    attempts: int = 0
    worker: str = ""
    before: list[Mark] = field(default_factory=list[Mark])
    steps: list[StepTrace] = field(default_factory=list[StepTrace])
    waiting: e.RunWaiting | None = None
    waiting_since: float | None = None
    short: e.BudgetExceeded | None = None
    ended: e.Terminal | None = None
    waited: float = 0.0
    idle: float = 0.0
    usage: Usage = Usage()
    events: int = 0

    @property
    def calls(self) -> list[CallTrace]:
        return [call for step in self.steps for call in step.calls]

    @property
    def marks(self) -> list[Mark]:
        return [*self.before, *(mark for step in self.steps for mark in step.marks)]

    @property
    def seconds(self) -> float:
        """From the first fact to the last one."""
        return self.last_at - self.created_at

    def named(self, call_ids: Iterable[str]) -> list[CallTrace]:
        """Returns the calls with these ids, in the order of the ids; one that is not known is left out."""
        calls = {call.id: call for call in self.calls}
        return [calls[each] for each in call_ids if each in calls]


def total(usages: Iterable[Usage]) -> Usage:
    """The sum. Its cost is None when the price of any part is not known."""
    spent = Spent()
    for usage in usages:
        spent.add(usage)
    return spent.usage()


# --- tracing ---------------------------------------------------------------------------------------------------------

# From the facts of a run to its trace: one small step for each kind of event.

_SHOWN: Final = 5
_SENT_BACK: Final = "the answer was sent back"
# And so many characters of a text that was cut off.
_EXCERPT: Final = 80


def trace_of(run_id: str, facts: Iterable[tuple[float, e.Event]]) -> Trace:
    """The tree of these facts, each with the time it was recorded. Never raises for a journal that was written."""
    building = _Building(Trace(run_id))
    for at, event in facts:
        building.take(at, event)
    return building.trace


async def read_trace(run_id: str, facts: Sequence[tuple[float, e.Event]]) -> Trace:
    """Makes the tree of these facts like `trace_of`, beside the event loop where there are many."""
    return await unhurried(FACT * len(facts), trace_of, run_id, facts)


class _Building:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._calls: dict[str, CallTrace] = {}
        self.journal = JournalCalls()
        # A run may have thousands of steps: what an event has to know of all that was before it is kept beside them.
        self._under_way: dict[str, CallTrace] = {}
        self._paused: Mark | None = None
        self._retried = False  # it was let go for another attempt
        self._released: set[str] = set()  # calls that were under way when the process released the run
        self._notes: set[str] = set()
        self._spent = Spent()
        self._paid: set[str] = set()

    def take(self, at: float, event: e.Event) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, at, event)
        self.trace.events += 1
        self.trace.last_at = max(at, self.trace.last_at)
        if self.trace.steps:
            self.trace.steps[-1].ended_at = at

    # --- the run -------------------------------------------------------------------------------------------------

    def created(self, at: float, event: e.RunCreated) -> None:
        trace = self.trace
        trace.agent, trace.namespace, trace.fork = event.agent, event.namespace, event.fork
        trace.past = event.past_effects
        trace.input = "\n".join(message.text for message in event.input)
        trace.identity, trace.task = event.identity, event.task
        trace.created_at = trace.last_at = at
        trace.missing = event.missing
        for each in event.missing:
            self.mark("missing", at, f"not there when it began: {each}")

    def claimed(self, at: float, event: e.RunClaimed) -> None:
        trace = self.trace
        first = not trace.attempts
        before, trace.worker = trace.worker, event.worker
        trace.attempts = event.attempt
        if first:
            return
        under_way = [call for call in self._under_way.values() if call.running and not call.unknown]
        asking = self._asking()
        for call in under_way:
            call.begun_by = before
            if event.released:  # of a call that may not be made again a fact of its own says so
                self._released.add(call.id)
            else:
                call.unknown = True
        if asking is not None:
            asking.lost = True
        retried, self._retried = self._retried, False
        if trace.waiting is not None or retried:
            return  # nobody was gone: it waited (`resumed` tells of that), or was let go for another attempt
        pause = max(0.0, at - trace.last_at)
        trace.idle += pause
        doing = [f"{call.name} was under way" for call in under_way]
        if asking is not None:
            doing.append("the model was being asked")
        what = f" while {' and '.join(doing)}" if doing else ""
        if event.released:
            self.mark("interrupted", at, f"the run was released{what}, and resumed", seconds=pause)
            return
        end = "had lost the run" if before == event.worker else "was gone"
        then = "it went on" if before == event.worker else "another took over"
        self.mark("interrupted", at, f"the worker {end}{what}; {then}", seconds=pause)

    def retried(self, at: float, event: e.RunRetried) -> None:
        self._retried = True
        self.mark("retried", at, f"attempt {event.attempt} broke down: {event.message or event.reason}")

    def waiting(self, at: float, event: e.RunWaiting) -> None:
        self.trace.waiting, self.trace.waiting_since = event, at
        asked: list[Mark] = []  # what people are asked for has its line already
        if event.reason in ("approval", "input"):
            for call_id in event.calls:
                self.call(call_id).parked = True
            marks = self.trace.steps[-1].marks if self.trace.steps else self.trace.before
            asked = [mark for mark in marks if mark.kind in ("approval", "question") and mark.call_id in event.calls]
        told = f"waits for {event.owner} ({event.reason})"
        self._paused = asked[-1] if asked else self.mark("waiting", at, event.message or told)

    def resumed(self, at: float, event: e.RunResumed) -> None:
        since = self.trace.waiting_since
        lasted = None if since is None else max(0.0, at - since)
        self.trace.waiting, self.trace.waiting_since = None, None
        self.trace.waited += lasted or 0.0
        if self._paused is not None:
            self._paused.seconds = lasted

    def ended(self, at: float, event: e.Terminal) -> None:
        self.trace.ended = event
        last = self.trace.steps[-1].items[-1:] if self.trace.steps else []
        for mark in last:
            if isinstance(event, e.RunFailed) and isinstance(mark, Mark) and mark.kind == "rejected":
                mark.text = mark.text.replace(_SENT_BACK, "the answer was refused", 1)  # nobody was asked again
        self.trace.waiting = None
        self.trace.usage = getattr(event, "usage", self.trace.usage)

    # --- a step --------------------------------------------------------------------------------------------------

    def step_started(self, at: float, event: e.StepStarted) -> None:
        steps = self.trace.steps
        if not steps or steps[-1].number != event.step:
            steps.append(StepTrace(event.step, at))
        steps[-1].asks.append(Ask(at))

    def responded(self, at: float, event: e.ModelResponded) -> None:
        step, response = self._step(event.step, at), event.response
        step.answered_at = at
        step.text = response.message.text
        step.reasoning = "".join(part.text for part in response.message.parts if isinstance(part, Reasoning))
        step.usage, step.model, step.endpoint = response.usage, response.model, response.endpoint
        step.stop = response.stop
        self._waste(step, event.wasted)
        for note in response.notes:  # most come with every answer: the first time is enough
            if note not in self._notes:
                self.mark("note", at, note)
        if response.sources:
            step.sources = response.sources
            self.mark("note", at, _sources(response.sources))
        asked = step.asks[-1] if step.asks else Ask(at)
        asked.seconds = event.seconds if event.seconds is not None else max(0.0, at - asked.at)
        step.seconds = asked.seconds
        self._spend(response.usage)
        for call in self.journal.take(event):
            self._open_call(step, call.id, call.name, call.arguments, at)

    def failed(self, at: float, event: e.ModelFailed) -> None:
        step = self._step(event.step, at)
        asked = next((ask for ask in reversed(step.asks) if not ask.error and not ask.lost), None)
        if asked is None:
            asked = Ask(at)
            step.asks.append(asked)
        asked.seconds = max(0.0, at - asked.at)
        asked.error, asked.message, asked.status, asked.provider = (
            event.kind,
            event.message,
            event.status,
            event.provider,
        )
        asked.usage = event.usage
        self._waste(step, event.usage)

    def tool_started(self, at: float, event: e.ToolStarted) -> None:
        call = self.call(event.call_id, event.name)
        if event.standing and not call.starts:
            text = f"{event.name} is covered by the standing grant {event.standing}"
            self.mark("approval", at, text, by=event.granted_by, call_id=event.call_id)
        call.starts.append(at)
        if call.id in self._released:
            self._released.discard(call.id)
            call.resumed += 1
        call.unknown, call.lost = False, ""
        self._under_way[call.id] = call

    def tool_finished(self, at: float, event: e.ToolFinished) -> None:
        result = event.result
        call = self.call(result.call_id, result.name)
        call.finished_at = at
        self._under_way.pop(call.id, None)
        call.unknown = call.parked = False
        call.seconds = event.seconds
        if call.seconds is None and call.starts and event.synthetic is None:
            call.seconds = max(0.0, at - call.starts[-1])
        call.result = result.text or ("(not text)" if result.content else "")
        call.error = result.error
        call.synthetic = event.synthetic or ""
        if event.usage is not None:
            self._pay(event.usage, event.runs)

    def tool_unknown(self, at: float, event: e.ToolUnknown) -> None:
        call = self.call(event.call_id)
        call.unknown, call.seconds = True, event.seconds
        call.lost = event.message or feedback.lost(call.name, event)
        call.begun_by = call.begun_by or self.trace.worker
        call.until = event.until
        left = ""
        if event.until is not None and event.until > at:
            left = f"; it might act for {duration(event.until - at)} more"
        self.mark("unknown", at, f"{call.lost}: nobody knows whether it took effect{left}", call_id=call.id)
        if event.usage is not None:
            self._pay(event.usage, event.runs)

    def tool_held(self, at: float, event: e.ToolHeld) -> None:
        call = self.call(event.call_id)
        call.unknown = True
        call.lost = f"the same call of run {event.run_id} may have taken effect; this one was not made"
        self.mark("unknown", at, f"{call.name}: {call.lost}", call_id=call.id)

    # --- what else -----------------------------------------------------------------------------------------------

    def mark(
        self, kind: MarkKind, at: float, text: str, *, seconds: float | None = None, by: str = "", call_id: str = ""
    ) -> Mark:
        mark = Mark(kind, at, text, seconds, by, call_id)
        if kind == "note":
            self._notes.add(text)
        if self.trace.steps:
            self.trace.steps[-1].items.append(mark)
        else:
            self.trace.before.append(mark)
        return mark

    def _pay(self, usage: Usage, runs: dict[str, Usage]) -> None:
        """A delegated run that several calls report is paid for once, as the kernel does it."""
        if not runs:
            self._spend(usage)
        for run_id in runs.keys() - self._paid:
            self._paid.add(run_id)
            self._spend(runs[run_id])

    def pay(self, usage: Usage) -> None:
        """Count what was used beside the questions of the run itself."""
        if usage.total_tokens:
            self._spend(usage)

    def _waste(self, step: StepTrace, usage: Usage) -> None:
        if usage.total_tokens:
            step.wasted = total((step.wasted, usage))
            self._spend(usage)

    def _spend(self, usage: Usage) -> None:
        self._spent.add(usage)
        self.trace.usage = self._spent.usage()

    def _asking(self) -> Ask | None:
        if not self.trace.steps:
            return None
        step = self.trace.steps[-1]
        if step.answered_at is not None or not step.asks:
            return None
        last = step.asks[-1]
        return None if last.error or last.lost else last

    def not_asked(self) -> None:
        """The step had begun, and the question was held back."""
        if self._asking() is not None:
            self.trace.steps[-1].asks.pop()

    def _step(self, number: int, at: float) -> StepTrace:
        steps = self.trace.steps
        if not steps or steps[-1].number != number:
            steps.append(StepTrace(number, at))
        return steps[-1]

    def _open_call(self, step: StepTrace, call_id: str, name: str, arguments: str, at: float) -> None:
        call = CallTrace(call_id, name, arguments, at)
        self._calls[call_id] = call
        step.items.append(call)

    def change(self, event: e.Event) -> str:
        """Puts the arguments that a person or hooks decided on in the place of the model's; returns what it changed."""
        said = ""
        for changed in self.journal.take(event):
            call = self.call(changed.id, changed.name)
            call.arguments, call.written, call.changed_by = changed.arguments, changed.written, changed.changed_by
            now, before = (arguments(text, _EXCERPT) or "{}" for text in (call.arguments, call.written))
            said = f" to {now}, from {before}"
        return said

    def call(self, call_id: str, name: str = "") -> CallTrace:
        if call_id not in self._calls and (known := self.journal.find(call_id, name)) is not None:
            call = self._calls[call_id] = self._calls[known.id]
            call.id = known.id = call_id
        if call_id not in self._calls:
            step = self._step(self.trace.steps[-1].number if self.trace.steps else 1, self.trace.last_at)
            self._open_call(step, call_id, name, "", self.trace.last_at)
        return self._calls[call_id]


def _cancelling(building: _Building, at: float, event: e.CancelRequested) -> None:
    building.mark("cancel", at, f"asked to stop{f': {event.reason}' if event.reason else ''}", by=event.by)


def _rejected(building: _Building, at: float, event: e.OutputRejected) -> None:
    problems = f": {'; '.join(event.problems)}" if event.problems else ""
    building.mark("rejected", at, f"{_SENT_BACK} ({event.reason}){problems}")


def _approval_asked(building: _Building, at: float, event: e.ApprovalRequested) -> None:
    building.call(event.call_id, event.tool).approval = event.approval_id
    why = f": {event.reason}" if event.reason else ""
    building.mark("approval", at, f"{event.tool} needs an approval{why}", call_id=event.call_id)


def _approval_given(building: _Building, at: float, event: e.ApprovalDecided) -> None:
    why = f": {event.reason}" if event.reason else ""
    edited = building.change(event)
    building.mark("approval", at, f"decision: {event.decision}{edited}{why}", by=event.by, call_id=event.call_id)


def _question_asked(building: _Building, at: float, event: e.QuestionAsked) -> None:
    building.call(event.call_id, event.tool).question = event
    building.mark("question", at, f"asks: {event.question}", call_id=event.call_id)


def _question_answered(building: _Building, at: float, event: e.QuestionAnswered) -> None:
    said = "nobody answered in time" if event.answer is None else f"answer: {event.answer}"
    late = " (the default; nobody answered in time)" if event.late and event.answer is not None else ""
    building.mark("question", at, f"{said}{late}", by="" if event.late else event.by, call_id=event.call_id)


def _unknown_decided(building: _Building, at: float, event: e.UnknownDecided) -> None:
    said = {"happened": "it took effect", "run": "it did not take effect: run it", "fail": "end the run"}
    why = f" ({event.reason})" if event.reason else ""
    building.mark("decided", at, f"decision: {said[event.decision]}{why}", by=event.by, call_id=event.call_id)


def _input(building: _Building, at: float, event: e.InputReceived) -> None:
    building.mark("input", at, event.message.text, by=event.by)


def _compacted(building: _Building, at: float, event: e.SessionCompacted) -> None:
    building.pay(event.usage)
    why = {"size": "it grew past its threshold", "overflow": "it was too long for the model", "asked": "on request"}
    if not event.last:
        building.mark("compacted", at, f"the first {event.replaced} messages are summarised from here on")
        return
    how = f" by {event.model}" if event.made == "model" and event.model else ""
    how = " without a model" if event.made == "fallback" else how
    building.mark(
        "compacted",
        at,
        f"messages {event.first} to {event.last} were summarised{how}, {why[event.cause]}: "
        f"about {event.tokens_before:,} tokens became {event.tokens_after:,}",
    )


def _not_compacted(building: _Building, at: float, event: e.SessionNotCompacted) -> None:
    building.pay(event.usage)
    building.mark("note", at, f"the conversation was not compacted: {event.reason}")


def _folder_kept(building: _Building, at: float, event: e.FolderKept) -> None:
    if event.refused:
        building.mark("note", at, f"what it left in data/ is not kept for its user: {event.refused}")
        return
    for path, kept in event.conflicts.items():
        how = "was changed and deleted at the same time, and stays" if path == kept else f"is kept as {kept}"
        building.mark("note", at, f"another run had changed {path} meanwhile: the version of this one {how}")


def _compaction_requested(building: _Building, at: float, event: e.CompactionRequested) -> None:
    building.mark("input", at, "asks to have the conversation compacted", by=event.by)


def _cut(building: _Building, at: float, event: e.ModelCut) -> None:
    why = {"failed": "the model failed", "stopped": "the run was stopped", "interrupted": "somebody interrupted"}
    shown = " ".join(event.text.split())
    shown = shown if len(shown) <= _EXCERPT else f"…{shown[-_EXCERPT:]}"
    building.mark("note", at, f"people had seen {len(event.text):,} characters when {why[event.reason]}: {shown}")


def _hooked(building: _Building, at: float, event: e.HookDecided) -> None:
    building.change(event)
    if said := in_words(event):
        building.mark("hook", at, said, call_id=event.act if event.point.endswith("_tool") else "")


def _memory(building: _Building, at: float, event: e.MemoryWritten) -> None:
    building.mark("memory", at, f"remembered {event.key} ({event.scope})")


def _budget(building: _Building, at: float, event: e.BudgetExceeded) -> None:
    building.trace.short = event
    if event.budget and event.call_id is None:
        building.not_asked()
    building.mark("budget", at, event.message)


def _delayed(building: _Building, at: float, event: e.ModelDelayed) -> None:
    if not event.failed:
        building.not_asked()
        return
    building.failed(at, e.ModelFailed(event.step, event.failed, event.message, True, usage=event.usage))


def _violation(building: _Building, at: float, event: e.ContractViolated) -> None:
    seen = " (only watched)" if event.observed else ""
    building.mark("violation", at, f"{event.message}{seen}", call_id=event.call_id or "")


_HANDLERS: Final[Mapping[type[e.Fact], Callable[[_Building, float, Any], None]]] = {
    e.RunCreated: _Building.created,
    e.RunClaimed: _Building.claimed,
    e.RunWaiting: _Building.waiting,
    e.RunResumed: _Building.resumed,
    e.RunRetried: _Building.retried,
    e.RunSucceeded: _Building.ended,
    e.RunFailed: _Building.ended,
    e.RunCancelled: _Building.ended,
    e.RunDeadLettered: _Building.ended,
    e.CancelRequested: _cancelling,
    e.StepStarted: _Building.step_started,
    e.ModelResponded: _Building.responded,
    e.ModelFailed: _Building.failed,
    e.ModelDelayed: _delayed,
    e.ModelCut: _cut,
    e.OutputRejected: _rejected,
    e.ToolStarted: _Building.tool_started,
    e.ToolFinished: _Building.tool_finished,
    e.ToolUnknown: _Building.tool_unknown,
    e.ToolHeld: _Building.tool_held,
    e.ApprovalRequested: _approval_asked,
    e.ApprovalDecided: _approval_given,
    e.QuestionAsked: _question_asked,
    e.QuestionAnswered: _question_answered,
    e.UnknownDecided: _unknown_decided,
    e.InputReceived: _input,
    e.MemoryWritten: _memory,
    e.HookDecided: _hooked,
    e.SessionCompacted: _compacted,
    e.SessionNotCompacted: _not_compacted,
    e.FolderKept: _folder_kept,
    e.CompactionRequested: _compaction_requested,
    e.BudgetExceeded: _budget,
    e.ContractViolated: _violation,
}


def _sources(sources: Sequence[Source]) -> str:
    """The first few sources of an answer in words; all of them stand in the trace as data."""
    named = list(dict.fromkeys(" ".join(filter(None, (each.title, each.url))) or each.quote for each in sources))
    more = f" and {len(named) - _SHOWN:,} more" if len(named) > _SHOWN else ""
    return f"the answer names as its sources: {'; '.join(named[:_SHOWN])}{more}"
