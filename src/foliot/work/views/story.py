"""A task as it stands: its facts folded, its messages with the runs that answer them, its agents in the graph.

Pure: everything is given, nothing is read here (see reader.py). What is shown of a task starts from a `TaskStory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from foliot.engine.explain.trace import Trace
from foliot.kernel.graph import events as t
from foliot.kernel.graph import joins
from foliot.kernel.graph.advance import GraphState, fold
from foliot.kernel.graph.lifecycle import MessagePhase
from foliot.kernel.graph.plan import Plan
from foliot.kernel.run.events import Event, RunClaimed, RunRetried, RunWaiting, StepStarted
from foliot.kernel.run.spec import RunSpec
from foliot.store.journal.base import TERMINAL
from foliot.work.tasks.base import Command, NewTaskParts, TaskInfo, TaskRecord

NodeState: TypeAlias = Literal["idle", "queued", "retry", "running", "waiting", "succeeded", "failed", "cancelled"]

API_MESSAGE: Final[Mapping[MessagePhase, str]] = {
    "waiting": "waiting",
    "queued": "queued",
    "running": "running",
    "retry_pending": "retrypending",
    "succeeded": "succeeded",
    "dead_letter": "deadletter",
    "cancelled": "cancelled",
}


class RunRow(Struct, frozen=True):
    """A run of the task as the store lists it. `due_at` is None when it waits for somebody, or has ended.

    `max_running` is how many runs of its agent may be at work at once, 0 for any number. `worker` is the process that
    has it, `by` what that worker is called.
    """

    message: str
    run_id: str
    agent: str
    phase: str
    worker: str | None
    lease_until: float | None
    created_at: float
    updated_at: float
    summary: dict[str, Any]
    due_at: float | None = None
    held: bool = False
    requirements: str = ""
    class_key: str = ""
    max_running: int = 0
    by: str = ""
    heartbeat_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase in TERMINAL


class Moment(Struct, frozen=True):
    """A change of who has a run: by type `claim`, `takeover`, `waiting_approval` or `retry_scheduled`."""

    at: float
    type: Literal["claim", "takeover", "waiting_approval", "retry_scheduled"]
    worker: str
    message: str = ""


class LiveRun(Struct, frozen=True):
    """A run as its journal tells it: its attempts, since when it is held, who had it when, its trace.

    `parked` are the calls about which somebody was asked, and when, also those that were decided.
    """

    trace: Trace
    attempts: int = 0
    claimed_at: float | None = None
    first_step_at: float | None = None
    retry: RunRetried | None = None
    moments: tuple[Moment, ...] = ()
    parked: dict[str, float] = {}

    @property
    def worker(self) -> str:
        """The name of the worker that had it last."""
        return next((each.worker for each in reversed(self.moments) if each.worker), "")


class AskingRun(Struct, frozen=True):
    """A run below one of a task, a sub-agent for example, that waits for people or a budget."""

    run_id: str
    trace: Trace
    spec: RunSpec


class MessageStory(Struct):
    """One message, and what became of it. `run` is None for one that waits, or has waited, at a join.

    `live` is there for runs whose journal was looked into, ended ones too. `asking` are the runs below it that wait,
    when all that it does is to wait for them, where they were looked for.
    """

    message: t.Envelope
    phase: MessagePhase
    sent_at: float
    seq: int
    run: RunRow | None = None
    live: LiveRun | None = None
    ended: t.MessageEnded | None = None
    ended_at: float | None = None
    cut: t.BranchEnded | None = None
    asking: Sequence[AskingRun] = ()

    @property
    def attempts(self) -> int:
        return self.ended.attempts if self.ended else self.live.attempts if self.live else 0

    @property
    def worker(self) -> str:
        """The name of the worker that has it or had it last, or of its process where that has no name."""
        found = self.ended.worker if self.ended else ""
        if not found and self.run is not None:
            found = self.run.by or (self.live.worker if self.live else "") or self.run.worker or ""
        return found

    def seconds(self, now: float) -> float:
        """From its sending to its end, or until now."""
        return max(0.0, (self.ended_at if self.ended_at is not None else now) - self.sent_at)


class JoinView(Struct, frozen=True):
    """A round of a join that waits."""

    node: str
    round: int
    required: int
    came: tuple[str, ...]
    missing: tuple[str, ...]
    absent: dict[str, str]
    since: float
    until: float | None


class NodeView(Struct, frozen=True):
    """An agent in the graph of the task. `times` is how often it was at work, `text` its last answer or error."""

    name: str
    state: NodeState
    times: int = 0
    failures: int = 0
    seconds: float = 0.0
    since: float | None = None
    text: str = ""
    run_id: str = ""
    worker: str = ""
    join: JoinView | None = None


class TaskStory(Struct):
    info: TaskInfo
    command: Command
    plan: Plan
    state: GraphState
    records: Sequence[TaskRecord]
    messages: dict[str, MessageStory] = field(default_factory=dict[str, MessageStory])
    joins: list[JoinView] = field(default_factory=list[JoinView])

    @property
    def live(self) -> list[MessageStory]:
        """The messages whose runs have not ended."""
        return [each for each in self.messages.values() if each.run is not None and each.ended is None]

    @property
    def output(self) -> str:
        return self.state.ended.output if isinstance(self.state.ended, t.TaskSucceeded) else ""


def tell_story(
    info: TaskInfo,
    command: Command,
    plan: Plan,
    records: Sequence[TaskRecord],
    runs: Iterable[RunRow] = (),
    live: Mapping[str, LiveRun] | None = None,
    *,
    now: float,
    state: GraphState | None = None,
) -> TaskStory:
    """Tells the story of a task from its records. Who has their fold gives it as `state`.

    Raises `IllegalEvent` when the records are not those of a task of this plan.
    """
    if state is None:
        state = fold(plan, ((record.at, record.event) for record in records))
    story = TaskStory(info, command, plan, state, records)
    by_message = {row.message: row for row in runs}
    for record in records:
        _take(story, record)
    for each in story.messages.values():
        row = by_message.get(each.message.id)
        if row is not None:
            each.run = row
            each.live = (live or {}).get(row.run_id)
            if each.ended is None:
                each.phase = _live_phase(row, each.live, now)
    story.joins = [
        JoinView(
            name,
            number,
            join.required,
            tuple(message.sender for message in round.waiting),
            joins.missing(join, round),
            dict(round.absent),
            round.since,
            None if join.timeout is None else round.since + join.timeout,
        )
        for name, join, number, round in joins.each_open(plan, state)
    ]
    return story


def story_of_new(info: TaskInfo, begun: NewTaskParts) -> TaskStory:
    """Tells the story of a task in the moment in which it was accepted."""
    now = info.created_at
    records = [TaskRecord(seq, now, fact) for seq, fact in enumerate(begun.facts, 1)]
    rows = [
        RunRow(each.message_id, each.run_id, each.agent, "pending", None, None, now, now, {}, due_at=each.due_at)
        for each in begun.tickets
    ]
    return tell_story(info, begun.command, begun.plan, records, rows, now=now, state=begun.state)


def _take(story: TaskStory, record: TaskRecord) -> None:
    match record.event:
        case t.MessageSent(message=message, activates=activates):
            phase: MessagePhase = "queued" if activates else "waiting"
            story.messages[message.id] = MessageStory(message, phase, record.at, record.seq)
            for source in message.sources:
                _over(story, source.message_id, "succeeded", record.at)
        case t.MessageEnded() as ended:
            each = story.messages.get(ended.message_id)
            if each is not None:
                words: dict[str, MessagePhase] = {"succeeded": "succeeded", "failed": "dead_letter"}
                each.ended, each.ended_at = ended, record.at
                each.phase = words.get(ended.outcome, "cancelled")
        case t.BranchEnded() as cut:
            each = story.messages.get(cut.message_id)
            if each is not None:
                each.cut = cut
            _over(story, cut.message_id, "cancelled", record.at)
        case t.TaskSucceeded() | t.TaskFailed() | t.TaskCancelled() | t.TaskDeadLettered():
            for identity in story.messages:
                _over(story, identity, "cancelled", record.at)
        case _:
            pass


def _over(story: TaskStory, identity: str, phase: MessagePhase, at: float) -> None:
    """A message that waited at a join waits no more."""
    each = story.messages.get(identity)
    if each is not None and each.phase == "waiting":
        each.phase, each.ended_at = phase, at


def is_paused(row: RunRow) -> bool:
    """Whether a run goes on by itself at a time: its model is asked again, its turn comes, nothing more is said."""
    waits: dict[str, Any] = row.summary.get("waiting") or {}
    return row.phase == "waiting" and waits.get("owner") == "timer"


def _live_phase(row: RunRow, live: LiveRun | None, now: float) -> MessagePhase:
    if is_paused(row):
        return "retry_pending"
    if row.phase == "pending":
        tried = live is not None and live.retry is not None
        return "retry_pending" if tried or (row.due_at is not None and row.due_at > now) else "queued"
    return "running"


def live_run(trace: Trace, facts: Iterable[tuple[float, Event]]) -> LiveRun:
    """From the facts of one run."""
    attempts, claimed, first, retry = 0, None, None, None
    moments: list[Moment] = []
    worker, held = "", False
    parked: dict[str, float] = {}
    for at, fact in facts:
        match fact:
            case RunClaimed(attempt=attempt):
                attempts, claimed, retry, worker = attempt, at, None, fact.name
                moments.append(Moment(at, "takeover" if held else "claim", worker))
                held = True
            case RunRetried():
                retry, held = fact, False
                moments.append(Moment(at, "retry_scheduled", worker, fact.message or fact.reason))
            case RunWaiting():
                held = False
                kind = "retry_scheduled" if fact.owner == "timer" else "waiting_approval"
                moments.append(Moment(at, kind, worker, fact.message or fact.reason))
                if fact.reason in ("approval", "input"):
                    parked |= {call: at for call in fact.calls if call not in parked}
            case StepStarted() if first is None:
                first = at
            case _:
                pass
    return LiveRun(trace, attempts, claimed, first, retry, tuple(moments), parked)


def nodes_of(story: TaskStory, now: float) -> list[NodeView]:
    """Every agent of the graph, in its order, with how it stands."""
    waiting = {join.node: join for join in story.joins}
    mine: dict[str, list[MessageStory]] = {name: [] for name in story.plan.nodes}
    for each in story.messages.values():
        if each.run is not None or each.ended is not None:
            mine[each.message.to].append(each)
    return [_node(name, messages, waiting.get(name), now) for name, messages in mine.items()]


def _node(name: str, messages: Sequence[MessageStory], join: JoinView | None, now: float) -> NodeView:
    if not messages:
        return NodeView(name, "idle", join=join)
    current = next((each for each in messages if each.ended is None), messages[-1])
    ended = current.ended
    last = next((each.ended for each in reversed(messages) if each.ended is not None), None)
    text = "" if last is None else last.output if last.outcome == "succeeded" else last.error or last.reason
    return NodeView(
        name,
        _node_state(current),
        times=len(messages),
        failures=sum(each.ended is not None and each.ended.outcome == "failed" for each in messages),
        seconds=sum(each.seconds(now) for each in messages),
        since=current.sent_at if ended is None else None,
        text=text,
        run_id=current.run.run_id if current.run else ended.run_id if ended else "",
        worker=current.worker,
        join=join,
    )


def _node_state(current: MessageStory) -> NodeState:
    if current.ended is not None:
        return current.ended.outcome
    if current.run is not None and current.run.phase == "waiting":
        return "waiting"
    if current.phase == "retry_pending":
        return "retry"
    return "running" if current.phase == "running" else "queued"
