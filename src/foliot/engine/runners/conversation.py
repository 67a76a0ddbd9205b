"""The conversation with a program, as the transcript of its run has it.

Each answer carries a mark: the session that the program named, and a name for the turn. So whoever asks the next
question, in whatever process, knows how to go on; a fork goes on from its own copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from foliot.kernel.messages import Message, Reasoning, ToolResult
from foliot.models.wire.opaque import unmark

# Whose marks these are, among those of other models in a transcript.
WIRE: Final = "runner"
_EXPIRED: Final = "question_expired"


class TurnMark(Struct, frozen=True):
    """A turn as the journal keeps it beside the answer: the session of the program, and a name for the turn."""

    session: str = ""
    turn: str = ""


class CallOutcome(NamedTuple):
    """The result of a call of the last turn. `id` is the program's own name for it; `asked`: it was a question."""

    id: str
    asked: bool
    result: ToolResult


class Conversation(NamedTuple):
    """The state of a conversation: the last turn of the program, messages since then, and results of its calls."""

    last: TurnMark
    before: Message | None
    new: tuple[Message, ...]
    results: tuple[CallOutcome, ...]

    @property
    def has_expired(self) -> bool:
        """Whether nobody answered the question of the last turn: then the session is over, and that is no failure."""
        return any(
            each.asked and each.result.error is not None and each.result.error.reason == _EXPIRED
            for each in self.results
        )


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """Reads where a conversation stands from what the turns of its program left in it."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.role != "assistant" or (last := _mark_of(message)) is None:
            continue
        new = tuple(messages[place + 1 :])
        calls = {call.id: (unmark(WIRE, call.opaque) or "").partition(":") for call in message.calls}
        results = tuple(
            CallOutcome(calls[part.call_id][2], calls[part.call_id][0] == "question", part)
            for each in new
            for part in each.parts
            if isinstance(part, ToolResult) and part.call_id in calls
        )
        return Conversation(last, message, new, results)
    return Conversation(TurnMark(), None, tuple(messages), ())


def _mark_of(message: Message) -> TurnMark | None:
    for part in message.parts:
        if isinstance(part, Reasoning) and (kept := unmark(WIRE, part.opaque)) is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(kept, type=TurnMark)
    return None
