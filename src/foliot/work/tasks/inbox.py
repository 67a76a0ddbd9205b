"""The input of an agent when a message reaches it."""

from __future__ import annotations

from foliot.kernel.graph.events import Envelope, Source
from foliot.kernel.messages import Message, Text
from foliot.work.tasks.base import Command

TOPIC = "topic"


def first_words(command: Command) -> str:
    """Returns the input of the first agents of a task: the message, or the topic, or all of the input."""
    return command.message or command.input.get(TOPIC, "") or _listed(command.input)


def opening(command: Command, envelope: Envelope) -> tuple[Message, ...]:
    """The first message of the run that an envelope activates.

    What came through a join stands under the name of who said it. The rest of the task's input follows, for every
    agent of the task, unless it is what the agent is told anyway.
    """
    told = _collected(envelope.sources) if envelope.sources else envelope.payload
    if envelope.failed and not envelope.sources:
        told = f"{envelope.sender} failed: {told}"
    given = {name: text for name, text in command.input.items() if name != TOPIC and text}
    parts = [told] if told else []
    if given and told != _listed(command.input):
        parts.append(_listed(given))
    return (Message("user", (Text("\n\n".join(parts)),)),)


def _collected(sources: tuple[Source, ...]) -> str:
    return "\n\n".join(
        f"{source.agent} failed: {source.payload}" if source.failed else f"{source.agent}: {source.payload}"
        for source in sources
    )


def _listed(input: dict[str, str]) -> str:
    return "\n".join(f"{name}: {text}" for name, text in input.items() if text)
