"""Views of a run in progress, in every format."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from foliot.cli.terminal import out
from foliot.common.durations import duration
from foliot.common.text import counted, lines_of, one_line, visible, visible_json
from foliot.engine.explain.amounts import argument_change, arguments, failure, money, tokens
from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.kernel.messages import ModelResponse, Reasoning, ToolResult, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.calls import JournalCalls
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import ToolStarted
from foliot.kernel.run.hooks import in_words
from foliot.runtime.results import RunResult


@dataclass(frozen=True, slots=True)
class Opening:
    """The facts about a run that is about to be driven.

    Of one that is gone on with: `done` says in words what is there already, `calls` how many calls were started,
    `asked` what the last answer asked for (name and arguments by the id of the call), and `seq` is its last event.
    `free`: whoever drove it has let it go in order.
    """

    run_id: str
    agent: str
    input: str = ""
    done: str = ""
    forked: str = ""
    calls: int = 0
    asked: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    seq: int = 0
    free: bool = False


class View(Protocol):
    def begin(self, opening: Opening) -> None: ...

    def show(self, item: Live) -> None:
        """Shows an event or a piece. Called in order; returns at once."""
        ...

    def tick(self) -> None:
        """Time has passed: a few times a second, for whatever moves."""
        ...

    def note(self, text: str) -> None:
        """Shows a note to the person that is not part of the run."""
        ...

    def end(self, result: RunResult | None, seconds: float) -> bool:
        """Ends the view. `result` is None when the run was left as it is, to be resumed.

        True when the answer has been shown, so that it need not be printed.
        """
        ...


# --- story -----------------------------------------------------------------------------------------------------------

# A run told in lines as it happens, for people. What a line looks like is the business of whoever prints it.

Style: TypeAlias = Literal["title", "step", "text", "quiet", "ok", "bad", "note"]
LONGEST_ARGUMENTS = 72
LONGEST_RESULT = 96
LONGEST_INPUT = 200


@dataclass(frozen=True, slots=True)
class Line:
    """`detail` follows the text in a quieter tone; `wrap` says whether a long line may break, or is cut."""

    style: Style
    text: str
    detail: str = ""
    indent: int = 2
    wrap: bool = False


@dataclass(slots=True)
class RunningCall:
    """A call under way."""

    label: str
    since: float
    output: str = ""


class RunStory:
    """Remembers as much of the run as its lines need. `thinking`: since when the model is being asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls = JournalCalls()
        self._step = 0
        self._free = False  # whoever goes on takes over from nobody
        self._attempt: int = 0
        self._worker = ""  # who has it, as far as it was shown
        self._asks = False
        self._noted: set[str] = set()
        self._doubted: set[str] = set()  # calls of which it was said that they may have acted
        self.thinking: float | None = None
        self.running: dict[str, RunningCall] = {}

    def opening(self, opening: Opening) -> list[Line]:
        for call_id, (name, given) in opening.asked.items():
            self._calls.add(call_id, name, given)
        self._free = opening.free
        lines = [Line("title", opening.agent, f"run {opening.run_id}", indent=0, wrap=True)]
        if opening.forked:
            lines.append(Line("note", opening.forked, wrap=True))
        if opening.done:
            lines.append(Line("note", opening.done, wrap=True))
        if opening.input:
            lines.append(Line("quiet", f"› {one_line(opening.input, LONGEST_INPUT)}", wrap=True))
        return lines

    def take(self, item: Recorded, *, answer: bool) -> list[Line]:
        """The lines for an event. `answer`: also the text of an answer that asks for no tool."""
        lines = self._lines(item, answer=answer)
        for call in self._calls.take(item.event):
            if call.changed_by:
                told = argument_change(call.name, call.changed_by, call.arguments, call.written, LONGEST_ARGUMENTS)
                lines.append(Line("note", told, wrap=True))
        return lines

    def _lines(self, item: Recorded, *, answer: bool) -> list[Line]:
        match item.event:
            case e.RunClaimed(attempt=attempt, worker=worker) as claimed if attempt > 1 or self._worker or item.seq > 2:
                self.running.clear()
                free = self._free or (claimed.released and attempt == self._attempt)
                self._free, self._attempt = False, attempt
                same, self._worker = worker == self._worker, worker
                who = f"attempt {attempt}" if attempt > 1 else "another worker"  # which is no attempt of its own
                goes_on = "the same worker goes on" if same and attempt == 1 else f"{who} takes over"
                return [] if free else [Line("note", goes_on)]
            case e.RunClaimed(worker=worker):
                self._worker, self._attempt = worker, 1
                return []
            case e.RunWaiting() as waiting:
                self._free = True
                asked = self._asks and waiting.reason in ("approval", "input", "budget")
                self._asks = False
                # What people or budgets were asked for has its line already.
                return [] if asked else [Line("note", f"waits: {_waits(waiting, item.at)}", wrap=True)]
            case e.StepStarted(step=step):
                return self._started(step)
            case e.ModelResponded(step=step, response=response, seconds=seconds):
                return self._responded(response, seconds, answer)
            case e.ModelFailed() as failed:
                self.thinking = None
                return [Line("bad", failure([failed.kind]), one_line(failed.message, LONGEST_RESULT))]
            case e.ModelDelayed():
                self.thinking = None
                return []  # the wait that follows says so
            case e.ToolStarted(call_id=call_id, name=name):
                self._doubted.discard(call_id)
                self.running[call_id] = RunningCall(self._label(call_id, name), self._clock())
                return []
            case e.ToolFinished() as finished:
                return self._finished(finished)
            case e.ToolUnknown() as unknown:
                return self._unknown(unknown)
            case event:
                self._asks |= isinstance(event, e.ApprovalRequested | e.QuestionAsked | e.BudgetExceeded)
                return _others(event)

    def _started(self, step: int) -> list[Line]:
        self.thinking = self._clock()
        if step == self._step:
            return []  # asked again after a failure; its headline stands
        self._step = step
        return [Line("step", f"step {step}", indent=0)]

    def _responded(self, response: ModelResponse, seconds: float | None, answer: bool) -> list[Line]:
        self.thinking = None
        message, lines = response.message, list[Line]()
        thought = " ".join(part.text for part in message.parts if isinstance(part, Reasoning) and part.text)
        if thought:
            lines.append(Line("quiet", f"thought: {one_line(thought, LONGEST_RESULT)}"))
        if message.text.strip() and (answer or message.calls):
            lines += [Line("text", row, wrap=True) for row in lines_of(message.text.strip())]
        lines.append(Line("quiet", " · ".join((*spent(response.usage, seconds), *cache_read(response.usage)))))
        # Most notes come with every answer, and the first time is enough: who answered instead, what was not sent.
        lines += [Line("note", one_line(note, LONGEST_RESULT)) for note in response.notes if note not in self._noted]
        self._noted.update(response.notes)
        return lines

    def _finished(self, finished: e.ToolFinished) -> list[Line]:
        result = finished.result
        self.running.pop(result.call_id, None)
        if result.call_id in self._doubted and result.error is not None and result.error.unknown:
            return []  # that line is there already
        label = self._label(result.call_id, result.name)
        took = [duration(finished.seconds)] if finished.seconds is not None else []
        why = [SYNTHETIC.get(finished.synthetic, finished.synthetic)] if finished.synthetic else []
        good = result.error is None
        if result.error is not None and result.error.unknown:
            why = ["may have taken effect"]
        lines = [Line("ok" if good else "bad", label, " · ".join((*took, *why)))]
        shown = _result(result)
        return [*lines, Line("quiet", shown, indent=4)] if shown else lines

    def _unknown(self, unknown: e.ToolUnknown) -> list[Line]:
        self._doubted.add(unknown.call_id)
        running = self.running.pop(unknown.call_id, None)
        label = running.label if running is not None else self._label(unknown.call_id, unknown.call_id)
        took = [duration(unknown.seconds)] if unknown.seconds is not None else []
        lines = [Line("bad", label, " · ".join((*took, "nobody knows whether it took effect")))]
        return (
            [*lines, Line("quiet", one_line(unknown.message, LONGEST_RESULT), indent=4)] if unknown.message else lines
        )

    def _label(self, call_id: str, name: str) -> str:
        call = self._calls.find(call_id, name)
        return one_line(name, 64) if call is None else _call(call.name, call.arguments)


def spent(usage: Usage, seconds: float | None = None) -> list[str]:
    """`0.9s`, `312 tokens`, `$0.0012`: what one answer took. A price that nobody knows is left out."""
    parts = [duration(seconds)] if seconds is not None else []
    if usage.total_tokens:
        parts.append(tokens(usage.total_tokens))
    if usage.cost_usd:
        parts.append(money(usage.cost_usd))
    return parts


def cache_read(usage: Usage) -> list[str]:
    """`82 % cached`: how much of what was sent the provider read from its prompt cache; nothing where it says none."""
    if not usage.input_tokens or not (usage.cache_read_tokens or usage.cache_write_tokens):
        return []
    return [f"{usage.cache_read_tokens * 100 // usage.input_tokens} % cached"]


def closing(result: RunResult, calls: int, seconds: float) -> Line:
    """The last line: how it ended and what it took."""
    parts = [counted(result.steps, "step"), counted(calls, "tool call"), *spent(result.usage), duration(seconds)]
    style: Style = "ok" if result.succeeded else "note" if result.phase == "waiting" else "bad"
    return Line(style, result.phase, " · ".join((*parts, result.run_id)), indent=0, wrap=True)


def _call(name: str, given: str) -> str:
    return f"{one_line(name, 64)} {arguments(given, LONGEST_ARGUMENTS)}".rstrip()


def _result(result: ToolResult) -> str:
    if result.error is not None:
        return one_line(result.error.message, LONGEST_RESULT)
    return one_line(result.text, LONGEST_RESULT) or ("(not text)" if result.content else "")


def _waits(waiting: e.RunWaiting, at: float) -> str:
    if waiting.reason == "model_retry" and waiting.until is not None:
        return f"the model is asked again in {duration(max(0.0, waiting.until - at))}"
    return waiting.message or waiting.reason


def _others(event: e.Event) -> list[Line]:
    match event:
        case e.RunCreated(missing=missing):
            return [Line("note", f"not there: {each}", wrap=True) for each in missing]
        case e.OutputRejected(reason=reason, problems=problems):
            return [Line("note", f"the answer is not taken ({reason})", one_line("; ".join(problems), LONGEST_RESULT))]
        case e.InputReceived(message=message, by=by):
            return [Line("note", f"{by or 'somebody'} says: {one_line(message.text, LONGEST_RESULT)}")]
        case e.BudgetExceeded(message=message):
            return [Line("note", message)]
        case e.ContractViolated(message=message, observed=observed):
            return [Line("note", f"contract: {message}{' (only watched)' if observed else ''}")]
        case e.CancelRequested(reason=reason):
            return [Line("note", f"asked to stop{f' ({reason})' if reason else ''}")]
        case e.HookDecided() if said := in_words(event):
            return [Line("note", said, wrap=True)]
        case e.ToolHeld(run_id=other):
            return [Line("note", f"a call is not made: the same call of run {other} may have taken effect", wrap=True)]
        case e.UnknownDecided(decision=decision, by=by):
            return [Line("note", f"decision: {decision}{f', by {by}' if by else ''}")]
        case e.ApprovalRequested(tool=tool, reason=reason):
            return [Line("note", f"{tool} needs an approval{f': {reason}' if reason else ''}", wrap=True)]
        case e.ApprovalDecided(decision=decision, by=by):
            return [Line("note", f"approval: {decision}{f', by {by}' if by else ''}")]
        case e.QuestionAsked(question=question):
            return [Line("note", f"asks: {one_line(question, LONGEST_INPUT)}", wrap=True)]
        case e.QuestionAnswered(answer=answer, by=by, late=late):
            said = "nobody answered in time" if answer is None else f"answer: {one_line(answer, LONGEST_RESULT)}"
            return [Line("note", f"{said}{f', by {by}' if by and not late else ''}")]
        case e.SessionCompacted(first=first, last=last):
            which = f"messages {first} to {last}" if last else "the beginning of the conversation"
            return [Line("note", f"summarised: {which}")]
        case e.FolderKept(refused=refused) if refused:
            return [Line("note", f"what it left in data/ is not kept for its user: {refused}", wrap=True)]
        case e.FolderKept(conflicts=conflicts) if conflicts:
            return [
                Line("note", f"another run changed the same files of data/: {', '.join(conflicts.values())}", wrap=True)
            ]
        case e.SessionNotCompacted(reason=reason):
            return [Line("note", f"the conversation was not compacted: {reason}", wrap=True)]
        case _:
            return []


SYNTHETIC = {
    "invalid": "not run: cannot be run as written",
    "duplicate": "not run again: same call as before",
    "denied": "not run: denied",
    "interrupted": "not run: interrupted",
    "cancelled": "not waited for: the run ends",
    "unknown": "may have taken effect",
    "budget": "not run: over the limit",
    "contract": "not run: against the contract",
    "decided": "by decision",
    "answered": "answered by a person",
    "ended": "not run: the run ends",
}


# --- plain -----------------------------------------------------------------------------------------------------------

# Plain lines on stderr, for pipes, logs and CI: no colours, no control characters, one line for each thing.

MARKS: Final[dict[Style, str]] = {
    "ok": "✓ ",
    "bad": "✗ ",
    "note": "! ",
    "text": "│ ",  # what a model wrote stands behind a bar: it cannot pass for a line of ours
}


class PlainView:
    """The answer is not among the lines: it goes to stdout, where pipes want it."""

    def __init__(self) -> None:
        self._story = RunStory(time.monotonic)
        self._calls = 0

    def begin(self, opening: Opening) -> None:
        self._calls = opening.calls
        self._print(self._story.opening(opening))

    def show(self, item: Live) -> None:
        if isinstance(item, Recorded):
            self._calls += isinstance(item.event, ToolStarted) and item.event.attempt == 1
            self._print(self._story.take(item, answer=False))

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        self._print([Line("note", text)])

    def end(self, result: RunResult | None, seconds: float) -> bool:
        if result is not None:
            self._print([closing(result, self._calls, seconds)])
        return False

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            detail = f"  {one_line(line.detail)}" if line.detail else ""
            text = visible(line.text) if line.style == "text" else one_line(line.text)
            out(f"{' ' * line.indent}{MARKS.get(line.style, '')}{text}{detail}", err=True)


class QuietView:
    """Shows nothing but what a person must know."""

    def begin(self, opening: Opening) -> None:
        pass

    def show(self, item: Live) -> None:
        pass

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        out(visible(text), err=True)

    def end(self, result: RunResult | None, seconds: float) -> bool:
        return False


# --- jsonl -----------------------------------------------------------------------------------------------------------

# One JSON object per line on stdout, for programs.
#
# Events of the journal, when they are durable:
#
#     {"type": "tool.finished", "run": "01k…", "seq": 6, "at": 1735689600.1, "data": {…}}
#
# `data` is the event as it is stored (see kernel/run/events.py), so its shape is kept for ever. Pieces that are only
# for show, and are never stored, have no `seq`:
#
#     {"type": "text.delta", "run": "01k…", "step": 1, "data": {"text": "Hel"}}
#     {"type": "tool.output", "run": "01k…", "data": {"call_id": "c1", "text": "…"}}
#
# The other pieces are `reasoning.delta`, `tool_call.delta` and `restart.delta`. The last line says how the run stands,
# also when it had ended before and nothing happened:
#
#     {"type": "result", "run": "01k…", "data": {"phase": "succeeded", "output": "…", "value": null, "steps": 2, …}}


class JsonView:
    def __init__(self) -> None:
        self._out = sys.stdout  # as it is now: while tools run, what they print is sent elsewhere

    def begin(self, opening: Opening) -> None:
        pass

    def show(self, item: Live) -> None:
        self._print(as_dict(item))

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        out(text, err=True)

    def end(self, result: RunResult | None, seconds: float) -> bool:
        if result is not None:
            self._print({"type": "result", "run": result.run_id, "data": result_dict(result)})
        return True

    def _print(self, value: dict[str, Any]) -> None:
        out(visible_json(msgspec.json.encode(value).decode()), file=self._out)


def as_dict(item: Live) -> dict[str, Any]:
    match item:
        case Recorded(run_id=run_id, seq=seq, at=at, event=event):
            data = msgspec.json.decode(encode(event))
            data.pop("type", None)
            return {"type": type_of(event), "run": run_id, "seq": seq, "at": at, "data": data}
        case Streamed(run_id=run_id, step=step, delta=delta):
            data = msgspec.to_builtins(delta)
            return {"type": data.pop("type"), "run": run_id, "step": step, "data": data}
        case Output(run_id=run_id, call_id=call_id, text=text):
            return {"type": "tool.output", "run": run_id, "data": {"call_id": call_id, "text": text}}


def result_dict(result: RunResult) -> dict[str, Any]:
    return {
        "phase": result.phase,
        "output": result.output,
        "value": result.value,
        "error": result.error,
        "reason": result.reason,
        "steps": result.steps,
        "usage": msgspec.to_builtins(result.usage),
        "waiting": msgspec.to_builtins(result.waiting) if result.waiting else None,
    }
