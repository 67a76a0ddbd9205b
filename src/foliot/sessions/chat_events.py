"""The events of a turn, as people and channels read them; worked out from the journal of its run, and from pieces.

Each struct is one kind of event, and its JSON is stable: `type` says which. What stands in the journal has a `place`:
the run, the number of the fact, and which of the events that follow from one fact it is. The same journal gives the
same events with the same places, so a reader who comes back with the place of the last event misses nothing and reads
nothing twice. Pieces (`piece`, and the output of tools while they run) have no place. They are for show: the recorded
message replaces all pieces of its step.

A turn has exactly one `end`, and it is the last event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.errors import InvalidInput
from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import (
    Media,
    Message,
    Number,
    Reasoning,
    ReasoningDelta,
    RestartDelta,
    Text,
    TextDelta,
    ToolResult,
    Usage,
)
from foliot.kernel.run import events as e
from foliot.kernel.run.calls import JournalCalls
from foliot.kernel.run.rules import TAKEN_AT_BOUNDARY
from foliot.store.sessions.database import INTERRUPTED
from foliot.tools.display import input_summary, result_summary

EndStatus: TypeAlias = Literal["answered", "stopped", "interrupted", "failed", "waiting", "dropped"]
ToolStatus: TypeAlias = Literal["running", "done", "error"]
AskKind: TypeAlias = Literal["approval", "question", "unknown_effect"]
# Why an answer came to its end, besides what a model says of it.
TIME_LIMIT: Final = "time_limit"
BY_TOOL: Final = "tool"
COMPACTION: Final = "compaction"
EMPTY: Final = "empty"
REFUSAL: Final = "refusal"
ERROR: Final = "error"
CANCELLED: Final = "cancelled"
APPROVAL_DECISIONS: Final = ("approve", "deny", "edit")
UNKNOWN_DECISIONS: Final = ("happened", "run", "fail")
_PLACE: Final = re.compile(r"(?P<run>[^/\s]{1,128})/(?P<seq>[0-9]{1,15})(?:\.(?P<part>[0-9]{1,6}))?")


class ChatPlace(Struct, frozen=True, order=True):
    """The place of an event in a session: behind event `part` of those that follow from fact `seq` of a run.

    A place without a part is behind all of them.
    """

    run: str
    seq: int = 0
    part: int | None = None

    def __str__(self) -> str:
        """Formats the place for cursors and headers."""
        return f"{self.run}/{self.seq}" if self.part is None else f"{self.run}/{self.seq}.{self.part}"

    def covers(self, seq: int, part: int) -> bool:
        """Whether whoever has read up to this place has read that event of the same run."""
        return seq < self.seq or (seq == self.seq and (self.part is None or part <= self.part))


def read_place(text: str) -> ChatPlace:
    """Returns the place that a text names. Raises `InvalidInput` for another text."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f"{text[:80]!r} is no place in a session", hint="give the `place` of an event of the session"
        )
    part = found["part"]
    return ChatPlace(found["run"], int(found["seq"]), None if part is None else int(part))


class _ChatEvent(Struct, frozen=True, omit_defaults=True):
    """The part that all events share: the run that is the turn, and the place, which is blank for a piece."""

    run: str
    place: str = ""


class TextEvent(_ChatEvent, frozen=True, tag="text", kw_only=True):
    """Text of the answer. `piece`: a part of it while it is written; else it is all text of this step.

    `notice`: Foliot says it, and no model. `cut`: people saw it, and the answer that it was to become did not come;
    when the model is asked again, another text of this step takes its place.
    """

    text: str
    step: int = 0
    piece: bool = False
    notice: bool = False
    cut: bool = False


class ReasoningEvent(_ChatEvent, frozen=True, tag="reasoning", kw_only=True):
    """The reasoning of the model before its answer; pieces as of `TextEvent`."""

    text: str
    step: int = 0
    piece: bool = False


class RestartEvent(_ChatEvent, frozen=True, tag="restart", kw_only=True):
    """The answer begins anew: the pieces of this step are void."""

    step: int = 0
    reason: str = ""


class ImageEvent(_ChatEvent, frozen=True, tag="image", kw_only=True):
    """An image of an answer or of a tool: its `data` in base64, its `url`, or the digest of stored content (`blob`).

    `call_id` is the call that it came of; blank when the model made it.
    """

    media_type: str
    data: str | None = None
    url: str | None = None
    blob: str | None = None
    name: str = ""
    call_id: str = ""


class FileEvent(_ChatEvent, frozen=True, tag="file", kw_only=True):
    """A file that is no image, as `ImageEvent` has it."""

    media_type: str
    data: str | None = None
    url: str | None = None
    blob: str | None = None
    name: str = ""
    call_id: str = ""


class ToolEvent(_ChatEvent, frozen=True, tag="tool", kw_only=True):
    """A tool call: it was started, it is done, or it failed. `input` and `detail` sum it up in a line each.

    `output` is a piece of what the tool prints while it runs. Where a person or hooks, `changed_by`, changed the
    arguments, `arguments` are those that the call is made with and `written` those of the model; secrets are masked.
    `approved_by` are the people who approved it.
    """

    call_id: str
    tool: str
    status: ToolStatus
    input: str = ""
    detail: str = ""
    output: str = ""
    code: str = ""
    seconds: Number | None = None
    changed_by: str = ""
    arguments: dict[str, Any] | None = None
    written: dict[str, Any] | None = None
    approved_by: tuple[str, ...] = ()


class InputEvent(_ChatEvent, frozen=True, tag="input", kw_only=True):
    """An input that entered the conversation: what the turn answers, or what it heard while it worked.

    `numbers` are the arrival numbers of the former, `id` is that of the latter.
    """

    text: str
    files: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    id: str = ""
    mode: str = ""
    by: str = ""


class CompactionEvent(_ChatEvent, frozen=True, tag="compaction", kw_only=True):
    """The oldest `replaced` messages are sent to the model as a summary from now on; all stay readable.

    `cause` is why. With a `problem` it was tried, and nothing has changed.
    """

    replaced: int = 0
    summary: str = ""
    cause: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    problem: str = ""


class ErrorEvent(_ChatEvent, frozen=True, tag="error", kw_only=True):
    """An error of the turn. `retries`: it is tried again, and the turn goes on; else its end follows."""

    code: str
    message: str
    retries: bool = False


class ChatAsk(Struct, frozen=True, omit_defaults=True):
    """One thing that a person has to decide before a turn goes on.

    Of an `approval`, `id` names it and `digest` the arguments that it is about; it is decided with one of `decisions`
    by the verb for approvals. A `question` is answered with a text, or with one of `choices`. About an
    `unknown_effect` somebody says what became of the call, with one of `decisions`; `attempt` is the attempt at it that
    is in question. `arguments` are the call's, with secrets masked.
    """

    kind: AskKind
    call_id: str
    tool: str = ""
    id: str = ""
    arguments: dict[str, Any] = {}
    summary: str = ""
    question: str = ""
    reason: str = ""
    choices: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    digest: str = ""
    required: int = 1
    approvers: tuple[str, ...] = ()
    expires_at: Number | None = None
    attempt: int = 0


class WaitingEvent(_ChatEvent, frozen=True, tag="waiting", kw_only=True):
    """The turn waits: for people (`asks`), or for a budget. The stream goes on as soon as the turn does.

    `run` may be one below the turn, a sub-agent for example: it is decided for that one. Such an event has no place. It
    tells what is asked now, again when that changes, and with a blank `reason` that this run waits no more.
    """

    reason: str
    message: str = ""
    asks: tuple[ChatAsk, ...] = ()
    until: Number | None = None


class EndEvent(_ChatEvent, frozen=True, tag="end", kw_only=True):
    """The end of a turn, or of a stream that was asked to end when the turn waits (`waiting`).

    `stop` is why the answer ended: `end`, `length`, `refusal`, `empty`, `time_limit`, `tool`, `cancelled`, `error`;
    `compaction` of a turn that only compacts.
    `text` is the answer as a whole, or what people saw of one that was cut off. `code` and `message` say what went
    wrong. `cost_usd` is None when a price is not known. `dropped`: no turn answers what was said; `message` says why.
    """

    status: EndStatus
    stop: str = ""
    text: str = ""
    code: str = ""
    message: str = ""
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Number | None = None
    turn: int = 0


ChatEvent: TypeAlias = (
    TextEvent
    | ReasoningEvent
    | RestartEvent
    | ImageEvent
    | FileEvent
    | ToolEvent
    | InputEvent
    | CompactionEvent
    | ErrorEvent
    | WaitingEvent
    | EndEvent
)
_decoder: Final = msgspec.json.Decoder(ChatEvent)
_encoder: Final = msgspec.json.Encoder()


def encode_chat_event(event: ChatEvent) -> bytes:
    """Returns an event as JSON."""
    return _encoder.encode(event)


def decode_chat_event(data: bytes | str) -> ChatEvent:
    """Returns the event that JSON holds. Raises `msgspec.ValidationError`."""
    return _decoder.decode(data)


Masks: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def _as_they_are(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


class TurnStory:
    """Turns the facts and pieces of one run into the events of its turn, in order.

    It is given every fact from the first on, also those that a reader has read before: what follows from a fact depends
    on those before it.
    """

    def __init__(self, run_id: str, *, mask: Masks = _as_they_are) -> None:
        self.run_id = run_id
        self.seq = 0  # of the newest fact
        self.ended = False
        self._mask = mask
        self._turn = 0
        self._compacts = False  # the turn answers nothing
        self._step = 0  # the newest that has a recorded answer
        self._stop = ""
        self._cut = ""  # what people saw of an answer that did not come
        self._late = False
        self._calls = JournalCalls()  # of the current step
        self._starts = Counter[str]()  # of these calls
        self._asked: dict[str, ChatAsk] = {}
        self._heard: list[e.InputReceived] = []
        self._answered = False  # the newest answer asked for nothing

    def events(self, item: Live) -> list[ChatEvent]:
        """Returns what follows from a fact or a piece. A fact that came before gives nothing."""
        match item:
            case Recorded(seq=seq, event=event):
                if seq <= self.seq:
                    return []
                self.seq = seq
                return [
                    replace(each, place=str(ChatPlace(self.run_id, seq, part)))
                    for part, each in enumerate(self._told(event))
                ]
            case Streamed(step=step) if step <= self._step:
                return []  # its answer is recorded
            case Streamed(step=step, delta=TextDelta(text=text)):
                return [TextEvent(self.run_id, text=text, step=step, piece=True)]
            case Streamed(step=step, delta=ReasoningDelta(text=text)):
                return [ReasoningEvent(self.run_id, text=text, step=step, piece=True)]
            case Streamed(step=step, delta=RestartDelta(reason=reason)):
                return [RestartEvent(self.run_id, step=step, reason=reason)]
            case Streamed():
                return []
            case Output(call_id=call_id, text=text):
                call = self._calls.find(call_id)
                tool = call.name if call is not None else ""
                return [ToolEvent(self.run_id, call_id=call_id, tool=tool, status="running", output=text)]

    def _told(self, event: e.Event) -> Iterable[ChatEvent]:
        match event:
            case e.RunCreated(turn=turn, inputs=inputs):
                self._turn, self._compacts = turn, event.compacts
                return [_input(self.run_id, message, numbers=inputs) for message in event.input]
            case e.InputReceived():
                self._heard.append(event)
                return ()
            case e.StepStarted():
                return self._taken_in()
            case e.ModelResponded():
                return self._answer(event)
            case e.ModelFailed(kind=kind, message=message, retryable=True):
                return [ErrorEvent(self.run_id, code=kind, message=message, retries=True)]
            case e.ToolStarted(call_id=call_id, name=name):
                self._starts[call_id] += 1
                return [
                    ToolEvent(
                        self.run_id, call_id=call_id, tool=name, status="running", **self._call_fields(call_id, name)
                    )
                ]
            case e.ToolFinished(result=result, seconds=seconds):
                self._asked.pop(result.call_id, None)
                return self._result(result, seconds)
            case e.ToolUnknown(call_id=call_id, reason=reason, message=message):
                self._doubt(call_id, message or reason)
                return ()
            case e.ToolHeld(call_id=call_id, earlier=earlier):
                self._doubt(call_id, earlier.reason)
                return ()
            case e.ApprovalRequested() | e.QuestionAsked():
                self._asked[event.call_id] = self._ask(event)
                return ()
            case e.ApprovalDecided(call_id=call_id) | e.QuestionAnswered(call_id=call_id):
                self._asked.pop(call_id, None)
                self._calls.take(event)
                return ()
            case e.HookDecided():
                self._calls.take(event)
                return ()
            case e.UnknownDecided(call_id=call_id):
                self._asked.pop(call_id, None)
                return ()
            case e.RunWaiting(reason=reason, owner=owner, message=message, until=until) if owner != "timer":
                asks = tuple(self._asked[each] for each in event.calls if each in self._asked)
                return [WaitingEvent(self.run_id, reason=reason, message=message, asks=asks, until=until)]
            case e.SessionCompacted():
                return [_compaction(self.run_id, event)]
            case e.SessionNotCompacted(reason=reason, cause=cause):
                return [CompactionEvent(self.run_id, cause=cause, problem=reason)]
            case e.ModelCut(step=step, text=text):
                self._cut = text
                return [TextEvent(self.run_id, text=text, step=step, cut=True)]
            case e.BudgetExceeded(limit="seconds", then="fail", budget=""):
                self._late = True
                return ()
            case e.RunSucceeded() | e.RunFailed() | e.RunCancelled() | e.RunDeadLettered():
                self.ended = True
                return self._end(event)
            case _:
                return ()

    def _taken_in(self) -> list[ChatEvent]:
        """Returns the inputs that stand before the question that is asked now; see `folds.inputs_due`."""
        due = [each for each in self._heard if self._answered or each.mode in TAKEN_AT_BOUNDARY]
        self._heard = [each for each in self._heard if each not in due]
        self._answered = False
        return [_input(self.run_id, each.message, id=each.input_id, mode=each.mode, by=each.by) for each in due]

    def _answer(self, responded: e.ModelResponded) -> Iterator[ChatEvent]:
        step, response = responded.step, responded.response
        self._step, self._stop, self._cut = step, response.stop, ""
        self._calls = JournalCalls()
        self._starts.clear()
        self._answered = not self._calls.take(responded)
        parts = response.message.parts
        if thought := "".join(part.text for part in parts if isinstance(part, Reasoning)):
            yield ReasoningEvent(self.run_id, text=thought, step=step)
        if text := response.message.text:
            yield TextEvent(self.run_id, text=text, step=step)
        for part in parts:
            if isinstance(part, Media):
                yield _media(self.run_id, part)

    def _result(self, result: ToolResult, seconds: Number | None) -> Iterator[ChatEvent]:
        error = result.error
        said = result.text if error is None else error.message or result.text
        yield ToolEvent(
            self.run_id,
            call_id=result.call_id,
            tool=result.name,
            status="done" if error is None else "error",
            detail=result_summary(said, failed=error is not None),
            code="" if error is None else error.code,
            seconds=seconds,
            **self._call_fields(result.call_id, result.name),
        )
        for part in result.content:
            if isinstance(part, Media):
                yield _media(self.run_id, part, result.call_id)

    def _call_fields(self, call_id: str, name: str) -> dict[str, Any]:
        """Returns what goes into a call of the current step: the fields of a `ToolEvent` that tell it."""
        call = self._calls.find(call_id, name)
        if call is None:
            return {}
        summary: dict[str, Any] = {"input": input_summary(name, call.arguments)}
        if call.approved_by:
            summary["approved_by"] = call.approved_by
        if not call.changed_by:
            return summary
        now, before = self._seen(call.arguments), self._seen(call.written)
        return {**summary, "changed_by": call.changed_by, "arguments": now, "written": before}

    def _seen(self, arguments: str) -> dict[str, Any]:
        return dict(self._mask(parse_object(arguments)[0] or {}))

    def _ask(self, asked: e.ApprovalRequested | e.QuestionAsked) -> ChatAsk:
        ask = self._about(asked.call_id, asked.tool)
        if isinstance(asked, e.QuestionAsked):
            return replace(
                ask,
                kind="question",
                question=asked.question,
                choices=asked.choices,
                expires_at=asked.expires_at,
            )
        return replace(
            ask,
            id=asked.approval_id,
            reason=asked.reason,
            decisions=APPROVAL_DECISIONS,
            digest=asked.digest,
            required=asked.required,
            approvers=asked.approvers,
            expires_at=asked.expires_at,
        )

    def _doubt(self, call_id: str, why: str) -> None:
        known = self._calls.find(call_id)
        ask = self._about(call_id, known.name if known is not None else "")
        self._asked[call_id] = replace(
            ask, kind="unknown_effect", reason=why, decisions=UNKNOWN_DECISIONS, attempt=self._starts[call_id]
        )

    def _about(self, call_id: str, tool: str) -> ChatAsk:
        call = self._calls.find(call_id, tool)
        shown = self._seen(call.arguments if call is not None else "{}")
        return ChatAsk("approval", call_id, tool, arguments=shown, summary=input_summary(tool, shown))

    def _end(self, ended: e.Terminal) -> Iterator[ChatEvent]:
        match ended:
            case e.RunSucceeded(output=output) if self._late:
                yield TextEvent(self.run_id, text=output, step=self._step, notice=True)
                yield self._ended(ended, "answered", TIME_LIMIT, text=output)
            case e.RunSucceeded(output=output):
                stop = COMPACTION if self._compacts else self._stop if self._answered else BY_TOOL
                yield self._ended(ended, "answered", stop, text=output)
            case e.RunFailed(code=code, message=message):
                yield ErrorEvent(self.run_id, code=code, message=message)
                stop = REFUSAL if code == "refused" else EMPTY if code == "empty_answer" else ERROR
                yield self._ended(ended, "failed", stop, text=self._cut, code=code, message=message)
            case e.RunDeadLettered(reason=reason, message=message):
                yield ErrorEvent(self.run_id, code=reason, message=message or reason)
                yield EndEvent(
                    self.run_id, status="failed", stop=ERROR, code=reason, message=message or reason, turn=self._turn
                )
            case e.RunCancelled(reason=reason):
                status = "interrupted" if reason == INTERRUPTED else "stopped"
                yield self._ended(ended, status, CANCELLED, text=self._cut, message=reason)

    def _ended(
        self,
        ended: e.RunSucceeded | e.RunFailed | e.RunCancelled,
        status: EndStatus,
        stop: str,
        *,
        text: str = "",
        code: str = "",
        message: str = "",
    ) -> EndEvent:
        return EndEvent(
            self.run_id,
            status=status,
            stop=stop,
            text=text,
            code=code,
            message=message,
            steps=ended.steps,
            tool_calls=ended.tool_calls,
            usage=ended.usage,
            cost_usd=ended.usage.cost_usd,
            turn=self._turn,
        )


def _input(
    run_id: str,
    message: Message,
    *,
    numbers: tuple[int, ...] = (),
    id: str = "",
    mode: str = "",
    by: str = "",
) -> InputEvent:
    files = tuple(part.name or part.media_type for part in message.parts if isinstance(part, Media))
    text = "\n".join(part.text for part in message.parts if isinstance(part, Text))
    return InputEvent(run_id, text=text, files=files, numbers=numbers, id=id, mode=mode, by=by)


def _compaction(run_id: str, compacted: e.SessionCompacted) -> CompactionEvent:
    return CompactionEvent(
        run_id,
        replaced=compacted.replaced,
        summary=compacted.summary.text,
        cause=compacted.cause,
        tokens_before=compacted.tokens_before,
        tokens_after=compacted.tokens_after,
    )


def _media(run_id: str, media: Media, call_id: str = "") -> ImageEvent | FileEvent:
    kind = ImageEvent if media.media_type.startswith("image/") else FileEvent
    return kind(
        run_id,
        media_type=media.media_type,
        data=media.data,
        url=media.url,
        blob=media.blob,
        name=media.name or "",
        call_id=call_id,
    )
