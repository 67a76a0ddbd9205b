"""The messages of a task and what they took, counted: by agent, by edge, and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foliot.common.suggestions import read_phases
from foliot.server.http.names import parameters
from foliot.work.views.document import messages_of as task_messages
from foliot.work.views.story import MessageStory, TaskStory

PHASES: Final = ("queued", "running", "retrypending", "succeeded", "deadletter")
KNOWN: Final = (*PHASES, "waiting", "cancelled")
IN_FLIGHT: Final = ("queued", "running", "retrypending")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which messages; what is empty does not matter."""

    phases: tuple[str, ...] = ()
    sender: str = ""
    to: str = ""
    branch: str = ""
    trace: str = ""
    limit: int = 0

    def fits(self, message: dict[str, Any]) -> bool:
        return (
            (not self.sender or message["from_agent"] == self.sender)
            and (not self.to or message["to_agent"] == self.to)
            and (not self.branch or message["branch_id"] == self.branch)
            and (not self.trace or message["trace_id"] == self.trace)
        )


def chosen(
    phase: str | None,
    sender: str | None,
    to: str | None,
    branch: str | None,
    trace: str | None,
    limit: int | None = None,
) -> Chosen:
    """Raises `BadParameter` for a phase that there is not."""
    with parameters():
        phases = read_phases(phase or "", KNOWN)
    return Chosen(phases, sender or "", to or "", branch or "", trace or "", max(0, limit or 0))


def messages_of(story: TaskStory, which: Chosen) -> dict[str, Any]:
    """The chosen messages. Counts are of those before the phase was looked at."""
    every = task_messages(story)
    fitting = [each for each in every if which.fits(each)]
    counts = Counter(each["phase"] for each in fitting)
    shown = [each for each in fitting if not which.phases or each["phase"] in which.phases]
    if which.limit:
        shown = shown[-which.limit :]
    return {
        "name": story.info.name,
        "namespace": story.info.namespace,
        "total": len(shown),
        "filtered_from": len(every),
        "lifecycle_counts": {phase: counts.get(phase, 0) for phase in PHASES},
        "messages": shown,
    }


def metrics_of(story: TaskStory, which: Chosen, generated_at: str) -> dict[str, Any]:
    """Returns the metrics of the chosen messages."""
    pairs = [
        (each, shown)
        for each, shown in zip(story.messages.values(), task_messages(story), strict=True)
        if which.fits(shown) and (not which.phases or shown["phase"] in which.phases)
    ]
    edges = sorted({_edge(shown) for _, shown in pairs})
    agents = sorted({to for _, to in edges} | {sender for sender, _ in edges if sender})
    return {
        "name": story.info.name,
        "namespace": story.info.namespace,
        "generated_at": generated_at,
        "totals": {"messages": len(pairs), **_block(pairs)},
        "per_agent": [
            {
                "agent": agent,
                "inbound": sum(1 for _, shown in pairs if shown["to_agent"] == agent),
                "outbound": sum(1 for _, shown in pairs if shown["from_agent"] == agent),
                **_block([pair for pair in pairs if pair[1]["to_agent"] == agent]),
            }
            for agent in agents
        ],
        "per_edge": [
            {
                "from_agent": sender,
                "to_agent": to,
                "messages": sum(1 for _, shown in pairs if _edge(shown) == (sender, to)),
                **_block([pair for pair in pairs if _edge(pair[1]) == (sender, to)]),
            }
            for sender, to in edges
        ],
        "filters": {"phase_filtered": bool(which.phases)},
    }


def _edge(message: dict[str, Any]) -> tuple[str, str]:
    return message["from_agent"], message["to_agent"]


def _block(pairs: Iterable[tuple[MessageStory, dict[str, Any]]]) -> dict[str, Any]:
    pairs = list(pairs)
    counts = Counter(shown["phase"] for _, shown in pairs)
    taken = [each.ended_at - each.sent_at for each, _ in pairs if each.ended_at is not None]
    return {
        **{phase: counts.get(phase, 0) for phase in PHASES},
        "in_flight": sum(counts.get(phase, 0) for phase in IN_FLIGHT),
        "retry_count": sum(max(0, shown["attempts"] - 1) for _, shown in pairs),
        "deadletters": counts.get("deadletter", 0),
        "latency_ms_avg": round(1000 * sum(taken) / len(taken)) if taken else 0,
        "latency_ms_p95": _p95(taken),
        "latency_sample_size": len(taken),
    }


def _p95(seconds: Sequence[float]) -> int:
    """Returns the 95th percentile in milliseconds, by nearest rank."""
    if not seconds:
        return 0
    return round(1000 * sorted(seconds)[-(-95 * len(seconds) // 100) - 1])
