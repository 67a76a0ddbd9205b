"""Answers that were given before: told again from the journals, followed, cancelled, forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final, cast

from foliot.errors import Conflict, NotFound
from foliot.kernel import events as e
from foliot.runtime import Runtime
from foliot.server.access.identity import Caller
from foliot.server.acts import ActRecord, record
from foliot.server.context import Services
from foliot.server.engagements import TaskEngagement, recorded
from foliot.server.openai.asking import METADATA_LABEL, MODEL_LABEL, PREVIOUS_LABEL, SESSION_LABEL
from foliot.server.openai.conversations import Ref, load_visible, no_response, parse_response
from foliot.server.openai.following import follow_run
from foliot.server.openai.responses import Answer, Event, behind
from foliot.server.openai.serving import error_event, event_frame, frames_of
from foliot.server.streams.pieces import Piece, Teller
from foliot.store.runs import TASK_LABEL, RunInfo
from foliot.store.tasks import ENDED
from foliot.work.base import TaskInfo

CANCELLED: Final = "cancelled by a client"


async def find_response(runtime: Runtime, caller: Caller, id: str) -> dict[str, Any]:
    """The response of this id as it stands now. Raises `NotFound`."""
    ref = parse_response(id)
    if ref.is_task:
        info = await _visible_task(runtime, caller, id, ref)
        answer = _answer_of_task(id, info)
        if info.phase in ENDED or info.phase == "waiting":
            async for piece in TaskEngagement(runtime, ref.namespace, ref.name).pieces():
                answer.take(piece)
        return answer.document()
    run, state = await load_visible(runtime, caller, ref.name)
    answer = _answer_of_run(id, run)
    facts = await runtime.runs.facts(run.id)
    teller = Teller(run.id, structured=state.spec.output_schema is not None)
    over = _gone_on(facts, ref.after)
    for piece in recorded(teller, facts[:over], ref.after):
        answer.take(piece)
    if teller.ended is None and (over is not None or run.phase == "waiting"):
        answer.take(teller.rest())
    return answer.document()


def _gone_on(facts: Sequence[tuple[float, e.Event]], after: int) -> int | None:
    """How many facts there were when a response ended with calls for its client; None if they have no results yet.

    What the run did with the results is another response.
    """
    waiting = None
    asked: set[str] = set()
    for seq, (_, event) in enumerate(facts, 1):
        match event:
            case e.QuestionAsked(call_id, client=True) if seq > after:
                asked.add(call_id)
            case e.RunWaiting() if asked and waiting is None:
                waiting = seq
            case e.QuestionAnswered(call_id, answer=str()) if call_id in asked:
                return waiting or seq - 1
            case _:
                pass
    return None


async def follow_response(services: Services, caller: Caller, id: str, after: int | None) -> AsyncGenerator[bytes]:
    """The events of a response from its beginning, or behind the one of this number, until it is over.

    Whoever follows begins and ends nothing. Raises `NotFound`.
    """
    runtime, ref = services.runtime, parse_response(id)
    if ref.is_task:
        answer = _answer_of_task(id, await _visible_task(runtime, caller, id, ref))
        # It is a generator, and closed as one.
        pieces = cast("AsyncGenerator[Piece]", TaskEngagement(runtime, ref.namespace, ref.name).pieces())
    else:
        run, state = await load_visible(runtime, caller, ref.name)
        answer = _answer_of_run(id, run)
        structured = state.spec.output_schema is not None
        facts = await runtime.runs.facts(run.id)
        if (over := _gone_on(facts, ref.after)) is not None:
            pieces = _told_again(Teller(run.id, structured=structured), facts[:over], ref.after)
        else:
            pieces = follow_run(services, run.id, structured=structured, after=ref.after)

    def sent(events: Iterable[Event]) -> Iterable[bytes]:
        unheard = (each if after is None else behind(each, after) for each in events)
        return [event_frame(each) for each in unheard if each is not None]

    return frames_of(pieces, lambda piece: sent(answer.take(piece)), begin=sent(answer.begin()), failed=error_event)


async def _told_again(teller: Teller, facts: Sequence[tuple[float, e.Event]], after: int) -> AsyncGenerator[Piece]:
    for piece in recorded(teller, facts, after):
        yield piece
    yield teller.rest()


async def cancel_response(runtime: Runtime, caller: Caller, id: str, *, request: str) -> None:
    """Ask the work behind a response to end. Raises `NotFound`, `Denied`; `Conflict` when it has ended."""
    ref = parse_response(id)
    if ref.is_task:
        caller.require("operator", ref.namespace, missing=no_response(id).message)
        act = ActRecord(runtime, caller, "task_cancelled", "Task", ref.namespace, ref.name, request=request)
        tasks = runtime.tasking.tasks
        await tasks.cancel(ref.namespace, ref.name, by=caller.name, reason=CANCELLED, also=act.record_task)
        act.tell()
        return
    info, state = await load_visible(runtime, caller, ref.name)
    caller.require("operator", info.namespace)
    if state.ended is not None:
        raise Conflict(f"run {info.id} has ended ({info.phase})")
    act = ActRecord(runtime, caller, "run_cancelled", "Run", info.namespace, info.id, request=request, run_id=info.id)
    await runtime.cancel(info.id, by=caller.name, reason=CANCELLED, also=act.record)
    act.tell()


async def delete_response(runtime: Runtime, caller: Caller, id: str, *, request: str) -> None:
    """Forget the work behind a response, and what was said. Raises `NotFound`, `Denied`; `Conflict` while it goes on.

    A turn of a session stays, for the next one is found by it. What was done stays in the audit log.
    """
    ref = parse_response(id)
    if ref.is_task:
        info = await _visible_task(runtime, caller, id, ref)
        caller.require("operator", ref.namespace)
        _check_no_turn(info.labels)
        runs = [str(row["run_id"]) for row in await runtime.tasking.tasks.runs(ref.namespace, ref.name)]
        await runtime.tasking.tasks.delete(ref.namespace, ref.name)
        for run_id in runs:
            with contextlib.suppress(NotFound):  # somebody purged it meanwhile
                await runtime.runs.journal.forget(run_id)
        await record(runtime, caller, "deleted", "Task", ref.namespace, ref.name, request=request)
        return
    run, _ = await load_visible(runtime, caller, ref.name)
    caller.require("operator", run.namespace)
    _check_no_turn(run.labels)
    if TASK_LABEL in run.labels:
        raise Conflict(f"run {run.id} is part of task {run.labels[TASK_LABEL]}", hint="delete the task")
    await runtime.runs.journal.forget(run.id)
    await record(runtime, caller, "deleted", "Run", run.namespace, run.id, request=request, run_id=run.id)


def echo_of(labels: dict[str, str]) -> dict[str, Any]:
    """What a response repeats of its request, as far as it was kept."""
    metadata = {
        key.removeprefix(METADATA_LABEL): value for key, value in labels.items() if key.startswith(METADATA_LABEL)
    }
    return {"metadata": metadata, "previous_response_id": labels.get(PREVIOUS_LABEL)}


def _check_no_turn(labels: dict[str, str]) -> None:
    if SESSION_LABEL in labels:
        raise Conflict(
            f"this is a turn of the session {labels[SESSION_LABEL]!r}, which would lose its place",
            hint="`foliot purge` forgets old runs",
        )


def _answer_of_run(id: str, info: RunInfo) -> Answer:
    return Answer(id, info.labels.get(MODEL_LABEL, info.agent), info.created_at, echo_of(info.labels), info.id)


def _answer_of_task(id: str, info: TaskInfo) -> Answer:
    return Answer(id, info.labels.get(MODEL_LABEL, info.target), info.created_at, echo_of(info.labels), info.name)


async def _visible_task(runtime: Runtime, caller: Caller, id: str, ref: Ref) -> TaskInfo:
    if not caller.sees(ref.namespace):
        raise no_response(id)
    try:
        return await runtime.tasking.tasks.get(ref.namespace, ref.name)
    except NotFound:
        raise no_response(id) from None
