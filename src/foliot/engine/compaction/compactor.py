"""Turns the beginning of a conversation into a summary, and says in one fact what came of it.

    fact = await compact(action, state, ask=..., before=..., spent=...)

A model is asked for the summary: that of the agent's `compaction.model`, and the run's own where there is none or it
fails. What it is to read comes in pieces that fit, each together with the summary of the pieces before it; a piece that
is too long for it all the same is halved. An answer that is too long is asked for again, shorter, and then cut. When no
model gives one, a summary is made without any: what people asked for, what was answered, which tools and files were
used. So there always is one, and it is never empty. It replaces messages only if it is shorter than they are.

Nothing is stored here, so a process that dies meanwhile leaves the conversation as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from foliot.engine.compaction.summary import (
    AGGRESSIVE,
    NORMAL,
    SYSTEM,
    Line,
    Policy,
    body_of,
    extract,
    lines_of,
    question,
    request_in,
    shortened,
    summary_message,
)
from foliot.engine.definition.freeze import ENDPOINT
from foliot.engine.driver.journal import Conversation
from foliot.kernel.messages import Message, ModelRequest, ModelSettings, Usage
from foliot.kernel.run.actions import Compact
from foliot.kernel.run.budget import Spent
from foliot.kernel.run.compaction import raw_among
from foliot.kernel.run.events import (
    BudgetExceeded,
    ModelDelayed,
    ModelFailed,
    ModelResponded,
    SessionCompacted,
    SessionNotCompacted,
)
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.kernel.tokens import estimate_message, estimate_messages, estimate_text, image_rule
from foliot.tools.builtin.recall import NAME as RECALL

Asked: TypeAlias = ModelResponded | ModelFailed | ModelDelayed | BudgetExceeded
Ask: TypeAlias = Callable[[RunSpec, ModelRequest], Awaitable[Asked]]
"""Asks the model of a spec once, governed and paid for as every question of the run."""

# A summary has a third of the tokens that it stands for, within these bounds.
SHARE: Final = 3
SHORTEST: Final = 100
LONGEST: Final = 2_000
# What a summariser is given to read at once, in tokens: any model that is worth asking reads as much.
PIECE: Final = 24_000
# A piece that is too long for a model is halved down to so many.
LEAST_PIECE: Final = 500
# An answer may be so much longer than it was asked for.
TOLERANCE: Final = 1.5
_NOTHING: Final = Usage()
_TOO_LONG: Final = frozenset({"context_overflow", "request_too_large"})


@dataclass(slots=True)
class _Summariser:
    """Asks models for one summary. `specs` are whom to ask, the best first; those that fail are not asked again."""

    ask: Ask
    specs: list[RunSpec]
    target: int
    spent: Spent
    fallback: bool = False
    model: str = ""

    async def summarise(self, earlier: str, lines: Sequence[Line]) -> str:
        """The summary of an earlier one and of what was said since."""
        summary = earlier
        for piece in _pieces(lines, PIECE):
            summary = await self._with(summary, piece)
        return summary

    async def _with(self, earlier: str, lines: Sequence[Line]) -> str:
        while self.specs:
            found = await self._asked(earlier, lines, NORMAL)
            if found is None and len(lines) > 1 and _tokens(lines) > LEAST_PIECE:
                half = len(lines) // 2
                return await self._with(await self._with(earlier, lines[:half]), lines[half:])
            if found and estimate_text(found) > self.target * TOLERANCE:
                found = await self._asked(earlier, lines, AGGRESSIVE) or found
            if found:
                return shortened(found, int(self.target * TOLERANCE))
            self.specs.pop(0)
        self.fallback = True
        return extract(earlier, lines, self.target)

    async def _asked(self, earlier: str, lines: Sequence[Line], policy: Policy) -> str | None:
        """The answer of the first model; blank when it gave none that can be used, None when that was too long."""
        spec = self.specs[0]
        settings = ModelSettings(extra=spec.settings.extra, temperature=spec.settings.temperature)
        said = Message("user", (question(earlier, lines, self.target, policy),))
        fact = await self.ask(spec, ModelRequest(spec.model, (said,), SYSTEM, settings=settings, agent=spec.agent))
        if isinstance(fact, ModelResponded):
            self.spent.add(fact.wasted)
            self.spent.add(fact.response.usage)
            self.model = fact.response.model or spec.model
            refused = fact.response.stop == "refusal" or bool(fact.response.message.calls)
            return "" if refused else fact.response.message.text.strip()
        if isinstance(fact, BudgetExceeded):
            self.specs = [spec]  # there is no room for another question, whomever it would be asked of
            return ""
        self.spent.add(fact.usage)
        return None if isinstance(fact, ModelFailed) and fact.kind in _TOO_LONG else ""


def _pieces(lines: Sequence[Line], most: int) -> list[list[Line]]:
    """The lines in pieces of about so many tokens, one line at least in each."""
    pieces: list[list[Line]] = []
    size = most
    for line in lines:
        tokens = estimate_text(line.text)
        if size + tokens > most:
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += tokens
    return pieces


def _tokens(lines: Sequence[Line]) -> int:
    return sum(estimate_text(line.text) for line in lines)


def _whom_to_ask(spec: RunSpec) -> list[RunSpec]:
    """The specs by which a summary is asked for: that of the model for it, then the run's own."""
    rules = spec.compaction_rules
    own = replace(spec, output_schema=None, tools=())
    if not rules.model:
        return [own]
    extra = {**spec.extra, ENDPOINT: rules.model}
    settings = ModelSettings()
    return [replace(own, model=rules.name or spec.model, fallbacks=(), settings=settings, extra=extra), own]


async def compact(
    action: Compact, state: State, *, ask: Ask, before: Conversation, spent: Spent
) -> SessionCompacted | SessionNotCompacted | ModelFailed:
    """Summarise what the action says, and return the fact to be recorded.

    `before` is the conversation up to this run; what models use is added to `spent`. Raises only what `ask` raises.
    """
    if not action.replace:
        return not_compacted(action, "there are no more messages than are always kept")
    images = image_rule(state.spec.model)
    gone = action.messages[: action.replace]
    first, last = state.summarised + 1, state.summarised + raw_among(state, action.replace)
    earlier = body_of(gone[0]) if state.summarised else ""
    said = gone[1:] if state.summarised else gone
    size = estimate_messages(gone, images)
    target = min(LONGEST, max(SHORTEST, size // SHARE))
    summariser = _Summariser(ask, _whom_to_ask(state.spec), target, spent)
    text = await summariser.summarise(earlier, lines_of(said, first))
    within = action.replace < len(action.messages) and action.messages[action.replace].role == "assistant"
    request = request_in(said, gone[0] if state.summarised else None) if within else ""
    made, usage = "fallback" if summariser.fallback else "model", spent.usage()
    summary = summary_message(text, last, request, recall=RECALL in state.rules)
    if estimate_message(summary) >= size:  # what is short has a summary without a model that is shorter still
        made, shortest = "fallback", extract(earlier, lines_of(said, first), size // (2 * SHARE))
        summary = summary_message(shortest, last, request, recall=RECALL in state.rules)
    if estimate_message(summary) >= size:
        return not_compacted(action, f"a summary of {action.replace} messages would be no shorter than they are", usage)
    whole = state.tokens or estimate_messages(action.messages, images)
    return SessionCompacted(
        replaced=action.replace,
        summary=summary,
        usage=usage,
        first=first,
        last=last,
        first_run=_turn_of(before, first, state),
        last_run=_turn_of(before, last, state),
        kept_from=_turn_of(before, last + 1, state),
        made=made,
        cause=action.cause,
        model=summariser.model if made == "model" else "",
        tokens_before=whole,
        tokens_after=max(0, whole - round((size - estimate_message(summary)) * state.ratio)),
    )


def _turn_of(before: Conversation, number: int, state: State) -> str:
    """The turn that the message of this number belongs to."""
    return (before.turn_of(number) if number <= before.count else "") or state.run_id


def not_compacted(action: Compact, reason: str, usage: Usage = _NOTHING) -> SessionNotCompacted | ModelFailed:
    """The fact that the conversation stays as it is."""
    if action.cause == "overflow":
        message = f"the transcript is too long for the model: {reason}"
        return ModelFailed(action.step, "context_overflow", message, usage=usage)
    return SessionNotCompacted(reason, action.cause, usage)
