"""Pieces of a run for clients: its journal and its live text, as a few kinds of pieces.

Every protocol in front of runs says the same things in its own words: text, calls of tools, an end, or a wait for a
person. Text comes twice, in pieces while the model writes and whole when it is recorded; here it comes once. Pure: the
same items give the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.kernel.messages import RestartDelta, StopReason, TextDelta, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.calls import JournalCalls


class Wrote(Struct, frozen=True):
    """Text of a step. `anew`: what was written of this step before is void, and this is all of it."""

    step: int
    text: str
    anew: bool = False


class Called(Struct, frozen=True):
    """The agent calls a tool. It is called here: nobody else has to do anything, unless it is one of the `client`'s."""

    call_id: str
    name: str
    arguments: str
    client: bool = False


class Returned(Struct, frozen=True):
    """A call has its result. `error` is empty when it went well."""

    call_id: str
    name: str
    output: str
    error: str = ""
    arguments: str = "{}"


class Printed(Struct, frozen=True):
    """A piece of what a tool prints while it works."""

    call_id: str
    text: str


class Worked(Struct, frozen=True):
    """An agent of a system began or ended its part."""

    agent: str
    run_id: str
    phase: Literal["running", "succeeded", "failed", "cancelled"]


class Asked(Struct, frozen=True):
    """A question to a person that a run waits for. `id` is that of the approval, or of the call that asks.

    `digest` is that of the `arguments` of an approval. A "call" is one that the client makes, to send its result.
    """

    kind: Literal["approval", "question", "decision", "call"]
    id: str
    run_id: str
    call_id: str
    tool: str
    text: str
    arguments: str = "{}"
    choices: tuple[str, ...] = ()
    digest: str = ""


class Rested(Struct, frozen=True):
    """The run has not ended, and goes on when somebody has said something, or when there is money again."""

    asked: tuple[Asked, ...]
    message: str
    usage: Usage


class Ended(Struct, frozen=True):
    """`stop` is why the model wrote no further; `code` and `reason` are for programs, `error` for people."""

    phase: Literal["succeeded", "failed", "cancelled"]
    output: str
    value: Any
    usage: Usage
    stop: StopReason = "end"
    error: str = ""
    reason: str = ""
    code: str = ""


Piece: TypeAlias = Wrote | Called | Returned | Printed | Worked | Rested | Ended


class Teller:
    """Turns what happens to one run into pieces, in order. `structured`: the answer is JSON and is told only whole.

    The first `after` events were told in an earlier answer: what they used is not counted in this one, because clients
    add their answers up.
    """

    def __init__(self, run_id: str, *, structured: bool = False, after: int = 0) -> None:
        self.run_id = run_id
        self.ended: Ended | None = None
        self.asked: dict[str, Asked] = {}
        self.waiting: e.RunWaiting | None = None
        self.usage = Usage()
        self.seq = 0
        self._after = after
        self._counted = Usage()
        self._structured = structured
        self._step = 0
        self._recorded = 0
        self._written: list[str] = []  # joined when the answer is whole: a long stream is many pieces
        self._restarted = False
        self._stop: StopReason = "end"
        self._calls = JournalCalls()
        self._known = set[str]()
        self._clients: set[str] = set()

    def tell(self, item: Live) -> list[Piece]:
        """The pieces of one item. Records that were told before are passed over."""
        match item:
            case Recorded(seq=seq, event=event):
                if seq <= self.seq:
                    return []
                self.seq = seq
                pieces = list(self._record(event))
                if seq <= self._after:
                    self._counted = self.usage
                return pieces
            case Streamed(step=step, delta=TextDelta(text)):
                return self._stream(step, text)
            case Streamed(step=step, delta=RestartDelta()):
                self._restarted = step == self._step and bool(self._written)
                return []
            case Output(call_id=call_id, text=text):
                return [Printed(call_id, text)]
            case _:
                return []

    def rest(self) -> Rested:
        """Returns the state of a run in which nothing more happens."""
        message = self.waiting.message if self.waiting is not None else ""
        return Rested(tuple(self.asked.values()), message, self._own_usage())

    def _own_usage(self) -> Usage:
        """Returns the usage since the events that an earlier answer covered."""
        return _sum(self.usage, self._counted, -1) if self._after else self.usage

    # --- text ----------------------------------------------------------------------------------------------------

    def _stream(self, step: int, text: str) -> list[Piece]:
        if self._structured or not text or step <= self._recorded:
            return []
        if step != self._step:
            self._begin(step)
        if self._restarted:  # what was shown cannot be taken back in pieces: the whole answer will tell
            return []
        self._written.append(text)
        return [Wrote(step, text)]

    def _begin(self, step: int) -> None:
        self._step, self._written, self._restarted = step, [], False

    def _whole(self, step: int, text: str) -> list[Piece]:
        """The rest of a step's text, when all of it is known."""
        if step != self._step:
            self._begin(step)
        written, self._written, self._restarted = "".join(self._written), [text] if text else [], False
        if text == written:
            return []
        if text.startswith(written):
            return [Wrote(step, text[len(written) :])]
        return [Wrote(step, text, anew=True)]

    # --- records -------------------------------------------------------------------------------------------------

    def _record(self, event: e.Event) -> Iterable[Piece]:
        self._calls.take(event)
        match event:
            case (
                e.ModelFailed(usage=usage)
                | e.ModelDelayed(usage=usage)
                | e.SessionCompacted(usage=usage)
                | e.SessionNotCompacted(usage=usage)
            ):
                self.usage = _sum(self.usage, usage)
                return []
            case e.ModelResponded(step, response):
                self._stop, self._recorded = response.stop, step
                self.usage = _sum(_sum(self.usage, response.usage), event.wasted)
                return [] if self._structured else self._whole(step, response.message.text)
            case e.ToolStarted(call_id, name):
                return self._call(call_id, name)
            case e.ToolFinished(result):
                self.asked.pop(result.call_id, None)
                if result.call_id in self._clients:  # the client knows: the result is what it sent
                    return []
                error = result.error.message if result.error else ""
                returned = Returned(result.call_id, result.name, result.text, error, self._arguments(result.call_id))
                return [*self._call(result.call_id, result.name), returned]
            case e.ApprovalRequested(call_id, approval_id, tool, digest, reason):
                pieces = self._call(call_id, tool)
                self._ask("approval", approval_id, call_id, tool, reason or f"may {tool} be called?", digest=digest)
                return pieces
            case e.QuestionAsked(call_id, tool, question, choices, client=client):
                if client:
                    self._clients.add(call_id)
                pieces = self._call(call_id, tool)
                self._ask("call" if client else "question", call_id, call_id, tool, question, choices)
                return pieces
            case e.ApprovalDecided(call_id) | e.QuestionAnswered(call_id) | e.UnknownDecided(call_id):
                self.asked.pop(call_id, None)
            case e.RunWaiting(reason, _, calls):
                self.waiting = event
                if reason == "unknown_effect":
                    for call_id in calls:
                        name = call.name if (call := self._calls.find(call_id)) is not None else ""
                        self._ask("decision", call_id, call_id, name, event.message or "did this call happen?")
            case e.RunResumed() | e.RunClaimed():
                self.waiting = None
            case e.RunSucceeded() | e.RunFailed() | e.RunCancelled() | e.RunDeadLettered():
                return self._end(event)
            case _:
                pass
        return []

    def _call(self, call_id: str, name: str) -> list[Piece]:
        """Told once for each call, when something is first heard of it."""
        if call_id in self._known:
            return []
        self._known.add(call_id)
        return [Called(call_id, name, self._arguments(call_id), call_id in self._clients)]

    def _arguments(self, call_id: str) -> str:
        call = self._calls.find(call_id)
        return call.arguments if call is not None else "{}"

    def _ask(
        self,
        kind: Literal["approval", "question", "decision", "call"],
        id: str,
        call_id: str,
        tool: str,
        text: str,
        choices: tuple[str, ...] = (),
        digest: str = "",
    ) -> None:
        arguments = self._arguments(call_id)
        self.asked[call_id] = Asked(kind, id, self.run_id, call_id, tool, text, arguments, choices, digest)

    def _end(self, event: e.Terminal) -> list[Piece]:
        self.asked.clear()
        self.waiting = None
        pieces: list[Piece] = []
        match event:
            case e.RunSucceeded(output, value, usage=usage):
                self.usage = usage
                if output and output != "".join(self._written):  # a tool gave the answer, or it is told only now
                    pieces.append(Wrote(self._step + 1, output))
                self.ended = Ended("succeeded", output, value, self._own_usage(), self._stop)
            case e.RunFailed(code, reason, message, usage=usage):
                self.usage = usage
                self.ended = Ended("failed", "", None, self._own_usage(), self._stop, message, reason or code, code)
            case e.RunCancelled(by, reason, usage=usage):
                self.usage = usage
                said = reason or (f"cancelled by {by}" if by else "cancelled")
                self.ended = Ended("cancelled", "", None, self._own_usage(), self._stop, said, "cancelled")
            case e.RunDeadLettered(reason, message):
                self.ended = Ended("failed", "", None, self._own_usage(), self._stop, message or reason, reason)
        pieces.append(self.ended)
        return pieces


def _sum(one: Usage, other: Usage, sign: int = 1) -> Usage:
    """Add what both used; with `sign` -1 take the other from the one."""
    return Usage(
        max(0, one.input_tokens + sign * other.input_tokens),
        max(0, one.output_tokens + sign * other.output_tokens),
        max(0, one.cache_read_tokens + sign * other.cache_read_tokens),
        max(0, one.cache_write_tokens + sign * other.cache_write_tokens),
        max(0, one.reasoning_tokens + sign * other.reasoning_tokens),
    )


def usage_of(each: Iterable[Usage]) -> Usage:
    """Adds up the usage of many runs."""
    total = Usage()
    for usage in each:
        total = _sum(total, usage)
    return total
