"""The actions that `decide` asks of the shell. Imperative, frozen, and complete: an action needs nothing else.

The contract with a shell, in five lines:

1. `action = decide(state)`. Append `action.events` to what is to be recorded, and `apply` each.
2. `Note`: go to 1. Anything else acts on the world, so first make all that is recorded durable.
3. Perform the action; turn what came back into events; `apply` them; go to 1. They may share the next append.
4. Whatever else happens meanwhile (an input, a cancellation, a decision) is an event too: `apply` it, go to 1. What is
   under way goes on; `decide` then says `Await`, or something to be done beside it.
5. `End`: append in the transaction that finishes the run, stop what is under way, and drop its results.

Facts that come from outside may be too late or wrong: ask `loop.refusal(state, event)` before recording one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from foliot.kernel.messages import Message, ModelRequest
from foliot.kernel.run.events import ApprovalDecided, CompactionCause, Event, RunWaiting, Terminal, ToolStarted
from foliot.kernel.run.spec import ToolRule


class Note(Struct, frozen=True, gc=False):
    """Record `events`, and decide again: there is nothing to do in the world."""

    events: tuple[Event, ...]


class AskModel(Struct, frozen=True, gc=False):
    """Ask, and report `ModelResponded` or `ModelFailed` for this step. Give up at `deadline` (seconds since 1970)."""

    step: int
    request: ModelRequest
    events: tuple[Event, ...] = ()
    deadline: float | None = None


class CallIntent(Struct, frozen=True, gc=False):
    """One call to be started. `arguments` is JSON text of an object: the model's, or as a person edited it.

    `key` is the idempotency key. `attempt` counts the starts of this call. `grant` is the approval it was given.
    """

    call_id: str
    name: str
    arguments: str
    key: str
    rule: ToolRule
    attempt: int = 1
    grant: ApprovalDecided | None = None

    def started(self) -> ToolStarted:
        """The fact to make durable before the tool acts."""
        return ToolStarted(self.call_id, self.name, self.key, self.attempt)


class CallTools(Struct, frozen=True, gc=False):
    """Start these now, side by side; others may be under way already.

    For each, exactly one of: `ToolStarted` (then act, then `ToolFinished`), `ToolFinished` at once (refused: arguments
    against the schema, not permitted …), `ApprovalRequested`. Arguments against the schema are reported with the
    failure kind "invalid_arguments", a missing permission with "denied": the kernel counts and decides by these.
    A refusal can end the run: record refusals first, and when `state.ending` is set then, start none of the others.
    """

    calls: tuple[CallIntent, ...]
    events: tuple[Event, ...] = ()
    deadline: float | None = None


class CheckOutput(Struct, frozen=True):
    """Hold `output` against `schema`; report `OutputAccepted` or `OutputRejected` with the reason "schema"."""

    output: str
    schema: dict[str, Any]
    events: tuple[Event, ...] = ()


class Compact(Struct, frozen=True):
    """Summarise the first `replace` messages of the transcript, and report `SessionCompacted`; 0: nothing can be.

    When that cannot be done, report `SessionNotCompacted`; but where the provider said that the transcript is too long
    ("overflow") `ModelFailed` of kind "context_overflow" again, which ends the run. Until then the action is the same.
    """

    step: int
    messages: tuple[Message, ...]
    events: tuple[Event, ...] = ()
    replace: int = 0
    cause: CompactionCause = "overflow"
    deadline: float | None = None


class Await(Struct, frozen=True, gc=False):
    """Wait for the next fact from what is in progress (the model, these calls): there is nothing new to start.

    `stop`: the run is ending; ask these calls to stop, and report a result for each within a bounded time.
    """

    model: bool = False
    calls: tuple[str, ...] = ()
    stop: bool = False
    events: tuple[Event, ...] = ()
    deadline: float | None = None


class Wait(Struct, frozen=True):
    """Release the lease: nothing can continue.

    `waiting` says who must act; when `until` passes, report `RunResumed`.
    """

    waiting: RunWaiting
    events: tuple[Event, ...] = ()


class End(Struct, frozen=True):
    """The last of `events` is `terminal`."""

    terminal: Terminal
    events: tuple[Event, ...]


class Stop(Struct, frozen=True):
    """The run has ended; nothing is left to do."""

    terminal: Terminal
    events: tuple[Event, ...] = ()


Action: TypeAlias = Note | AskModel | CallTools | CheckOutput | Compact | Await | Wait | End | Stop
