"""The past of a run, read from its journal: the calls that were run, and their results.

The protocol below is the part of a journal that tools may use. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from foliot.common.threads import unhurried
from foliot.errors import NotFound
from foliot.kernel.errors import UnknownEvent
from foliot.kernel.messages import Message, ToolCall, ToolResult
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import (
    ApprovalDecided,
    Event,
    ModelResponded,
    RunCreated,
    Terminal,
    ToolFinished,
    ToolStarted,
    ToolUnknown,
)

_messages = msgspec.json.Decoder(tuple[Message, ...])


class JournalRecord(Protocol):
    @property
    def at(self) -> float: ...
    @property
    def data(self) -> bytes: ...


class ListedRun(Protocol):
    """The facts about a run that need no journal."""

    @property
    def id(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def created_at(self) -> float: ...
    @property
    def updated_at(self) -> float: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def summary(self) -> dict[str, Any]: ...


class History(Protocol):
    """The reading half of a journal of runs."""

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[JournalRecord]: ...

    async def turns(self, run_id: str) -> Mapping[str, Sequence[JournalRecord]]:
        """The journals of the turns before this one in its conversation, by run; other branches may be among them."""
        ...

    async def get(self, run_id: str) -> ListedRun:
        """Raises `NotFound`."""
        ...

    async def list(
        self, *, namespace: str | None = None, agent: str | None = None, limit: int = 50
    ) -> Sequence[ListedRun]: ...

    async def get_blob(self, digest: str) -> bytes:
        """Raises `NotFound`."""
        ...


@dataclass(slots=True)
class Past:
    """`calls` in the order in which the model asked, by id, with the arguments that an approval put in their place."""

    created: RunCreated | None = None
    ended: Terminal | None = None
    ended_at: float = 0.0
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    started: set[str] = field(default_factory=set[str])
    unknown: set[str] = field(default_factory=set[str])

    def may_have_acted(self, call_id: str) -> bool:
        """Whether a call succeeded, or was started and nobody knows what came of it."""
        if call_id in self.unknown:
            return True
        result = self.results.get(call_id)
        return call_id in self.started if result is None else result.error is None

    def succeeded(self, tool: str) -> list[ToolCall]:
        """The calls of one tool that did what they should, in their order."""
        return [
            call
            for call in self.calls.values()
            if call.name == tool and (result := self.results.get(call.id)) is not None and result.error is None
        ]


async def past_of(history: History, run_id: str) -> Past:
    """The run so far, and what came before it when it was forked. Raises `NotFound` for a run that is not there."""
    records = await history.read(run_id)
    before = b""
    if records and isinstance(created := _event_of(records[0]), RunCreated) and created.history is not None:
        before = await history.get_blob(created.history)
    past = await unhurried(len(before) + sum(len(record.data) for record in records), _past, records, before)
    if past.created is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    return past


def _past(records: Sequence[JournalRecord], before: bytes) -> Past:
    """`before` are the messages that came before the run, as they are stored."""
    past = Past()
    if before:
        _remember(past, _messages.decode(before))
    for record in records:
        if (event := _event_of(record)) is not None:
            _take(past, event, record.at)
    return past


def _event_of(record: JournalRecord) -> Event | None:
    try:
        return decode(record.data)
    except UnknownEvent:
        return None  # written by a newer version; what it says is not about calls that this one knows


def _take(past: Past, event: Event, at: float) -> None:
    match event:
        case RunCreated():
            past.created = event
            _remember(past, event.input)
        case ModelResponded():
            _remember(past, (event.response.message,))
        case ToolStarted():
            past.started.add(event.call_id)
        case ToolUnknown():
            past.unknown.add(event.call_id)
        case ToolFinished():
            past.results[event.result.call_id] = event.result
        case ApprovalDecided(decision="edit", arguments=str(arguments)) if event.call_id in past.calls:
            past.calls[event.call_id] = replace(past.calls[event.call_id], arguments=arguments)
        case _ if isinstance(event, Terminal):
            past.ended, past.ended_at = event, at
        case _:
            pass


def _remember(past: Past, messages: Sequence[Message]) -> None:
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                past.calls[part.id] = part
            elif isinstance(part, ToolResult):
                past.results[part.call_id] = part
