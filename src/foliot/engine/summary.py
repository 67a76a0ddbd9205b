"""What listings show of a run, written whenever it changes phase."""

from __future__ import annotations

from typing import Any

from foliot.kernel.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded, Terminal
from foliot.kernel.state import State
from foliot.store.runs import Phase

LONGEST_PREVIEW = 200


def phase_of(terminal: Terminal) -> Phase:
    match terminal:
        case RunSucceeded():
            return "succeeded"
        case RunCancelled():
            return "cancelled"
        case RunFailed() | RunDeadLettered():
            return "failed"


def summary_of(state: State) -> dict[str, Any]:
    usage = state.spent.usage()
    summary: dict[str, Any] = {
        "steps": state.spent.steps,
        "tool_calls": state.spent.tool_calls,
        "tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
    }
    match state.ended:
        case RunSucceeded(output=output):
            summary["output"] = preview(output)
        case RunFailed() | RunDeadLettered() as failed:
            summary["error"] = preview(failed.message)
            summary["reason"] = failed.reason
        case RunCancelled() as cancelled:
            summary["reason"] = cancelled.reason
        case None if state.waiting is not None:
            waiting = state.waiting
            summary["waiting"] = {"reason": waiting.reason, "owner": waiting.owner, "until": waiting.until}
            if state.paused is not None:
                summary["waiting"]["budget"] = state.paused.budget
                summary["waiting"]["basis"] = state.paused.basis
        case None:
            pass
    return summary


def preview(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PREVIEW else line[: LONGEST_PREVIEW - 1] + "…"
