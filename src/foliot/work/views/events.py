"""Events of a task and its runs, as one stream in the order of time, resumable by a cursor.

The cursor says how far the task's own events and each live run's journal were read, and which runs are read to their
end; it is opaque to callers, and stays good for as long as the task is there.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from foliot.common import process
from foliot.common.cursors import read_cursor, write_cursor
from foliot.common.durations import duration
from foliot.common.text import counted, one_line
from foliot.common.times import iso
from foliot.engine.explain.amounts import failure
from foliot.kernel.graph import events as t
from foliot.kernel.graph.events import encode_fact, fact_type
from foliot.kernel.run import events as e
from foliot.kernel.run.codec import decode, type_of
from foliot.kernel.run.codec import encode as encode_event
from foliot.kernel.run.hooks import in_words
from foliot.store.journal.base import Entry

LONGEST: Final = 300


class TaskHappening(Struct, frozen=True):
    at: float
    seq: int
    fact: t.TaskEvent


class RunHappening(Struct, frozen=True):
    at: float
    seq: int
    agent: str
    run_id: str
    fact: e.Event

    @classmethod
    def of(cls, agent: str, run_id: str, entry: Entry) -> RunHappening:
        return cls(entry.at, entry.seq, agent, run_id, decode(entry.data))


Happening: TypeAlias = TaskHappening | RunHappening


class Batch(Struct, frozen=True):
    """The new events, and the cursor to continue from."""

    events: list[Happening]
    cursor: str


class Place(Struct, frozen=True):
    """A position in the events: every run up to `finished`, from the oldest on, was read.

    `runs` are the others, by last seq.
    """

    seq: int = 0
    finished: str = ""
    runs: dict[str, int] = {}


def encode_cursor(place: Place) -> str:
    return write_cursor([place.seq, place.finished, place.runs])


def decode_cursor(cursor: str | None) -> Place:
    """Raises `InvalidInput`."""
    if not cursor:
        return Place()
    seq, finished, runs = read_cursor(cursor, tuple[int, str, dict[str, int]])
    return Place(max(0, seq), finished, runs)


def as_data(task: str, happening: Happening) -> dict[str, Any]:
    """Encodes an event for programs:

    `{"type", "task", "seq", "at", "data"}`, with `run` and `agent` for one of a run.
    """
    if isinstance(happening, TaskHappening):
        data = msgspec.json.decode(encode_fact(happening.fact))
        data.pop("type", None)
        return {
            "type": fact_type(happening.fact),
            "task": task,
            "seq": happening.seq,
            "at": happening.at,
            "data": data,
        }
    data = msgspec.json.decode(encode_event(happening.fact))
    data.pop("type", None)
    return {
        "type": type_of(happening.fact),
        "task": task,
        "agent": happening.agent,
        "run": happening.run_id,
        "seq": happening.seq,
        "at": happening.at,
        "data": data,
    }


def log_line(happening: Happening) -> str | None:
    """`<time> <text>`; None for what nobody misses in a log."""
    text = said(happening)
    return None if text is None else f"{iso(happening.at)} {text}"


def said(happening: Happening) -> str | None:
    """One sentence for people, with who it is about in front."""
    if isinstance(happening, TaskHappening):
        return _task(happening.fact)
    text = _run(happening.fact)
    return None if text is None else f"{happening.agent}: {text}"


def _task(fact: t.TaskEvent) -> str | None:
    match fact:
        case t.TaskAccepted(message=message, by=by):
            return f"accepted{f' from {by}' if by else ''}: {one_line(message, LONGEST)}"
        case t.MessageSent(message=message, activates=activates):
            how = "" if activates else " (it waits at the join)"
            again = " again" if message.replaces else ""
            return f"{message.sender} → {message.to}{again}{how}"
        case t.MessageEnded(message_id=message_id, outcome=outcome) as ended:
            agent = message_id.rsplit("/", 1)[-1].partition(".")[0]
            if outcome == "succeeded":
                return f"{agent} is done"
            why = one_line(ended.error or ended.reason, LONGEST)
            tries = f" after {counted(ended.attempts, 'attempt')}" if ended.attempts > 1 else ""
            return f"{agent} {outcome}{tries}: {why}"
        case t.BranchEnded(reason=reason, detail=detail):
            return f"a branch ends here ({reason}){f': {detail}' if detail else ''}"
        case t.JoinClosed() as closed:
            lacking = f", without {', '.join(closed.missing)}" if closed.missing else ""
            return f"the join of {closed.node} is closed ({closed.reason}{lacking}): {closed.then}"
        case t.TimerWentOff():
            return None
        case t.TaskCancelRequested(by=by, reason=reason):
            return f"asked to stop{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"
        case t.TaskRequeued(attempt=attempt, by=by):
            return f"retried{f' by {by}' if by else ''}: attempt {attempt} begins"
        case _:
            return _end(fact)


def _end(fact: t.TaskEnd) -> str:
    match fact:
        case t.TaskSucceeded():
            return "the task has succeeded"
        case t.TaskFailed(message=message):
            return f"the task has failed: {one_line(message, LONGEST)}"
        case t.TaskCancelled(by=by, reason=reason):
            return f"the task was cancelled{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"
        case t.TaskDeadLettered(message=message):
            return f"the task was dead-lettered: {one_line(message, LONGEST)}"


def _run(fact: e.Event) -> str | None:
    match fact:
        case e.RunClaimed(attempt=attempt, worker=worker, name=name):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            return f"taken by {name or process.in_words(worker)}{again}"
        case e.StepStarted(step=step):
            return f"step {step}"
        case e.ModelResponded(response=response, seconds=seconds):
            took = f"  ({duration(seconds)})" if seconds is not None else ""
            text = response.message.text.strip()
            return f"says: {one_line(text, LONGEST)}{took}" if text else None
        case e.ModelFailed(kind=kind, message=message):
            return f"{failure([kind])}: {one_line(message, LONGEST)}"
        case e.ToolStarted(name=name):
            return f"calls {name}"
        case e.ToolFinished(result=result):
            how = "failed: " + result.error.message if result.error else result.text
            return f"{result.name} → {one_line(how, LONGEST)}"
        case e.ToolUnknown(message=message, reason=reason):
            return f"nobody knows whether a call took effect: {one_line(message or reason, LONGEST)}"
        case e.ToolHeld(run_id=other):
            return f"does not make a call: the same call of run {other} may have taken effect"
        case e.HookDecided():
            return one_line(in_words(fact), LONGEST) or None
        case e.RunRetried(message=message, reason=reason):
            return f"broke down, and is tried again: {one_line(message or reason, LONGEST)}"
        case e.RunWaiting(message=message, reason=reason):
            return f"waits: {one_line(message or reason, LONGEST)}"
        case e.ApprovalRequested(tool=tool, approval_id=approval):
            return f"{tool} needs an approval: foliot approvals show {approval}"
        case e.QuestionAsked(question=question):
            return f"asks: {one_line(question, LONGEST)}"
        case e.InputReceived(message=message, by=by):
            return f"{by or 'somebody'} says: {one_line(message.text, LONGEST)}"
        case e.RunFailed(message=message):
            return f"failed: {one_line(message, LONGEST)}"
        case e.RunDeadLettered(message=message):
            return f"given up: {one_line(message, LONGEST)}"
        case _:
            return None
