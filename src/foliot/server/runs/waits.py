"""A run that waits for a person, told in an answer: what it waits for, and how to let it go on."""

from __future__ import annotations

from typing import Any

from foliot.common.text import one_line
from foliot.server.streams.pieces import Asked, Rested


def waiting_text(rested: Rested, where: str) -> str:
    """Describes the wait for people."""
    lines = [one_line(_line(asked)) for asked in rested.asked] or [one_line(rested.message) or "It waits."]
    return "\n".join([f"Run {where} is not finished: it waits.", *lines])


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
            }
            for asked in rested.asked
        ],
    }


def _line(asked: Asked) -> str:
    match asked.kind:
        case "approval":
            return f"{asked.tool} needs an approval ({asked.text}): `foliot approvals approve {asked.id}`, or deny."
        case "question":
            choices = f" ({' / '.join(asked.choices)})" if asked.choices else ""
            return f'{asked.text}{choices} Answer with `foliot answer {asked.run_id} {asked.call_id} "…"`.'
        case "call":
            return f"{asked.tool} is for the client to call: send its result."
        case "decision":
            return f"{asked.tool}: {asked.text} Say so with `foliot settle {asked.run_id} {asked.call_id}`."
