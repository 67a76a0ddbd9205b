"""Counts what runs of this process do, from the events that become durable.

A `Tally` hears every event once (`Hub.observe`) and touches nothing but its own dicts: no clock, no lock, no database.
Labels are bounded: of each sort only so many values are told apart, and the rest counts as `_other`; a tool that does
not exist counts as `_unknown`, whatever a model called it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from foliot.kernel.messages import Usage
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    Event,
    ModelDelayed,
    ModelFailed,
    ModelResponded,
    RunCancelled,
    RunClaimed,
    RunCreated,
    RunDeadLettered,
    RunFailed,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    SessionCompacted,
    ToolFinished,
)

OTHER: Final = "_other"
UNKNOWN_TOOL: Final = "_unknown"
MOST_VALUES: Final = 200
MOST_QUESTIONS: Final = 10_000

SHORT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONG: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)

Labels: TypeAlias = tuple[str, ...]


class BoundedLabel:
    """Tells so many values of a label apart, in the order in which they come."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class Spread:
    """How often a number fell between which bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Tally:
    """Counts by labels, each a dict of its own. Read them at any time; they only grow."""

    def __init__(self) -> None:
        self.events = 0
        self.runs_started = 0
        self.run_attempts = 0
        self.runs_ended: defaultdict[Labels, int] = defaultdict(int)
        self.run_retries: defaultdict[Labels, int] = defaultdict(int)
        self.run_waits: defaultdict[Labels, int] = defaultdict(int)
        self.steps: defaultdict[Labels, int] = defaultdict(int)
        self.tool_calls: defaultdict[Labels, int] = defaultdict(int)
        self.tokens: defaultdict[Labels, int] = defaultdict(int)
        self.cost: defaultdict[Labels, float] = defaultdict(float)
        self.unpriced: defaultdict[Labels, int] = defaultdict(int)
        self.wasted_tokens = 0
        self.wasted_cost = 0.0
        self.approvals_requested = 0
        self.approvals_decided: defaultdict[Labels, int] = defaultdict(int)
        self.budget_stops: defaultdict[Labels, int] = defaultdict(int)
        self.model_seconds: defaultdict[Labels, Spread] = defaultdict(lambda: Spread(SHORT))
        self.tool_seconds: defaultdict[Labels, Spread] = defaultdict(lambda: Spread(SHORT))
        self.approval_wait = Spread(LONG)
        self._models, self._tools, self._reasons = BoundedLabel(), BoundedLabel(), BoundedLabel()
        self._asked: dict[tuple[str, str], float] = {}
        self._by_type: dict[type[Any], Callable[[str, float, Any], None]] = {
            RunCreated: self._created,
            RunClaimed: self._claimed,
            RunSucceeded: self._ended,
            RunFailed: self._ended,
            RunCancelled: self._ended,
            RunDeadLettered: self._ended,
            RunRetried: self._retried,
            RunWaiting: self._waited,
            ModelResponded: self._responded,
            ModelFailed: self._failed,
            ModelDelayed: self._delayed,
            SessionCompacted: self._compacted,
            ToolFinished: self._called,
            ApprovalRequested: self._requested,
            ApprovalDecided: self._decided,
            BudgetExceeded: self._stopped,
        }

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        """One event of one run is durable."""
        self.events += 1
        count = self._by_type.get(type(event))
        if count is not None:
            count(run_id, at, event)

    # --- runs ----------------------------------------------------------------------------------------------------

    def _created(self, run_id: str, at: float, event: RunCreated) -> None:
        self.runs_started += 1

    def _claimed(self, run_id: str, at: float, event: RunClaimed) -> None:
        self.run_attempts += 1

    def _ended(self, run_id: str, at: float, event: RunSucceeded | RunFailed | RunCancelled | RunDeadLettered) -> None:
        match event:
            case RunSucceeded():
                outcome, reason = "succeeded", ""
            case RunCancelled():
                outcome, reason = "cancelled", ""  # what people say is no label
            case RunFailed():
                outcome, reason = "failed", self._reasons(event.reason)
            case RunDeadLettered():
                outcome, reason = "dead_lettered", self._reasons(event.reason)
        self.runs_ended[outcome, reason] += 1

    def _retried(self, run_id: str, at: float, event: RunRetried) -> None:
        self.run_retries[self._reasons(event.reason),] += 1

    def _waited(self, run_id: str, at: float, event: RunWaiting) -> None:
        self.run_waits[event.reason,] += 1

    def _stopped(self, run_id: str, at: float, event: BudgetExceeded) -> None:
        self.budget_stops[event.limit, event.then] += 1

    # --- steps and calls -----------------------------------------------------------------------------------------

    def _responded(self, run_id: str, at: float, event: ModelResponded) -> None:
        model = self._models(event.response.model)
        self.steps[model, "responded"] += 1
        if event.seconds is not None:
            self.model_seconds[model,].add(event.seconds)
        self._spent(model, event.response.usage)
        if event.wasted.total_tokens:
            self._spent(model, event.wasted)
            self._lost(event.wasted)

    def _failed(self, run_id: str, at: float, event: ModelFailed) -> None:
        self.steps["", self._reasons(event.kind)] += 1
        self._spent("", event.usage)
        self._lost(event.usage)

    def _delayed(self, run_id: str, at: float, event: ModelDelayed) -> None:
        if event.failed:
            self._failed(run_id, at, ModelFailed(event.step, event.failed, "", usage=event.usage))

    def _lost(self, usage: Usage) -> None:
        self.wasted_tokens += usage.total_tokens
        self.wasted_cost += usage.cost_usd or 0.0

    def _compacted(self, run_id: str, at: float, event: SessionCompacted) -> None:
        self._spent("", event.usage)

    def _spent(self, model: str, usage: Usage) -> None:
        for sort, number in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if number:
                self.tokens[model, sort] += number
        if usage.cost_usd is not None:
            self.cost[model,] += usage.cost_usd
        elif usage.total_tokens:
            self.unpriced[model,] += 1

    def _called(self, run_id: str, at: float, event: ToolFinished) -> None:
        error = event.result.error
        tool = UNKNOWN_TOOL if error is not None and error.kind == "unknown_tool" else self._tools(event.result.name)
        outcome = event.synthetic or ("ok" if error is None else "error")
        if error is not None and error.unknown:
            outcome = "unknown"
        self.tool_calls[tool, outcome] += 1
        if event.seconds is not None:
            self.tool_seconds[tool,].add(event.seconds)

    # --- approvals -----------------------------------------------------------------------------------------------

    def _requested(self, run_id: str, at: float, event: ApprovalRequested) -> None:
        self.approvals_requested += 1
        if len(self._asked) >= MOST_QUESTIONS:
            del self._asked[next(iter(self._asked))]  # the oldest: it was decided elsewhere, or never will be
        self._asked[run_id, event.call_id] = at

    def _decided(self, run_id: str, at: float, event: ApprovalDecided) -> None:
        self.approvals_decided[event.decision,] += 1
        asked = self._asked.pop((run_id, event.call_id), None)
        if asked is not None:  # asked while another process had the run: its beginning was not heard here
            self.approval_wait.add(max(0.0, at - asked))
