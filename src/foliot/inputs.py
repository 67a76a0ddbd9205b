"""What a run is told: a text, a message, or a whole conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from foliot.engine.runs import user_message
from foliot.errors import UsageError
from foliot.kernel.messages import Message

Input: TypeAlias = str | Message | Sequence[Message]


def messages_of(input: Input) -> tuple[Message, ...]:
    """The input as messages. Raises `UsageError` for what is none, before it gets into a journal."""
    if isinstance(input, str):
        return (user_message(input),)
    if isinstance(input, Message):
        return (input,)
    given = cast("object", input)  # annotations hold nobody back
    if not isinstance(given, Sequence) or not all(
        isinstance(each, Message) for each in cast("Sequence[object]", given)
    ):
        raise UsageError(
            f"{given!r:.80} is nothing that an agent can be told",
            hint='give a text, or messages: Message("user", (Text("What is this?"), Media("image/png", data=…)))',
        )
    return tuple(input)
