"""Answers that were given before: told again from the journals, followed, cancelled, forgotten."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from foliot.engine.live.hub import Live, Recorded, Streamed
from foliot.errors import Conflict, NotFound
from foliot.kernel.messages import Media, Message, Text, ToolCall, ToolResult
from foliot.kernel.run import events as e
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import ModelResponded, StepStarted
from foliot.runtime.runtime import Runtime
from foliot.server.audit import ActRecord, record
from foliot.server.auth.identity import Caller
from foliot.server.auth.run_access import check_ends
from foliot.server.context import Services
from foliot.server.openai.answers import error_event, event_frame, frames_of
from foliot.server.openai.content import AUDIO
from foliot.server.openai.conversations import Ref, load_visible, no_response, parse_response
from foliot.server.openai.errors import BadRequest
from foliot.server.openai.responses import SERVER_LABEL, Event, ResponseAnswer, behind
from foliot.server.openai.work import METADATA_LABEL, MODEL_LABEL, PREVIOUS_LABEL, SESSION_LABEL
from foliot.server.runs.background import TaskEngagement, recorded
from foliot.server.streams.pieces import Piece, Teller
from foliot.server.streams.runs import patiently
from foliot.store.journal.base import TASK_LABEL, Entry, RunInfo
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskInfo

# --- following -------------------------------------------------------------------------------------------------------

# A run as it goes on, for somebody who only listens: nothing of it is begun, taken up or ended here.
#
# What the journal has is told first, then what comes, wherever the run is driven. Pieces of an answer are told only of
# steps that are heard from their beginning; of a step that was under way the text comes when it is whole.

PAGE: Final = 500


async def follow_run(services: Services, run_id: str, *, structured: bool, after: int = 0) -> AsyncGenerator[Piece]:
    """The pieces of a run behind its first `after` events; the last one is `Ended` or `Rested`. Raises `NotFound`."""
    journal = services.runtime.inside.runs.journal
    listening = Listening(run_id, structured, after)
    stir = asyncio.Event()
    with services.runtime.inside.watch(run_id, elsewhere=True) as reader:
        reader.call(stir.set)
        async with services.streams.signs.of_run(run_id, stir.set) as sign:
            seen: Hashable = None
            phase, more = "", True
            while True:
                stir.clear()
                entries: list[Entry] = []
                if more or sign.mark != seen:
                    seen = sign.mark
                    # In this order: what made it wait or end is among what is read afterwards.
                    phase = (await patiently(lambda: journal.get(run_id))).phase
                    at = listening.teller.seq
                    entries = await patiently(lambda at=at: journal.read(run_id, after=at, limit=PAGE))
                    more = bool(entries)
                for piece in listening.hear(entries, reader.taken()):
                    yield piece
                if listening.teller.ended is not None:
                    return
                if not more:
                    if phase == "waiting":
                        yield listening.teller.rest()
                        return
                    await stir.wait()


class Listening:
    """The progress of one listener."""

    def __init__(self, run_id: str, structured: bool, after: int) -> None:
        self.teller = Teller(run_id, structured=structured, after=after)
        self._after = after
        self._recorded = 0
        self._joined_at: int | None = None
        self._begun: set[int] = set()

    def hear(self, entries: Sequence[Entry], live: Sequence[Live]) -> list[Piece]:
        """The pieces of these events and of what was written meanwhile, in the order in which they belong together."""
        records = [Recorded(self.teller.run_id, each.seq, each.at, decode(each.data)) for each in entries]
        steps = [each.event.step for each in records if isinstance(each.event, ModelResponded)]
        self._recorded = max(steps, default=self._recorded)
        if self._joined_at is None and len(entries) < PAGE:
            self._joined_at = self._recorded + 1  # this one, or any before, may have begun without being heard
        written = deque(self._from_their_beginning(live))
        pieces: list[Piece] = []
        for entry in records:
            if isinstance(entry.event, ModelResponded):  # what was written of an answer comes before all of it
                while written and written[0].step <= entry.event.step:
                    pieces += self.teller.tell(written.popleft())
            told = self.teller.tell(entry)
            pieces += told if entry.seq > self._after else ()
        return [*pieces, *(piece for each in written for piece in self.teller.tell(each))]

    def _from_their_beginning(self, live: Sequence[Live]) -> Iterable[Streamed]:
        if self._joined_at is None:
            return
        for item in live:
            match item:
                case Recorded(event=StepStarted(step)):
                    self._begun.add(step)
                case Streamed(step=step) if step > self._joined_at or step in self._begun:
                    yield item
                case _:
                    pass


# --- looking ---------------------------------------------------------------------------------------------------------

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
    facts = await runtime.inside.runs.facts(run.id)
    teller = Teller(run.id, structured=state.spec.output_schema is not None, after=ref.after)
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
        facts = await runtime.inside.runs.facts(run.id)
        if (over := _gone_on(facts, ref.after)) is not None:
            pieces = _told_again(Teller(run.id, structured=structured, after=ref.after), facts[:over], ref.after)
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
    """Ask the work behind a response to end. One that was cancelled before stays as it is.

    Raises `NotFound`, `Denied`; `Conflict` when it has ended otherwise.
    """
    ref = parse_response(id)
    if ref.is_task:
        caller.require("operator", ref.namespace, missing=no_response(id).message)
        if (await _visible_task(runtime, caller, id, ref)).phase == "cancelled":
            return
        act = ActRecord(runtime, caller, "task_cancelled", "Task", ref.namespace, ref.name, request=request)
        tasks = runtime.inside.tasking.tasks
        await tasks.cancel(ref.namespace, ref.name, by=caller.name, reason=CANCELLED, in_transaction=act.record_task)
        act.tell()
        return
    info, state = await load_visible(runtime, caller, ref.name)
    caller.require("operator", info.namespace)
    check_ends(caller, info)
    if state.ended is not None:
        if isinstance(state.ended, e.RunCancelled):
            return
        raise Conflict(f"run {info.id} has ended ({info.phase})")
    act = ActRecord(runtime, caller, "run_cancelled", "Run", info.namespace, info.id, request=request, run_id=info.id)
    await runtime.inside.cancel(info.id, by=caller.name, reason=CANCELLED, in_transaction=act.record)
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
        runs = [str(row["run_id"]) for row in await runtime.inside.tasking.tasks.runs(ref.namespace, ref.name)]
        await runtime.inside.tasking.tasks.delete(ref.namespace, ref.name)
        for run_id in runs:
            with contextlib.suppress(NotFound):  # somebody purged it meanwhile
                await runtime.inside.runs.journal.forget(run_id)
        await record(runtime, caller, "deleted", "Task", ref.namespace, ref.name, request=request)
        return
    run, _ = await load_visible(runtime, caller, ref.name)
    caller.require("operator", run.namespace)
    _check_no_turn(run.labels)
    if TASK_LABEL in run.labels:
        raise Conflict(f"run {run.id} is part of task {run.labels[TASK_LABEL]}", hint="delete the task")
    await runtime.inside.runs.journal.forget(run.id)
    await record(runtime, caller, "deleted", "Run", run.namespace, run.id, request=request, run_id=run.id)


def echo_of(labels: dict[str, str]) -> dict[str, Any]:
    """Returns the members of the request that its response repeats, as far as they were kept."""
    metadata = {
        key.removeprefix(METADATA_LABEL): value for key, value in labels.items() if key.startswith(METADATA_LABEL)
    }
    return {
        "metadata": metadata,
        "previous_response_id": labels.get(PREVIOUS_LABEL),
        "conversation": conversation_of(labels.get(SESSION_LABEL, "")),
    }


def conversation_of(session: str) -> dict[str, str] | None:
    """Returns a conversation as a response names it, None without one."""
    return {"id": session} if session else None


def _check_no_turn(labels: dict[str, str]) -> None:
    if SESSION_LABEL in labels:
        raise Conflict(
            f"this is a turn of the session {labels[SESSION_LABEL]!r}, which would lose its place",
            hint="`foliot purge` forgets old runs",
        )


def _answer_of_run(id: str, info: RunInfo) -> ResponseAnswer:
    return ResponseAnswer(id, info.labels.get(MODEL_LABEL, info.agent), info.created_at, echo_of(info.labels), info.id)


def _answer_of_task(id: str, info: TaskInfo) -> ResponseAnswer:
    return ResponseAnswer(
        id, info.labels.get(MODEL_LABEL, info.target), info.created_at, echo_of(info.labels), info.name
    )


async def _visible_task(runtime: Runtime, caller: Caller, id: str, ref: Ref) -> TaskInfo:
    if not caller.sees(ref.namespace):
        raise no_response(id)
    try:
        return await runtime.inside.tasking.tasks.get(ref.namespace, ref.name)
    except NotFound:
        raise no_response(id) from None


# --- input -----------------------------------------------------------------------------------------------------------

# The input of a response, as items: the conversation before it, the request, and decisions that it waited for.
#
# Read from the journal of its run, like everything else.

Item: TypeAlias = dict[str, Any]
Order: TypeAlias = Literal["asc", "desc"]
_FORMATS: Final = {kind: word for word, kind in AUDIO.items()}


async def list_input(runtime: Runtime, caller: Caller, id: str) -> list[Item]:
    """The items of a response's input, oldest first. Raises `NotFound`."""
    ref = parse_response(id)
    if ref.is_task:
        if not caller.sees(ref.namespace):
            raise no_response(id)
        try:
            told = (await runtime.inside.tasking.tasks.ref(ref.namespace, ref.name)).command.message
        except NotFound:
            raise no_response(id) from None
        return _numbered(ref.name, [_message("user", [_text_part(told)])])
    await load_visible(runtime, caller, ref.name)
    facts = [event for _, event in await runtime.inside.runs.facts(ref.name)]
    if ref.after:
        return _numbered(f"{ref.name}.{ref.after}", _decisions(facts[ref.after :]))
    created = facts[0]
    assert isinstance(created, e.RunCreated), "a journal begins so"
    said = (*await runtime.inside.runs.history(created), *created.input)
    return _numbered(ref.name, await _items(runtime, said))


def page_of(items: Sequence[Item], *, order: Order, limit: int, after: str | None) -> dict[str, Any]:
    """One page of items, as lists are. Raises `BadRequest` when `after` is none of them."""
    ordered = list(items if order == "asc" else reversed(items))
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise BadRequest(f"there is no item {after[:100]!r}", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(ordered) > limit,
    }


def _numbered(where: str, items: Sequence[Item]) -> list[Item]:
    return [{"id": f"in_{where}_{number}", **item} for number, item in enumerate(items)]


async def _items(runtime: Runtime, messages: Sequence[Message]) -> list[Item]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}
    items: list[Item] = []
    for message in messages:
        if message.role == "assistant":
            if message.text:
                part: dict[str, Any] = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
                items.append(_message("assistant", [part]))
            items += (_call(call, results.get(call.id)) for call in message.calls)
        elif content := [await _content(runtime, part) for part in message.parts if isinstance(part, Text | Media)]:
            items.append(_message("user" if message.role == "user" else "system", content))
    return items


def _message(role: str, content: list[dict[str, Any]]) -> Item:
    return {"type": "message", "role": role, "status": "completed", "content": content}


def _call(call: ToolCall, result: ToolResult | None) -> Item:
    error = result.error.message if result is not None and result.error is not None else None
    return {
        "type": "mcp_call",
        "server_label": SERVER_LABEL,
        "name": call.name,
        "arguments": call.arguments,
        "output": result.text if result is not None and error is None else None,
        "error": None if error is None else {"type": "mcp_tool_execution_error", "content": error},
    }


def _decisions(facts: Sequence[e.Event]) -> list[Item]:
    """Returns the decisions of people before the run continued with its next step."""
    items: list[Item] = []
    for fact in facts:
        match fact:
            case e.ApprovalDecided():
                item: Item = {
                    "type": "mcp_approval_response",
                    "approval_request_id": fact.approval_id or fact.call_id,
                    "approve": fact.decision in ("approve", "edit"),
                    "reason": fact.reason or None,
                }
                items.append(item)
            case e.QuestionAnswered(answer=str(answer)):
                items.append(_message("user", [_text_part(answer)]))
            case e.StepStarted():
                break
            case _:
                pass
    return items


async def _content(runtime: Runtime, part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return _text_part(part.text)
    data = part.data
    if data is None and part.blob is not None:
        data = base64.b64encode(await runtime.inside.runs.journal.get_blob(part.blob)).decode()
    address = part.url or f"data:{part.media_type};base64,{data}"
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": address, "detail": "auto"}
    if part.media_type in _FORMATS and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS[part.media_type]}}
    return {"type": "input_file", "filename": part.name, "file_url" if part.url else "file_data": address}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}
