"""The history of a simulated world, in one total order: what became durable, what acted, what went wrong.

The checkers judge nothing but this, so they cannot be fooled by what the engine believes of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeAlias

import msgspec

from foliot.kernel.messages import ModelRequest
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import (
    Event,
    ModelFailed,
    ModelResponded,
    RunFailed,
    RunWaiting,
    StepStarted,
    ToolFinished,
    ToolStarted,
    ToolUnknown,
    UnknownDecided,
)
from foliot.kernel.run.spec import RunSpec
from foliot.store.journal.base import Entry, Phase, RunInfo


@dataclass(frozen=True, slots=True)
class Stored:
    """Entries became durable, written under `epoch`; `phase` is what the run's row was set to, if it was."""

    at: float
    worker: str
    run_id: str
    epoch: int
    entries: tuple[Entry, ...]
    events: tuple[Event, ...]
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The run is held under a new epoch: from birth, or taken up."""

    at: float
    worker: str
    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A model was really asked."""

    at: float
    worker: str
    run_id: str
    request: ModelRequest


@dataclass(frozen=True, slots=True)
class Begun:
    """The engine let a call act. Nothing has taken effect yet."""

    at: float
    worker: str
    run_id: str
    call_id: str
    tool: str
    key: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Acted:
    """The call took effect in the world. `held`: in the hands of whoever had the lease of the run at that moment."""

    at: float
    worker: str
    run_id: str
    call_id: str
    tool: str
    key: str
    attempt: int
    held: bool = True


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel was stored by somebody, `worker`."""

    at: float
    worker: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Everything else, for people who read the history: faults, refusals, what was said from outside."""

    at: float
    worker: str
    run_id: str
    text: str


Item: TypeAlias = Stored | Claimed | Asked | Begun | Acted | Cancelled | Noted


@dataclass
class History:
    """`rows` are the runs as they were left; `problems` is what the simulator itself found broken."""

    specs: Mapping[str, RunSpec]
    items: list[Item] = field(default_factory=list[Item])
    rows: dict[str, RunInfo] = field(default_factory=dict[str, RunInfo])
    problems: list[str] = field(default_factory=list[str])

    def stored(self, run_id: str | None = None) -> Iterator[Stored]:
        for item in self.items:
            if isinstance(item, Stored) and run_id in (None, item.run_id):
                yield item

    def journal(self, run_id: str) -> list[Entry]:
        """All entries that became durable, in the order in which they did."""
        return [entry for item in self.stored(run_id) for entry in item.entries]

    def digest(self) -> str:
        """Two simulations with the same digest had the same journals, byte for byte, and the same history."""
        whole = sha256()
        for item in self.items:
            whole.update(_line(item).encode("utf-8", "backslashreplace"))
            if isinstance(item, Stored):
                for entry in item.entries:
                    whole.update(entry.data)
            elif isinstance(item, Asked):
                whole.update(msgspec.json.encode(repr(item.request)))
        return whole.hexdigest()

    def lines(self) -> list[str]:
        return [_line(item) for item in self.items]


def _line(item: Item) -> str:
    return f"{item.at:9.3f}  {item.worker:<6} {item.run_id:<3} {_what(item)}"


def _what(item: Item) -> str:
    match item:
        case Stored():
            what = ", ".join(
                f"{entry.seq}:{brief(event)}" for entry, event in zip(item.entries, item.events, strict=True)
            )
            phase = f" -> {item.phase}" if item.phase else ""
            return f"stored   {what or '-'}{phase}"
        case Claimed():
            return f"claimed  epoch {item.epoch}"
        case Asked():
            return f"asked    {len(item.request.messages)} messages"
        case Begun():
            return f"begun    {item.tool} {item.call_id} attempt {item.attempt}"
        case Acted():
            late = "" if item.held else " without a lease"
            return f"ACTED    {item.tool} {item.call_id} attempt {item.attempt} key {item.key}{late}"
        case Cancelled():
            return "CANCELLED"
        case Noted():
            return item.text


def brief(event: Event) -> str:
    """An event in a few words."""
    kind = type_of(event)
    match event:
        case StepStarted():
            return f"{kind}({event.step})"
        case ModelResponded():
            calls = " ".join(f"{call.name}:{call.id}" for call in event.response.message.calls)
            return f"{kind}({event.step}{': ' + calls if calls else ''})"
        case ModelFailed():
            return f"{kind}({event.kind})"
        case ToolStarted():
            return f"{kind}({event.call_id} attempt {event.attempt})"
        case ToolFinished():
            failed = f" {event.result.error.code}" if event.result.error else ""
            return f"{kind}({event.result.call_id}{failed}{' ' + event.synthetic if event.synthetic else ''})"
        case ToolUnknown():
            return f"{kind}({event.call_id} {event.reason})"
        case UnknownDecided():
            return f"{kind}({event.call_id} {event.decision})"
        case RunWaiting():
            return f"{kind}({event.reason})"
        case RunFailed():
            return f"{kind}({event.code})"
        case _:
            return kind if len(encode(event)) > 80 else encode(event).decode()
