"""The use of the provider's prompt cache by a run, and what moved the prefix where it could not be read.

Each question begins with the one before it, so a provider that caches prompts can read all of that from its cache.
Where it read less, this names the cause as the journal has it: another model, other tools, a conversation that was
compacted, a pause that was longer than caches are kept. Nothing is guessed: what the journal does not explain is told
as such.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from msgspec import Struct

from foliot.common.durations import duration
from foliot.common.text import counted
from foliot.engine.explain.amounts import tokens
from foliot.engine.explain.trace import StepTrace, Trace
from foliot.tools.search import NAME as TOOL_SEARCH

# Shorter prompts are cached by nobody (OpenAI and most Claude models: 1,024 tokens; some 2,048 and 4,096).
LEAST: Final = 1024
# Providers cache in blocks, and the end of a prompt is often not among them: a miss is more than this part of it.
TOLERATED: Final = 0.25
KEPT_SECONDS: Final = 300.0
KEPT_HOUR: Final = 3600.0


class Miss(Struct, frozen=True):
    """A step that sent `missed` tokens anew which the step before had sent already; `cause` says why."""

    step: int
    missed: int
    cause: str

    @property
    def text(self) -> str:
        return f"{self.cause}, so {tokens(self.missed)} were not read from the cache"


def misses(trace: Trace) -> list[Miss]:
    """The steps that read less from a cache than they could have, in order; none where the provider has no cache."""
    answered = [step for step in trace.steps if step.answered_at is not None and step.usage.source == "provider"]
    if not any(step.usage.cache_read_tokens or step.usage.cache_write_tokens for step in answered):
        return []
    hour = any(step.usage.cache_write_1h_tokens for step in trace.steps)
    found: list[Miss] = []
    for before, step in pairwise(answered):
        could = min(before.usage.input_tokens, step.usage.input_tokens)
        missed = could - step.usage.cache_read_tokens
        if could >= LEAST and missed > could * TOLERATED:
            found.append(Miss(step.number, missed, _cause(before, step, hour=hour)))
    return found


def cached(trace: Trace) -> list[str]:
    """How much of what was sent came from a cache, and what moved the prefix; for people."""
    usage = trace.usage
    if not usage.cache_read_tokens and not usage.cache_write_tokens:
        return []
    share = usage.cache_read_tokens * 100 // max(1, usage.input_tokens)
    lines = [
        f"{usage.cache_read_tokens:,} of the {usage.input_tokens:,} sent ({share} %) were read from the prompt cache"
    ]
    missed = misses(trace)
    lines += [miss.text for miss in missed[:_SHOWN]]
    if len(missed) > _SHOWN:
        lines.append(f"and {counted(len(missed) - _SHOWN, 'step')} more")
    return lines


_SHOWN: Final = 3


def _cause(before: StepTrace, step: StepTrace, *, hour: bool) -> str:
    """List the causes that stand in the journal between two answers, the surest first.

    `hour`: the run asked for caches that are kept so long (the option `cache: 1h`).
    """
    number = step.number
    if step.endpoint != before.endpoint:
        return f"step {number} was answered by endpoint {step.endpoint or '?'}, not {before.endpoint or '?'}"
    if step.model != before.model:
        return f"step {number} was answered by {step.model}, not {before.model}"
    marks = [*before.marks, *(mark for mark in step.marks if mark.at <= (step.answered_at or mark.at))]
    if any(mark.kind == "compacted" for mark in marks):
        return f"the conversation was compacted before step {number}"
    if any(call.name == TOOL_SEARCH and call.ok for call in before.calls):
        return f"step {number} changed the tools list ({TOOL_SEARCH} found more)"
    if any(mark.kind == "budget" for mark in marks) and not any(mark.kind == "waiting" for mark in marks):
        return f"step {number} was asked for without tools, as the last one that is allowed"
    asked = step.asks[-1].at if step.asks else step.at
    pause = asked - (before.answered_at or asked)
    if pause >= (KEPT_HOUR if hour else KEPT_SECONDS):
        kept = "an hour" if hour else "about five minutes"
        return f"{duration(pause)} passed before step {number}, and caches are kept for {kept}"
    if any(mark.kind == "rejected" for mark in marks):
        return f"an answer was sent back before step {number}"
    return f"step {number} sent the same beginning, which the provider did not keep"
