"""The work of a server as bytes, and back: what the routes of `server/routes` send and the client reads.

Facts travel as they are stored, so that whoever reads them understands those of every earlier version. What is told of
a task is told by the client, from the same facts and by the same code as on the machine of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from foliot.client.errors import error_of
from foliot.engine.explain.trace import trace_of
from foliot.errors import FoliotError, Unavailable
from foliot.kernel.graph.events import decode_fact, encode_fact
from foliot.kernel.graph.plan import Plan
from foliot.kernel.run.codec import decode, encode
from foliot.kernel.run.events import Event
from foliot.resources.wording import as_written
from foliot.runtime.inputs import RunInput
from foliot.runtime.outcomes import Taken
from foliot.store.base import Document
from foliot.store.journal.base import RunInfo
from foliot.store.queue.workers import WorkerInfo
from foliot.work.tasks.base import Command, TaskInfo, TaskRecord
from foliot.work.views.document import info_of, outline
from foliot.work.views.events import Batch, Happening, RunHappening, TaskHappening
from foliot.work.views.run_document import run_of
from foliot.work.views.story import LiveRun, RunRow, TaskStory, live_run, tell_story
from foliot.work.views.worker_document import worker_of

T = TypeVar("T")
Facts = Sequence[tuple[float, Event]]


class Items(Struct, frozen=True):
    """A page of documents; `cursor` is where the next one begins."""

    items: list[Document]
    cursor: str | None = msgspec.field(default=None, name="continue")


class FactWire(Struct, frozen=True, omit_defaults=True):
    """One fact; with `run`, of that run of the agent, otherwise of the task itself."""

    at: float
    fact: Raw
    seq: int = 0
    run: str = ""
    agent: str = ""


class BatchWire(Struct, frozen=True):
    cursor: str
    events: list[FactWire]
    ended: bool = False


class StoryWire(Struct, frozen=True):
    """`live` are the facts of runs under way, by run."""

    info: TaskInfo
    command: Command
    plan: Plan
    records: list[FactWire]
    runs: list[RunRow]
    now: float
    live: dict[str, list[FactWire]] = {}


class TakenWire(Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    task: Document | None = None
    new: bool = False
    status: int = 0
    problem: dict[str, Any] = {}


def read(data: bytes | str, shape: type[T]) -> T:
    """Raises `Unavailable` for what a server of another version sends."""
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(str(error)) from None


def read_tasks(documents: Iterable[Document]) -> list[TaskInfo]:
    """Reads the infos of tasks out of their documents. Raises `Unavailable`, as `read`."""
    return _made(info_of, documents)


def read_runs(documents: Iterable[Document]) -> list[RunInfo]:
    """Reads the infos of runs out of their documents. Raises `Unavailable`, as `read`."""
    return _made(run_of, documents)


def read_run_input(document: Document) -> RunInput:
    """Reads what became of something said to a run. Raises `Unavailable`, as `read`."""
    return _made(_run_input, [document])[0]


def _run_input(document: Document) -> RunInput:
    became = document["input"]
    return RunInput(run_of(document), became["outcome"], became["arrival"], became["again"], became["answered"])


def read_workers(documents: Iterable[Document]) -> list[WorkerInfo]:
    """Reads the infos of workers out of their documents. Raises `Unavailable`, as `read`."""
    return _made(worker_of, documents)


def _made(of: Callable[[Document], T], documents: Iterable[Document]) -> list[T]:
    try:
        return [of(each) for each in documents]
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(f"{type(error).__name__} {error}") from None


def _unreadable(why: str) -> Unavailable:
    hint = "is it of another version? `foliot version`"
    return Unavailable(f"the answer of the server cannot be read: {why}", hint=hint)


# --- facts -------------------------------------------------------------------------------------------------------


def facts_to_wire(facts: Facts) -> list[FactWire]:
    return [FactWire(at, Raw(encode(event)), seq) for seq, (at, event) in enumerate(facts, 1)]


def facts_from_wire(facts: Iterable[FactWire]) -> list[tuple[float, Event]]:
    return [(each.at, decode(bytes(each.fact))) for each in facts]


def records_to_wire(records: Iterable[TaskRecord]) -> list[FactWire]:
    return [FactWire(each.at, Raw(encode_fact(each.event)), each.seq) for each in records]


def records_from_wire(records: Iterable[FactWire]) -> list[TaskRecord]:
    return [TaskRecord(each.seq, each.at, decode_fact(bytes(each.fact))) for each in records]


def batch_to_wire(batch: Batch, *, ended: bool = False) -> BatchWire:
    return BatchWire(batch.cursor, [_told(each) for each in batch.events], ended)


def batch_from_wire(wire: BatchWire) -> Batch:
    return Batch([_heard(each) for each in wire.events], wire.cursor)


def _told(each: Happening) -> FactWire:
    if isinstance(each, TaskHappening):
        return FactWire(each.at, Raw(encode_fact(each.fact)), each.seq)
    return FactWire(each.at, Raw(encode(each.fact)), each.seq, each.run_id, each.agent)


def _heard(each: FactWire) -> Happening:
    if each.run:
        return RunHappening(each.at, each.seq, each.agent, each.run, decode(bytes(each.fact)))
    return TaskHappening(each.at, each.seq, decode_fact(bytes(each.fact)))


# --- stories -----------------------------------------------------------------------------------------------------


def story_to_wire(story: TaskStory, live: Mapping[str, Facts], now: float) -> StoryWire:
    return StoryWire(
        story.info,
        story.command,
        story.plan,
        records_to_wire(story.records),
        [each.run for each in story.messages.values() if each.run is not None],
        now,
        {run_id: facts_to_wire(facts) for run_id, facts in live.items()},
    )


def story_from_wire(wire: StoryWire) -> TaskStory:
    """The story, told as of the moment at which the server has read it."""
    live = {run_id: _live(run_id, facts_from_wire(facts)) for run_id, facts in wire.live.items()}
    records = records_from_wire(wire.records)
    return tell_story(wire.info, wire.command, wire.plan, records, wire.runs, live, now=wire.now)


def _live(run_id: str, facts: Facts) -> LiveRun:
    return live_run(trace_of(run_id, facts), facts)


# --- tasks that were declared ------------------------------------------------------------------------------------


def taken_to_wire(taken: Taken) -> TakenWire:
    error = taken.error
    told = {} if error is None else {"code": error.code, "detail": error.message, "hint": error.hint or ""}
    task = None if taken.task is None else as_written(outline(taken.task))
    return TakenWire(taken.namespace, taken.name, task, taken.new, error.http if error else 0, told)


def taken_from_wire(wire: TakenWire) -> Taken:
    error: FoliotError | None = None
    if wire.problem:
        error = error_of(wire.status, msgspec.json.encode(wire.problem), where="the server")
    task = None if wire.task is None else read_tasks([wire.task])[0]
    return Taken(wire.namespace, wire.name, task, wire.new, error)
