"""A journal as a tree: the run, its steps, the answer and the calls of each step, and what happened in between.

`tracing.trace_of` makes it from the facts of a run and nothing else, so there is one for a run that is under way, that
waits, or that some other machine drove. Everything that shows a run (`foliot trace`, `foliot why`) starts from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from foliot.kernel import events as e
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Source, ToolFailure, Usage

MarkKind: TypeAlias = Literal[
    "unknown",  # nobody knows whether a call took effect
    "interrupted",  # a worker died or let go in the middle of something
    "waiting",
    "resumed",
    "retried",
    "decided",
    "approval",
    "question",
    "cancel",
    "input",
    "rejected",  # a final answer was sent back
    "violation",
    "budget",
    "compacted",
    "memory",
    "note",  # something of the question was not sent as it was asked, or of the answer not kept
]


class Mark(Struct):
    """Something that happened beside answers and calls. `seconds` is how long it lasted, where that means something."""

    kind: MarkKind
    at: float
    text: str
    seconds: float | None = None
    by: str = ""
    call_id: str = ""


class Ask(Struct):
    """One question to the model. `lost`: whoever asked was gone before there was an answer."""

    at: float
    seconds: float | None = None
    error: str = ""
    message: str = ""
    status: int | None = None
    provider: str = ""
    lost: bool = False
    usage: Usage = Usage()


class CallTrace(Struct):
    """One tool call. `starts` are the times it was started; more than one means that nobody knew how it ended.

    `synthetic` is why the kernel answered in the tool's place, so that the tool itself did not (or not again) run.
    `approval` is the id of the approval that was asked for, `question` what a person was asked. `unknown`: nobody
    knows whether it took effect, and `lost` is what is known of it instead; by `until` what made it had ended.
    """

    id: str
    name: str
    arguments: str
    asked_at: float
    starts: list[float] = field(default_factory=list[float])
    finished_at: float | None = None
    seconds: float | None = None
    result: str = ""
    error: ToolFailure | None = None
    synthetic: str = ""
    parked: bool = False
    approval: str = ""
    question: e.QuestionAsked | None = None
    unknown: bool = False
    begun_by: str = ""
    lost: str = ""
    until: float | None = None

    @property
    def ok(self) -> bool:
        return self.finished_at is not None and self.error is None

    @property
    def running(self) -> bool:
        return self.finished_at is None and bool(self.starts) and not self.lost

    @property
    def may_have_acted(self) -> bool:
        """Whether it may have taken effect, and nobody has said whether it did."""
        return self.unknown or (self.error is not None and bool(self.error.unknown))


class StepTrace(Struct):
    """One step: how often the model was asked, what it answered, and what came of it, in the order it happened.

    `usage` is that of the answer; `wasted` is what attempts used that gave none. `sources` are what the answer names
    as its grounds.
    """

    number: int
    at: float
    asks: list[Ask] = field(default_factory=list[Ask])
    text: str = ""
    reasoning: str = ""
    usage: Usage = Usage()
    wasted: Usage = Usage()
    model: str = ""
    endpoint: str = ""
    stop: str = ""
    seconds: float | None = None
    answered_at: float | None = None
    items: list[CallTrace | Mark] = field(default_factory=list["CallTrace | Mark"])
    ended_at: float | None = None
    sources: tuple[Source, ...] = ()

    @property
    def calls(self) -> list[CallTrace]:
        return [item for item in self.items if isinstance(item, CallTrace)]

    @property
    def marks(self) -> list[Mark]:
        return [item for item in self.items if isinstance(item, Mark)]

    @property
    def spent(self) -> Usage:
        """All that the step took."""
        return total((self.usage, self.wasted)) if self.wasted.total_tokens else self.usage

    @property
    def failures(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.error]


class Trace(Struct):
    """One run. `before` is what happened ahead of the first step; `ended` is the terminal event, if there is one.

    `short` is the last time that a budget had no room.
    """

    run_id: str
    agent: str = ""
    namespace: str = "default"
    input: str = ""
    fork: e.Fork | None = None
    identity: Identity = NOBODY
    task: str = ""
    created_at: float = 0.0
    last_at: float = 0.0
    attempts: int = 0
    worker: str = ""
    before: list[Mark] = field(default_factory=list[Mark])
    steps: list[StepTrace] = field(default_factory=list[StepTrace])
    waiting: e.RunWaiting | None = None
    waiting_since: float | None = None
    short: e.BudgetExceeded | None = None
    ended: e.Terminal | None = None
    waited: float = 0.0
    idle: float = 0.0
    usage: Usage = Usage()
    events: int = 0

    @property
    def calls(self) -> list[CallTrace]:
        return [call for step in self.steps for call in step.calls]

    @property
    def marks(self) -> list[Mark]:
        return [*self.before, *(mark for step in self.steps for mark in step.marks)]

    @property
    def seconds(self) -> float:
        """From the first fact to the last one."""
        return self.last_at - self.created_at

    def call(self, call_id: str) -> CallTrace | None:
        return next((call for call in self.calls if call.id == call_id), None)


def total(usages: Iterable[Usage]) -> Usage:
    """The sum. Its cost is None when the price of any part is not known."""
    tokens: dict[str, int] = dict.fromkeys(_TOKENS, 0)
    cost: float | None = 0.0
    source: Literal["provider", "estimated"] = "provider"
    for usage in usages:
        for name in _TOKENS:
            tokens[name] += getattr(usage, name)
        if usage.cost_usd is None:
            cost = cost if not usage.total_tokens else None
        elif cost is not None:
            cost += usage.cost_usd
        if usage.source == "estimated":
            source = "estimated"
    given, written, read, put, thought, hour, web, files = (tokens[name] for name in _TOKENS)
    return Usage(given, written, read, put, thought, cost, source, hour, web, files)


_TOKENS: Final = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
    *("cache_write_1h_tokens", "web_searches", "file_searches"),
)
