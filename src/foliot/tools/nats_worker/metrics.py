"""Counters of a tool server, as a plain dict and in the text format that Prometheus reads.

Labels are bounded: a tool that nobody registered is counted as `_unknown`, whatever a caller named it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

PREFIX: Final = "foliot_tools_"
UNKNOWN_TOOL: Final = "_unknown"
BUCKETS: Final = tuple(0.001 * 2**power for power in range(12))

Labels: TypeAlias = tuple[tuple[str, str], ...]

_HELP: Final = {
    "executions_total": "Calls that were run, by how they ended.",
    "errors_total": "Calls that failed, by kind.",
    "timeout_total": "Calls that ran out of time.",
    "rejections_total": "Calls that were refused before they ran.",
    "outcome_total": "Results, by the way they came about.",
    "outcome_store_failures_total": "Failures of the store of outcomes.",
    "outcome_collisions_total": "Calls that reused an execution id for something else.",
    "result_publish_failures_total": "Results that could not be published.",
    "ambiguous_redeliveries_total": "Calls delivered again although nobody knows whether they took effect.",
    "poison_total": "Messages that could not be read as a call.",
    "outputs_dropped_total": "Pieces of output that nobody could be sent in time.",
}


class WorkerMetrics:
    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, int]] = {name: defaultdict(int) for name in _HELP}
        self._seconds: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self.registered = 0
        self.in_flight = 0

    def count(self, name: str, **labels: str) -> None:
        self._counters[name][tuple(sorted(labels.items()))] += 1

    def took(self, tool: str, seconds: float) -> None:
        counts = self._seconds.setdefault(tool, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._sums[tool] += seconds

    def value(self, name: str, **labels: str) -> int:
        """A counter, summed over every label that is not given."""
        wanted = set(labels.items())
        return sum(count for key, count in self._counters[name].items() if wanted <= set(key))

    def as_dict(self) -> dict[str, object]:
        counters = {
            name: [{"labels": dict(labels), "value": value} for labels, value in sorted(values.items())]
            for name, values in self._counters.items()
            if values
        }
        return {**counters, "registered": self.registered, "in_flight": self.in_flight}

    def as_text(self) -> str:
        """Formats the counters for a Prometheus scraper."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, values in self._counters.items():
            yield f"# HELP {PREFIX}{name} {_HELP[name]}"
            yield f"# TYPE {PREFIX}{name} counter"
            for labels, value in sorted(values.items()):
                yield f"{PREFIX}{name}{_written(labels)} {value}"
        for name, value in (("registered", self.registered), ("in_flight", self.in_flight)):
            yield f"# TYPE {PREFIX}{name} gauge"
            yield f"{PREFIX}{name} {value}"
        name = f"{PREFIX}execution_duration_seconds"
        yield f"# HELP {name} How long calls took."
        yield f"# TYPE {name} histogram"
        for tool, counts in sorted(self._seconds.items()):
            total = 0
            for bound, count in zip((*BUCKETS, None), counts, strict=True):
                total += count
                le = "+Inf" if bound is None else f"{bound:g}"
                yield f"{name}_bucket{_written((('le', le), ('tool_name', tool)))} {total}"
            yield f"{name}_sum{_written((('tool_name', tool),))} {self._sums[tool]:.6f}"
            yield f"{name}_count{_written((('tool_name', tool),))} {total}"


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
    return "{" + pairs + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- health ----------------------------------------------------------------------------------------------------------

# How a tool server is: its state with reasons, and how much it does, measured over the last minute.

State: TypeAlias = Literal["starting", "ready", "degraded", "draining", "stopped", "failed"]
WINDOW: Final = 60.0
_MOST_KEPT: Final = 10_000


class WorkerHealth:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: State = "stopped"
        self._reasons: dict[str, str] = {}
        self._started_at: float | None = None
        self._last_activity: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_MOST_KEPT)
        self.processed = 0
        self.errors = 0

    @property
    def state(self) -> State:
        return "degraded" if self._state == "ready" and self._reasons else self._state

    def become(self, state: State) -> None:
        if state == "ready":
            self._started_at = self._clock()
        self._state = state

    def trouble(self, what: str, reason: str) -> None:
        """Marks a part as failing, until `well` is reported for it."""
        self._reasons[what] = reason

    def well(self, what: str) -> None:
        self._reasons.pop(what, None)

    def took(self, size: int) -> None:
        """A message came in."""
        self._last_activity = self._clock()
        self._recent.append((self._last_activity, size))

    def as_dict(self) -> dict[str, Any]:
        now = self._clock()
        recent = [size for at, size in self._recent if now - at <= WINDOW]
        handled = self.processed + self.errors
        return {
            "component": "foliot-tools",
            "state": self.state,
            "healthy": self.state == "ready",
            "reasons": sorted(self._reasons.values()),
            "last_check": now,
            "uptime": 0.0 if self._started_at is None else now - self._started_at,
            "error_count": self.errors,
            "error_rate": self.errors / handled if handled else 0.0,
            "messages_per_second": len(recent) / WINDOW,
            "bytes_per_second": sum(recent) / WINDOW,
            "last_activity": self._last_activity,
        }
