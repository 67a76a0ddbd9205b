"""What a task must come to, worked out without workers, database or faults."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

from foliot.kernel.graph import advance, new_state
from foliot.kernel.task_events import Envelope, MessageEnded, TaskAccepted, TaskSucceeded
from foliot.testing.workshop.cast import Troupe
from foliot.work.base import Command
from foliot.work.inbox import first_words, opening
from foliot.work.pinning import Pinner


async def reference(command: Command) -> str:
    """The output of the task when nothing goes wrong."""
    pinned, _ = await Pinner(Troupe()).pin(command)
    plan = pinned.plan_for(f"{command.namespace}/{command.name}")
    state = new_state()
    moves = advance(plan, state, TaskAccepted(first_words(command), command.input), 0.0)
    waiting: deque[Envelope] = deque(moves.activate)
    while waiting:
        envelope = waiting.popleft()
        moves = advance(plan, state, MessageEnded(envelope.id, "succeeded", output=_says(command, envelope)), 0.0)
        waiting.extend(moves.activate)
    assert isinstance(moves.ended, TaskSucceeded), f"{command.target} does not succeed even in peace"
    return moves.ended.output


def _says(command: Command, envelope: Envelope) -> str:
    told = opening(command, envelope)[0].text
    return f"{envelope.to}:{blake2b(f'{envelope.to}|{told}'.encode(), digest_size=4).hexdigest()}"
