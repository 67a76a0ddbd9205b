"""A run that waits for a person, told in an answer.

The text is for whoever talks to the agent: often a customer, who has no shell and need not know of runs. What an
operator types is in the data, which a program shows to whom it chooses.
"""

from __future__ import annotations

from typing import Any

from foliot.common.text import one_line
from foliot.server.streams.pieces import Asked, Rested


def waiting_text(rested: Rested) -> str:
    """Describes the wait for whoever talks to the agent: what is asked, without a word on how it is run."""
    return "\n".join([one_line(_line(asked)) for asked in rested.asked] or ["This is not finished yet: it waits."])


def waiting_data(rested: Rested) -> dict[str, Any]:
    """Describes the wait for programs."""
    return {
        "type": "waiting",
        "message": rested.message,
        "for": [
            {
                "kind": asked.kind,
                "id": asked.id,
                "run_id": asked.run_id,
                "call_id": asked.call_id,
                "tool": asked.tool,
                "text": asked.text,
                "choices": list(asked.choices),
                "command": _command(asked),
            }
            for asked in rested.asked
        ],
    }


def _line(asked: Asked) -> str:
    match asked.kind:
        case "approval":
            return f"This waits until somebody has approved {asked.tool}."
        case "question":
            choices = f" ({' / '.join(asked.choices)})" if asked.choices else ""
            return f"{asked.text}{choices}"
        case "call":
            return f"{asked.tool} is for the client to call: send its result."
        case "decision":
            return f"This waits until somebody has looked what became of {asked.tool}."


def _command(asked: Asked) -> str:
    """Returns what an operator types; blank for a call that the client makes."""
    match asked.kind:
        case "approval":
            return f"foliot approvals approve {asked.id}"
        case "question":
            return f'foliot answer {asked.run_id} {asked.call_id} "…"'
        case "decision":
            return f"foliot settle {asked.run_id} {asked.call_id}"
        case "call":
            return ""
