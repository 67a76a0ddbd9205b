"""The cut of a conversation whose beginning becomes a summary.

    due(state)           why it is to be compacted now, if it is
    cut(state, cause)    how many messages of the transcript the summary replaces; 0 when there is nothing to gain

A cut stands at the beginning of a turn: before something that a person said. Only a turn that is longer than all
that may be kept is cut inside, before an answer of the model: calls and their results are never parted. The last
`keep_tail` messages stay as they were said, and when there are no more than those, everything stays. A provider that
says that the transcript is too long leaves no choice: then the tail is halved until half of the transcript is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foliot.kernel.messages import Message
from foliot.kernel.run.events import CompactionCause
from foliot.kernel.run.state import State
from foliot.kernel.tokens import estimate_messages, image_rule

# One message is not worth a summary.
LEAST_MESSAGES: Final = 2
# A compaction by size must replace such a part of the threshold: a tail that is too long by itself would otherwise
# have the conversation summarised again at every step, each time for a few messages.
LEAST_GAIN: Final = 0.25


def raw_among(state: State, count: int) -> int:
    """How many of the first `count` messages of the transcript were said, and are not an earlier summary."""
    return count - 1 if state.summarised and count else count


def due(state: State) -> CompactionCause | None:
    """Why the transcript is to be compacted before the next question; None when it is not."""
    if state.overflow:
        return "overflow"
    if state.compacted:
        return None
    if state.compact_asked:
        return "asked"
    most = state.spec.compaction_rules.max_tokens
    if not state.spec.compaction or most <= 0 or state.tokens <= most:
        return None
    replaced = cut(state, "size")
    if not replaced:
        return None
    gained = estimate_messages(state.transcript[:replaced], image_rule(state.spec.model)) * state.ratio
    return "size" if gained >= most * LEAST_GAIN else None


def cut(state: State, cause: CompactionCause) -> int:
    """How many messages at the head of the transcript are to be replaced; 0: none can be."""
    messages, tail = state.transcript, max(0, state.spec.compaction_rules.keep_tail)
    found = replaceable(messages, tail, summarised=state.summarised > 0)
    if cause != "overflow":
        return found
    images = image_rule(state.spec.model)
    goal = estimate_messages(messages, images) // 2
    while tail > 1 and (not found or estimate_messages(messages[found:], images) > goal):
        tail //= 2
        found = replaceable(messages, tail, summarised=state.summarised > 0) or found
    return found


def replaceable(messages: Sequence[Message], tail: int, *, summarised: bool) -> int:
    """How many messages a summary can replace when the last `tail` stay; `summarised`: the first is one already."""
    least = LEAST_MESSAGES + (1 if summarised else 0)
    within = 0
    for index in range(len(messages) - tail, least - 1, -1):
        if index == len(messages):
            if messages[-1].role == "assistant":
                return index
        elif messages[index].role == "user" and messages[index - 1].role != "user":
            return index
        elif messages[index].role == "assistant" and not within:
            within = index
    return within
